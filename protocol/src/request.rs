//! The request grammar: which keys a container may carry, and what their values mean.

use crate::class::{Class, Priority};
use crate::error::{ErrorBody, ErrorCode};
use crate::quantity::{MemoryCap, format_permille, parse_permille};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Annotations that gpool reads start with this.
pub const ANNOTATION_PREFIX: &str = "gpool.io/";
/// Environment variables that gpool reads start with this.
pub const ENV_PREFIX: &str = "GPOOL_";

/// Keys whose feature works today, in the order of the documentation.
const LANDED: [&str; 8] = ["fraction", "limit", "memory", "gpus", "mode", "class", "priority", "team"];
/// Keys that the grammar knows and that are refused by name until their feature lands.
const PLANNED: [&str; 8] =
    ["model", "min-memory", "mig-profile", "isolation", "project", "cost-center", "wait", "profile"];
/// `gpool.io/` annotations that gpool writes itself and that are no request.
const OWN_MARKS: [&str; 1] = ["injected"];

/// GPUs that one container can have.
pub const GPUS_LIMIT: u16 = 16;
/// A team's name is no longer, in bytes.
const TEAM_LENGTH: usize = 63;

/// A refused request; its text names the key, the value and the remedy.
pub type RequestError = ErrorBody;

/// What a container asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Share of each of its GPUs' compute, in permille (10 to 1000).
    pub fraction_permille: u16,
    /// The most that it may have of each GPU, in permille, not below the fraction; absent: idle time may be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_permille: Option<u16>,
    /// Cap on the memory of each GPU, contexts included; absent: fraction x the GPU's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryCap>,
    /// Number of GPUs, 1 to 16, all or none.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub gpus: u16,
    /// How it uses the GPU.
    #[serde(default, skip_serializing_if = "is_default")]
    pub class: Class,
    /// Before whom it is served.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// Who pays, and whose debts count as its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
}

fn one() -> u16 {
    1
}

fn is_one(gpus: &u16) -> bool {
    *gpus == 1
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
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
    /// Whether the engine may have copied annotations from the image: then they are bounded like `env`.
    pub annotations_from_image: bool,
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
        let request = Self {
            fraction_permille: permille(fraction)?,
            limit_permille: entries.get("limit").map(permille).transpose()?,
            memory: entries.get("memory").map(|entry| told(entry, MemoryCap::parse(&entry.value))).transpose()?,
            gpus: entries.get("gpus").map_or(Ok(1), |entry| told(entry, parse_gpus(&entry.value)))?,
            class: entries
                .get("class")
                .map_or(Ok(Class::default()), |entry| told(entry, Class::parse(&entry.value)))?,
            priority: entries
                .get("priority")
                .map_or(Ok(Priority::default()), |entry| told(entry, Priority::parse(&entry.value)))?,
            team: entries.get("team").map(|entry| told(entry, parse_team(&entry.value))).transpose()?,
        };
        request.check()?;
        Ok(Some(request))
    }

    /// Whether the values go together and lie in their ranges: what came over the socket may not have come from
    /// [`Request::read`].
    ///
    /// # Errors
    /// Names the first value that does not, and what it may be.
    pub fn check(&self) -> Result<(), RequestError> {
        let wrong = |message: String, remedy: &str| Err(ErrorBody::new(ErrorCode::RequestInvalid, message, remedy));
        if !(10..=1000).contains(&self.fraction_permille) {
            return wrong(
                format!("a fraction of {} cannot be", format_permille(self.fraction_permille.into())),
                "ask for a share between 0.01 and 1",
            );
        }
        check_limit(self.fraction_permille, self.limit_permille)?;
        if !(1..=GPUS_LIMIT).contains(&self.gpus) {
            return wrong(format!("gpus={} cannot be", self.gpus), "ask for 1 to 16 GPUs");
        }
        match self.team.as_deref().map(parse_team) {
            Some(Err(cause)) => wrong("the team's name is not valid".into(), &cause),
            _ => Ok(()),
        }
    }
}

