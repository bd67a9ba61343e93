//! CRI-O: a file of gpool's own in `crio.conf.d`. CRI-O hands all annotations of a pod to the runtime by itself, and
//! refuses names it does not know in `allowed_annotations`, so gpool's are not listed there.

use super::oci_hooks::{self, DEFAULT_DIRECTORY, OWN_DIRECTORY, Unstartable};
use super::{Defect, Entry, OWN_FILE, RUNTIME_NAME, path_text, require_own};
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, Table, value};

/// What the file tells CRI-O.
pub fn entry(text: &str) -> Result<Option<Entry>, Defect> {
    let document: toml::Table = text.parse().map_err(|error| Defect(format!("is no TOML ({error})")))?;
    let Some(runtime) = document.get("crio").and_then(|crio| crio.get("runtime")) else { return Ok(None) };
    let ours = runtime.get("runtimes").and_then(|runtimes| runtimes.get(RUNTIME_NAME));
    let Some(path) = ours.and_then(|ours| ours.get("runtime_path")).and_then(toml::Value::as_str) else {
        return Ok(None);
    };
    let is_default = runtime.get("default_runtime").and_then(toml::Value::as_str) == Some(RUNTIME_NAME);
    Ok(Some(Entry { runtime: path.into(), is_default }))
}

/// The file.
pub fn with_entry(text: Option<&str>, wanted: &Entry) -> Result<String, Defect> {
    require_own(text)?;
    let mut ours = Table::new();
    ours["runtime_path"] = value(path_text(&wanted.runtime)?);
    ours["runtime_type"] = value("oci");
    // Where the low-level runtime keeps its state; CRI-O's own default for runc.
    ours["runtime_root"] = value("/run/runc");
    let mut runtimes = Table::new();
    runtimes.set_implicit(true);
    runtimes[RUNTIME_NAME] = Item::Table(ours);
    let mut runtime = Table::new();
    runtime.set_implicit(!wanted.is_default);
    if wanted.is_default {
        runtime["default_runtime"] = value(RUNTIME_NAME);
    }
    runtime["runtimes"] = Item::Table(runtimes);
    let mut crio = Table::new();
    crio.set_implicit(true);
    crio["runtime"] = Item::Table(runtime);
    let mut document = DocumentMut::new();
    document["crio"] = Item::Table(crio);
    Ok(format!("{OWN_FILE}{document}"))
}

/// Refuses to tell a CRI-O of gpool that would not start again. `file` is gpool's drop-in.
pub fn require_startable(file: &Path, root: &Path) -> Result<(), Defect> {
    let configuration = file.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    match hook_that_stops_it(configuration, root) {
        None => Ok(()),
        Some(Unstartable { file, stage }) => Err(Defect(format!(
            "would be read by no CRI-O: none starts while {} names the stage {stage}, which podman alone knows; move it to \
             {OWN_DIRECTORY}, where gpool runtime configure --runtime podman has podman look",
            file.display()
        ))),
    }
}

/// The hook file that keeps a CRI-O with the configuration directory `configuration` (/etc/crio) from starting.
pub fn hook_that_stops_it(configuration: &Path, root: &Path) -> Option<Unstartable> {
    oci_hooks::unstartable(root, &hooks_dirs(configuration))
}

/// Where CRI-O looks for hook files (crio.conf(5), `hooks_dir`): what the last of its files says.
fn hooks_dirs(configuration: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(configuration.join("crio.conf.d")).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files.insert(0, configuration.join("crio.conf"));
    let said = files.iter().rev().find_map(|file| {
        let document: toml::Table = std::fs::read_to_string(file).ok()?.parse().ok()?;
        let directories = document.get("crio")?.get("runtime")?.get("hooks_dir")?.as_array()?;
        Some(directories.iter().filter_map(|directory| directory.as_str().map(str::to_owned)).collect())
    });
    said.unwrap_or_else(|| vec![DEFAULT_DIRECTORY.to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_says_what_was_asked_for() {
        for is_default in [false, true] {
            let wanted = Entry { runtime: "/usr/bin/gpool-runtime".into(), is_default };
            let text = with_entry(None, &wanted).unwrap();
            assert_eq!(entry(&text).unwrap(), Some(wanted), "{text}");
            assert!(text.contains("[crio.runtime.runtimes.gpool]\nruntime_path = "), "{text}");
        }
    }

    #[test]
    fn a_hook_of_podman_s_where_crio_looks_is_found_and_nowhere_else() {
        let root = tempfile::tempdir().unwrap();
        let place = |path: &str| root.path().join(path.trim_start_matches('/'));
        let (etc, drop_in) = (place("/etc/crio"), place("/etc/crio/crio.conf.d/50-gpool.conf"));
        std::fs::create_dir_all(drop_in.parent().unwrap()).unwrap();
        std::fs::create_dir_all(place(DEFAULT_DIRECTORY)).unwrap();
        std::fs::write(place(DEFAULT_DIRECTORY).join("a.json"), r#"{"stages": ["precreate"]}"#).unwrap();
        let refusal = require_startable(&drop_in, root.path()).unwrap_err();
        assert!(refusal.0.contains("/usr/share/containers/oci/hooks.d/a.json names the stage precreate"), "{refusal}");
        std::fs::write(etc.join("crio.conf"), "[crio.runtime]\nhooks_dir = [\"/elsewhere\"]\n").unwrap();
        assert_eq!(require_startable(&drop_in, root.path()), Ok(()));
        let again = format!("[crio.runtime]\nhooks_dir = [\"/elsewhere\", \"{DEFAULT_DIRECTORY}\"]\n");
        std::fs::write(etc.join("crio.conf.d/10-site.conf"), again).unwrap();
        assert!(hook_that_stops_it(&etc, root.path()).is_some());
    }
}
