//! Processes of a lease that have lost a context for good, as they say themselves: a fault of their own work, or of the GPU.

use super::tellings::Tellings;
use crate::procfs;
use gpool_protocol::HostPid;
use gpool_shared_region::SlotSnapshot;

/// One of them. All but the process is the tenant's word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostContext {
    /// The process; none where that is not known.
    pub pid: Option<HostPid>,
    /// The name of its program; empty where that was not to be had any more.
    pub comm: String,
    /// What the driver has answered, a CUresult.
    pub result: i32,
    /// The GPU, by its place in the lease.
    pub gpu: usize,
    /// When its shim saw that, CLOCK_MONOTONIC.
    pub at_ns: u64,
}

impl LostContext {
    /// What a process of a lease on `gpus` GPUs says that has lost something.
    fn of(slot: &SlotSnapshot<'_>, at_ns: u64, pid: Option<HostPid>, gpus: usize) -> Self {
        Self {
            pid,
            comm: pid.map(procfs::comm).filter(|comm| comm != "?").unwrap_or_default(),
            result: slot.fault().cast_signed(),
            gpu: (slot.fault_gpu() as usize).min(gpus.saturating_sub(1)),
            at_ns,
        }
    }
}

/// What is known and told of those of one lease.
#[derive(Debug, Default)]
pub struct LostContexts {
    /// What has been told.
    pub tellings: Tellings,
    last: Option<LostContext>,
}

impl LostContexts {
    /// Looks at what a process says, also one that has just ended: with its slot that goes.
    pub fn look(&mut self, slot: &SlotSnapshot<'_>, now_ns: u64, pid: Option<HostPid>, gpus: usize) {
        if slot.fault() == 0 {
            return;
        }
        // Nothing that is to come has happened.
        let at_ns = slot.fault_ns().min(now_ns);
        if self.last.as_ref().is_none_or(|last| last.at_ns < at_ns) {
            self.last = Some(LostContext::of(slot, at_ns, pid, gpus));
        }
    }

    /// The last that is known of; none after a start of the supervisor, until one is seen.
    pub fn last(&self) -> Option<&LostContext> {
        self.last.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_shared_region::SLOT_BYTES;

    fn slot(result: u32, gpu: u32, at_ns: u64) -> [u8; SLOT_BYTES] {
        let mut bytes = [0u8; SLOT_BYTES];
        bytes[2008..2012].copy_from_slice(&result.to_le_bytes());
        bytes[2012..2016].copy_from_slice(&gpu.to_le_bytes());
        bytes[2016..2024].copy_from_slice(&at_ns.to_le_bytes());
        bytes
    }

    #[test]
    fn the_last_loss_is_kept_also_of_a_process_that_has_ended_and_names_a_gpu_that_is_there() {
        let mut its = LostContexts::default();
        let mut look = |bytes: &[u8], pid| {
            its.look(&SlotSnapshot::new(bytes).unwrap(), 10, pid, 2);
            its.last().map(|last| (last.pid, last.result, last.gpu, last.at_ns))
        };
        assert_eq!(look(&slot(0, 0, 9), None), None, "nothing is lost");
        let pid = Some(HostPid(std::process::id()));
        assert_eq!(look(&slot(719, 7, 5), pid), Some((pid, 719, 1, 5)));
        assert_eq!(look(&slot(700, 0, 4), None), Some((pid, 719, 1, 5)), "an earlier one is no news");
        assert_eq!(look(&slot(700, 0, 6), None), Some((None, 700, 0, 6)));
        assert_eq!(look(&slot(u32::MAX, 0, u64::MAX), None), Some((None, -1, 0, 10)), "whatever a tenant says");
    }
}
