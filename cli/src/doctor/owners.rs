//! What runs as root or inside containers can be changed by root alone: configuration, shims, hook.

use super::{Fix, Outcome, Surroundings, first_of};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Write permission of group and others.
const OTHERS_WRITE: u32 = 0o022;

pub fn check(host: &Surroundings) -> Outcome {
    // The owner of / is root, also where this looks at a copy of a host.
    let Ok(root) = std::fs::metadata(&host.root) else { return Outcome::skip("/ cannot be looked at") };
    let places = places(host);
    let (mut foreign, mut open, mut fixes) = (Vec::new(), Vec::new(), Vec::new());
    for place in &places {
        let path = host.path(&place.display().to_string());
        let Ok(found) = std::fs::metadata(&path) else { continue };
        if found.uid() != root.uid() {
            foreign.push(format!("{} belongs to user {}", place.display(), found.uid()));
        }
        let mode = found.permissions().mode() & 0o7777;
        // In a directory with the sticky bit others may not replace a file.
        if mode & OTHERS_WRITE != 0 && mode & 0o1000 == 0 {
            open.push(format!("{} has mode {mode:o}", place.display()));
            fixes.push(Fix::Mode { path, mode: mode & !OTHERS_WRITE });
        }
    }
    if !foreign.is_empty() {
        return Outcome::fail(
            format!("others than root can change what root runs: {}", first_of(&foreign)),
            "chown root:root it, after looking into what it holds",
        );
    }
    if !open.is_empty() {
        let outcome = Outcome::fail(
            format!("others than root can change what root runs: {}", first_of(&open)),
            "chmod go-w it, which gpool doctor --fix does, after looking into what it holds",
        );
        return fixes.into_iter().fold(outcome, Outcome::with_fix);
    }
    Outcome::ok(format!("{} places are root's alone", places.len()))
}

/// The files, and the directories in which somebody could put others in their place.
fn places(host: &Surroundings) -> Vec<PathBuf> {
    let paths = host.configuration().paths;
    let mut places = host.configuration_files.clone();
    places.push(PathBuf::from("/etc/gpool/conf.d"));
    places.push(paths.hook.clone());
    places.push(PathBuf::from("/usr/bin/gpool-runtime"));
    places.push(paths.shim_dir.clone());
    let generations =
        std::fs::read_dir(host.path(&paths.shim_dir.display().to_string())).into_iter().flatten().flatten();
    for generation in generations {
        let directory = paths.shim_dir.join(generation.file_name());
        places.extend(super::shims::FILES.map(|file| directory.join(file)));
        places.push(directory);
    }
    places.extend(places.clone().iter().filter_map(|place| place.parent()).map(Path::to_owned));
    places.sort();
    places.dedup();
    places.retain(|place| host.path(&place.display().to_string()).exists());
    places
}
