//! Measuring GPU work: a burst is a run of launches on one stream between a pair of events.
//!
//! The length of a burst comes from its own two events, its place in host time from an anchor. All of this is driven
//! from the slow path of the gate and from the watcher, under one mutex.

use crate::anchors::Anchors;
use crate::clock;
use crate::credit::{is_default, is_per_thread};
use crate::driver::{CUDA_SUCCESS, Driver};
use crate::estimates::Work;
use crate::faults::Fault;
use crate::futex;
use crate::learning::{Expectation, Learning};
use crate::pause::Pause;
use crate::place::Place;
use core::ptr::null_mut;
use gpool_driver_abi::cuda::{CUcontext, CUevent, CUstream};
use gpool_shared_region::{BurstTag, GPUS};
use overlap::Overlap;

mod leaving;
mod overlap;
mod patience;
pub mod resting;
mod settling;
mod silence;

/// Bursts that may be open or unfinished at once.
const TABLE: usize = 64;
/// So many streams are remembered as having work that has not ended; most programs use fewer at a time.
const STREAMS: usize = 8;
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// Launches are being added.
    Open,
    /// One launch is under way; its thread ends the burst.
    Lone,
    /// The same for so long that it is taken not to have reached the device.
    Away,
    /// The end event is recorded.
    Closed,
    /// Its work has ended, the program has waited for that, and may go on with it.
    Resting,
    /// As closed, in a context that is being destroyed: nothing may be asked about it.
    Leaving,
    /// As free, with events of such a context.
    LeavingFree,
}

impl State {
    /// Whether it is open or has work that is not known to have ended.
    fn is_live(self) -> bool {
        !matches!(self, Self::Free | Self::Away | Self::Resting | Self::LeavingFree)
    }
}

#[derive(Clone, Copy)]
struct Burst {
    state: State,
    /// Whether its end came right after its last launch, so that its length says what its launches cost.
    is_exact: bool,
    /// Whether it measures work whose cost is not known.
    is_first: bool,
    is_mixed: bool,
    tag: BurstTag,
    /// Behind which gate word it was opened.
    word: u32,
    context: CUcontext,
    /// See [`Spot::of`].
    of: CUcontext,
    stream: CUstream,
    /// See [`Line`].
    thread: usize,
    start: CUevent,
    end: CUevent,
    sequence: u64,
    opened_ns: u64,
    /// When the program last went on with it; at first, when it was opened. What was before has been told.
    resumed_ns: u64,
    /// When it begins at the earliest: it went on then, or what was before it on its stream ended.
    begins_ns: u64,
    /// Whether work stood before it on its stream then, or may have on the device.
    is_behind: bool,
    /// Its first launch.
    work: Option<Work>,
    /// Launches that are known of; those since it was opened or resumed are counted where its credit is.
    launches: u32,
    /// By the table of estimates: what it may hold while it is open, what it holds when it is closed.
    expected_ns: u64,
    /// The same as real time.
    estimate_ns: u64,
    /// Its credit as a look last found it, and when that had changed last.
    seen_left_ns: u32,
    seen_ns: u64,
    /// How many had been ended when its end was recorded.
    closed: u64,
}

const FREE_BURST: Burst = Burst {
    state: State::Free,
    is_exact: false,
    is_first: false,
    is_mixed: false,
    tag: BurstTag(0),
    word: 0,
    context: null_mut(),
    of: null_mut(),
    stream: null_mut(),
    thread: 0,
    start: null_mut(),
    end: null_mut(),
    sequence: 0,
    opened_ns: 0,
    resumed_ns: 0,
    begins_ns: 0,
    is_behind: false,
    work: None,
    launches: 0,
    expected_ns: 0,
    estimate_ns: 0,
    seen_left_ns: 0,
    seen_ns: 0,
    closed: 0,
};

/// Where a burst runs.
#[derive(Clone, Copy)]
pub struct Spot {
    /// The context in which it is measured.
    pub context: CUcontext,
    /// That whose stream it is: the same one, or a part of it. A part can be current to one thread only, which is the program's, and only
    /// to that its default streams have names.
    pub of: CUcontext,
    /// What the region calls it.
    pub tag: BurstTag,
    /// The stream.
    pub stream: CUstream,
}

/// One order of work: a stream of a context, and the thread whose it is where each has its own by the same handle; else 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    of: CUcontext,
    stream: CUstream,
    thread: usize,
}

