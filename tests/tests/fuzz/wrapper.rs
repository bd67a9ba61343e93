//! The wrapper's command line and config.json, and the state that the hook is given: everything up to the exec, with a
//! supervisor that is not there.

use super::mutation::feed;
use gpool_runtime_hook::{Installation, prepare, run_hook};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A directory of its own, and an installation whose low-level runtime is never executed.
struct Place {
    directory: PathBuf,
    installation: Installation,
}

impl Place {
    fn new(name: &str) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}-{}", std::process::id()));
        fs::create_dir_all(directory.join("rootfs/usr/lib")).unwrap();
        let configuration = directory.join("config.toml");
        let socket = directory.join("absent.sock");
        fs::write(&configuration, format!("[socket]\npath = {socket:?}\n[runtime]\nlow_level = [\"/bin/true\"]\n"))
            .unwrap();
        let installation = Installation { configuration, low_level_link: directory.join("low-level") };
        Self { directory, installation }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn search_command_lines(times: usize) {
    let place = Place::new("argv");
    feed("argv", times, |bytes| {
        let words = bytes.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
        let words: Vec<OsString> = words.map(|word| OsString::from_vec(word.to_vec())).collect();
        if let Ok(launch) = prepare(&place.installation, &words) {
            assert_eq!(launch.arguments, words, "the command line is passed on as it came");
        }
    });
}

fn search_specs(times: usize) {
    let place = Place::new("spec");
    let config = place.directory.join("config.json");
    let words = ["create".into(), "--bundle".into(), place.directory.clone().into(), OsString::from("c1")];
    feed("spec", times, |bytes| {
        fs::write(&config, bytes).unwrap();
        let refused = prepare(&place.installation, &words).err();
        assert_eq!(fs::read(&config).unwrap(), bytes, "without a lease nothing is written: {refused:?}");
    });
}

fn search_states(times: usize) {
    feed("state", times, |bytes| {
        let words = ["create-runtime", "01TEST", "--socket", "/proc/no/socket", "--shim", "/etc/hostname"];
        let mut said = Vec::new();
        let status = run_hook(&words.map(OsString::from), &mut &bytes[..], &mut std::io::sink(), &mut said);
        assert_eq!(status, 1, "no such container can be bound");
        assert!(said.iter().filter(|byte| **byte == b'\n').count() == 1, "{said:?}");
    });
}

#[test]
fn no_command_line_breaks_the_wrapper() {
    search_command_lines(3000);
}

#[test]
fn no_config_json_breaks_the_wrapper() {
    search_specs(3000);
}

#[test]
fn no_state_breaks_the_hook() {
    search_states(100);
}

#[test]
#[ignore = "long"]
fn no_input_breaks_wrapper_or_hook_for_long() {
    search_command_lines(200_000);
    search_specs(200_000);
    search_states(20_000);
}
