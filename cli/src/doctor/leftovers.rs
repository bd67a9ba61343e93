//! Directories and mounts of leases that there are no longer.

use super::surroundings::text;
use super::{Fix, Outcome, Surroundings, first_of, survivors};
use std::collections::BTreeSet;
use std::io::ErrorKind;

pub fn check(host: &Surroundings) -> Outcome {
    let Ok(leases) = &host.leases else {
        return Outcome::skip("which leases there are the supervisor knows, which does not answer");
    };
    let known: BTreeSet<&str> = leases.iter().map(|lease| lease.lease_id.0.as_str()).collect();
    let dir = host.configuration().paths.run_dir.join("leases").display().to_string();
    let entries = match std::fs::read_dir(host.path(&dir)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Outcome::skip(format!("{dir} is root's alone: run this as root"));
        }
        Err(_) => return Outcome::ok(format!("{dir} is not there")),
    };
    let mounts = text(&host.path("/proc/self/mountinfo"));
    let mut left: BTreeSet<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    left.extend(leases_mounted_below(&dir, &mounts));
    left.retain(|lease| !known.contains(lease.as_str()));
    if left.is_empty() {
        return Outcome::ok(format!("none in {dir}"));
    }
    let named = |leases: &[String]| first_of(&leases.iter().map(|lease| format!("{dir}/{lease}")).collect::<Vec<_>>());
    let lives = |lease: &String| survivors::of(&host.path(&format!("{dir}/{lease}")), &host.path("/proc")).is_some();
    let (theirs, left): (Vec<String>, Vec<String>) = left.into_iter().partition(lives);
    let outcome = match theirs.as_slice() {
        [] => Outcome::warn(
            format!("{} of leases that there are no longer: {}", left.len(), named(&left)),
            "gpool doctor --fix clears them away, and so does a restart of the supervisor",
        ),
        theirs => Outcome::fail(
            format!(
                "{} of containers that run or may run, which the supervisor does not know of: {}",
                theirs.len(),
                named(theirs)
            ),
            "restart the supervisor, which takes them over or says in its log why not; if they stay, stop those containers",
        ),
    };
    let fixes = left.iter().map(|lease| Fix::Leftover { path: host.path(&format!("{dir}/{lease}")) });
    fixes.fold(outcome, Outcome::with_fix)
}

/// The leases that have something mounted below `dir`. The mount point is the fifth field.
fn leases_mounted_below(dir: &str, mountinfo: &str) -> Vec<String> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    let below = points.filter_map(|point| point.strip_prefix(dir)?.strip_prefix('/'));
    below.filter_map(|rest| rest.split('/').next()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_told_by_their_lease() {
        let mountinfo = "40 1 0:3 / /run/gpool/leases/01A/region rw - tmpfs gpool rw\n\
                         41 1 0:4 / /run/gpool/leaseshold rw - tmpfs x rw\n42 1 0:5 / / rw - ext4 y rw\n";
        assert_eq!(leases_mounted_below("/run/gpool/leases", mountinfo), ["01A"]);
    }
}
