//! Error texts, and the hook file for podman in `configs/`: what can be told of them without running anything.

use gpool_protocol::ErrorCode;
use std::fs;
use std::path::{Path, PathBuf};

/// Engines that find one of these in a message show text or an exit status of their own instead.
const REPLACED_BY_ENGINES: [&str; 9] = [
    "no such file or directory",
    "executable file not found",
    "permission denied",
    "operation not permitted",
    "not a directory",
    "is a directory",
    "open executable",
    "invalid config",
    "failed to run runc create/exec call",
];

/// The rooms whose sentences reach whoever starts a container.
const SPEAKING: [&str; 5] = ["protocol/src", "configuration/src", "policy/src", "runtime-hook/src", "supervisor/src"];
/// Holds the phrases, to take them out of what comes from elsewhere.
const REPLACES_THEM: &str = "runtime-hook/src/report.rs";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn no_sentence_of_ours_holds_what_engines_replace() {
    let mut files = Vec::new();
    SPEAKING.iter().for_each(|room| sources(&repository().join(room), &mut files));
    assert!(files.len() > 40, "only {} sources", files.len());
    let is_spoken = |file: &&PathBuf| {
        !file.ends_with(REPLACES_THEM) && !file.ends_with("edits_tests.rs") && !file.ends_with("tests.rs")
    };
    for file in files.iter().filter(is_spoken) {
        let text = fs::read_to_string(file).unwrap();
        let program = text.split("#[cfg(test)]").next().unwrap();
        let spoken = program.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in spoken.map(str::to_ascii_lowercase) {
            let phrase = REPLACED_BY_ENGINES.iter().find(|phrase| line.contains(**phrase));
            assert!(phrase.is_none(), "{}: {line}", file.display());
        }
    }
    let kept = fs::read_to_string(repository().join(REPLACES_THEM)).unwrap();
    for phrase in REPLACED_BY_ENGINES {
        assert!(kept.contains(&format!("(\"{phrase}\"")), "{REPLACES_THEM} does not replace {phrase:?}");
    }
}

#[test]
fn every_code_is_explained() {
    let page = fs::read_to_string(repository().join("docs/errors.md")).unwrap();
    let declared = fs::read_to_string(repository().join("protocol/src/error.rs")).unwrap();
    let codes = declared.split("rename = \"").skip(1).filter_map(|rest| rest.split('"').next());
    let codes: Vec<&str> = codes.filter(|code| code.starts_with("GPOOL-E")).collect();
    assert!(codes.contains(&ErrorCode::LowLevelRuntimeAbsent.text()));
    for code in codes {
        assert!(page.contains(&format!("## {code}\n")), "docs/errors.md has no section {code}");
        assert!(page.contains(&format!("[{code}](#{})", code.to_lowercase())), "its table has no {code}");
    }
}

#[test]
fn the_hook_for_podman_is_called_for_annotations_of_gpool_alone() {
    let text = fs::read_to_string(repository().join("configs/oci-hooks.d/50-gpool.json")).unwrap();
    let hook: serde_json::Value = serde_json::from_str(&text).unwrap();
    // Podman matches anywhere in a key unless the pattern is anchored.
    assert_eq!(hook["when"], serde_json::json!({"annotations": {"^gpool\\.io/": ".*"}}));
    assert_eq!((&hook["version"], &hook["stages"]), (&"1.0.0".into(), &serde_json::json!(["precreate"])));
    assert!(hook["hook"]["path"].as_str().unwrap().starts_with('/'));
    // Without one a runtime may give a hook the environment of the image.
    assert!(!hook["hook"]["env"].as_array().unwrap().is_empty());
}
