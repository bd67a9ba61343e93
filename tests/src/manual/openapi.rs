//! `docs/reference/openapi.json`, the socket's messages for programs: held against the supervisor's routes, and against
//! what a supervisor answers.

use super::repository;
use crate::failure::{Context, Result};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;

/// The document.
///
/// # Errors
/// When it cannot be read, or is no JSON.
pub fn document() -> Result<Value> {
    let path = repository().join("docs/reference/openapi.json");
    let text = fs::read_to_string(&path).context(path.display())?;
    serde_json::from_str(&text).context(path.display())
}

/// `METHOD /path/{id}` of every operation of the document.
#[must_use]
pub fn documented(document: &Value) -> BTreeSet<String> {
    let Some(paths) = document["paths"].as_object() else { return BTreeSet::new() };
    let operations = paths.iter().flat_map(|(path, operations)| {
        let methods = operations.as_object().into_iter().flat_map(|operations| operations.keys());
        methods.map(move |method| format!("{} {path}", method.to_ascii_uppercase()))
    });
    operations.filter(|operation| !operation.starts_with("PARAMETERS")).collect()
}

/// The same of every route that the supervisor answers, read from its source: the arms of the one `match` that knows
/// them, and the one that is answered line by line.
///
/// # Errors
/// When the source cannot be read.
pub fn answered() -> Result<BTreeSet<String>> {
    let path = repository().join("supervisor/src/http/routes.rs");
    let source = fs::read_to_string(&path).context(path.display())?;
    let arm = |line: &str| {
        let (method, rest) = line.trim_start().strip_prefix("(\"")?.split_once("\", [")?;
        let (parts, _) = rest.split_once("]) =>")?;
        let parts: Vec<String> = parts
            .split(", ")
            .map(|part| part.strip_prefix('"').map_or(format!("{{{part}}}"), |part| part.trim_end_matches('"').into()))
            .collect();
        Some(format!("{method} /{}", parts.join("/")))
    };
    let mut routes: BTreeSet<String> = source.lines().filter_map(arm).collect();
    let streamed = |line: &&str| line.contains("request.method ==") && line.contains("request.path ==");
    for line in source.lines().filter(streamed) {
        let words: Vec<&str> = line.split('"').collect();
        if let [_, method, _, path, ..] = words.as_slice() {
            routes.insert(format!("{method} {path}"));
        }
    }
    Ok(routes)
}

/// The schema of what an operation answers, of each line of a stream.
#[must_use]
pub fn answer_schema<'a>(document: &'a Value, method: &str, path: &str) -> &'a Value {
    let content = &document["paths"][path][method.to_ascii_lowercase()]["responses"]["200"]["content"];
    let first = content.as_object().and_then(|content| content.values().next());
    first.map_or(&Value::Null, |media| &media["schema"])
}

/// In which ways `value` is not what `schema` says. A field that the schema does not have counts: the document is to
/// name all of them.
#[must_use]
pub fn defects(document: &Value, schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    judge(document, schema, value, "", &mut found);
    found
}

fn judge(document: &Value, schema: &Value, value: &Value, place: &str, found: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let target = document.pointer(name.trim_start_matches('#'));
        return match target {
            Some(target) => judge(document, target, value, place, found),
            None => found.push(format!("{place}: {name} is not in the document")),
        };
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let fits = |choice: &&Value| defects(document, choice, value).is_empty();
        if !choices.iter().any(|choice| fits(&choice)) {
            found.push(format!("{place}: {value} is none of the {} forms", choices.len()));
        }
        return;
    }
    if let Some(values) = schema["enum"].as_array() {
        if !values.contains(value) {
            found.push(format!("{place}: {value} is none of {values:?}"));
        }
        return;
    }
    let is_of = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "null" => value.is_null(),
        _ => false,
    };
    let fits = match &schema["type"] {
        Value::String(name) => is_of(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).any(is_of),
        _ => false,
    };
    if !fits {
        return found.push(format!("{place}: {value} is not {}", schema["type"]));
    }
    for item in value.as_array().into_iter().flatten() {
        judge(document, &schema["items"], item, &format!("{place}[]"), found);
    }
    let Some(fields) = value.as_object() else { return };
    for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(required) {
            found.push(format!("{place}.{required} is missing"));
        }
    }
    for (name, field) in fields {
        let own = &schema["properties"][name];
        match (own, &schema["additionalProperties"]) {
            (Value::Null, Value::Null | Value::Bool(_)) => found.push(format!("{place}.{name} is not documented")),
            (Value::Null, any) => judge(document, any, field, &format!("{place}.{name}"), found),
            (own, _) => judge(document, own, field, &format!("{place}.{name}"), found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_documented_is_found() {
        let document = json!({"components": {"schemas": {"A": {"type": "object", "required": ["x"], "properties": {
            "x": {"type": ["integer", "null"]}, "kind": {"enum": ["a", "b"]}}}}}});
        let schema = json!({"type": "array", "items": {"$ref": "#/components/schemas/A"}});
        let of = |value: Value| defects(&document, &schema, &value);
        assert!(of(json!([{"x": 1, "kind": "a"}, {"x": null}])).is_empty());
        assert_eq!(of(json!([{"kind": "c", "y": 2}])).len(), 3);
        assert_eq!(of(json!({"x": 1})).len(), 1);
        assert_eq!(of(json!([{"x": 1.5}])).len(), 1);
    }
}
