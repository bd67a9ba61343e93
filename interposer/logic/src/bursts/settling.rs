//! Bursts that end on the device: what they cost is told, and learnt.

use super::{Burst, Bursts, STREAMS, State, TABLE};
use crate::clock;
use crate::credit::is_per_thread;
use crate::driver::{CUDA_ERROR_NOT_READY, CUDA_SUCCESS};
use crate::estimates::Estimates;
use crate::learning::Outcome;
use crate::place::Place;
use core::ptr::null_mut;
use gpool_shared_region::GPUS;

/// Places in the table, one after the other.
pub(super) struct Order {
    places: [u8; TABLE],
    count: usize,
}

const _: () = assert!(TABLE <= 1 << 8);

impl Order {
    const NONE: Self = Self { places: [0; TABLE], count: 0 };

    /// Puts burst `index` of `table` behind those with a lesser `number`.
    #[inline(never)]
    fn insert(&mut self, table: &[Burst; TABLE], index: usize, number: fn(&Burst) -> u64) {
        let mut at = self.count;
        self.count += 1;
        while at > 0 && number(&table[usize::from(self.places[at - 1])]) > number(&table[index]) {
            self.places[at] = self.places[at - 1];
            at -= 1;
        }
        self.places[at] = index as u8;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.places[..self.count].iter().map(|index| usize::from(*index))
    }
}

impl Burst {
    /// Its place in the order of issue.
    pub(super) fn issued(&self) -> u64 {
        self.sequence
    }
}

impl Bursts {
    /// Looks which closed bursts have ended, tells the supervisor of them, learns from them, and renews the estimate of
    /// the end.
    pub fn settle(&mut self, place: &Place, estimates: &Estimates) {
        if self.live == 0 {
            return self.fault.tell(place);
        }
        let closed = self.in_order(|state| state == State::Closed, |burst| burst.closed);
        let (mut ended, mut broken) = (Order::NONE, None);
        // Streams on which an end has not come: none that was recorded after it has. Of a program that goes to and fro between some,
        // dozens may wait, and each answer of the driver's takes a third of a launch.
        let (mut behind, mut streams) = ([(null_mut(), null_mut()); STREAMS], 0);
        for index in closed.iter() {
            let Burst { context, of, stream, end, tag, .. } = self.table[index];
            if behind[..streams].contains(&(of, stream)) {
                continue;
            }
            match place.driver.in_context(context, || place.driver.query(end)) {
                Some(CUDA_ERROR_NOT_READY) => {
                    // Its own for each thread, by the same handle.
                    if !is_per_thread(stream) && streams < STREAMS {
                        behind[streams] = (of, stream);
                        streams += 1;
                    }
                }
                Some(CUDA_SUCCESS) => ended.insert(&self.table, index, Burst::issued),
                // The context is gone or broken: nothing more can be known of what it had.
                other => {
                    self.fault.note(tag.gpu(), other.unwrap_or(CUDA_SUCCESS));
                    broken = Some(context);
                }
            }
        }
        // In the order in which they were issued, because each begins where the one before it ended.
        for index in ended.iter() {
            self.finish(place, index, estimates);
        }
        if let Some(context) = broken {
            self.end_unknown(place, context, |state| state == State::Closed);
        }
        self.fault.tell(place);
        self.estimate_end(clock::now_ns());
    }

    /// The process ends. If nobody has waited for its work, that may be because of a fault: it is asked about once, and what ends
    /// contexts is told. Nothing is asked beside a launch that has not returned, which may hold the driver.
    pub fn ask_at_end(&mut self, place: &Place) {
        let is_at_launch = |burst: &Burst| matches!(burst.state, State::Lone | State::Away);
        if !self.table.iter().any(is_at_launch) {
            for burst in self.table.iter().filter(|burst| matches!(burst.state, State::Open | State::Closed)) {
                // Of one that is open no end is recorded.
                let event = if burst.state == State::Open { burst.start } else { burst.end };
                let answer = place.driver.in_context(burst.context, || place.driver.query(event));
                self.fault.note(burst.tag.gpu(), answer.unwrap_or(CUDA_SUCCESS));
            }
        }
        self.fault.tell(place);
    }

