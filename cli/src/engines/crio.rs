//! CRI-O: a file of gpool's own in `crio.conf.d`. CRI-O hands all annotations of a pod to the runtime by itself, and
//! refuses names it does not know in `allowed_annotations`, so gpool's are not listed there.

use super::oci_hooks::{self, DEFAULT_DIRECTORY, OWN_DIRECTORY, Unstartable};
use super::{Defect, Entry, Facts, OWN_FILE, RUNTIME_NAME, path_text, require_own};
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, Table, value};

/// The program that CRI-O starts for each container of a handler of the type `oci`. Without a `monitor_path` it looks for one of this
/// name in its PATH, and does not start at all where there is none (`TranslateMonitorFields` of its pkg/config).
pub const MONITOR: &str = "conmon";
/// Where CRI-O's own packages have theirs.
pub const OWN_MONITORS: [&str; 2] = ["/usr/bin/crio-conmon", "/usr/libexec/crio/conmon"];

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
pub fn with_entry(text: Option<&str>, wanted: &Entry, facts: &Facts) -> Result<String, Defect> {
    require_own(text)?;
    let mut ours = Table::new();
    ours["runtime_path"] = value(path_text(&wanted.runtime)?);
    ours["runtime_type"] = value("oci");
    // Where the low-level runtime keeps its state; CRI-O's own default for runc.
    ours["runtime_root"] = value("/run/runc");
    if let Some(monitor) = &facts.monitor {
        ours["monitor_path"] = value(path_text(monitor)?);
    }
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
    let said = files(configuration).iter().rev().find_map(|file| {
        let directories = runtime_of(file)?.get("hooks_dir")?.as_array()?.clone();
        Some(directories.iter().filter_map(|directory| directory.as_str().map(str::to_owned)).collect())
    });
    said.unwrap_or_else(|| vec![DEFAULT_DIRECTORY.to_owned()])
}

/// CRI-O's files below `configuration`, in the order in which it reads them.
fn files(configuration: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(configuration.join("crio.conf.d")).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files.insert(0, configuration.join("crio.conf"));
    files
}

/// The section `[crio.runtime]` of one of them.
fn runtime_of(file: &Path) -> Option<toml::Table> {
    let document: toml::Table = std::fs::read_to_string(file).ok()?.parse().ok()?;
    document.get("crio")?.get("runtime")?.as_table().cloned()
}

/// The conmon for gpool's handler, in `own_file`: what others of CRI-O's files name, or the first of `places` that is there.
///
/// # Errors
/// There is none; CRI-O would not start with the handler.
pub fn monitor(own_file: &Path, places: impl Iterator<Item = PathBuf>) -> Result<PathBuf, Defect> {
    let configuration = own_file.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let others = files(configuration).into_iter().filter(|file| file != own_file);
    let named = others.filter_map(|file| runtime_of(&file)).flat_map(|runtime| {
        let handlers = runtime.get("runtimes").and_then(toml::Value::as_table).cloned().unwrap_or_default();
        // What one of type "pod" names is another program's, conmon-rs.
        let is_oci = |handler: &toml::Value| {
            handler
                .get("runtime_type")
                .and_then(toml::Value::as_str)
                .is_none_or(|kind| kind.is_empty() || kind == "oci")
        };
        let of_oci = handlers.into_iter().map(|(_, handler)| handler).filter(is_oci);
        let of_handlers = of_oci.filter_map(|handler| handler.get("monitor_path").cloned());
        runtime.get(MONITOR).cloned().into_iter().chain(of_handlers).collect::<Vec<_>>()
    });
    let is_conmon = |path: &PathBuf| path.to_str().is_some_and(|path| path.ends_with(MONITOR));
    let named = named.filter_map(|path| path.as_str().map(PathBuf::from)).filter(is_conmon);
    named.chain(places).find(|path| path.is_absolute() && path.is_file()).ok_or_else(|| {
        Defect(format!(
            "would stop CRI-O, which does not start with a handler for which it finds no {MONITOR}; install that, or name it as \
             conmon in [crio.runtime] of /etc/crio/crio.conf"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_says_what_was_asked_for() {
        for is_default in [false, true] {
            let wanted = Entry { runtime: "/usr/bin/gpool-runtime".into(), is_default };
            let text = with_entry(None, &wanted, &Facts::default()).unwrap();
            assert_eq!(entry(&text).unwrap(), Some(wanted), "{text}");
            assert!(text.contains("[crio.runtime.runtimes.gpool]\nruntime_path = "), "{text}");
        }
    }

    #[test]
    fn the_handler_has_a_conmon_or_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let (own_file, in_path) = (root.path().join("crio.conf.d/50-gpool.conf"), root.path().join("conmon"));
        let places = || [root.path().join("absent"), in_path.clone()].into_iter();
        let refusal = monitor(&own_file, places()).unwrap_err();
        assert!(refusal.0.contains("finds no conmon; install that"), "{refusal}");
        std::fs::write(&in_path, "").unwrap();
        let found = monitor(&own_file, places()).unwrap();
        assert_eq!(found, in_path);
        let wanted = Entry { runtime: "/usr/bin/gpool-runtime".into(), is_default: false };
        let facts = Facts { monitor: Some(found), ..Facts::default() };
        let text = with_entry(None, &wanted, &facts).unwrap();
        assert!(text.contains(&format!("monitor_path = {in_path:?}\n")), "{text}");
        let packaged = root.path().join("crio-conmon");
        std::fs::write(&packaged, "").unwrap();
        std::fs::create_dir(root.path().join("crio.conf.d")).unwrap();
        std::fs::write(&own_file, text).unwrap();
        let named = format!("[crio.runtime.runtimes.crun]\nmonitor_path = {packaged:?}\n");
        std::fs::write(root.path().join("crio.conf.d/10-crio.conf"), named).unwrap();
        assert_eq!(monitor(&own_file, places()), Ok(packaged), "that of CRI-O's packages");
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