/// Whether a ceiling goes with a share.
///
/// # Errors
/// Names both when the ceiling is below the share or above the whole GPU.
pub fn check_limit(fraction_permille: u16, limit_permille: Option<u16>) -> Result<(), RequestError> {
    let Some(limit) = limit_permille else { return Ok(()) };
    if (fraction_permille..=1000).contains(&limit) {
        return Ok(());
    }
    Err(ErrorBody::new(
        ErrorCode::RequestInvalid,
        format!(
            "a limit of {} does not go with a fraction of {}",
            format_permille(limit.into()),
            format_permille(fraction_permille.into())
        ),
        "give a limit between the fraction and 1, or none",
    ))
}

fn permille(entry: &Entry) -> Result<u16, RequestError> {
    told(entry, parse_permille(&entry.value))
}

fn told<T, E: ToString>(entry: &Entry, parsed: Result<T, E>) -> Result<T, RequestError> {
    parsed.map_err(|cause| invalid(entry, &cause.to_string()))
}

/// A plain number of GPUs.
fn parse_gpus(text: &str) -> Result<u16, String> {
    let text = text.trim();
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = text.parse().ok().filter(|gpus| digits && (1..=GPUS_LIMIT).contains(gpus));
    parsed.ok_or_else(|| "a number of GPUs lies between 1 and 16".to_owned())
}

/// A plain identifier, so that it can stand in file names, labels and tables as it is.
fn parse_team(text: &str) -> Result<String, String> {
    let text = text.trim();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let starts_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if starts_well && text.len() <= TEAM_LENGTH && text.bytes().all(plain) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "a team is at most {TEAM_LENGTH} letters, digits, dots, dashes and underscores, a letter or digit first"
    ))
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
        let base = name.split_once('.').map_or(name, |(base, _)| base);
        refuse_unknown(base, key)?;
        if source.annotations_from_image {
            refuse_what_an_image_may_not_ask(base, key, source.env_allow)?;
        }
        let entry = Entry { written_as: key.clone(), value: value.clone() };
        match name.split_once('.') {
            None => {
                entries.insert(name.to_owned(), entry);
            }
            Some((base, container)) => {
                if source.container_name == Some(container) {
                    own.push((base.to_owned(), entry));
                }
            }
        }
    }
    entries.extend(own);
    Ok(entries)
}

