//! The kernel is new enough, and the machine of a kind that gpool is built for.

use super::{Outcome, Surroundings};

/// `openat2`, with which bundles are opened, came with it; `pidfd_open`, by which processes are watched, with 5.3.
const OLDEST: (u32, u32) = (5, 6);

pub fn check(host: &Surroundings) -> Outcome {
    let text = std::fs::read_to_string(host.path("/proc/sys/kernel/osrelease")).unwrap_or_default();
    let release = text.trim();
    let Some(version) = version(release) else {
        return Outcome::skip("/proc/sys/kernel/osrelease tells no version");
    };
    if version < OLDEST {
        return Outcome::fail(
            format!("Linux {release} has no openat2, without which gpool refuses every container with a request"),
            format!("boot Linux {}.{} or newer", OLDEST.0, OLDEST.1),
        );
    }
    Outcome::ok(format!("Linux {release}"))
}

/// The first two numbers of a release such as `6.1.0-28-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}
