//! The request grammar: which keys a container may carry, and what their values mean.

use crate::error::{ErrorBody, ErrorCode};
use crate::quantity::{MemoryCap, parse_permille};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Annotations that gpool reads start with this.
pub const ANNOTATION_PREFIX: &str = "gpool.io/";
/// Environment variables that gpool reads start with this.
pub const ENV_PREFIX: &str = "GPOOL_";

/// Keys whose feature works today, in the order of the documentation.
const LANDED: [&str; 6] = ["fraction", "memory", "gpus", "mode", "class", "priority"];
/// Keys that the grammar knows and that are refused by name until their feature lands.
const PLANNED: [&str; 10] =
    ["limit", "model", "min-memory", "mig-profile", "isolation", "team", "project", "cost-center", "wait", "profile"];
/// `gpool.io/` annotations that gpool writes itself and that are no request.
const OWN_MARKS: [&str; 1] = ["injected"];

/// A refused request; its text names the key, the value and the remedy.
pub type RequestError = ErrorBody;

/// What a container asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Guaranteed share of one GPU's compute, in permille (10 to 1000).
    pub fraction_permille: u16,
    /// Cap on device memory, contexts included; absent: fraction x the GPU's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryCap>,
}

/// Where the keys of a container are read from.
#[derive(Debug, Clone, Copy)]
pub struct RequestSource<'a> {
    /// The annotations of config.json.
    pub annotations: &'a BTreeMap<String, String>,
    /// `process.env` of config.json, `NAME=value` each. The last occurrence of a name counts.
    pub env: &'a [String],
    /// Keys that the environment may set (`[policy.env] allow`): an image can carry env, so it is bounded.
    pub env_allow: &'a [String],
    /// The container's name in its pod, for `gpool.io/NAME.CONTAINER`.
    pub container_name: Option<&'a str>,
}

impl RequestSource<'_> {
    /// Whether the container carries any key at all; without one gpool stays out of the way.
    pub fn has_request(&self) -> bool {
        let annotated = self.annotations.keys().any(|key| request_annotation(key).is_some());
        annotated || self.env.iter().any(|entry| env_key(entry).is_some())
    }
}

fn request_annotation(key: &str) -> Option<&str> {
    key.strip_prefix(ANNOTATION_PREFIX).filter(|name| !OWN_MARKS.contains(name))
}

/// `GPOOL_COST_CENTER=x` becomes `("cost-center", "x")`.
fn env_key(entry: &str) -> Option<(String, &str)> {
    let (name, value) = entry.split_once('=')?;
    Some((name.strip_prefix(ENV_PREFIX)?.to_ascii_lowercase().replace('_', "-"), value))
}

/// A key's value and how the person wrote the key, for messages.
struct Entry {
    written_as: String,
    value: String,
}

impl Request {
    /// Reads the request of a container, or none when it carries no key.
    ///
    /// # Errors
    /// An unknown key, a key whose feature has not landed, a key that the environment may not set, or a
    /// value outside its range. Nothing is guessed: a mistyped key must not silently give another share.
    pub fn read(source: RequestSource<'_>) -> Result<Option<Self>, RequestError> {
        if !source.has_request() {
            return Ok(None);
        }
        let entries = collect(source)?;
        for (key, entry) in &entries {
            refuse_what_has_not_landed(key, entry)?;
        }
        let Some(fraction) = entries.get("fraction") else {
            let present: Vec<&str> = entries.values().map(|entry| entry.written_as.as_str()).collect();
            return Err(ErrorBody::new(
                ErrorCode::RequestInvalid,
                format!("{} given, but no fraction", present.join(", ")),
                "add GPOOL_FRACTION or the annotation gpool.io/fraction, for example 0.3",
            ));
        };
        let fraction_permille =
            parse_permille(&fraction.value).map_err(|cause| invalid(fraction, &cause.to_string()))?;
        let memory = match entries.get("memory") {
            Some(entry) => Some(MemoryCap::parse(&entry.value).map_err(|cause| invalid(entry, &cause.to_string()))?),
            None => None,
        };
        Ok(Some(Self { fraction_permille, memory }))
    }
}

fn invalid(entry: &Entry, expected: &str) -> RequestError {
    ErrorBody::new(ErrorCode::RequestInvalid, format!("{}={:?} is not valid", entry.written_as, entry.value), expected)
}

fn collect(source: RequestSource<'_>) -> Result<BTreeMap<String, Entry>, RequestError> {
    let mut entries = BTreeMap::new();
    for raw in source.env {
        let Some((key, value)) = env_key(raw) else { continue };
        let written_as = raw.split('=').next().unwrap_or_default().to_owned();
        refuse_unknown(&key, &written_as)?;
        // A key that would be refused as an annotation too says so at once.
        if !source.env_allow.contains(&key) && !PLANNED.contains(&key.as_str()) {
            return Err(ErrorBody::new(
                ErrorCode::RequestNotAllowedFromEnv,
                format!("{written_as} may not be set from the environment, because an image can carry it"),
                format!("use the annotation {ANNOTATION_PREFIX}{key}, or allow it in [policy.env]"),
            ));
        }
        entries.insert(key, Entry { written_as, value: value.to_owned() });
    }
    // Annotations come from the person who starts the container and win over env; a key for this
    // container of a pod wins over a key for all of them.
    let mut own = Vec::new();
    for (key, value) in source.annotations {
        let Some(name) = request_annotation(key) else { continue };
        let entry = Entry { written_as: key.clone(), value: value.clone() };
        match name.split_once('.') {
            None => {
                refuse_unknown(name, key)?;
                entries.insert(name.to_owned(), entry);
            }
            Some((base, container)) => {
                refuse_unknown(base, key)?;
                if source.container_name == Some(container) {
                    own.push((base.to_owned(), entry));
                }
            }
        }
    }
    entries.extend(own);
    Ok(entries)
}