/// The engine does not tell an image's annotation from a person's.
fn refuse_what_an_image_may_not_ask(key: &str, written_as: &str, allow: &[String]) -> Result<(), RequestError> {
    if PLANNED.contains(&key) || allow.iter().any(|allowed| allowed == key) {
        return Ok(());
    }
    Err(ErrorBody::new(
        ErrorCode::RequestNotAllowedFromEnv,
        format!("{written_as} may not be set by an annotation under this podman, because an image can carry it"),
        "use a newer podman, or allow the key in [policy.env]",
    ))
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
        let allow = ["fraction", "memory", "limit", "gpus", "class"].map(String::from);
        Request::read(RequestSource {
            annotations: &annotations,
            env: &env,
            env_allow: &allow,
            container_name: name,
            annotations_from_image: false,
        })
    }

    fn share(fraction_permille: u16) -> Request {
        Request {
            fraction_permille,
            limit_permille: None,
            memory: None,
            gpus: 1,
            class: Class::Batch,
            priority: Priority::Guaranteed,
            team: None,
        }
    }

    #[test]
    fn no_key_is_no_request() {
        assert_eq!(read(&[("other.io/fraction", "1"), ("gpool.io/injected", "x")], &["PATH=/bin"], None), Ok(None));
    }

    #[test]
    fn an_annotation_wins_over_env_and_the_containers_own_over_the_pods() {
        let env = ["GPOOL_FRACTION=0.3", "GPOOL_MEMORY=4GiB"];
        let got = read(&[("gpool.io/fraction", "0.5")], &env, None).unwrap().unwrap();
        assert_eq!(got, Request { memory: Some(MemoryCap::Bytes(4 << 30)), ..share(500) });
        let pod = [("gpool.io/fraction", "0.5"), ("gpool.io/fraction.web", "0.2"), ("gpool.io/fraction.db", "0.1")];
        assert_eq!(read(&pod, &[], Some("web")).unwrap().unwrap().fraction_permille, 200);
        assert_eq!(read(&pod, &[], Some("other")).unwrap().unwrap().fraction_permille, 500);
    }

    #[test]
    fn annotations_that_an_image_may_carry_are_bounded_like_env() {
        let allow = ["fraction".to_owned()];
        let read = |pairs: &[(&str, &str)]| {
            let annotations = pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
            let source = RequestSource {
                annotations: &annotations,
                env: &[],
                env_allow: &allow,
                container_name: Some("web"),
                annotations_from_image: true,
            };
            Request::read(source)
        };
        assert_eq!(read(&[("gpool.io/fraction", "0.3")]).unwrap().unwrap(), share(300));
        for key in ["gpool.io/priority", "gpool.io/team", "gpool.io/memory", "gpool.io/priority.web"] {
            let error = read(&[("gpool.io/fraction", "0.3"), (key, "burst")]).unwrap_err();
            assert_eq!(error.code, ErrorCode::RequestNotAllowedFromEnv, "{error}");
            assert!(error.message.contains(key), "{error}");
        }
        let planned = read(&[("gpool.io/fraction", "0.3"), ("gpool.io/isolation", "x")]).unwrap_err();
        assert_eq!(planned.code, ErrorCode::RequestFeatureMissing);
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
        let planned = read(&[("gpool.io/fraction", "0.3"), ("gpool.io/wait", "5m")], &[], None).unwrap_err();
        assert_eq!(planned.code, ErrorCode::RequestFeatureMissing);
        let env = read(&[], &["GPOOL_FRACTION=0.3", "GPOOL_PRIORITY=guaranteed"], None).unwrap_err();
        assert_eq!(env.code, ErrorCode::RequestNotAllowedFromEnv);
        let memory_only = read(&[], &["GPOOL_MEMORY=4GiB"], None).unwrap_err();
        assert!(memory_only.to_string().contains("no fraction"), "{memory_only}");
    }

    #[test]
    fn every_key_that_works_is_read() {
        let annotations = [("gpool.io/priority", "burst"), ("gpool.io/team", "vision-2"), ("gpool.io/mode", "slice")];
        let env = ["GPOOL_FRACTION=0.25", "GPOOL_LIMIT=0.5", "GPOOL_GPUS=4", "GPOOL_CLASS=latency"];
        let want = Request {
            limit_permille: Some(500),
            gpus: 4,
            class: Class::Latency,
            priority: Priority::Burst,
            team: Some("vision-2".into()),
            ..share(250)
        };
        assert_eq!(read(&annotations, &env, None).unwrap(), Some(want));
    }

    #[test]
    fn values_out_of_range_are_refused_with_the_key_and_the_range() {
        for (key, value, want) in [
            ("limit", "0.2", "between the fraction and 1"),
            ("limit", "1.2", "between 0.01 and 1"),
            ("gpus", "0", "between 1 and 16"),
            ("gpus", "17", "between 1 and 16"),
            ("gpus", "+2", "between 1 and 16"),
            ("class", "fast", "latency, batch, notebook, train"),
            ("priority", "high", "guaranteed, burst, scavenger"),
            ("team", "", "a letter or digit first"),
            ("team", "../etc", "a letter or digit first"),
            ("team", "a b", "letters, digits"),
        ] {
            let key = format!("gpool.io/{key}");
            let error = read(&[("gpool.io/fraction", "0.3"), (&key, value)], &[], None).unwrap_err();
            assert_eq!(error.code, ErrorCode::RequestInvalid, "{error}");
            assert!(error.to_string().contains(want), "{error}");
        }
        assert!(parse_team(&"a".repeat(63)).is_ok() && parse_team(&"a".repeat(64)).is_err());
    }

    #[test]
    fn older_peers_are_understood_and_understand() {
        let old = r#"{"fraction_permille":300,"memory":{"bytes":4294967296}}"#;
        let request: Request = serde_json::from_str(old).unwrap();
        assert_eq!(request, Request { memory: Some(MemoryCap::Bytes(4 << 30)), ..share(300) });
        assert_eq!(serde_json::to_string(&request).unwrap(), old, "what an older supervisor knows is all there is");
    }

    #[test]
    fn what_came_over_the_socket_is_checked_again() {
        let wrong = [
            share(9),
            share(1001),
            Request { limit_permille: Some(299), ..share(300) },
            Request { gpus: 0, ..share(300) },
            Request { team: Some("a/b".into()), ..share(300) },
        ];
        assert!(share(300).check().is_ok());
        for request in wrong {
            assert_eq!(request.check().unwrap_err().code, ErrorCode::RequestInvalid, "{request:?}");
        }
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
