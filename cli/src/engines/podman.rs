//! Podman: a file of gpool's own in `containers.conf.d`, which podman reads after `containers.conf`. It names the
//! runtime, and the directory of gpool's hook file beside those in which podman looks already.

use super::oci_hooks::{DEFAULT_DIRECTORY, OWN_DIRECTORY};
use super::{Defect, Entry, Facts, OWN_FILE, RUNTIME_NAME, path_text, require_own};
use std::path::{Path, PathBuf};
use toml_edit::{Array, DocumentMut, Item, Table, value};

/// Which runtimes podman gives `--log`, and so takes their messages from, when no file says otherwise
/// (containers.conf(5), `runtime_supports_json`).
const JSON_RUNTIMES: [&str; 6] = ["crun", "runc", "kata", "runsc", "youki", "krun"];

/// What the file tells podman.
pub fn entry(text: &str) -> Result<Option<Entry>, Defect> {
    let document = read(text)?;
    let Some(engine) = document.get("engine").and_then(toml::Value::as_table) else { return Ok(None) };
    let paths = engine.get("runtimes").and_then(|runtimes| runtimes.get(RUNTIME_NAME));
    let Some(first) = paths.and_then(toml::Value::as_array).and_then(|paths| paths.first()?.as_str()) else {
        return Ok(None);
    };
    let is_default = engine.get("runtime").and_then(toml::Value::as_str) == Some(RUNTIME_NAME);
    Ok(Some(Entry { runtime: first.into(), is_default }))
}

/// The file.
pub fn with_entry(text: Option<&str>, wanted: &Entry, facts: &Facts) -> Result<String, Defect> {
    require_own(text)?;
    let path = path_text(&wanted.runtime)?;
    // An array of a later file takes the place of an earlier one's.
    let mut names: Vec<&str> = match &facts.json_runtimes {
        Some(names) => names.iter().map(String::as_str).collect(),
        None => JSON_RUNTIMES.to_vec(),
    };
    if !names.contains(&RUNTIME_NAME) {
        names.push(RUNTIME_NAME);
    }
    let mut hooks_dirs = facts.hooks_dirs.clone().unwrap_or_else(|| vec![DEFAULT_DIRECTORY.to_owned()]);
    if !hooks_dirs.iter().any(|directory| directory == OWN_DIRECTORY) {
        hooks_dirs.push(OWN_DIRECTORY.to_owned());
    }
    let mut engine = Table::new();
    // A directory that is not there is passed over (tried with 4.3.1).
    engine["hooks_dir"] = value(hooks_dirs.into_iter().collect::<Array>());
    if wanted.is_default {
        engine["runtime"] = value(RUNTIME_NAME);
    }
    engine["runtime_supports_json"] = value(names.into_iter().collect::<Array>());
    let mut runtimes = Table::new();
    runtimes[RUNTIME_NAME] = value([path].into_iter().collect::<Array>());
    engine["runtimes"] = Item::Table(runtimes);
    let mut document = DocumentMut::new();
    document["engine"] = Item::Table(engine);
    Ok(format!("{OWN_FILE}{document}"))
}

/// Which runtimes podman gives `--log` by all its files but `own_file`.
pub fn json_runtimes(own_file: &Path, roots: [&Path; 2]) -> Vec<String> {
    array_of(&files(Some(own_file), roots), "runtime_supports_json", &JSON_RUNTIMES)
}

/// Where podman looks for hook files by all its files but `own_file`, in its order.
pub fn hooks_dirs(own_file: Option<&Path>, roots: [&Path; 2]) -> Vec<String> {
    array_of(&files(own_file, roots), "hooks_dir", &[DEFAULT_DIRECTORY])
}

/// What `files` make of the array `key` of `[engine]`, which is `without_files` else: each takes the place of the one before,
/// unless `{append=true}` says otherwise, in it or in an earlier one (containers.conf(5)). Files that cannot be read say nothing;
/// podman reports them itself.
fn array_of(files: &[PathBuf], key: &str, without_files: &[&str]) -> Vec<String> {
    let mut words: Vec<String> = without_files.iter().map(|word| (*word).to_owned()).collect();
    let mut is_added = false;
    for array in files.iter().filter_map(|file| engine_array(file, key)) {
        let said = array.iter().rev().find_map(|item| item.get("append").and_then(toml::Value::as_bool));
        is_added = said.unwrap_or(is_added);
        if !is_added {
            words.clear();
        }
        words.extend(array.iter().filter_map(|item| item.as_str().map(str::to_owned)));
    }
    words
}

/// Podman's files but `own_file`, in the order in which it reads them.
fn files(own_file: Option<&Path>, roots: [&Path; 2]) -> Vec<PathBuf> {
    let [vendor, administrator] = roots;
    let mut files = vec![vendor.join("containers.conf"), administrator.join("containers.conf")];
    let mut drop_ins: Vec<_> = std::fs::read_dir(administrator.join("containers.conf.d"))
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "conf"))
        .filter(|path| own_file.is_none_or(|own| path != own))
        .collect();
    drop_ins.sort();
    files.extend(drop_ins);
    files
}

