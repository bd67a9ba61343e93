//! The host's memory that leases may have beside that of their GPUs: who may have how much of it, and what is told of it.

use super::book::{Book, Lease};
use super::figures::Figures;
use super::grant::Leases;
use super::room::Scene;
use crate::queue::Waiter;
use crate::region::Report;
use gpool_policy::repetition::Repetition;
use gpool_policy::spill::{HostMemory, Shortage};
use gpool_protocol::{ErrorBody, ErrorCode, LeaseId, LeaseRequest, Mechanism, format_bytes};

/// What is told of a lease's allocations in the host's memory.
#[derive(Debug, Default)]
pub struct SpillNotes {
    told: u64,
    repetition: Repetition,
}

impl SpillNotes {
    /// Whether there is something to tell at `now_ns` of one of which `spills` have gone there: at once, and ever more rarely while it
    /// goes on.
    pub fn look(&mut self, now_ns: u64, spills: u64) -> bool {
        self.repetition.look(now_ns, spills, self.told)
    }

    /// So many have been told of.
    pub fn note_told(&mut self, spills: u64) {
        self.told = spills;
    }

    /// How many have not, of `spills`.
    pub fn untold(&self, spills: u64) -> u64 {
        spills.saturating_sub(self.told)
    }
}

impl Lease {
    /// What lies there, where `figures` are its own. Its processes may claim what they like: no more is believed than it was ever allowed
    /// by this supervisor or the one before.
    pub fn spilled_bytes(&self, figures: &Figures) -> u64 {
        figures.spilled_bytes.min(self.record.most_spilled_bytes())
    }

    /// What of the host's memory is its own: what it may have, or what it holds where that is more.
    fn sold_bytes(&self) -> u64 {
        if self.record.most_spilled_bytes() <= self.record.spill_bytes {
            return self.record.spill_bytes;
        }
        let figures = self.figures(&mut Report::new());
        self.record.spill_bytes.max(self.spilled_bytes(&figures))
    }
}

/// What of the host's memory those who wait ask for. Who is over a quota of his own is in nobody's way.
fn wanted_bytes(waiting: &[&Waiter]) -> u64 {
    let asked =
        waiting.iter().filter(|waiter| !waiter.is_over_quota).filter_map(|waiter| waiter.asked.request.spill_bytes);
    asked.fold(0, u64::saturating_add)
}

impl Leases {
    /// Whether this host has so much of its memory for containers, whoever has it now.
    ///
    /// # Errors
    /// It has not, or none at all.
    pub fn check_spill_can_be(&self, bytes: u64) -> Result<(), ErrorBody> {
        let total_bytes = self.configuration().spill.bytes();
        HostMemory { total_bytes, ..HostMemory::default() }.check(bytes).map_err(|shortage| worded(shortage, bytes))
    }

    /// Whether there is room in the host's memory for what a request may have there, served so, beside those who stand before it.
    ///
    /// # Errors
    /// There is none, or what serves it has no shims, which alone have memory go there.
    pub fn check_spill(
        &self,
        asked: &LeaseRequest,
        uid: u32,
        scene: &Scene<'_>,
        mechanism: Mechanism,
    ) -> Result<(), ErrorBody> {
        let Some(bytes) = asked.request.spill_bytes else { return Ok(()) };
        if !mechanism.has_shims() {
            return Err(ErrorBody::new(
                ErrorCode::NoMechanism,
                format!("spill does not go with mode={mechanism}, which is what serves this request here"),
                "leave spill out, or ask for mode=slice",
            ));
        }
        // What it had and is kept for it is its own.
        let kept = scene.book.held.iter().find(|held| Some(&held.record.lease_id) == scene.own);
        if kept.is_some_and(|held| bytes <= held.record.spill_bytes) {
            return Ok(());
        }
        let sold_bytes = self.spill_sold(scene.book, |id| scene.gone.contains(id));
        let wanted_bytes = wanted_bytes(&scene.book.queue.ahead_of(asked, uid));
        self.check_host_memory(bytes, sold_bytes, wanted_bytes)
    }

