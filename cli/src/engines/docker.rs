//! Docker's `daemon.json`: the text is edited in place, so that everything else in it stays byte for byte.

use super::{Defect, Entry, RUNTIME_NAME, path_text};
use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstObjectProp, CstRootNode};
use serde_json::{Map, Value};
use std::path::PathBuf;

const RUNTIMES: &str = "runtimes";
const DEFAULT: &str = "default-runtime";

/// What the text tells Docker of gpool.
pub fn entry(text: &str) -> Result<Option<Entry>, Defect> {
    let document = read(text)?;
    let Some(runtimes) = document.get(RUNTIMES) else { return Ok(None) };
    let Some(runtimes) = runtimes.as_object() else {
        return Err(Defect(format!("{RUNTIMES} is no object; Docker cannot read that either")));
    };
    let Some(ours) = runtimes.get(RUNTIME_NAME) else { return Ok(None) };
    // With arguments dockerd puts a shell script in front of the runtime, which loses quotes and the process.
    let strange = ours.as_object().and_then(|ours| ours.keys().find(|key| *key != "path"));
    if let Some(key) = strange {
        return Err(Defect(format!(
            "{RUNTIMES}.{RUNTIME_NAME}.{key} is set, and gpool-runtime takes its options from /etc/gpool/config.toml \
             alone; take {key} out"
        )));
    }
    let Some(path) = ours.get("path").and_then(Value::as_str) else {
        return Err(Defect(format!("{RUNTIMES}.{RUNTIME_NAME} has no path; take it out")));
    };
    let is_default = document.get(DEFAULT).and_then(Value::as_str) == Some(RUNTIME_NAME);
    Ok(Some(Entry { runtime: path.into(), is_default }))
}

/// The runtime of containers that name none, and its program where the text has that; none if the text names no default.
pub fn default_runtime(text: &str) -> Option<(String, Option<PathBuf>)> {
    let document = read(text).ok()?;
    let name = document.get(DEFAULT)?.as_str()?;
    let program = document.get(RUNTIMES).and_then(|runtimes| runtimes.get(name)?.get("path")?.as_str());
    Some((name.to_owned(), program.map(PathBuf::from)))
}

/// Whether `docker build` runs an image's steps with the default runtime, by the text and the first number of dockerd's version: the
/// classic builder does, BuildKit never. Since 23 that is the default.
pub fn builds_with_runtime(text: &str, version: Option<u32>) -> bool {
    let features = read(text).ok().and_then(|document| document.get("features").cloned()).unwrap_or_default();
    match features.get("buildkit").and_then(Value::as_bool) {
        Some(is_on) => !is_on,
        None => version.is_some_and(|version| version < 23),
    }
}

/// The text with the entry.
pub fn with_entry(text: Option<&str>, wanted: &Entry) -> Result<String, Defect> {
    let text = match text {
        Some(text) if !text.trim().is_empty() => text,
        _ => "{\n}\n",
    };
    if entry(text)?.as_ref() == Some(wanted) {
        return Ok(text.to_owned());
    }
    let path = path_text(&wanted.runtime)?;
    let (root, document) = tree(text)?;
    let runtimes = document.object_value_or_set(RUNTIMES);
    let ours = CstInputValue::Object(vec![("path".into(), path.into())]);
    match runtimes.get(RUNTIME_NAME) {
        Some(there) => there.set_value(ours),
        None => {
            runtimes.append(RUNTIME_NAME, ours);
        }
    }
    match (document.get(DEFAULT), wanted.is_default) {
        (Some(there), true) => there.set_value(RUNTIME_NAME.into()),
        (None, true) => {
            document.append(DEFAULT, RUNTIME_NAME.into());
        }
        (Some(there), false) if is_ours(&there) => there.remove(),
        (_, false) => {}
    }
    let changed = root.to_string();
    require_same_rest(text, &changed)?;
    Ok(changed)
}

/// The text without the entry, and with the default runtime that `original` names.
pub fn without_entry(text: &str, original: Option<&str>) -> Result<String, Defect> {
    let (root, document) = tree(text)?;
    if let Some(runtimes) = document.object_value(RUNTIMES) {
        if let Some(ours) = runtimes.get(RUNTIME_NAME) {
            ours.remove();
        }
        if runtimes.properties().is_empty()
            && let Some(property) = document.get(RUNTIMES)
        {
            property.remove();
        }
    }
    if let Some(there) = document.get(DEFAULT).filter(is_ours) {
        let before = original.and_then(|text| read(text).ok()).and_then(|document| document.get(DEFAULT).cloned());
        match before.as_ref().and_then(Value::as_str) {
            Some(before) => there.set_value(before.into()),
            None => there.remove(),
        }
    }
    let changed = root.to_string();
    require_same_rest(text, &changed)?;
    Ok(changed)
}

fn is_ours(default: &CstObjectProp) -> bool {
    let literal = default.value().and_then(|value| value.as_string_lit());
    literal.and_then(|literal| literal.decoded_value().ok()).as_deref() == Some(RUNTIME_NAME)
}

/// Reads strictly: Docker takes no comments.
fn read(text: &str) -> Result<Map<String, Value>, Defect> {
    match serde_json::from_str(text) {
        _ if text.starts_with('\u{feff}') => Err(Defect(
            "begins with a byte order mark, which gpool does not change around: write it without one".into(),
        )),
        _ if text.trim().is_empty() => Ok(Map::new()),
        Ok(Value::Object(document)) => Ok(document),
        Ok(_) => Err(Defect("is no JSON object; Docker cannot read it either".into())),
        Err(error) => Err(Defect(format!("is no JSON ({error}); Docker cannot read it either: repair it first"))),
    }
}

fn tree(text: &str) -> Result<(CstRootNode, CstObject), Defect> {
    read(text)?;
    let root = CstRootNode::parse(text, &ParseOptions::default())
        .map_err(|error| Defect(format!("is no JSON ({error}); repair it first")))?;
    let document = root.object_value_or_create().ok_or_else(|| Defect("is no JSON object".into()))?;
    Ok((root, document))
}

/// A last look at what the edit made: nothing but gpool's own entry may differ.
fn require_same_rest(before: &str, after: &str) -> Result<(), Defect> {
    let rest = |text: &str| -> Result<Map<String, Value>, Defect> {
        let mut document = read(text)?;
        document.shift_remove(DEFAULT);
        if let Some(Value::Object(runtimes)) = document.get_mut(RUNTIMES) {
            runtimes.shift_remove(RUNTIME_NAME);
            if runtimes.is_empty() {
                document.shift_remove(RUNTIMES);
            }
        }
        Ok(document)
    };
    if rest(before)? == rest(after)? {
        return Ok(());
    }
    Err(Defect("cannot be edited without a change to other settings; add the runtime by hand".into()))
}

#[cfg(test)]
#[path = "docker_tests.rs"]
mod tests;
