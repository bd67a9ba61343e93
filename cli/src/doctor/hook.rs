//! The OCI hook is where the configuration and podman's hook files say, and can be executed.

use super::{Outcome, Surroundings, engines};
use crate::engines::oci_hooks::{DEFAULT_DIRECTORY, OWN_DIRECTORY, Unstartable};
use crate::engines::{Engine, crio, podman};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Where podman looks for hook files by default (oci-hooks(5)).
const HOOK_DIRS: [&str; 2] = [DEFAULT_DIRECTORY, "/etc/containers/oci/hooks.d"];

pub fn check(host: &Surroundings) -> Outcome {
    let hook = host.configuration().paths.hook;
    if let Some(why) = unusable(host, &hook.display().to_string()) {
        return Outcome::fail(
            format!("{} (paths.hook) {why}: no container with a request starts", hook.display()),
            "install gpool again, or name where gpool-hook is",
        );
    }
    if let Some(Unstartable { file, stage }) = stops_crio(host) {
        return Outcome::fail(
            format!(
                "CRI-O does not start with {}, which names the stage {stage} that podman alone knows",
                file.display()
            ),
            format!("move it to {OWN_DIRECTORY}, and run gpool runtime configure --runtime podman"),
        );
    }
    for (file, program) in hook_files(host) {
        if let Some(why) = unusable(host, &program) {
            return Outcome::fail(
                format!("{file} names {program}, which {why}: podman leaves the hook out without a word"),
                format!("install gpool-hook there, or remove {file}"),
            );
        }
    }
    Outcome::ok(format!("{} can be executed", hook.display()))
}

/// Whether a hook file of podman calls gpool's hook.
pub fn podman_calls_it(host: &Surroundings) -> bool {
    hook_files(host).iter().any(|(_, program)| unusable(host, program).is_none())
}

/// A hook file, whosoever, that keeps a CRI-O of this host from starting.
fn stops_crio(host: &Surroundings) -> Option<Unstartable> {
    let is_there = engines::is_installed(host, Engine::Crio);
    is_there.then(|| crio::hook_that_stops_it(&host.path("/etc/crio"), &host.root)).flatten()
}

/// Where podman looks on this host, its defaults included.
fn hook_dirs(host: &Surroundings) -> Vec<String> {
    let (vendor, administrator) = (host.path("/usr/share/containers"), host.path("/etc/containers"));
    let mut dirs = podman::hooks_dirs(None, [&vendor, &administrator]);
    dirs.extend(HOOK_DIRS.map(str::to_owned));
    dirs.sort();
    dirs.dedup();
    dirs
}

/// Hook files that name gpool's hook, with the program that they name.
fn hook_files(host: &Surroundings) -> Vec<(String, String)> {
    let dirs = hook_dirs(host);
    let files = dirs.iter().flat_map(|dir| std::fs::read_dir(host.path(dir)).into_iter().flatten().flatten());
    let named = files.filter_map(|entry| {
        let text = std::fs::read_to_string(entry.path()).ok()?;
        let hook: serde_json::Value = serde_json::from_str(&text).ok()?;
        let program = hook["hook"]["path"].as_str()?.to_owned();
        let is_ours = PathBuf::from(&program).file_name().is_some_and(|name| name == "gpool-hook");
        let below = entry.path();
        let file = below.strip_prefix(&host.root).map_or(below.clone(), |path| PathBuf::from("/").join(path));
        is_ours.then(|| (file.display().to_string(), program))
    });
    let mut named: Vec<(String, String)> = named.collect();
    named.sort();
    named
}

fn unusable(host: &Surroundings, path: &str) -> Option<&'static str> {
    match std::fs::metadata(host.path(path)) {
        Err(_) => Some("is not there"),
        Ok(found) if !found.is_file() => Some("is no file"),
        Ok(found) if found.permissions().mode() & 0o111 == 0 => Some("is not executable"),
        Ok(_) => None,
    }
}
