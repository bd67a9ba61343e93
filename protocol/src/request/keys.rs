//! Which keys a container has in the end: of the environment, of its pod and its own.

use super::links::is_of_link;
use crate::counted::is_counted_annotation;
use crate::error::{ErrorBody, ErrorCode};
use crate::request::{ANNOTATION_PREFIX, ENV_PREFIX, RequestError};
use std::collections::BTreeMap;

/// Every key of the grammar, in the order of the documentation.
const KEYS: [&str; 20] = [
    "fraction",
    "limit",
    "memory",
    "spill",
    "gpus",
    "device",
    "model",
    "min-memory",
    "mode",
    "mig-profile",
    "isolation",
    "class",
    "p99",
    "priority",
    "team",
    "project",
    "cost-center",
    "wait",
    "run-time",
    "deadline",
];
/// `gpool.io/` annotations that gpool writes itself and that are no request.
const OWN_MARKS: [&str; 1] = ["injected"];
/// What asks for something by itself. The other keys say how what is asked for shall be.
const ASKING: [&str; 5] = ["fraction", "gpus", "mode", "mig-profile", "isolation"];
/// Two names with more wrong than one letter of so many have nothing to do with each other.
const LETTERS_FOR_A_SLIP: usize = 3;
/// A part of a name that is shorter says too little.
const TELLING: usize = 3;

/// Every key of the grammar.
pub fn request_keys() -> impl Iterator<Item = &'static str> {
    KEYS.into_iter()
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
    /// What the host has for whoever says nothing else of that, by key.
    pub defaults: &'a [(&'static str, String)],
}

impl RequestSource<'_> {
    /// Whether there is anything to read: a key that is for this container, or one that is nobody's. Without one gpool stays
    /// out of the way. This needs no configuration: `env_allow` is not looked at.
    pub fn has_request(&self) -> bool {
        refuse_misspelt(*self).is_err() || !remaining(*self).is_empty()
    }
}

/// Who wrote a key, in the order in which the later one wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The environment, which can be the image's.
    Env,
    /// An annotation, in a pod for all its containers.
    Annotation,
    /// An annotation of the pod for this container.
    OwnInPod,
    /// The host's configuration, behind all others.
    Host,
}

/// A key's value, how the person wrote the key, for messages, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub written_as: String,
    pub value: String,
    pub origin: Origin,
}

fn request_annotation(key: &str) -> Option<&str> {
    key.strip_prefix(ANNOTATION_PREFIX).filter(|name| !OWN_MARKS.contains(name))
}

/// `GPOOL_COST_CENTER=x` becomes `("cost-center", "x")`. What an engine tells of a Service or a link is no key.
fn env_key(entry: &str) -> Option<(String, &str)> {
    let (name, value) = entry.split_once('=')?;
    let name = name.strip_prefix(ENV_PREFIX).filter(|name| !is_of_link(name, value))?;
    Some((name.to_ascii_lowercase().replace('_', "-"), value))
}

/// What is asked for this container, by key; empty for one that asks for nothing.
///
/// # Errors
/// A key that is nobody's, one that the environment or an image's annotation may not set, or one for a container of a pod
/// where the engine does not say which of them this is.
pub fn collect(source: RequestSource<'_>) -> Result<BTreeMap<String, Entry>, RequestError> {
    refuse_misspelt(source)?;
    let entries = remaining(source);
    if entries.is_empty() {
        return Ok(entries);
    }
    for (key, written_as) in source.env.iter().filter_map(|raw| Some((env_key(raw)?.0, raw.split('=').next()?))) {
        if !source.env_allow.contains(&key) {
            return Err(ErrorBody::new(
                ErrorCode::RequestNotAllowedFromEnv,
                format!("{written_as} may not be set from the environment, because an image can carry it"),
                format!("use the annotation {ANNOTATION_PREFIX}{key}, or {}", allowing(&key)),
            ));
        }
    }
    if source.annotations_from_image {
        for (key, name) in source.annotations.keys().filter_map(|key| Some((key, request_annotation(key)?))) {
            refuse_what_an_image_may_not_ask(base_of(name), key, source.env_allow)?;
        }
    }
    Ok(entries)
}

/// Who writes the key alone there would take all others away.
fn allowing(key: &str) -> String {
    format!("add \"{key}\" to the list [policy.env] allow in /etc/gpool/config.toml, which replaces the default")
}

/// Whether a key says what a cluster has counted, as its device plugin does: in an annotation of one container, and none of a person.
pub fn is_counted(key: &str) -> bool {
    is_counted_annotation(&format!("{ANNOTATION_PREFIX}{key}"))
}

fn base_of(name: &str) -> &str {
    name.split_once('.').map_or(name, |(base, _)| base)
}

