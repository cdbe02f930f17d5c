//! The keys of a table of types, from its JSON Schema.

use serde_json::Value;

/// Returns every key of a schema as `section.key`.
pub(super) fn all_keys(schema: &Value) -> Vec<String> {
    let mut keys = Vec::new();
    for (section, property) in schema["properties"].as_object().into_iter().flatten() {
        match definition(schema, property).map(schema_properties) {
            Some(names) if !names.is_empty() => {
                for name in names {
                    let inner = &definition(schema, property).expect("it has names")["properties"][&name];
                    // Of the tables in sections, only this one has keys of its own; others are values.
                    let own = definition(schema, inner).filter(|_| name == "endpoint");
                    match own.map(schema_properties) {
                        Some(own) => keys.extend(own.iter().map(|key| format!("{section}.{name}.{key}"))),
                        None => keys.push(format!("{section}.{name}")),
                    }
                }
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
