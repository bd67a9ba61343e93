//! The JSON schema of the configuration (draft 2020-12), made from the defaults and the words of the shipped file.

use gpool_configuration::{
    Configuration, HANG_SECONDS_MAX, HOLD_SECONDS_MAX, HOLD_SECONDS_MIN, IDLE_SECONDS_MAX, NOTICE_SECONDS_MAX,
    PREEMPTION_SECONDS_MAX, RESERVATION_AHEAD_SECONDS_MAX, RESERVATION_GPUS_MAX, RUN_SECONDS_MAX, SHARES_MAX,
    SUPERVISOR_PATIENCE_SECONDS_MAX, SUPERVISOR_PATIENCE_SECONDS_MIN, catalogue, flat,
};
use serde_json::{Map, Value, json};

/// Keys with a fixed set of values, by the end of their names; a test holds them against the parser.
pub const CHOICES: [(&str, &[&str]); 13] = [
    ("driver.compat", &["host", "image"]),
    ("liar_action", &["event", "debt"]),
    ("bypass_action", &["event", "freeze", "revoke", "kill"]),
    ("hang_action", &["event", "stop"]),
    ("failed_action", &["event", "stop"]),
    ("idle_action", &["event", "yield", "suspend", "revoke"]),
    ("latency.action", &["event", "close", "hold"]),
    ("preemption.action", &["revoke", "suspend"]),
    ("preemption.signal", &["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "none"]),
    ("run_time.signal", &["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "none"]),
    ("policy.classes", &["latency", "batch", "notebook", "train"]),
    ("default_request.class", &["latency", "batch", "notebook", "train"]),
    ("default_request.priority", &["guaranteed", "burst", "scavenger"]),
];

/// The schema as it is published.
#[must_use]
pub fn text() -> String {
    format!("{:#}\n", schema())
}

fn schema() -> Value {
    let mut root = object();
    let defaults = flat(&Configuration::default());
    for key in catalogue() {
        let of_class = key.name.strip_prefix("class.").and_then(|rest| rest.split_once('.'));
        let about = match of_class {
            // The words stand with the first class.
            Some((_, last)) => {
                let first = catalogue().into_iter().find(|other| other.name == format!("class.latency.{last}"));
                first.map_or(key.about, |first| first.about)
            }
            None => key.about,
        };
        let mut described = value_schema(&key.name, defaults.get(&key.name));
        described.insert("description".into(), about.join(" ").trim_end_matches(':').into());
        if let Some(default) = defaults.get(&key.name).filter(|_| key.default.is_some()) {
            described.insert("default".into(), serde_json::to_value(default).unwrap_or_default());
        }
        insert(&mut root, &key.name, described);
    }
    root.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
    root.insert("title".into(), "/etc/gpool/config.toml".into());
    Value::Object(root)
}

fn object() -> Map<String, Value> {
    let empty = json!({"type": "object", "additionalProperties": false, "properties": {}});
    empty.as_object().cloned().unwrap_or_default()
}

fn insert(table: &mut Map<String, Value>, name: &str, described: Map<String, Value>) {
    let Some(Value::Object(properties)) = table.get_mut("properties") else { return };
    match name.split_once('.') {
        None => drop(properties.insert(name.to_owned(), Value::Object(described))),
        Some((first, rest)) => {
            let inner = properties.entry(first).or_insert_with(|| Value::Object(object()));
            if let Value::Object(inner) = inner {
                insert(inner, rest, described);
            }
        }
    }
}

/// GPUs with three decimals: in quotes, or as a whole number.
fn gpus_schema() -> Value {
    json!({"type": ["string", "integer"], "pattern": "^[0-9]+([.][0-9]{1,3})?$", "minimum": 0})
}

/// A size with its unit in quotes, or bytes.
fn memory_schema() -> Value {
    json!({"type": ["string", "integer"], "minimum": 1_048_576})
}

fn hours_schema() -> Value {
    json!({"type": "string", "pattern": "^[0-9]+([.][0-9]{1,3})? */ *(day|week|month)$"})
}

/// What is kept free of which GPUs, for whom and when.
fn reservation_schema() -> Value {
    let moment =
        json!({"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2})?)?$"});
    json!({"type": "object", "additionalProperties": {"type": "object", "additionalProperties": false, "properties": {
        "teams": {"type": "array", "items": {"type": "string"}},
        "users": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "priority": {"enum": ["guaranteed", "burst"]},
        "gpus": {"type": "integer", "minimum": 1, "maximum": RESERVATION_GPUS_MAX, "default": 1},
        "fraction": part_schema(),
        "memory": memory_schema(),
        "model": {"type": "string"},
        "from": moment, "until": moment,
        "windows": {"type": "array", "items": {"type": "string"}},
        "ahead_seconds": {"type": "integer", "minimum": 0, "maximum": RESERVATION_AHEAD_SECONDS_MAX, "default": 0}}}})
}

fn part_schema() -> Value {
    json!({"type": ["string", "integer"], "pattern": "^(0([.][0-9]{1,3})?|1([.]0{1,3})?)$", "minimum": 0, "maximum": 1})
}

/// What an hour costs, of what, for whom and from when on.
fn price_schema() -> Value {
    json!({"type": "array", "items": {"type": "object", "additionalProperties": false, "required": ["per_gpu_hour"],
        "properties": {
            "per_gpu_hour": {"type": ["string", "integer"], "pattern": "^[0-9]+([.][0-9]{1,6})?$", "minimum": 0},
            "model": {"type": "string"}, "team": {"type": "string"},
            "from": {"type": "string", "format": "date"}}}})
}

fn value_schema(name: &str, default: Option<&toml::Value>) -> Map<String, Value> {
    let choices = CHOICES.iter().find(|(end, _)| name.ends_with(end)).map(|(_, values)| json!(values));
    let schema = match (name, default) {
        ("driver.mount", _) => json!({"type": "array", "items": {"type": "object", "additionalProperties": false,
            "required": ["source"], "properties": {"source": {"type": "string"}, "destination": {"type": "string"},
            "read_only": {"type": "boolean", "default": false}}}}),
        ("quota.team" | "quota.user", _) => json!({"type": "object", "additionalProperties": {"type": "object",
            "additionalProperties": false, "properties": {"gpus": gpus_schema(), "memory": memory_schema(),
            "leases": {"type": "integer", "minimum": 0}, "gpu_hours": hours_schema(),
            "container_gpus": gpus_schema(), "container_memory": memory_schema()}}}),
        ("reservation", _) => reservation_schema(),
        ("team", _) => json!({"type": "object", "additionalProperties": {"type": "object",
            "additionalProperties": false, "properties": {"cost_center": {"type": "string"},
            "shares": {"type": "integer", "minimum": 1, "maximum": SHARES_MAX}}}}),
        ("rates.price", _) => price_schema(),
        ("rates.beyond_share" | "rates.low_priority" | "rates.lent_credit", _) => part_schema(),
        ("default_request.fraction", _) => part_schema(),
        ("default_request.memory" | "spill.memory" | "driver.min_memory", _) => memory_schema(),
        ("default_request.class" | "default_request.priority", _) => json!({"enum": choices}),
        (name, _) if name.starts_with("quota.") && name.ends_with("gpus") => gpus_schema(),
        (name, _) if name.starts_with("quota.") && name.ends_with("memory") => memory_schema(),
        (name, _) if name.starts_with("quota.") && name.ends_with(".gpu_hours") => hours_schema(),
        (_, Some(toml::Value::Array(values))) if values.first().is_some_and(toml::Value::is_integer) => {
            json!({"type": "array", "items": {"type": "integer", "minimum": 0}})
        }
        (_, Some(toml::Value::Array(_))) => match choices {
            Some(choices) => json!({"type": "array", "items": {"enum": choices}}),
            None => json!({"type": "array", "items": {"type": "string"}}),
        },
        (_, Some(toml::Value::String(_))) => match choices {
            Some(choices) => json!({"enum": choices}),
            None => json!({"type": "string"}),
        },
        (_, Some(toml::Value::Boolean(_))) => json!({"type": "boolean"}),
        ("mig.layout" | "mig.config", _) => json!({"type": "string"}),
        (name, _) if name.contains("hang_seconds") => {
            json!({"type": "integer", "minimum": 1, "maximum": HANG_SECONDS_MAX})
        }
        (name, _) if name.starts_with("preemption.") && name.ends_with("_seconds") => {
            json!({"type": "integer", "minimum": 0, "maximum": PREEMPTION_SECONDS_MAX})
        }
        ("latency.hold_seconds", _) => {
            json!({"type": "integer", "minimum": HOLD_SECONDS_MIN, "maximum": HOLD_SECONDS_MAX})
        }
        ("runtime.supervisor_patience_seconds", _) => {
            json!({"type": "integer", "minimum": SUPERVISOR_PATIENCE_SECONDS_MIN, "maximum": SUPERVISOR_PATIENCE_SECONDS_MAX})
        }
        ("run_time.notice_seconds", _) => json!({"type": "integer", "minimum": 0, "maximum": NOTICE_SECONDS_MAX}),
        (name, _) if name.ends_with("longest_run_seconds") => {
            json!({"type": "integer", "minimum": 1, "maximum": RUN_SECONDS_MAX})
        }
        (name, _) if name.ends_with("idle_seconds") => {
            json!({"type": "integer", "minimum": 1, "maximum": IDLE_SECONDS_MAX})
        }
        (name, _) if name.ends_with("idle_grace_seconds") => {
            json!({"type": "integer", "minimum": 0, "maximum": IDLE_SECONDS_MAX})
        }
        _ => json!({"type": "integer", "minimum": 0}),
    };
    schema.as_object().cloned().unwrap_or_default()
}
