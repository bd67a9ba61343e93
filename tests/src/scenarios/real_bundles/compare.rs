//! What of a config.json is no longer in an edited one.

use serde_json::Value;

/// The path of the first thing in `before` that `after` does not hold: every field with its value and in its order,
/// every element of a list in its order. More may be there. A GPU request of the image is answered by gpool.
pub fn what_is_lost(before: &Value, after: &Value) -> Option<String> {
    lost(before, after, "$")
}

fn lost(before: &Value, after: &Value, path: &str) -> Option<String> {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            let mut names = after.keys();
            before.iter().find_map(|(name, value)| {
                let path = format!("{path}.{name}");
                match names.any(|its| its == name) {
                    true => lost(value, &after[name], &path),
                    false => Some(path),
                }
            })
        }
        (Value::Array(before), Value::Array(after)) => {
            let mut rest = after.iter();
            let is_kept =
                |value: &&Value| !value.as_str().is_some_and(|text| text.starts_with("NVIDIA_VISIBLE_DEVICES="));
            let missing = before.iter().filter(is_kept).find(|value| !rest.any(|its| its == *value));
            missing.map(|value| format!("{path}[] {value}"))
        }
        // What is absent or null may be made.
        (Value::Null, _) => None,
        (before, after) => (before != after).then(|| path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn additions_are_fine_and_losses_are_named() {
        let before = json!({"a": 1, "list": [1, {"b": 2}], "none": null});
        assert_eq!(what_is_lost(&before, &json!({"a": 1, "list": [0, 1, {"b": 2}, 3], "none": {}, "c": 1})), None);
        for (after, path) in [
            (json!({"a": 2, "list": [1, {"b": 2}], "none": null}), "$.a"),
            (json!({"a": 1, "list": [{"b": 2}, 1], "none": null}), "$.list[] {\"b\":2}"),
            (json!({"list": [1, {"b": 2}], "a": 1, "none": null}), "$.list"),
            (json!({"a": 1, "list": [1, {"b": 2}]}), "$.none"),
        ] {
            assert_eq!(what_is_lost(&before, &after).as_deref(), Some(path));
        }
    }
}
