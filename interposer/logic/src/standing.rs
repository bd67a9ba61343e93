//! A thread that stands at the gate.

use crate::futex;
use crate::place::Place;
use core::sync::atomic::Ordering;
use gpool_shared_region::{GateWord, HEARTBEAT_STALE_NS};

/// It looks at the heartbeat this often.
const GATE_TIMEOUT_NS: u64 = 500_000_000;

/// What such a thread has done so far.
#[derive(Default)]
pub struct Standing {
    /// Since when it counts as a waiter.
    from_ns: Option<u64>,
    /// For which word it has rung, and when.
    rung: Option<(GateWord, u64)>,
}

impl Standing {
    /// It counts as a waiter from now on; what is then said for it comes afterwards.
    pub fn begin(&mut self, place: &Place, now_ns: u64) {
        if self.from_ns.is_none() {
            self.from_ns = Some(now_ns);
            place.slot().waiters.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Waits until the gate may have another word.
    pub fn wait(&mut self, place: &Place, word: GateWord, now_ns: u64) {
        // Once for each word, and again after a whole time-out: a bell may be lost with a supervisor.
        let is_heard = self.rung.is_some_and(|(rung, at_ns)| rung == word && now_ns < at_ns + GATE_TIMEOUT_NS);
        if !is_heard {
            self.rung = Some((word, now_ns));
            place.ring();
        }
        futex::wait(&place.region.control().gate, word.0, Some(patience_ns(place, now_ns)));
    }

    /// It goes on.
    pub fn end(&mut self, place: &Place, now_ns: u64) {
        if let Some(from_ns) = self.from_ns.take() {
            let slot = place.slot();
            slot.waiters.fetch_sub(1, Ordering::AcqRel);
            slot.gate_wait_ns.fetch_add(now_ns - from_ns, Ordering::Relaxed);
        }
    }
}

/// How long to stand at the gate before looking again: not past the moment at which a supervisor that has died now
/// counts as away. One that is away wakes whoever stands still, once it is back.
fn patience_ns(place: &Place, now_ns: u64) -> u64 {
    if place.region.supervisor_is_away(now_ns) {
        return GATE_TIMEOUT_NS;
    }
    let heartbeat_ns = place.region.control().heartbeat_ns.load(Ordering::Relaxed);
    let away_in_ns = (heartbeat_ns + HEARTBEAT_STALE_NS).saturating_sub(now_ns) + 1_000_000;
    away_in_ns.min(GATE_TIMEOUT_NS)
}
