//! The keys of a table of types, from its JSON Schema.

use serde_json::Value;

/// Returns every key of a schema as `section.key`.
pub(super) fn all_keys(schema: &Value) -> Vec<String> {
    let mut keys = Vec::new();
    for (section, property) in schema["properties"].as_object().into_iter().flatten() {
        let text = property.to_string();
        let definition = schema["$defs"]
            .as_object()
            .into_iter()
            .flatten()
            .find(|(name, _)| text.contains(&format!("\"#/$defs/{name}\"")));
        match definition.map(|(_, definition)| schema_properties(definition)) {
            Some(names) if !names.is_empty() => {
                keys.extend(names.iter().map(|name| format!("{section}.{name}")))
            }
            _ => keys.push(section.clone()),
        }
    }
    keys
}

pub(super) fn schema_properties(schema: &Value) -> Vec<String> {
    schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
}