    /// Whether a lease can have `bytes` of the host's memory in place of what it has.
    ///
    /// # Errors
    /// It cannot.
    pub fn check_spill_change(&self, book: &Book, lease: &LeaseId, bytes: u64) -> Result<(), ErrorBody> {
        self.check_spill_can_be(bytes)?;
        let priority = book.leases.get(lease).map(|lease| lease.record.priority).unwrap_or_default();
        let waiting = book.queue.before_priority_below(priority);
        let sold_bytes = self.spill_sold(book, |id| id == lease);
        self.check_host_memory(bytes, sold_bytes, wanted_bytes(&waiting))
    }

    fn check_host_memory(&self, bytes: u64, sold_bytes: u64, wanted_bytes: u64) -> Result<(), ErrorBody> {
        let total_bytes = self.configuration().spill.bytes();
        let memory = HostMemory { total_bytes, sold_bytes, wanted_bytes };
        memory.check(bytes).map_err(|shortage| worded(shortage, bytes))
    }

    /// What of the host's memory leases may have, places that are kept included, without those that count as gone.
    fn spill_sold(&self, book: &Book, is_gone: impl Fn(&LeaseId) -> bool) -> u64 {
        let leases = book.leases.iter().filter(|(id, _)| !is_gone(id)).map(|(_, lease)| lease.sold_bytes());
        let held = book.held.iter().filter(|held| !is_gone(&held.record.lease_id)).map(|held| held.record.spill_bytes);
        leases.chain(held).fold(0, u64::saturating_add)
    }
}

fn worded(shortage: Shortage, bytes: u64) -> ErrorBody {
    let asked = format_bytes(bytes);
    match shortage {
        Shortage::Never { total_bytes: 0 } => ErrorBody::new(
            ErrorCode::RequestNotAllowed,
            format!("{asked} of the host's memory cannot be had: this host has none for containers"),
            "leave spill out, or let [spill] memory in config.toml say how much containers may have and run gpool config reload",
        ),
        Shortage::Never { total_bytes } => ErrorBody::new(
            ErrorCode::RequestNotAllowed,
            format!(
                "{asked} of the host's memory cannot be had: all containers together may have {}",
                format_bytes(total_bytes)
            ),
            "ask for less with spill, or raise [spill] memory in config.toml and run gpool config reload",
        ),
        Shortage::Sold { free_bytes } => ErrorBody::new(
            ErrorCode::MemoryNotFree,
            format!("{asked} of the host's memory is asked for, and {} is free", format_bytes(free_bytes)),
            "ask for less with spill, add wait, lower that of another one with gpool update --spill, or stop a container",
        ),
        Shortage::Wanted { free_bytes } => ErrorBody::new(
            ErrorCode::MemoryNotFree,
            format!(
                "{asked} of the host's memory is asked for, and {} is free beside what those ask for who wait",
                format_bytes(free_bytes)
            ),
            "ask for less with spill, or add wait (gpool queue ls shows who waits)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_says_what_there_is_and_what_to_do() {
        let told = |shortage| worded(shortage, 8 << 30);
        let none = told(Shortage::Never { total_bytes: 0 });
        assert!(none.message.contains("8GiB") && none.remedy.contains("[spill] memory"), "{none}");
        assert_eq!(none.code, ErrorCode::RequestNotAllowed, "nobody waits for it");
        let less = told(Shortage::Never { total_bytes: 4 << 30 });
        assert!(less.message.contains("may have 4GiB"), "{less}");
        for shortage in [Shortage::Sold { free_bytes: 1 << 30 }, Shortage::Wanted { free_bytes: 1 << 30 }] {
            let told = told(shortage);
            assert!(told.message.contains("1GiB is free"), "{told}");
            assert_eq!(told.code, ErrorCode::MemoryNotFree, "one may wait for it");
        }
    }

    #[test]
    fn what_has_been_told_is_told_no_more() {
        let mut notes = SpillNotes::default();
        assert!(notes.look(1, 3) && notes.untold(3) == 3);
        notes.note_told(3);
        assert!(!notes.look(2, 3));
        assert_eq!(notes.untold(5), 2);
    }
}
