//! There is a low-level runtime to hand containers on to.

use super::{Outcome, Surroundings, engines};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub fn check(host: &Surroundings) -> Outcome {
    let candidates = host.configuration().runtime.low_level;
    let judged: Vec<(&Path, Option<&str>)> =
        candidates.iter().map(|path| (path.as_path(), unusable(host, path))).collect();
    if let Some((path, _)) = judged.iter().find(|(_, why)| why.is_none()) {
        return Outcome::ok(format!("{} is used", path.display()));
    }
    let each = |(path, why): &(&Path, Option<&str>)| format!("{} {}", path.display(), why.unwrap_or_default());
    let all: Vec<String> = judged.iter().map(each).collect();
    let message = format!("runtime.low_level has none that can be used: {}", all.join(", "));
    let remedy = "install runc or crun, or name the low-level runtime in [runtime] low_level of the configuration";
    if engines::installed(host).is_empty() {
        // `gpool run` needs none.
        return Outcome::warn(message, format!("for containers, {remedy}; gpool run works without"));
    }
    Outcome::fail(message, remedy)
}

/// Why gpool-runtime would not execute this file, as it judges itself at each start; none if it would.
fn unusable(host: &Surroundings, path: &Path) -> Option<&'static str> {
    let owner = std::fs::metadata(host.path("/")).map_or(0, |root| root.uid());
    match std::fs::metadata(host.path(&path.display().to_string())) {
        Err(_) => Some("is not there"),
        Ok(found) if !found.is_file() || found.mode() & 0o111 == 0 => Some("is no program"),
        Ok(found) if found.uid() != owner => Some("does not belong to root"),
        Ok(found) if found.mode() & 0o022 != 0 => Some("can be written by others than root"),
        Ok(_) => None,
    }
}
