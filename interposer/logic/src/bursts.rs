//! Measuring GPU work: a burst is a run of launches on one stream between a pair of events.
//!
//! The length of a burst comes from its own two events. Its place in host time comes from an anchor: an event on a
//! stream of our own, bracketed by CLOCK_MONOTONIC. All of this is driven from the slow path of the gate and from
//! the watcher, under one mutex.

use crate::clock;
use crate::driver::{CUDA_ERROR_NOT_READY, CUDA_SUCCESS, Driver};
use core::ptr::null_mut;
use core::sync::atomic::Ordering;
use gpool_driver_abi::cuda::{CUcontext, CUevent, CUstream};
use gpool_shared_region::{BURST_RING, Slot};

/// Bursts that may be open or unfinished at once.
const TABLE: usize = 64;
/// Contexts whose anchors are remembered.
const ANCHORS: usize = 8;
/// An idle device is a chance to renew an anchor older than this.
const ANCHOR_RENEW_NS: u64 = 500_000_000;
/// An anchor older than this is renewed even behind queued work: float milliseconds lose resolution.
const ANCHOR_LIMIT_NS: u64 = 5_000_000_000;
/// A wider bracket does not replace a usable anchor.
const ANCHOR_BRACKET_NS: u64 = 200_000;
/// A program that adds nothing to its burst for so long beyond the burst's expected end has stopped adding.
const ADD_PATIENCE_NS: u64 = 100_000;
/// What a launch is taken to cost before one has been measured.
const UNKNOWN_LAUNCH_NS: u64 = 1_000_000;

/// A context's relation between device time and host time.
#[derive(Clone, Copy)]
struct Anchor {
    context: CUcontext,
    stream: CUstream,
    event: CUevent,
    spare: CUevent,
    host_ns: u64,
    taken_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// Launches are being added.
    Open,
    /// The end event is recorded.
    Closed,
}

#[derive(Clone, Copy)]
struct Burst {
    state: State,
    context: CUcontext,
    stream: CUstream,
    start: CUevent,
    end: CUevent,
    sequence: u64,
    opened_ns: u64,
    launches: u32,
    estimate_ns: u64,
    /// Whether its end came right after its last launch, so that its length says what a launch costs.
    is_exact: bool,
}

const FREE_ANCHOR: Anchor =
    Anchor { context: null_mut(), stream: null_mut(), event: null_mut(), spare: null_mut(), host_ns: 0, taken_ns: 0 };
const FREE_BURST: Burst = Burst {
    state: State::Free,
    context: null_mut(),
    stream: null_mut(),
    start: null_mut(),
    end: null_mut(),
    sequence: 0,
    opened_ns: 0,
    launches: 0,
    estimate_ns: 0,
    is_exact: false,
};

/// The bursts of one process.
pub struct Bursts {
    table: [Burst; TABLE],
    anchors: [Anchor; ANCHORS],
    next_sequence: u64,
    /// Open and closed bursts.
    live: usize,
    /// EWMA of the cost of one launch; 0 before the first measurement.
    launch_ns: u64,
    /// When the work issued so far is expected to end.
    estimated_end_ns: u64,
    /// When the last finished burst ended.
    last_end_ns: u64,
}

// SAFETY: the handles are opaque numbers of the driver, valid on every thread of the process.
unsafe impl Send for Bursts {}

impl Bursts {
    /// No bursts yet.
    pub const fn new() -> Self {
        Self {
            table: [FREE_BURST; TABLE],
            anchors: [FREE_ANCHOR; ANCHORS],
            next_sequence: 1,
            live: 0,
            launch_ns: 0,
            estimated_end_ns: 0,
            last_end_ns: 0,
        }
    }

    /// Open and unfinished bursts.
    pub fn live(&self) -> usize {
        self.live
    }

    /// When the issued work is expected to end, at least `now_ns`.
    pub fn estimated_end_ns(&self, now_ns: u64) -> u64 {
        self.estimated_end_ns.max(now_ns)
    }

    /// When the last finished burst ended on the device.
    pub fn last_end_ns(&self) -> u64 {
        self.last_end_ns
    }

    /// Launches that fill `room_ns` of GPU time, at least one; exactly one while the cost is unknown.
    pub fn launches_for(&self, room_ns: u64) -> u32 {
        room_ns.checked_div(self.launch_ns).map_or(1, |launches| launches.clamp(1, 4096) as u32)
    }

    /// Whether no further burst can be opened until one has ended.
    pub fn is_full(&self) -> bool {
        self.live >= TABLE
    }

    /// What a launch is expected to cost.
    fn expected_launch_ns(&self) -> u64 {
        if self.launch_ns == 0 { UNKNOWN_LAUNCH_NS } else { self.launch_ns }
    }

    /// Work runs that cannot be measured, because the driver gives no event: it is charged at its estimate, so that
    /// it is not free.
    pub fn charge_unmeasured(&self, slot: &Slot, now_ns: u64) {
        publish(slot, now_ns.saturating_sub(self.expected_launch_ns()), now_ns, 1);
    }