    /// Bursts of such a state, in the order of `number`.
    #[inline(never)]
    pub(super) fn in_order(&self, is_it: fn(State) -> bool, number: fn(&Burst) -> u64) -> Order {
        let mut order = Order::NONE;
        for (index, _) in self.table.iter().enumerate().filter(|(_, burst)| is_it(burst.state)) {
            order.insert(&self.table, index, number);
        }
        order
    }

    fn finish(&mut self, place: &Place, index: usize, estimates: &Estimates) {
        let driver = &place.driver;
        let burst = self.table[index];
        self.table[index].state = State::Free;
        self.live -= 1;
        let now_ns = clock::now_ns();
        let measured = || {
            let length_ns = driver.elapsed_ns(burst.start, burst.end);
            (length_ns, self.anchors.place_ns(driver, burst.context, burst.end))
        };
        let (length_ns, placed_ns) = driver.in_context(burst.context, measured).unwrap_or_default();
        let told_ns = burst.resumed_ns - burst.opened_ns;
        let measured_ns = length_ns.map(|length_ns| (length_ns.max(0) as u64).saturating_sub(told_ns));
        let length_ns = measured_ns.unwrap_or(0);
        let last_end_ns = &mut self.last_ends_ns[burst.tag.gpu() % GPUS];
        // While another process is on the device, the start event waits for its turn like a kernel: from the moment on at which it was
        // issued or what was before it ended.
        let competing_ns = burst.resumed_ns.max(*last_end_ns);
        // Without an anchor it is taken to have begun then.
        let placed_ns =
            placed_ns.or(measured_ns.map(|length_ns| competing_ns + length_ns)).unwrap_or(now_ns).min(now_ns);
        // Of what could not be measured nobody knows when it came there.
        let begun_ns = if length_ns > 0 { placed_ns.saturating_sub(length_ns) } else { competing_ns.min(placed_ns) };
        let start_ns = begun_ns.min(competing_ns);
        self.waits.note_length(burst.sequence, competing_ns, length_ns);
        place.publish(burst.tag.after_queue(begun_ns - start_ns), start_ns, placed_ns, burst.launches);
        *last_end_ns = placed_ns.max(*last_end_ns);
        self.note_overlap(index, begun_ns, placed_ns);
        let last_word = &mut self.last_words[burst.tag.gpu() % GPUS];
        // One of before may end later, and one of who stands alone has no word.
        if burst.word != 0 && (*last_word == 0 || burst.word.wrapping_sub(*last_word).cast_signed() > 0) {
            *last_word = burst.word;
        }
        if burst.launches > 0
            && let Some(work) = burst.work
            && (burst.is_exact || burst.is_first)
        {
            let (is_mixed, launches, expected_ns) = (burst.is_mixed, burst.launches, burst.expected_ns);
            if is_mixed && burst.is_exact && told_ns == 0 && length_ns > 0 {
                // None of its launches took longer than all of them.
                estimates.bound(work, length_ns);
            }
            self.learning.learn(estimates, &Outcome { work, is_mixed, launches, expected_ns, length_ns }, now_ns);
        }
    }

    /// The end of the outstanding work: each burst starts when it was issued or when the one before it on its GPU
    /// ends, and none of them has ended yet.
    pub(super) fn estimate_end(&mut self, now_ns: u64) {
        for (gpu, end_ns) in self.estimated_ends_ns.iter_mut().enumerate() {
            *end_ns = self.last_ends_ns[gpu].max(self.gone_by_ends_ns[gpu]);
        }
        if self.live == 0 {
            return;
        }
        for index in self.in_order(State::is_live, Burst::issued).iter() {
            let burst = &self.table[index];
            let end_ns = &mut self.estimated_ends_ns[burst.tag.gpu() % GPUS];
            *end_ns = (burst.resumed_ns.max(*end_ns) + burst.estimate_ns).max(now_ns);
        }
    }
}
