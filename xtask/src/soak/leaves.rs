//! The leaves of a JSON text with numbers as written, so that a difference in the last bit shows.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Returns every leaf in order, with its path: (`metrics.reward`, `0.25`), (`parts[1].phase`, `"rollout"`).
///
/// An empty object or list is a leaf. `None` if the text is not JSON.
pub fn leaves(text: &str) -> Option<Vec<(String, String)>> {
    let mut found = Vec::new();
    walk(serde_json::from_str(text).ok()?, String::new(), &mut found)?;
    Some(found)
}

fn walk(value: &RawValue, path: String, found: &mut Vec<(String, String)>) -> Option<()> {
    match value.get() {
        text if text.starts_with('{') && text != "{}" => {
            for (key, value) in serde_json::from_str::<Members>(text).ok()?.0 {
                let path = if path.is_empty() { key } else { format!("{path}.{key}") };
                walk(value, path, found)?;
            }
        }
        text if text.starts_with('[') && text != "[]" => {
            let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            for (index, value) in items.into_iter().enumerate() {
                walk(value, format!("{path}[{index}]"), found)?;
            }
        }
        text => found.push((path, text.to_string())),
    }
    Some(())
}

/// Members of an object, in the order of the text.
struct Members<'t>(Vec<(String, &'t RawValue)>);

impl<'t> Deserialize<'t> for Members<'t> {
    fn deserialize<D: Deserializer<'t>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'t> Visitor<'t> for MembersVisitor {
    type Value = Members<'t>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<Members<'t>, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Members(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_have_paths_and_their_text() {
        let check = |text: &str, expect: &[(&str, &str)]| {
            let found = leaves(text).expect("it is JSON");
            let found: Vec<(&str, &str)> = found.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            assert_eq!(found, expect, "{text}");
        };
        check(
            r#"{"b":{"c":[1.50, {"d":"x\"y"}]},"a":1e-7}"#,
            &[("b.c[0]", "1.50"), ("b.c[1].d", r#""x\"y""#), ("a", "1e-7")],
        );
        check(r#"{"a":{},"b":[]}"#, &[("a", "{}"), ("b", "[]")]);
        check("null", &[("", "null")]);
        for bad in ["{", "{\"a\":1} x", "{\"a\" 1}", ""] {
            assert_eq!(leaves(bad), None, "{bad}");
        }
    }
}