/// Refuses what means nothing for any container: gpool would otherwise pass by a container that was to have a share.
fn refuse_misspelt(source: RequestSource<'_>) -> Result<(), RequestError> {
    for raw in source.env {
        let Some((key, _)) = env_key(raw) else { continue };
        refuse_unknown(&key, raw.split('=').next().unwrap_or_default())?;
    }
    for key in source.annotations.keys() {
        let Some(name) = request_annotation(key) else { continue };
        if is_counted(name) {
            continue;
        }
        let base = base_of(name);
        refuse_unknown(base, key)?;
        if name != base && source.container_name.is_none() {
            return Err(ErrorBody::new(
                ErrorCode::RequestInvalid,
                format!("{key} is for one container of a pod, and the engine does not say which container this is"),
                format!("write {ANNOTATION_PREFIX}{base}, which is for every container"),
            ));
        }
    }
    Ok(())
}

/// What is left when the environment, annotations and those for this container of its pod have been laid over each other.
/// Annotations come from the person who starts the container and win over env. An empty value for this container takes
/// away what holds for all of them, and what holds for all of them asks for nothing without a share.
fn remaining(source: RequestSource<'_>) -> BTreeMap<String, Entry> {
    let env = source.env.iter().filter_map(|raw| {
        let (key, value) = env_key(raw)?;
        let written_as = raw.split('=').next().unwrap_or_default().to_owned();
        Some((key, Entry { written_as, value: value.to_owned(), origin: Origin::Env }))
    });
    let mut entries: BTreeMap<String, Entry> = env.collect();
    let mut own = Vec::new();
    for (key, value) in source.annotations {
        let Some(name) = request_annotation(key) else { continue };
        let entry = |origin| Entry { written_as: key.clone(), value: value.clone(), origin };
        match name.split_once('.').filter(|_| !is_counted(name)) {
            None => {
                entries.insert(name.to_owned(), entry(Origin::Annotation));
            }
            Some((base, container)) if source.container_name == Some(container) => {
                own.push((base.to_owned(), entry(Origin::OwnInPod)));
            }
            Some(_) => {}
        }
    }
    entries.extend(own);
    entries.retain(|_, entry| entry.origin != Origin::OwnInPod || !entry.value.trim().is_empty());
    let asks = |(key, entry): (&String, &Entry)| {
        entry.origin != Origin::Annotation || ASKING.contains(&key.as_str()) || is_counted(key)
    };
    // What is for each container of a pod is for those that have a share. One that has none, as others add it to the pod, has nothing.
    if source.container_name.is_some() && !entries.iter().any(asks) {
        entries.clear();
    }
    for (key, value) in source.defaults {
        let entry =
            || Entry { written_as: format!("default_request.{key}"), value: value.clone(), origin: Origin::Host };
        entries.entry((*key).to_owned()).or_insert_with(entry);
    }
    entries
}

/// Where a key of this container stands beside those of its pod, a contradiction may be the pod's and not the container's.
pub fn explain_replacing(
    error: RequestError,
    entries: &BTreeMap<String, Entry>,
    container_name: Option<&str>,
) -> RequestError {
    let has = |origin| entries.values().any(|entry| entry.origin == origin);
    let Some(name) = container_name.filter(|_| has(Origin::OwnInPod) && has(Origin::Annotation)) else { return error };
    let remedy =
        format!("{}; an empty {ANNOTATION_PREFIX}KEY.{name} takes the pod's KEY away for this container", error.remedy);
    ErrorBody { remedy, ..error }
}

/// What else to do about a key that is the pod's, in a container that was to have no share.
pub fn for_another(container_name: &str) -> String {
    format!(
        "; or if container {container_name} is to have no share write {ANNOTATION_PREFIX}KEY.CONTAINER, with the name of the one that \
         has, in place of the pod's key"
    )
}

/// The engine does not tell an image's annotation from a person's.
fn refuse_what_an_image_may_not_ask(key: &str, written_as: &str, allow: &[String]) -> Result<(), RequestError> {
    if allow.iter().any(|allowed| allowed == key) {
        return Ok(());
    }
    Err(ErrorBody::new(
        ErrorCode::RequestNotAllowedFromEnv,
        format!("{written_as} may not be set by an annotation under this podman, because an image can carry it"),
        format!("use a newer podman, or {}", allowing(key)),
    ))
}

fn refuse_unknown(key: &str, written_as: &str) -> Result<(), RequestError> {
    if KEYS.contains(&key) {
        return Ok(());
    }
    let remedy = match meant(key) {
        Some(known) => format!("did you mean {known}?"),
        None => format!("the keys are {}", KEYS.join(", ")),
    };
    Err(ErrorBody::new(ErrorCode::RequestKeyUnknown, format!("{written_as} is no key of gpool"), remedy))
}

/// The key that somebody probably meant: one that is cut short, `mem` or `profile`, or else one with a slip or two.
fn meant(key: &str) -> Option<&'static str> {
    let begins = |word: &str| word.starts_with(key);
    let is_cut_short = |known: &&str| key.len() >= TELLING && (begins(known) || known.split('-').any(begins));
    let distance = |known: &&str| strsim::levenshtein(known, key);
    let is_near = |known: &&str| distance(known) <= (key.len() / LETTERS_FOR_A_SLIP).max(1);
    let nearest = || KEYS.into_iter().min_by_key(distance).filter(is_near);
    KEYS.into_iter().find(is_cut_short).or_else(nearest)
}
