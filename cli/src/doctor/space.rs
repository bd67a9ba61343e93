//! There is room where gpool writes: regions of leases on a tmpfs, and durable state.

use super::{Outcome, Surroundings};
use std::path::{Path, PathBuf};

/// Below so much a start may fail: a record, the mount points of a region and what an engine writes beside them.
const NEEDED_BYTES: u64 = 4 << 20;
/// Below so much somebody should look.
const COMFORTABLE_BYTES: u64 = 32 << 20;
/// A lease takes fewer than ten inodes of its own.
const NEEDED_INODES: u64 = 100;
/// Where durable state lies.
const STATE_DIR: &str = "/var/lib/gpool";
/// `f_type` of a tmpfs and of a ramfs (linux/magic.h).
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

pub fn check(host: &Surroundings) -> Outcome {
    let configuration = host.configuration();
    let run_dir = configuration.paths.run_dir;
    let (ledger, audit) = (&configuration.ledger, &configuration.audit);
    let ledger = ledger.is_kept().then(|| ledger.path.parent()).flatten();
    let audit = audit.is_kept().then_some(audit.directory.as_path());
    let elsewhere = |place: &&Path| !place.starts_with(STATE_DIR);
    let places = [
        (Some(run_dir.as_path()), "leases"),
        (Some(Path::new(STATE_DIR)), "the ledger"),
        (ledger.filter(elsewhere), "the ledger"),
        (audit.filter(elsewhere), "the audit"),
    ];
    let mut least: Option<(u64, PathBuf)> = None;
    for (place, lies) in places.into_iter().filter_map(|(place, lies)| Some((place?, lies))) {
        let path = existing(host, place);
        let Ok(found) = rustix::fs::statvfs(&path) else { continue };
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        // Some file systems have no fixed number of inodes and say none.
        let few_inodes = found.f_files > 0 && found.f_favail < NEEDED_INODES;
        if free < NEEDED_BYTES || few_inodes {
            let what = if few_inodes { format!("{} inodes", found.f_favail) } else { format!("{} KiB", free >> 10) };
            return Outcome::fail(
                format!("{what} left where {} lies: {lies} cannot be written", place.display()),
                "make room there, or mount a larger file system",
            );
        }
        if least.as_ref().is_none_or(|(bytes, _)| free < *bytes) {
            least = Some((free, place.to_owned()));
        }
    }
    if let Ok(kind) = rustix::fs::statfs(existing(host, &run_dir))
        && !IN_MEMORY.contains(&kind.f_type)
        && host.root == Path::new("/")
    {
        return Outcome::warn(
            format!("{} (paths.run_dir) is on no tmpfs: leases would outlive a boot", run_dir.display()),
            "choose a directory below /run",
        );
    }
    match least {
        None => Outcome::skip("no file system can be asked"),
        Some((free, place)) if free < COMFORTABLE_BYTES => Outcome::warn(
            format!("{} MiB left where {} lies", free >> 20, place.display()),
            "make room there before it is full",
        ),
        Some((free, place)) => Outcome::ok(format!("at least {} MiB left ({})", free >> 20, place.display())),
    }
}

/// The place, or the nearest directory above it that is there.
fn existing(host: &Surroundings, place: &Path) -> PathBuf {
    let mut path = host.path(&place.display().to_string());
    while !path.exists() && path.pop() {}
    path
}
