//! What each process of a lease is charged.

use super::book::{Lease, Process};
use super::figures::Holding;
use crate::region::Report;
use gpool_protocol::HostPid;
use gpool_shared_region::SLOTS;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

impl Lease {
    /// What its processes say now that they are charged, in bytes, contexts included, on all its GPUs together. What several hold
    /// together is with each of them.
    pub fn charged_by_process(&self, report: &mut Report) -> BTreeMap<HostPid, u64> {
        report.read(&self.region, SLOTS);
        let context_bytes = self.region.control().context_bytes.load(Ordering::Relaxed);
        let (gpus, mut charged) = (self.accounts.len(), BTreeMap::new());
        for (slot, claimed) in report.taken() {
            let is_its = |process: &&Process| process.registration == claimed.registration();
            let Some(process) = self.processes.get(&slot).filter(is_its) else { continue };
            // Copies of a shim in one process have a slot each.
            let bytes: &mut u64 = charged.entry(process.watched.name.pid).or_default();
            for gpu in 0..gpus {
                let holding = Holding::of(&claimed, &report.pieces(), gpu, gpus);
                *bytes = bytes.saturating_add(holding.bytes(context_bytes));
            }
        }
        charged
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::lease_in;
    use super::*;
    use crate::procfs::WatchedProcess;
    use gpool_shared_region::SLOT_BYTES;
    use std::os::unix::fs::FileExt;

    #[test]
    fn each_process_is_charged_what_stands_in_its_own_slots() {
        let dir = tempfile::tempdir().unwrap();
        let mut lease = lease_in(dir.path(), "01");
        let (own, parent) = (HostPid(std::process::id()), HostPid(std::os::unix::process::parent_id()));
        // By slot: the number of its registration, contexts, bytes.
        let claims = [(7_u64, 1_u32, 100_u64), (8, 2, 20), (9, 0, 3), (10, 1, 1 << 40)];
        for (slot, (registration, contexts, bytes)) in claims.into_iter().enumerate() {
            let at = (slot * SLOT_BYTES) as u64;
            let report = lease.region.report_file();
            report.write_all_at(&registration.to_le_bytes(), at).unwrap();
            report.write_all_at(&contexts.to_le_bytes(), at + 12).unwrap();
            report.write_all_at(&bytes.to_le_bytes(), at + 16).unwrap();
        }
        for (slot, registration, pid) in [(0, 7, own), (1, 8, parent), (2, 9, own), (3, 99, parent)] {
            let watched = WatchedProcess::open(pid).unwrap();
            let process = Process { registration, watched, program: None, refusals_told: 0, refusals_seen: None };
            lease.processes.insert(slot, process);
        }
        lease.region.control().context_bytes.store(1000, Ordering::Relaxed);
        let charged = lease.charged_by_process(&mut Report::new());
        assert_eq!(charged, BTreeMap::from([(own, 1103), (parent, 2020)]), "the last slot is another one's by now");
    }
}
