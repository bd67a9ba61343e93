//! The support archive: what somebody else needs to look into a fault, and nothing that should not leave the host. What
//! goes in is listed here one by one; no file is copied as it is but those of /proc, and no environment is read.

use super::redact::Redactor;
use super::surroundings::text;
use super::{Checked, Surroundings, tar};
use crate::output::to_value;
use gpool_configuration::{flat, load_layered};
use gpool_protocol::Client;
use serde_json::Value;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Events that go in, the newest.
const EVENTS: usize = 2000;

const ABOUT: &str = "\
Made by gpool doctor --bundle. What is in it:

  doctor.json        the checks and what they found
  host.txt           kernel, distribution, driver module, gpool's version
  configuration.txt  every key with its value and origin; no comments
  supervisor/        what the supervisor answers about itself, GPUs, driver, leases, guarded processes and events
  mounts.txt         gpool's mounts

No environment of a process or container was read. Names of this host stand as HOST, home directories as /home/USER,
and what looks like a credential as REDACTED. Look through it before you send it.
";

/// What the archive holds: names and contents.
pub fn contents(host: &Surroundings, client: &Client, checked: &[Checked]) -> Vec<(String, Vec<u8>)> {
    let redactor = Redactor::new(
        ["/proc/sys/kernel/hostname", "/etc/hostname"]
            .map(|path| read(host, path))
            .into_iter()
            .filter(|n| !n.is_empty()),
    );
    let mut files = vec![
        ("ABOUT.txt".to_owned(), ABOUT.to_owned()),
        ("doctor.json".to_owned(), format!("{:#}\n", to_value(&checked))),
        ("host.txt".to_owned(), facts(host)),
        ("configuration.txt".to_owned(), configuration(host)),
        ("mounts.txt".to_owned(), mounts(host)),
    ];
    for name in ["info", "gpus", "driver", "guard", "leases", "configuration"] {
        let text = match host.ask::<Value>(client, &format!("/v1/{name}")) {
            Ok(answer) => format!("{answer:#}\n"),
            Err(refusal) => format!("{refusal}\n"),
        };
        files.push((format!("supervisor/{name}.json"), text));
    }
    files.push(("supervisor/events.jsonl".to_owned(), events(host, client)));
    files
        .into_iter()
        .map(|(name, text)| (format!("gpool-doctor/{name}"), redactor.redact(&text).into_bytes()))
        .collect()
}

/// Writes the archive. A file that is there is not replaced.
///
/// # Errors
/// A sentence that names the file.
pub fn write(path: &Path, files: &[(String, Vec<u8>)], time_s: u64) -> Result<(), String> {
    let opened = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = opened.and_then(|mut file| file.write_all(&tar::pack(files, time_s)));
    written.map_err(|cause| format!("{} cannot be written ({}); name another file", path.display(), cause.kind()))
}

fn read(host: &Surroundings, path: &str) -> String {
    text(&host.path(path))
}

fn facts(host: &Surroundings) -> String {
    let os = read(host, "/etc/os-release");
    let distribution = os.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("unknown");
    let modules = read(host, "/proc/modules");
    let modules: Vec<&str> = modules.lines().filter(|line| line.starts_with("nvidia")).collect();
    format!(
        "gpool {}\nkernel {}\ndistribution {distribution}\nGPUs' module:\n{}{}\n",
        gpool_protocol::version(),
        read(host, "/proc/version").trim(),
        read(host, "/proc/driver/nvidia/version"),
        modules.join("\n")
    )
}

/// The values that hold and where they come from. The files' own text stays here: comments may hold anything.
fn configuration(host: &Surroundings) -> String {
    let layered = match load_layered(&host.configuration_path) {
        Ok(layered) => layered,
        Err(error) => return format!("{error}\n"),
    };
    let line = |(key, value): (String, toml::Value)| {
        let origin = layered.origins.get(&key).map_or("default".to_owned(), ToString::to_string);
        format!("{key} = {value}  # {origin}\n")
    };
    flat(&layered.configuration).into_iter().map(line).collect()
}

fn mounts(host: &Surroundings) -> String {
    let mounts = read(host, "/proc/self/mountinfo");
    mounts.lines().filter(|line| line.contains("gpool")).map(|line| format!("{line}\n")).collect()
}

fn events(host: &Surroundings, client: &Client) -> String {
    if let Some(gone) = host.absence() {
        return format!("{gone}\n");
    }
    let mut lines: Vec<String> = Vec::new();
    let streamed = client.stream("/v1/events?after=0", |line| {
        lines.push(line.to_owned());
        true
    });
    if let Err(refusal) = streamed {
        return format!("{refusal}\n");
    }
    let newest = lines.len().saturating_sub(EVENTS);
    lines[newest..].iter().map(|line| format!("{line}\n")).collect()
}
