//! The audit: every event, written down for good as it happens, in files whose lines are chained (see [`gpool_policy::chain`]). They
//! outlive the supervisor and the boot. A thread of its own writes them, for which nothing waits: what cannot be written, on a full
//! disk, is kept in memory for a while, and how much was lost is written down as well.

mod floods;
mod trail;

use crate::clock;
use crate::events::Events;
use crate::faults::Faults;
use crate::lease::Leases;
use floods::Floods;
use gpool_protocol::{Event, EventKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trail::Trail;

/// After a failure it is tried again.
const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// It wakes up as often as this without anything new: hours end, and days.
const PERIOD: Duration = Duration::from_secs(60);
/// How often the end of the trail is said to the journal, and old files are taken out.
const DAY: Duration = Duration::from_secs(86_400);

/// What the metrics say of it.
#[derive(Debug, Default)]
pub struct Figures {
    /// Events written down since the supervisor started.
    pub written: AtomicU64,
    /// Events that were not and will not be.
    pub lost: AtomicU64,
}

impl Figures {
    /// Written down, and lost.
    pub fn figures(&self) -> [u64; 2] {
        [&self.written, &self.lost].map(|figure| figure.load(Ordering::Relaxed))
    }
}

/// Writes for ever; runs on its own thread.
pub fn keep(leases: &Leases) {
    let mut keeper = Keeper::default();
    loop {
        keeper.note(leases.events.unwritten(PERIOD));
        keeper.write(leases);
        if keeper.has_failed() {
            std::thread::sleep(AFTER_FAILURE);
        }
    }
}

#[derive(Default)]
struct Keeper {
    trail: Option<Trail>,
    faults: Faults<&'static str>,
    floods: Floods,
    /// What is to be written next, in order.
    pending: Vec<Arc<Event>>,
    /// Events that were lost since the last that was written.
    lost: u64,
    told: Option<Instant>,
}

impl Keeper {
    fn has_failed(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Takes events over, with how many had no room before them.
    fn note(&mut self, (events, lost): (Vec<Arc<Event>>, u64)) {
        self.lost += lost;
        for event in events {
            if self.floods.lets_through(event.uid, event.unix_ms) {
                self.pending.push(event);
            }
        }
        // While the disk is full memory is not: the newest go, as the log has them.
        let over = self.pending.len().saturating_sub(Events::UNWRITTEN);
        self.lost += over as u64;
        self.pending.truncate(Events::UNWRITTEN);
    }

    fn write(&mut self, leases: &Leases) {
        let outcome = self.write_all(leases);
        if let Ok(count) = &outcome {
            leases.audit.written.fetch_add(*count, Ordering::Relaxed);
        }
        let told = outcome.map_err(|error| format!("the audit is not written, and kept in memory meanwhile: {error}"));
        self.faults.note("not written", &told);
    }

    /// How many were written.
    fn write_all(&mut self, leases: &Leases) -> std::io::Result<u64> {
        let configured = &leases.configuration().audit;
        let mut trail = match self.trail.take().filter(Trail::is_in_place) {
            Some(trail) => trail,
            None => Trail::open(&configured.directory)?,
        };
        let mut own: Vec<String> = trail.take_remarks();
        own.extend(self.floods.take_remark(clock::unix_ms()));
        if self.lost > 0 {
            own.push(format!(
                "{} events were lost here, which could not be written in time; the journal may have them",
                self.lost
            ));
            leases.audit.lost.fetch_add(std::mem::take(&mut self.lost), Ordering::Relaxed);
        }
        own.iter().for_each(|message| log!("the audit: {message}"));
        let own = own.into_iter().map(|message| Arc::new(remark(message)));
        let batch: Vec<Arc<Event>> = own.chain(self.pending.drain(..)).collect();
        if let Err(error) = trail.write(&batch) {
            // A file that cannot be written is opened anew the next time. What of these is in it by then is seen there.
            self.pending = batch;
            return Err(error);
        }
        if self.told.is_none_or(|told| told.elapsed() >= DAY) {
            self.told = Some(Instant::now());
            if let Some((number, link)) = trail.end() {
                log!("the audit in {} ends with number {number}, chain {link}", configured.directory.display());
            }
            let forgotten = trail.forget(configured.keep_days, u64::from(configured.most_mib) << 20, clock::unix_ms());
            self.faults.note("old files of the audit cannot be taken out", &forgotten);
        }
        self.trail = Some(trail);
        Ok(batch.len() as u64)
    }
}

/// Something that the audit says of itself.
fn remark(message: String) -> Event {
    Event {
        sequence: 0,
        unix_ms: clock::unix_ms(),
        kind: EventKind::Audit,
        lease_id: None,
        container_id: None,
        uid: None,
        charged: Vec::new(),
        message,
    }
}
