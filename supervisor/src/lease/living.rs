//! Whether anybody waits for a supervisor that starts.

use super::reading::read_all;
use super::record::Record;
use crate::procfs::{ProcessName, WatchedProcess};
use std::path::Path;

/// Whether an earlier supervisor has written a lease down, below `run_dir`, whose container may run: what is left of others
/// waits for nobody.
pub fn any_may_live(run_dir: &Path, boot_id: &str) -> bool {
    // Of whom nothing can be told may live.
    let Ok(written) = read_all(run_dir) else { return true };
    written.records.iter().any(|record| record.boot_id == boot_id && may_live(record))
}

fn may_live(record: &Record) -> bool {
    let is_there = |name: ProcessName| !matches!(WatchedProcess::find(name), Ok(None));
    record.init.or(record.requester).is_some_and(is_there)
        || record.cgroup.as_deref().is_some_and(crate::cgroup::is_populated)
}

#[cfg(test)]
mod tests {
    use super::super::record::sample;
    use super::*;
    use gpool_protocol::{HostPid, LeaseId};

    #[test]
    fn only_who_may_live_waits_for_a_supervisor() {
        let run_dir = tempfile::tempdir().unwrap();
        assert!(any_may_live(run_dir.path(), "b"), "it cannot be read");
        super::super::record::prepare(run_dir.path()).unwrap();
        assert!(!any_may_live(run_dir.path(), "b"));
        let write = |id: &str, record: Record| {
            let lease_id = LeaseId(id.to_owned());
            Record { lease_id, cgroup: None, ..record }.write(run_dir.path()).unwrap();
        };
        let me = WatchedProcess::open(HostPid(std::process::id())).unwrap().name;
        let ended = ProcessName { start_ticks: me.start_ticks + 1, ..me };
        write("01", Record { init: Some(ended), requester: Some(me), ..sample() });
        write("02", Record { boot_id: "before".into(), init: Some(me), ..sample() });
        assert!(!any_may_live(run_dir.path(), "b"), "one has ended, and one was of another boot");
        write("03", Record { requester: Some(me), ..sample() });
        assert!(any_may_live(run_dir.path(), "b"));
    }
}
