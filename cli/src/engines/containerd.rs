//! containerd's `config.toml`, for Kubernetes: `ctr` and Docker name their runtimes themselves.
//!
//! The file is edited in place, because before containerd 2.1 a plugin's section in an imported file takes the place
//! of the whole section. And once a file names one runtime, containerd 1.6 forgets the ones that it has by default:
//! with gpool alone in the file, `runc` is gone and no pod starts (tried with 1.6.20). So what was there before, as
//! containerd itself prints it, is written down beside gpool.

use super::{Defect, Entry, Facts, RUNTIME_NAME, path_text};
use std::path::{Path, PathBuf};
use toml_edit::{Array, DocumentMut, Item, Table, TableLike, Value, value};

/// Under these names the CRI plugin keeps its runtimes, by the version of the file (containerd's docs/cri/config.md).
/// 4, of containerd 2.3, is 3 with other sections renamed.
const PLUGINS: [(i64, &str); 3] =
    [(2, "io.containerd.grpc.v1.cri"), (3, "io.containerd.cri.v1.runtime"), (4, "io.containerd.cri.v1.runtime")];
const DEFAULT: &str = "default_runtime_name";
/// The annotations of pods that gpool reads.
const ANNOTATIONS: &str = "gpool.io/*";
/// Whether a runtime leaves cgroups to systemd, as the kubelet has to.
const SYSTEMD_CGROUP: &str = "SystemdCgroup";
/// What a runtime has beside its options, and gpool's like the default one's.
const BASE_SPEC: &str = "base_runtime_spec";
const CARRIED_OVER: [&str; 2] = [BASE_SPEC, "privileged_without_host_devices"];

/// What the text tells containerd.
pub fn entry(text: &str) -> Result<Option<Entry>, Defect> {
    let document = read(text)?;
    if document.is_empty() {
        return Ok(None);
    }
    // gpool never wrote to one of the first version. Of one that is newer than this, nobody should say that it is not in it.
    if version(&document) < PLUGINS[0].0 {
        return Ok(None);
    }
    let plugin = plugin(&document)?;
    let containerd = document.get("plugins").and_then(|plugins| plugins.get(plugin)?.get("containerd"));
    let Some(containerd) = containerd else { return Ok(None) };
    let ours = containerd.get("runtimes").and_then(|runtimes| runtimes.get(RUNTIME_NAME));
    let path = ours.and_then(|ours| ours.get("options")?.get("BinaryName")?.as_str());
    let is_default = containerd.get(DEFAULT).and_then(Item::as_str) == Some(RUNTIME_NAME);
    Ok(path.map(|path| Entry { runtime: path.into(), is_default }))
}

/// The text with the entry, and with the runtimes that containerd has besides.
pub fn with_entry(text: Option<&str>, wanted: &Entry, facts: &Facts) -> Result<String, Defect> {
    let Some(effective) = &facts.effective else {
        return Err(Defect(
            "cannot be changed without knowing what containerd does today; install containerd first".into(),
        ));
    };
    let mut document = read(text.unwrap_or_default())?;
    require_pods(effective)?;
    if document.is_empty() {
        document["version"] = value(2);
    }
    let plugin = plugin(&document)?;
    let today = effective_runtimes(effective);
    let default = today.and_then(|(name, runtimes)| runtimes.get(beside(name))?.as_table());
    let containerd = descend(document.as_table_mut(), &["plugins", plugin, "containerd"])?;
    if wanted.is_default {
        containerd.insert(DEFAULT, value(RUNTIME_NAME));
    } else if containerd.get(DEFAULT).and_then(Item::as_str) == Some(RUNTIME_NAME) {
        containerd.remove(DEFAULT);
    }
    let runtimes = descend(containerd, &["runtimes"])?;
    for (name, runtime) in today.iter().flat_map(|(_, runtimes)| runtimes.iter()) {
        if name != RUNTIME_NAME && !runtimes.contains_key(name) {
            runtimes.insert(name, Item::Table(said(runtime.as_table().unwrap_or(&toml::Table::new()))));
        }
    }
    let ours = descend(runtimes, &[RUNTIME_NAME])?;
    ours.insert("runtime_type", value("io.containerd.runc.v2"));
    for key in ["pod_annotations", "container_annotations"] {
        // What somebody else has let through besides, such as the annotations of a scheduler, stays.
        let others = ours.get(key).and_then(Item::as_array).into_iter().flatten().filter_map(Value::as_str);
        let others: Vec<String> = others.filter(|other| *other != ANNOTATIONS).map(str::to_owned).collect();
        let all = std::iter::once(ANNOTATIONS.to_owned()).chain(others);
        ours.insert(key, value(all.collect::<Array>()));
    }
    // A file that has gone, as the default runtime no longer names it, would keep containerd from starting.
    let is_gone = |its: &Item| its.as_str().is_some_and(|path| !path.is_empty() && !Path::new(path).exists());
    if default.is_some() && ours.get(BASE_SPEC).is_some_and(is_gone) {
        ours.remove(BASE_SPEC);
    }
    for (key, its) in default.map(stripped).iter().flatten().filter(|(key, _)| CARRIED_OVER.contains(&key.as_str())) {
        ours.insert(key, item(its));
    }
    if !ours.contains_key("options") {
        let options = default.and_then(|default| default.get("options")?.as_table());
        ours.insert("options", Item::Table(options.map(said).unwrap_or_default()));
    }
    let options = descend(ours, &["options"])?;
    options.insert("BinaryName", value(path_text(&wanted.runtime)?));
    // Not once and for all: it is often set when gpool is there already, and pods of two drivers on one node end in disorder.
    match default.map(leaves_cgroups_to_systemd) {
        Some(true) => {
            options.insert(SYSTEMD_CGROUP, value(true));
        }
        Some(false) => {
            options.remove(SYSTEMD_CGROUP);
        }
        None => {}
    }
    Ok(document.to_string())
}

