//! The real binary where it only passes through: the same output, exit status and silence as runc's own.

use std::path::Path;
use std::process::{Command, Output};

/// What the wrapper takes while no choice is recorded, or none with the reason printed.
fn low_level_or_skip() -> Option<String> {
    if Path::new("/run/gpool/low-level-runtime").symlink_metadata().is_ok() {
        println!("skipped: this host has recorded a low-level runtime of its own");
        return None;
    }
    let known = gpool_configuration::Runtime::default().low_level;
    let found = known.iter().find(|path| path.exists());
    if found.is_none() {
        println!("skipped: no runc");
    }
    found.map(|path| path.display().to_string())
}

fn output(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).env("GPOOL_RUNTIME", "/bin/false").output().unwrap()
}

#[test]
fn verbs_that_make_no_container_are_the_low_level_runtimes() {
    let Some(runc) = low_level_or_skip() else { return };
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap();
    for arguments in [
        &["--version"][..],
        &["-v"],
        &["features"],
        &["--help"],
        &["--root", root, "state", "create"],
        &["--root", root, "delete", "no-such-container"],
        &["--root", root, "--log", "/proc/no/log", "list"],
        &["frobnicate"],
    ] {
        let (ours, theirs) = (output(env!("CARGO_BIN_EXE_gpool-runtime"), arguments), output(&runc, arguments));
        assert_eq!(ours.status, theirs.status, "{arguments:?}");
        assert_eq!(ours.stdout, theirs.stdout, "{arguments:?}");
        assert_eq!(without_times(&ours.stderr), without_times(&theirs.stderr), "{arguments:?}");
    }
}

/// runc puts the time into what it logs.
fn without_times(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let words = text.split_whitespace().filter(|word| !word.starts_with("time="));
    words.collect::<Vec<_>>().join(" ")
}