fn refuse_unknown(key: &str, written_as: &str) -> Result<(), RequestError> {
    if LANDED.contains(&key) || PLANNED.contains(&key) {
        return Ok(());
    }
    let nearest = LANDED.iter().chain(PLANNED.iter()).min_by_key(|known| edit_distance(known, key));
    let remedy = match nearest {
        Some(known) if edit_distance(known, key) <= 3 => format!("did you mean {known}?"),
        _ => format!("the keys are {}", LANDED.join(", ")),
    };
    Err(ErrorBody::new(ErrorCode::RequestKeyUnknown, format!("{written_as} is no key of gpool"), remedy))
}

/// Keys with a single value that works today are checked here, so that nothing is silently ignored.
fn refuse_what_has_not_landed(key: &str, entry: &Entry) -> Result<(), RequestError> {
    let accepted: &[&str] = match key {
        "mode" => &["auto", "slice"],
        "class" => &["batch"],
        "priority" => &["guaranteed"],
        "gpus" => &["1"],
        planned if PLANNED.contains(&planned) => &[],
        _ => return Ok(()),
    };
    if accepted.contains(&entry.value.trim()) {
        return Ok(());
    }
    let remedy = match accepted {
        [] => format!("remove {}", entry.written_as),
        values => format!("{} can be {} for now", entry.written_as, values.join(" or ")),
    };
    let what = format!("{}={:?} asks for a feature that this version does not have", entry.written_as, entry.value);
    Err(ErrorBody::new(ErrorCode::RequestFeatureMissing, what, remedy))
}

/// Levenshtein distance, for suggestions.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(annotations: &[(&str, &str)], env: &[&str], name: Option<&str>) -> Result<Option<Request>, RequestError> {
        let annotations = annotations.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let env: Vec<String> = env.iter().map(|s| s.to_string()).collect();
        let allow = ["fraction", "memory"].map(String::from);
        Request::read(RequestSource { annotations: &annotations, env: &env, env_allow: &allow, container_name: name })
    }

    #[test]
    fn no_key_is_no_request() {
        assert_eq!(read(&[("other.io/fraction", "1"), ("gpool.io/injected", "x")], &["PATH=/bin"], None), Ok(None));
    }

    #[test]
    fn an_annotation_wins_over_env_and_the_containers_own_over_the_pods() {
        let env = ["GPOOL_FRACTION=0.3", "GPOOL_MEMORY=4GiB"];
        let got = read(&[("gpool.io/fraction", "0.5")], &env, None).unwrap().unwrap();
        assert_eq!(got, Request { fraction_permille: 500, memory: Some(MemoryCap::Bytes(4 << 30)) });
        let pod = [("gpool.io/fraction", "0.5"), ("gpool.io/fraction.web", "0.2"), ("gpool.io/fraction.db", "0.1")];
        assert_eq!(read(&pod, &[], Some("web")).unwrap().unwrap().fraction_permille, 200);
        assert_eq!(read(&pod, &[], Some("other")).unwrap().unwrap().fraction_permille, 500);
    }

    #[test]
    fn the_last_of_two_equal_env_names_counts() {
        assert_eq!(
            read(&[], &["GPOOL_FRACTION=1", "GPOOL_FRACTION=0.3"], None).unwrap().unwrap().fraction_permille,
            300
        );
    }

    #[test]
    fn refusals_name_the_key_and_the_remedy() {
        let typo = read(&[("gpool.io/fractoin", "0.3")], &[], None).unwrap_err();
        assert_eq!(typo.code, ErrorCode::RequestKeyUnknown);
        assert!(typo.to_string().contains("did you mean fraction?"), "{typo}");
        let value = read(&[], &["GPOOL_FRACTION=1.5"], None).unwrap_err();
        assert!(value.to_string().contains("GPOOL_FRACTION=\"1.5\""), "{value}");
        let planned = read(&[("gpool.io/fraction", "0.3"), ("gpool.io/limit", "0.5")], &[], None).unwrap_err();
        assert_eq!(planned.code, ErrorCode::RequestFeatureMissing);
        let env = read(&[], &["GPOOL_FRACTION=0.3", "GPOOL_PRIORITY=guaranteed"], None).unwrap_err();
        assert_eq!(env.code, ErrorCode::RequestNotAllowedFromEnv);
        let memory_only = read(&[], &["GPOOL_MEMORY=4GiB"], None).unwrap_err();
        assert!(memory_only.to_string().contains("no fraction"), "{memory_only}");
    }

    #[test]
    fn no_refusal_holds_a_phrase_that_engines_turn_into_something_else() {
        for error in
            [read(&[("gpool.io/x", "1")], &[], None), read(&[], &["GPOOL_FRACTION=no such file or directory"], None)]
        {
            let text = error.unwrap_err();
            assert!(!text.message.contains("permission denied"), "{text}");
        }
    }
}