/// The array `key` of `[engine]` in `file`.
fn engine_array(file: &Path, key: &str) -> Option<toml::value::Array> {
    let document = read(&std::fs::read_to_string(file).ok()?).ok()?;
    document.get("engine")?.get(key)?.as_array().cloned()
}

fn read(text: &str) -> Result<toml::Table, Defect> {
    text.parse().map_err(|error| Defect(format!("is no TOML ({error})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(is_default: bool) -> Entry {
        Entry { runtime: "/usr/bin/gpool-runtime".into(), is_default }
    }

    #[test]
    fn the_file_says_what_was_asked_for() {
        for is_default in [false, true] {
            let text = with_entry(None, &wanted(is_default), &Facts::default()).unwrap();
            assert_eq!(entry(&text).unwrap(), Some(wanted(is_default)), "{text}");
            assert!(text.contains(r#""crun", "runc""#) && text.contains(r#""gpool"]"#), "{text}");
            assert_eq!(with_entry(Some(&text), &wanted(is_default), &Facts::default()).unwrap(), text);
        }
    }

    #[test]
    fn podman_is_told_of_the_hooks_beside_those_that_it_has() {
        let root = tempfile::tempdir().unwrap();
        let drop_ins = root.path().join("containers.conf.d");
        std::fs::create_dir(&drop_ins).unwrap();
        let own = drop_ins.join("50-gpool.conf");
        let roots = [Path::new("/nowhere"), root.path()];
        let made = || {
            let facts = Facts { hooks_dirs: Some(hooks_dirs(Some(&own), roots)), ..Facts::default() };
            let text = with_entry(None, &wanted(false), &facts).unwrap();
            std::fs::write(&own, &text).unwrap();
            hooks_dirs(None, roots)
        };
        assert_eq!(made(), [DEFAULT_DIRECTORY, OWN_DIRECTORY]);
        std::fs::write(drop_ins.join("10.conf"), "[engine]\nhooks_dir = [\"/a\"]\n").unwrap();
        assert_eq!(made(), ["/a", OWN_DIRECTORY]);
        std::fs::write(drop_ins.join("20.conf"), "[engine]\nhooks_dir = [\"/b\", {append = true}]\n").unwrap();
        // From there on gpool's own file adds, too. Podman takes the hooks of a directory that it is told twice once.
        assert_eq!(made(), ["/a", "/b", "/a", "/b", OWN_DIRECTORY]);
        std::fs::write(drop_ins.join("30.conf"), "[engine]\nhooks_dir = [\"/c\"]\n").unwrap();
        assert_eq!(made()[..3], ["/a", "/b", "/c"], "files after it add as well");
        std::fs::write(drop_ins.join("30.conf"), "[engine]\nhooks_dir = [\"/c\", {append = false}]\n").unwrap();
        assert_eq!(made(), ["/c", OWN_DIRECTORY]);
    }

    #[test]
    fn a_strangers_file_stays() {
        let refusal = with_entry(Some("[engine]\n"), &wanted(false), &Facts::default()).unwrap_err();
        assert!(refusal.0.contains("--config"), "{refusal}");
    }

    #[test]
    fn the_list_of_the_other_files_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let drop_ins = root.path().join("containers.conf.d");
        std::fs::create_dir(&drop_ins).unwrap();
        let list = |names: &str| format!("[engine]\nruntime_supports_json = [{names}]\n");
        std::fs::write(root.path().join("containers.conf"), list("\"a\"")).unwrap();
        std::fs::write(drop_ins.join("10.conf"), list("\"b\", \"c\"")).unwrap();
        std::fs::write(drop_ins.join("20.conf"), "[engine]\n").unwrap();
        let own = drop_ins.join("50-gpool.conf");
        std::fs::write(&own, list("\"gpool\"")).unwrap();
        let made = || {
            let names = json_runtimes(&own, [Path::new("/nowhere"), root.path()]);
            let facts = Facts { json_runtimes: Some(names), ..Facts::default() };
            with_entry(None, &wanted(false), &facts).unwrap()
        };
        assert!(made().contains(r#"["b", "c", "gpool"]"#), "{}", made());
        std::fs::write(drop_ins.join("30.conf"), list("\"d\", {append = true}")).unwrap();
        assert!(made().contains(r#"["b", "c", "d", "gpool"]"#), "{}", made());
        for file in ["containers.conf", "containers.conf.d/10.conf"] {
            std::fs::write(root.path().join(file), "").unwrap();
        }
        assert!(made().contains(r#""krun", "d", "gpool"]"#), "it is added to podman's own list: {}", made());
    }
}
