//! Getting at fields of config.json for a change, making what is absent or null on the way.

use gpool_protocol::{ErrorBody, ErrorCode};
use serde::Serialize;
use serde_json::{Map, Value};

/// The list at `path`, made if it is absent or null.
pub fn list<'a>(spec: &'a mut Value, path: &[&str]) -> Result<&'a mut Vec<Value>, ErrorBody> {
    let found = walk(spec, path, || Value::Array(Vec::new()))?;
    found.as_array_mut().ok_or_else(|| malformed(path, "list"))
}

/// The object at `path`, made if it is absent or null.
pub fn object<'a>(spec: &'a mut Value, path: &[&str]) -> Result<&'a mut Map<String, Value>, ErrorBody> {
    let found = walk(spec, path, || Value::Object(Map::new()))?;
    found.as_object_mut().ok_or_else(|| malformed(path, "object"))
}

fn walk<'a>(spec: &'a mut Value, path: &[&str], last: impl Fn() -> Value) -> Result<&'a mut Value, ErrorBody> {
    let mut here = spec;
    for (depth, key) in path.iter().enumerate() {
        let fields = here.as_object_mut().ok_or_else(|| malformed(&path[..depth], "object"))?;
        here = fields.entry(*key).or_insert(Value::Null);
        if here.is_null() {
            *here = if depth + 1 == path.len() { last() } else { Value::Object(Map::new()) };
        }
    }
    Ok(here)
}

/// A fragment built with the OCI crate's types, as the value that config.json holds.
pub fn fragment<Built: Serialize, Error: std::fmt::Display>(built: Result<Built, Error>) -> Result<Value, ErrorBody> {
    let broken = |error: &dyn std::fmt::Display| {
        ErrorBody::new(
            ErrorCode::SupervisorFailed,
            format!("an edit from the supervisor cannot be expressed in config.json ({error})"),
            "update gpool-runtime and gpool-supervisor to the same release",
        )
    };
    let built = built.map_err(|error| broken(&error))?;
    serde_json::to_value(built).map_err(|error| broken(&error))
}

fn malformed(path: &[&str], kind: &str) -> ErrorBody {
    let name = if path.is_empty() { "its top level".to_owned() } else { path.join(".") };
    ErrorBody::new(
        ErrorCode::BundleInvalid,
        format!("config.json is malformed: {name} is no {kind}"),
        "the container engine has to write a valid bundle",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::assert_presentable;
    use serde_json::json;

    #[test]
    fn what_is_absent_or_null_is_made_and_what_is_wrong_is_named() {
        for mut spec in [json!({}), json!({"a": null}), json!({"a": {"b": null}}), json!({"a": {"b": []}})] {
            list(&mut spec, &["a", "b"]).unwrap().push(json!(1));
            assert_eq!(spec, json!({"a": {"b": [1]}}));
        }
        for mut spec in [json!({"a": 1}), json!({"a": {"b": {}}}), json!([])] {
            assert_presentable(&list(&mut spec, &["a", "b"]).unwrap_err());
        }
        assert_presentable(&object(&mut json!({"a": []}), &["a"]).unwrap_err());
        assert_presentable(&fragment::<(), _>(Err("field missing")).unwrap_err());
    }
}