    /// Starts a burst of up to `launches` launches on `stream`. None when no event can be had.
    pub fn open(&mut self, driver: &Driver, context: CUcontext, stream: CUstream, launches: u32) -> Option<usize> {
        self.renew_anchor(driver, context)?;
        let launch_ns = self.expected_launch_ns();
        let free = |burst: &Burst| burst.state == State::Free;
        let index = (self.table.iter().position(|burst| free(burst) && burst.context == context))
            .or_else(|| self.table.iter().position(|burst| free(burst) && burst.context.is_null()))
            .or_else(|| self.table.iter().position(free))?;
        let burst = &mut self.table[index];
        if burst.context != context && !burst.context.is_null() {
            // Events belong to the context in which they were made.
            for event in [burst.start, burst.end] {
                // SAFETY: our own event, used by no live burst.
                unsafe { (driver.event_destroy)(event) };
            }
            *burst = FREE_BURST;
        }
        if burst.context.is_null() {
            let (start, end) = (driver.new_event(), driver.new_event());
            if start.is_null() || end.is_null() {
                return None;
            }
            (burst.context, burst.start, burst.end) = (context, start, end);
        }
        if driver.record(burst.start, stream) != CUDA_SUCCESS {
            return None;
        }
        let now_ns = clock::now_ns();
        burst.is_exact = true;
        burst.state = State::Open;
        burst.stream = stream;
        burst.sequence = self.next_sequence;
        burst.opened_ns = now_ns;
        burst.launches = launches;
        burst.estimate_ns = launch_ns.saturating_mul(u64::from(launches));
        self.next_sequence += 1;
        self.live += 1;
        self.estimated_end_ns = self.estimated_end_ns.max(now_ns) + burst.estimate_ns;
        Some(index)
    }

    /// Ends burst `index`, of whose launches `unused` did not happen. A no-op if it is not open.
    pub fn close(&mut self, driver: &Driver, index: usize, unused: u32) {
        let burst = &mut self.table[index];
        if burst.state != State::Open {
            return;
        }
        let used = burst.launches.saturating_sub(unused);
        if unused > 0 && burst.launches > 0 {
            let unused_ns = burst.estimate_ns / u64::from(burst.launches) * u64::from(unused);
            burst.estimate_ns -= unused_ns;
            self.estimated_end_ns = self.estimated_end_ns.saturating_sub(unused_ns);
        }
        burst.launches = used;
        let record = || {
            // An event recorded into somebody's capture would become part of the graph.
            driver.is_capturing(burst.stream) || driver.record(burst.end, burst.stream) != CUDA_SUCCESS
        };
        // The default stream's handle means the current context's.
        let here = driver.current_context() == burst.context;
        let lost = if here { record() } else { driver.with_context(burst.context, record).unwrap_or(true) };
        burst.state = if lost { State::Free } else { State::Closed };
        self.live -= usize::from(lost);
    }

    /// When each open burst should have ended, if no more launches are added: (index, time). `unused` says how many
    /// of the launches that it may hold have not happened.
    pub fn open_ends(&self, unused: impl Fn(usize) -> u32) -> impl Iterator<Item = (usize, u64)> {
        let end = move |(index, burst): (usize, &Burst)| {
            let used = burst.launches.saturating_sub(unused(index));
            (index, burst.opened_ns + self.expected_launch_ns().saturating_mul(used.into()) + ADD_PATIENCE_NS)
        };
        self.table.iter().enumerate().filter(|(_, burst)| burst.state == State::Open).map(end)
    }

    /// Ends burst `index`, to which the program has stopped adding; its length includes the silence.
    pub fn close_late(&mut self, driver: &Driver, index: usize, unused: u32) {
        self.table[index].is_exact = false;
        self.close(driver, index, unused);
    }

    /// Any open burst of `context`.
    pub fn open_in(&self, context: CUcontext) -> Option<usize> {
        self.table.iter().position(|burst| burst.state == State::Open && burst.context == context)
    }

    /// The open burst on `stream`, if any.
    pub fn open_on(&self, stream: CUstream) -> Option<usize> {
        self.table.iter().position(|burst| burst.state == State::Open && burst.stream == stream)
    }

    /// Looks which closed bursts have ended, tells them to `slot`, and renews the estimate of the end.
    pub fn settle(&mut self, driver: &Driver, slot: &Slot) {
        if self.live == 0 {
            return;
        }
        for index in 0..TABLE {
            if self.table[index].state != State::Closed {
                continue;
            }
            match driver.query(self.table[index].end) {
                CUDA_ERROR_NOT_READY => continue,
                CUDA_SUCCESS => self.finish(driver, index, slot),
                // The context is gone or broken: nothing more can be known of this burst.
                _ => self.forget(index),
            }
        }
        self.estimate_end();
    }

