//! The keys of a table of types, from its JSON Schema.

use serde_json::Value;

/// Returns every key of a schema as `section.key`.
pub(super) fn all_keys(schema: &Value) -> Vec<String> {
    let mut keys = Vec::new();
    for (section, property) in schema["properties"].as_object().into_iter().flatten() {
        match definition(schema, property).map(schema_properties) {
            Some(names) if !names.is_empty() => {
                keys.extend(names.iter().map(|name| format!("{section}.{name}")))
            }
            _ => keys.push(section.clone()),
        }
    }
    keys
}

/// Returns what a property refers to, if it is a table of its own.
pub(super) fn definition<'s>(schema: &'s Value, property: &Value) -> Option<&'s Value> {
    let text = property.to_string();
    let is_named = |(name, _): &(&String, &Value)| text.contains(&format!("\"#/$defs/{name}\""));
    schema["$defs"].as_object()?.iter().find(is_named).map(|(_, definition)| definition)
}

pub(super) fn schema_properties(schema: &Value) -> Vec<String> {
    schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
}
