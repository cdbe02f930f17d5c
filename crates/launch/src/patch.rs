//! Reads what an administrator adds to a manifest: a merge patch in YAML. A document of `kind: PodTemplate` is merged
//! into the template of every pod, any other into the job.

use crate::patch_values::documents;
use plimsoll_base::{Error, Result};
use serde_json::Value;

/// The kind of a document that is about pods, as Kubernetes itself calls it.
const PODS: &str = "PodTemplate";

/// Merges the documents of a patch into a job. `kind`: the job's; `templates`: the paths of its pods' templates.
///
/// Errors: `launch-patch`.
pub(crate) fn apply(text: &str, kind: &str, job: &mut Value, templates: &[String]) -> Result<()> {
    let documents = documents(text)?;
    if documents.is_empty() {
        return Err(refused("it has no document").hint("write what to add, such as metadata.labels"));
    }
    for document in documents {
        let Value::Object(mut document) = document else {
            return Err(refused("a document is no map of keys").hint("write `key: value` lines"));
        };
        let own = document.remove("kind");
        document.remove("apiVersion");
        match own.as_ref().and_then(Value::as_str) {
            Some(PODS) => {
                let template = document.remove("template");
                if let Some(key) = document.keys().next() {
                    return Err(refused(&format!("a {PODS} has `template`, and here is `{key}`"))
                        .hint("put metadata and spec of the pods below `template`"));
                }
                let template = template.unwrap_or(Value::Null);
                for path in templates {
                    merge(job.pointer_mut(path).expect("the path of a template"), template.clone());
                }
            }
            Some(other) if other != kind => {
                return Err(refused(&format!("it is for a {other}, and the job is a {kind}"))
                    .hint(format!("write kind: {kind}, or kind: {PODS} for the pods")));
            }
            _ => {
                let value = Value::Object(document);
                if value.pointer("/metadata/name").is_some() {
                    return Err(refused("metadata.name names services and pods too").hint("give --name"));
                }
                merge(job, value);
            }
        }
    }
    Ok(())
}

/// Merges as RFC 7396 does: maps key by key, and null takes a key away. Lists of things with names, such as containers,
/// variables and volumes, are merged by name, as `kubectl patch` does; other lists are replaced.
fn merge(target: &mut Value, patch: Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                match value {
                    Value::Null => drop(target.remove(&key)),
                    value => merge(target.entry(key).or_insert(Value::Null), value),
                }
            }
        }
        (Value::Array(target), Value::Array(patch)) if are_named(target) && are_named(&patch) => {
            for item in patch {
                match target.iter_mut().find(|own| own["name"] == item["name"]) {
                    Some(own) => merge(own, item),
                    None => target.push(without_nulls(item)),
                }
            }
        }
        (target, patch) => *target = without_nulls(patch),
    }
}

/// Returns a value that has nothing to take keys away from.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, without_nulls(value)))
            .collect(),
        value => value,
    }
}

fn are_named(items: &[Value]) -> bool {
    items.iter().all(|item| item["name"].is_string())
}

fn refused(what: &str) -> Error {
    Error::usage("launch-patch", what.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job() -> Value {
        json!({
            "metadata": { "name": "first" },
            "spec": { "template": { "spec": {
                "containers": [{ "name": "train", "env": [{ "name": "A", "value": "1" }], "args": ["x"] }],
                "restartPolicy": "Never",
            } } },
        })
    }

    fn patched(text: &str) -> Result<Value> {
        let mut job = job();
        apply(text, "JobSet", &mut job, &["/spec/template".to_string()])?;
        Ok(job)
    }

    #[test]
    fn maps_and_named_lists_are_merged_and_null_takes_away() {
        let patch = "\
metadata:
  labels: {kueue.x-k8s.io/queue-name: gpus}
---
kind: PodTemplate
template:
  spec:
    restartPolicy: null
    tolerations: [{key: a}]
    containers:
      - name: train
        args: [a, b]
        env:
          - {name: A, value: '2'}
          - {name: B, value: '3'}
";
        let expect = json!({
            "metadata": { "name": "first", "labels": { "kueue.x-k8s.io/queue-name": "gpus" } },
            "spec": { "template": { "spec": {
                "containers": [{
                    "name": "train",
                    "env": [{ "name": "A", "value": "2" }, { "name": "B", "value": "3" }],
                    "args": ["a", "b"],
                }],
                "tolerations": [{ "key": "a" }],
            } } },
        });
        assert_eq!(patched(patch).unwrap(), expect);
    }

    #[test]
    fn a_patch_of_something_else_is_refused() {
        for (patch, words) in [
            ("", "no document"),
            ("- a\n", "no map"),
            ("kind: Pod\nspec: {}\n", "it is for a Pod"),
            ("kind: PodTemplate\nspec: {}\n", "here is `spec`"),
            ("metadata: {name: other}\n", "metadata.name"),
            ("a: yes\n", "line 1"),
        ] {
            let error = patched(patch).expect_err(patch);
            assert!(error.slug == "launch-patch" && error.message.contains(words), "{patch}: {error}");
        }
    }
}