    fn finish(&mut self, driver: &Driver, index: usize, slot: &Slot) {
        let burst = self.table[index];
        self.table[index].state = State::Free;
        self.live -= 1;
        let now_ns = clock::now_ns();
        let length_ns = driver.elapsed_ns(burst.start, burst.end).unwrap_or(0).max(0) as u64;
        let anchor = self.anchors.iter().find(|anchor| anchor.context == burst.context);
        let placed_ns = anchor
            .and_then(|anchor| driver.elapsed_ns(anchor.event, burst.end)?.checked_add(anchor.host_ns as i64))
            .map_or(now_ns, |end_ns| (end_ns.max(0) as u64).min(now_ns));
        publish(slot, placed_ns.saturating_sub(length_ns), placed_ns, burst.launches);
        self.last_end_ns = self.last_end_ns.max(placed_ns);
        if burst.launches > 0 && (burst.is_exact || self.launch_ns == 0) {
            let launch_ns = (length_ns / u64::from(burst.launches)).max(1);
            self.launch_ns = match self.launch_ns {
                0 => launch_ns,
                known => (known * 3 + launch_ns) / 4,
            };
        }
    }

    fn is_in_use(&self, context: CUcontext) -> bool {
        self.table.iter().any(|burst| burst.state != State::Free && burst.context == context)
    }

    fn forget(&mut self, index: usize) {
        self.table[index] = FREE_BURST;
        self.live -= 1;
    }

    /// The end of the outstanding work: each burst starts when it was issued or when the one before it ends.
    fn estimate_end(&mut self) {
        let mut end_ns = self.last_end_ns;
        let mut after = 0;
        while let Some(burst) = (self.table.iter())
            .filter(|burst| burst.state != State::Free && burst.sequence > after)
            .min_by_key(|burst| burst.sequence)
        {
            after = burst.sequence;
            end_ns = end_ns.max(burst.opened_ns) + burst.estimate_ns;
        }
        self.estimated_end_ns = end_ns;
    }

    /// Forgets everything of a context that is about to be destroyed, while its handles are still valid.
    pub fn leave_context(&mut self, driver: &Driver, context: CUcontext) {
        for index in 0..TABLE {
            let burst = self.table[index];
            if burst.context != context {
                continue;
            }
            for event in [burst.start, burst.end] {
                // SAFETY: our own event of a context that still lives.
                unsafe { (driver.event_destroy)(event) };
            }
            self.live -= usize::from(burst.state != State::Free);
            self.table[index] = FREE_BURST;
        }
        for anchor in self.anchors.iter_mut().filter(|anchor| anchor.context == context) {
            *anchor = FREE_ANCHOR;
        }
        self.estimate_end();
    }

    /// Makes sure that `context` has an anchor that is young enough. None if none can be had.
    fn renew_anchor(&mut self, driver: &Driver, context: CUcontext) -> Option<()> {
        let now_ns = clock::now_ns();
        let known = self.anchors.iter().position(|anchor| anchor.context == context);
        let index = match known {
            Some(index) => index,
            None => {
                let index = self.anchors.iter().position(|anchor| anchor.context.is_null());
                let index = index.or_else(|| self.anchors.iter().position(|anchor| !self.is_in_use(anchor.context)))?;
                let (stream, event, spare) = (driver.new_stream(), driver.new_event(), driver.new_event());
                if stream.is_null() || event.is_null() || spare.is_null() {
                    return None;
                }
                self.anchors[index] = Anchor { context, stream, event, spare, host_ns: 0, taken_ns: 0 };
                index
            }
        };
        let anchor = &mut self.anchors[index];
        let age_ns = now_ns - anchor.taken_ns;
        if age_ns < ANCHOR_RENEW_NS || (self.live > 0 && age_ns < ANCHOR_LIMIT_NS) {
            return Some(());
        }
        let before_ns = clock::now_ns();
        if driver.record(anchor.spare, anchor.stream) != CUDA_SUCCESS
            || driver.synchronize(anchor.spare) != CUDA_SUCCESS
        {
            return known.map(|_| ());
        }
        let after_ns = clock::now_ns();
        if after_ns - before_ns <= ANCHOR_BRACKET_NS || age_ns >= ANCHOR_LIMIT_NS {
            core::mem::swap(&mut anchor.event, &mut anchor.spare);
            anchor.taken_ns = after_ns;
            // Behind queued work the event happens late in the bracket; alone it happens at once. Where the
            // bracket is narrow the middle is within 100 us, where it is wide the end is the better guess.
            anchor.host_ns = if after_ns - before_ns <= ANCHOR_BRACKET_NS {
                before_ns.midpoint(after_ns)
            } else {
                after_ns - 50_000
            };
        }
        Some(())
    }
}

impl Default for Bursts {
    fn default() -> Self {
        Self::new()
    }
}

/// Writes one burst into the ring; the count comes last, so a reader never sees a burst half written.
fn publish(slot: &Slot, start_ns: u64, end_ns: u64, launches: u32) {
    let count = slot.burst_count.load(Ordering::Relaxed);
    let record = &slot.bursts[(count % BURST_RING as u64) as usize];
    record.start_ns.store(start_ns, Ordering::Relaxed);
    record.end_ns.store(end_ns, Ordering::Relaxed);
    slot.burst_total_ns.fetch_add(end_ns - start_ns, Ordering::Relaxed);
    slot.launches.fetch_add(u64::from(launches), Ordering::Relaxed);
    slot.burst_count.store(count + 1, Ordering::Release);
}