impl Spot {
    /// In which order the calling thread's launches there are.
    pub fn line(self) -> Line {
        let thread = if is_per_thread(self.stream) { futex::this_thread() } else { 0 };
        Line { of: self.of, stream: self.stream, thread }
    }
}

impl Burst {
    fn line(&self) -> Line {
        Line { of: self.of, stream: self.stream, thread: self.thread }
    }
}

/// What a burst may hold.
#[derive(Clone, Copy)]
pub struct Grant {
    /// Its first launch.
    pub work: Work,
    /// What that is expected to cost.
    pub expectation: Expectation,
    /// Expected cost of all launches that it may hold; none when the first is to be its only one.
    pub credit_ns: Option<u32>,
    /// The gate word behind which it is; 0 where nobody else is at work on the device. Until a burst behind that has ended, others may be
    /// on the device still, and how long one stands before it is only to be had from events.
    pub word: u32,
}

/// What became of a burst's credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spent {
    /// Credit that is left.
    pub left_ns: u32,
    /// Launches that happened.
    pub launches: u32,
    /// Whether they were of different work.
    pub is_mixed: bool,
}

impl Spent {
    /// Of a burst with one launch.
    pub const LONE: Self = Self { left_ns: 0, launches: 1, is_mixed: false };
}

/// The bursts of one process.
pub struct Bursts {
    table: [Burst; TABLE],
    anchors: Anchors,
    learning: Learning,
    pause: Pause,
    last_sequence: u64,
    /// How many bursts have been ended.
    last_closed: u64,
    /// Bursts that are open or unfinished.
    live: usize,
    waits: resting::Waits,
    /// Whether the program has waited for some of its work since it last came to launch something.
    has_waited: bool,
    /// Whether the driver returns from a launch when its work has ended.
    is_blocking: bool,
    /// What the driver has answered about a context that cannot be used any more, until that is told.
    fault: Fault,
    /// For each GPU of the lease, when the work issued so far is expected to end.
    estimated_ends_ns: [u64; GPUS],
    /// For each GPU, how much runs beside other work.
    overlaps: [Overlap; GPUS],
    /// For each GPU, when the last finished burst ended.
    last_ends_ns: [u64; GPUS],
    /// For each GPU, when what has gone by unmeasured is expected to end.
    gone_by_ends_ns: [u64; GPUS],
    /// For each GPU, when something was issued last that was not added to a burst.
    last_issues_ns: [u64; GPUS],
    /// For each GPU, the gate word behind which the burst was that ended last.
    last_words: [u32; GPUS],
}

// SAFETY: the handles are opaque numbers of the driver, valid on every thread of the process.
unsafe impl Send for Bursts {}

impl Bursts {
    /// No bursts yet. All zero, so that it takes no room in a library's file.
    pub const fn new() -> Self {
        Self {
            table: [FREE_BURST; TABLE],
            anchors: Anchors::new(),
            learning: Learning::new(),
            pause: Pause::new(),
            last_sequence: 0,
            last_closed: 0,
            live: 0,
            waits: resting::Waits::new(),
            has_waited: false,
            is_blocking: false,
            fault: Fault::NONE,
            estimated_ends_ns: [0; GPUS],
            overlaps: [Overlap::NONE; GPUS],
            last_ends_ns: [0; GPUS],
            gone_by_ends_ns: [0; GPUS],
            last_issues_ns: [0; GPUS],
            last_words: [0; GPUS],
        }
    }

    /// Open and unfinished bursts.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Work that the open bursts of GPU `gpu` of the lease may still get; `left_ns` says how much of a burst's credit is left.
    #[inline(never)]
    pub fn unspent_ns(&self, gpu: usize, left_ns: &dyn Fn(usize) -> u32) -> u64 {
        let open = self.table.iter().enumerate().filter(|(_, its)| its.state == State::Open && its.tag.gpu() == gpu);
        open.map(|(index, its)| self.learning.real_ns(left_ns(index).into()).min(its.estimate_ns)).sum()
    }

    /// When the work issued to all GPUs is expected to end, at least `now_ns`.
    pub fn estimated_end_ns(&self, now_ns: u64) -> u64 {
        (0..GPUS).fold(now_ns, |latest, gpu| latest.max(self.told_end_on(gpu, &|_| 0, now_ns)))
    }

    /// When the work issued to GPU `gpu` of the lease is expected to end, at least `now_ns`.
    pub fn estimated_end_on(&self, gpu: usize, now_ns: u64) -> u64 {
        self.estimated_ends_ns[gpu % GPUS].max(now_ns)
    }