/// Refuses a containerd that makes no pods, as Docker's own package has it: it would take the entry and never read it.
fn require_pods(effective: &toml::Table) -> Result<(), Defect> {
    let off = effective.get("disabled_plugins").and_then(toml::Value::as_array);
    let is_of_pods = |name: &&str| *name == "cri" || PLUGINS.iter().any(|(_, plugin)| plugin == name);
    match off.and_then(|off| off.iter().filter_map(toml::Value::as_str).find(is_of_pods)) {
        None => Ok(()),
        Some(name) => Err(Defect(format!(
            "has {name} in disabled_plugins, so that this containerd makes no pods and nothing would follow from the entry; Docker \
             needs none here (gpool runtime configure --runtime docker), nor does ctr --runc-binary; for Kubernetes take {name} out first"
        ))),
    }
}

/// The runtime beside gpool's that the text names as the default, where one of the two leaves cgroups to systemd and the other does not;
/// none where the text does not say.
pub fn other_cgroup_driver(text: &str) -> Option<String> {
    let document: toml::Table = text.parse().ok()?;
    let (default, runtimes) = effective_runtimes(&document)?;
    let name = beside(default);
    let of = |name: &str| Some(leaves_cgroups_to_systemd(runtimes.get(name)?.as_table()?));
    (of(name)? != of(RUNTIME_NAME)?).then(|| name.to_owned())
}

/// The text without the entry. Runtimes that were written down beside it stay: they say what holds anyway.
pub fn without_entry(text: &str, original: Option<&str>) -> Result<String, Defect> {
    let mut document = read(text)?;
    let path = ["plugins", plugin(&document)?, "containerd", "runtimes"];
    if let Some(containerd) = find(document.as_table_mut(), &path[..3]) {
        if let Some(runtimes) = containerd.get_mut("runtimes").and_then(Item::as_table_like_mut) {
            runtimes.remove(RUNTIME_NAME);
        }
        if containerd.get(DEFAULT).and_then(Item::as_str) == Some(RUNTIME_NAME) {
            match original.and_then(default_of) {
                Some(before) => containerd.insert(DEFAULT, value(before)),
                None => containerd.remove(DEFAULT),
            };
        }
    }
    // Tables that held nothing but the entry go with it.
    for length in (1..=path.len()).rev() {
        let (parents, last) = path[..length].split_at(length - 1);
        if let Some(parent) = find(document.as_table_mut(), parents)
            && parent.get(last[0]).and_then(Item::as_table_like).is_some_and(TableLike::is_empty)
        {
            parent.remove(last[0]);
        }
    }
    Ok(document.to_string())
}

/// Whether `after`, as containerd prints it, has the entry and all that `before` had.
///
/// # Errors
/// If it has not: what is missing or different.
pub fn require_effect(before: &toml::Table, after: &toml::Table, wanted: &Entry) -> Result<(), Defect> {
    let hidden = || {
        Defect(
            "has no effect on containerd: a file under its imports sets the same section; name that with --config"
                .into(),
        )
    };
    let (default, runtimes) = effective_runtimes(after).ok_or_else(hidden)?;
    let ours = runtimes.get(RUNTIME_NAME).and_then(|ours| ours.get("options")?.get("BinaryName")?.as_str());
    if ours.map(std::path::Path::new) != Some(&wanted.runtime) || wanted.is_default != (default == RUNTIME_NAME) {
        return Err(hidden());
    }
    let Some((_, runtimes_before)) = effective_runtimes(before) else { return Ok(()) };
    for (name, runtime) in runtimes_before.iter().filter(|(name, _)| *name != RUNTIME_NAME) {
        if runtimes.get(name).and_then(toml::Value::as_table).map(stripped) != runtime.as_table().map(stripped) {
            return Err(Defect(format!("would change the runtime {name}; add gpool by hand")));
        }
    }
    Ok(())
}

