//! CRI-O: a file of gpool's own in `crio.conf.d`. CRI-O hands all annotations of a pod to the runtime by itself, and
//! refuses names it does not know in `allowed_annotations`, so gpool's are not listed there.

use super::{Defect, Entry, OWN_FILE, RUNTIME_NAME, path_text, require_own};
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
}