    /// When the last finished burst ended on its device.
    pub fn last_end_ns(&self) -> u64 {
        self.last_ends_ns.iter().copied().fold(0, u64::max)
    }

    /// How long the program usually pauses.
    pub fn pause(&self) -> &Pause {
        &self.pause
    }

    /// The program comes to launch something.
    pub fn note_arrival(&mut self, now_ns: u64) {
        let has_waited = core::mem::take(&mut self.has_waited);
        let last_end_ns = self.last_end_ns();
        if self.live == 0 && last_end_ns > 0 {
            self.pause.learn(now_ns.saturating_sub(last_end_ns));
        } else if has_waited {
            self.pause.did_not_come();
        }
    }

    /// The program waits for some of its work.
    pub fn note_wait(&mut self) {
        self.has_waited = true;
    }

    /// What has been learnt about costs.
    pub fn learning(&self) -> &Learning {
        &self.learning
    }

    /// Whether no further burst can be opened until one has ended, or a context has gone or stays.
    pub fn is_full(&self) -> bool {
        !self.table.iter().any(|burst| matches!(burst.state, State::Free | State::Resting))
    }

    /// Work runs that cannot be measured, because the driver gives no event: it is charged at its estimate, so that
    /// it is not free.
    pub fn charge_unmeasured(&mut self, place: &Place, tag: BurstTag, expectation: Expectation, now_ns: u64) {
        self.last_issues_ns[tag.gpu() % GPUS] = now_ns;
        place.publish(tag, now_ns.saturating_sub(expectation.cost_ns.into()), now_ns, 1);
    }

    /// Starts a burst. None when no event can be had; without a context there is none.
    pub fn open(&mut self, driver: &Driver, spot: Spot, grant: Grant) -> Option<usize> {
        if spot.context.is_null() {
            return None;
        }
        let index = driver.in_context(spot.context, || self.anchored_place(driver, spot.context)).flatten()?;
        let is_behind = self.is_first(spot, grant) || self.is_occupied(spot.of, spot.stream);
        let burst = &mut self.table[index];
        let recorded = driver.in_context(spot.of, || driver.record(burst.start, spot.stream))?;
        if recorded != CUDA_SUCCESS {
            self.fault.note(spot.tag.gpu(), recorded);
            return None;
        }
        let now_ns = clock::now_ns();
        let cost_ns = u64::from(grant.expectation.cost_ns);
        self.last_sequence += 1;
        *burst = Burst {
            state: if grant.credit_ns.is_some() { State::Open } else { State::Lone },
            is_exact: true,
            is_first: !grant.expectation.is_measured,
            is_mixed: false,
            tag: spot.tag,
            word: grant.word,
            of: spot.of,
            stream: spot.stream,
            thread: spot.line().thread,
            sequence: self.last_sequence,
            opened_ns: now_ns,
            resumed_ns: now_ns,
            begins_ns: now_ns,
            is_behind,
            work: Some(grant.work),
            launches: 0,
            expected_ns: grant.credit_ns.map_or(cost_ns, u64::from),
            estimate_ns: grant.credit_ns.map_or(cost_ns, |credit_ns| self.learning.real_ns(credit_ns.into())),
            seen_left_ns: grant.credit_ns.map_or(0, |credit_ns| credit_ns.saturating_sub(grant.expectation.cost_ns)),
            seen_ns: now_ns,
            ..*burst
        };
        self.live += 1;
        let gpu = burst.tag.gpu() % GPUS;
        self.estimated_ends_ns[gpu] = self.estimated_ends_ns[gpu].max(now_ns) + burst.estimate_ns;
        self.last_issues_ns[gpu] = now_ns;
        Some(index)
    }

    /// A free place whose events belong to the current context, `context`, of which there is an anchor.
    fn anchored_place(&mut self, driver: &Driver, context: CUcontext) -> Option<usize> {
        let is_in_use =
            |context| self.table.iter().any(|burst: &Burst| burst.state != State::Free && burst.context == context);
        self.anchors.renew(driver, context, self.live == 0, is_in_use)?;
        self.place_for(driver, context)
    }

    /// Whether no burst behind its gate word has ended on its GPU.
    fn is_first(&self, spot: Spot, grant: Grant) -> bool {
        grant.word != 0 && self.last_words[spot.tag.gpu() % GPUS] != grant.word
    }