/// The runtime of containers that name none, and its program, in what containerd has printed.
pub fn default_runtime(effective: &toml::Table) -> Option<(String, Option<PathBuf>)> {
    let (name, runtimes) = effective_runtimes(effective)?;
    let program = runtimes.get(name).and_then(|its| its.get("options")?.get("BinaryName")?.as_str());
    Some((name.to_owned(), program.map(PathBuf::from)))
}

/// Default runtime and runtimes of a configuration that containerd has printed.
fn effective_runtimes(effective: &toml::Table) -> Option<(&str, &toml::Table)> {
    let plugins = effective.get("plugins")?;
    PLUGINS.iter().rev().find_map(|(_, plugin)| {
        let containerd = plugins.get(plugin)?.get("containerd")?;
        Some((
            containerd.get(DEFAULT).and_then(toml::Value::as_str).unwrap_or_default(),
            containerd.get("runtimes")?.as_table()?,
        ))
    })
}

/// The runtime that gpool's is made like: the default one, so that both use the same cgroup driver. containerd calls its own runc.
fn beside(default: &str) -> &str {
    if default == RUNTIME_NAME || default.is_empty() { "runc" } else { default }
}

fn leaves_cgroups_to_systemd(runtime: &toml::Table) -> bool {
    let option = runtime.get("options").and_then(|options| options.get(SYSTEMD_CGROUP)?.as_bool());
    option.unwrap_or(false)
}

fn default_of(text: &str) -> Option<String> {
    let document = read(text).ok()?;
    let containerd = document.get("plugins")?.get(plugin(&document).ok()?)?.get("containerd")?;
    containerd.get(DEFAULT)?.as_str().map(str::to_owned)
}

fn read(text: &str) -> Result<DocumentMut, Defect> {
    text.parse().map_err(|error| Defect(format!("is no TOML; containerd cannot read it either: {error}")))
}

fn version(document: &DocumentMut) -> i64 {
    document.get("version").and_then(Item::as_integer).unwrap_or(1)
}

fn plugin(document: &DocumentMut) -> Result<&'static str, Defect> {
    let version = version(document);
    PLUGINS.iter().find(|(known, _)| *known == version).map(|(_, plugin)| *plugin).ok_or_else(|| {
        let remedy = match version < PLUGINS[0].0 {
            true => {
                "write version = 2 at its top, and each section [plugins.cri...] as [plugins.\"io.containerd.grpc.v1.cri\"...]; \
                 containerd 2.0 and newer print it so with containerd config migrate"
            }
            false => "use a gpool that knows it, or add gpool by hand",
        };
        Defect(format!("has version {version} of containerd's format, and gpool knows 2, 3 and 4; {remedy}"))
    })
}

/// The table below `path`, made where it is not there.
fn descend<'a>(table: &'a mut dyn TableLike, path: &[&str]) -> Result<&'a mut dyn TableLike, Defect> {
    let Some((first, rest)) = path.split_first() else { return Ok(table) };
    let item = table.entry(first).or_insert_with(|| {
        let mut made = Table::new();
        made.set_implicit(true);
        Item::Table(made)
    });
    let below =
        item.as_table_like_mut().ok_or_else(|| Defect(format!("sets {first} to something that is no table")))?;
    descend(below, rest)
}

fn find<'a>(table: &'a mut dyn TableLike, path: &[&str]) -> Option<&'a mut dyn TableLike> {
    match path.split_first() {
        None => Some(table),
        Some((first, rest)) => find(table.get_mut(first)?.as_table_like_mut()?, rest),
    }
}

/// What a table says, without what only repeats a default: empty texts, zeros, `false`, empty lists.
fn stripped(table: &toml::Table) -> toml::Table {
    let said = |value: &toml::Value| match value {
        toml::Value::String(text) => !text.is_empty(),
        toml::Value::Integer(number) => *number != 0,
        toml::Value::Boolean(is_set) => *is_set,
        toml::Value::Array(values) => !values.is_empty(),
        _ => true,
    };
    let kept = table.iter().filter(|(_, value)| said(value)).map(|(key, value)| match value {
        toml::Value::Table(below) => (key.clone(), toml::Value::Table(stripped(below))),
        other => (key.clone(), other.clone()),
    });
    kept.filter(|(_, value)| value.as_table().is_none_or(|below| !below.is_empty())).collect()
}

fn said(table: &toml::Table) -> Table {
    stripped(table).iter().map(|(key, value)| (key.clone(), item(value))).collect()
}

fn item(value: &toml::Value) -> Item {
    match value {
        toml::Value::Table(table) => Item::Table(table.iter().map(|(key, value)| (key.clone(), item(value))).collect()),
        // A value's own text is valid TOML.
        other => other.to_string().parse::<Value>().map(Item::Value).unwrap_or_default(),
    }
}

#[cfg(test)]
#[path = "containerd_tests.rs"]
mod tests;