    /// A free place whose events belong to `context`.
    fn place_for(&mut self, driver: &Driver, context: CUcontext) -> Option<usize> {
        let free = |burst: &Burst| burst.state == State::Free;
        let index = (self.table.iter().position(|burst| free(burst) && burst.context == context))
            .or_else(|| self.table.iter().position(|burst| free(burst) && burst.context.is_null()))
            .or_else(|| self.table.iter().position(free))
            .or_else(|| self.table.iter().position(|burst| burst.state == State::Resting))?;
        let burst = &mut self.table[index];
        if burst.context != context && !burst.context.is_null() {
            // Events belong to the context in which they were made.
            [burst.start, burst.end].into_iter().for_each(|event| driver.destroy_event(event));
            *burst = FREE_BURST;
        }
        if burst.context.is_null() {
            let (start, end) = (driver.new_event(), driver.new_event());
            if start.is_null() || end.is_null() {
                [start, end].into_iter().for_each(|event| driver.destroy_event(event));
                return None;
            }
            (burst.context, burst.start, burst.end) = (context, start, end);
        }
        Some(index)
    }

    /// Ends burst `index`. A no-op if it has ended.
    pub fn close(&mut self, driver: &Driver, index: usize, spent: Spent) {
        let burst = &mut self.table[index];
        if !matches!(burst.state, State::Open | State::Lone) {
            return;
        }
        burst.launches += spent.launches;
        burst.is_mixed |= spent.is_mixed;
        if burst.state == State::Open {
            burst.expected_ns = burst.expected_ns.saturating_sub(spent.left_ns.into());
            let used_ns = self.learning.real_ns(burst.expected_ns).min(burst.estimate_ns);
            let end_ns = &mut self.estimated_ends_ns[burst.tag.gpu() % GPUS];
            *end_ns = end_ns.saturating_sub(burst.estimate_ns - used_ns);
            burst.estimate_ns = used_ns;
        }
        let record = || {
            // An event recorded into somebody's capture would become part of the graph.
            (!driver.is_capturing(burst.stream)).then(|| driver.record(burst.end, burst.stream))
        };
        // The default stream's handle means the current context's.
        let recorded = driver.in_context(burst.of, record).flatten();
        self.fault.note(burst.tag.gpu(), recorded.unwrap_or(CUDA_SUCCESS));
        let lost = recorded != Some(CUDA_SUCCESS);
        burst.state = if lost { State::Free } else { State::Closed };
        self.last_closed += 1;
        burst.closed = self.last_closed;
        self.live -= usize::from(lost);
    }

    /// The number of burst `index`, which no other burst ever has.
    pub fn number(&self, index: usize) -> u64 {
        self.table[index].sequence
    }

    /// Ends the burst with this number, whose launch has happened; whether it had been given up on. A no-op if it has ended:
    /// its place may be another burst's by now.
    pub fn close_lone(&mut self, driver: &Driver, number: u64) -> bool {
        let is_it = |burst: &Burst| matches!(burst.state, State::Lone | State::Away) && burst.sequence == number;
        let Some(index) = self.table.iter().position(is_it) else { return false };
        let was_away = self.come_back(index);
        self.doubt_long(index);
        self.close(driver, index, Spent::LONE);
        was_away
    }

    /// Any open burst of `context` but `kept`.
    pub fn open_in(&self, context: CUcontext, kept: Option<usize>) -> Option<usize> {
        (0..TABLE).find(|index| self.is_open_in(*index, context, None) && Some(*index) != kept)
    }

    /// The open burst on `stream` of `context`, if any.
    pub fn open_on_in(&self, context: CUcontext, stream: CUstream) -> Option<usize> {
        (0..TABLE).find(|index| self.is_open_in(*index, context, Some(stream)))
    }

    /// Whether burst `index` is open, in `context`, and on `stream` if one is given.
    pub fn is_open_in(&self, index: usize, context: CUcontext, stream: Option<CUstream>) -> bool {
        let burst = &self.table[index];
        let is_there = burst.context == context && stream.is_none_or(|stream| burst.stream == stream);
        burst.state == State::Open && is_there
    }

    /// Any open burst on the legacy default stream of any context.
    pub fn open_on_default(&self) -> Option<usize> {
        self.table.iter().position(|burst| burst.state == State::Open && is_default(burst.stream))
    }

    /// The open burst on `stream`, if any.
    pub fn open_on(&self, stream: CUstream) -> Option<usize> {
        self.table.iter().position(|burst| burst.state == State::Open && burst.stream == stream)
    }
}

impl Default for Bursts {
    fn default() -> Self {
        Self::new()
    }
}
