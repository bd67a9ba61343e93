//! Who is on the GPU when: work-conserving round robin between the contexts that have work. The clients of one MPS server
//! have their turns together, and share the device while they are on it.

use crate::context::{Context, ContextId, WHOLE_PERCENT};
use crate::process::SAMPLE_PERIOD_NS;
use crate::queue::Head;
use serde::{Deserialize, Serialize};

/// What the GPU did between two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    /// No context had work.
    Idle,
    /// Another context was being put on the GPU.
    Switch,
    /// Kernels executed.
    Busy,
}

/// What a context did in such a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Executed {
    /// The context's index.
    pub(crate) index: usize,
    /// How much of its kernel, in time of the whole device.
    pub(crate) done_ns: u64,
    /// Whether that completed it.
    pub(crate) complete: bool,
}

/// A stretch of time in which one thing happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) activity: Activity,
}

/// The scheduling half of a device, without its meter, so that a look into the future can work on a cheap copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Engine {
    pub(crate) clock_ns: u64,
    time_slice_ns: u64,
    switch_cost_ns: u64,
    /// Sorted by id.
    contexts: Vec<Context>,
    next_id: u64,
    /// The seat of the contexts on the GPU, which stay there while the GPU is idle.
    resident: Option<ContextId>,
    /// The last seat that was put on the GPU, also when it is gone: where the round goes on.
    position: ContextId,
    switch_left_ns: u64,
    slice_left_ns: u64,
}

impl Engine {
    pub(crate) fn new(now_ns: u64, time_slice_ns: u64, switch_cost_ns: u64) -> Self {
        Self {
            clock_ns: now_ns,
            time_slice_ns: time_slice_ns.max(1),
            switch_cost_ns,
            contexts: Vec::new(),
            next_id: 1,
            resident: None,
            position: ContextId(0),
            switch_left_ns: 0,
            slice_left_ns: 0,
        }
    }

    pub(crate) fn contexts(&self) -> &[Context] {
        &self.contexts
    }

    pub(crate) fn context(&self, id: ContextId) -> Option<&Context> {
        self.index(id).map(|index| &self.contexts[index])
    }

    pub(crate) fn context_mut(&mut self, id: ContextId) -> Option<&mut Context> {
        self.index(id).map(|index| &mut self.contexts[index])
    }

    pub(crate) fn add(&mut self, process: u32, owner: &str, bytes: u64) -> ContextId {
        let id = ContextId(self.next_id);
        self.next_id += 1;
        self.contexts.push(Context::new(id, process, owner, bytes));
        id
    }

    /// Puts a context back that [`Engine::remove`] took away.
    pub(crate) fn insert(&mut self, context: Context) {
        if let Err(index) = self.contexts.binary_search_by_key(&context.id, |other| other.id) {
            self.contexts.insert(index, context);
        }
        self.settle();
    }

    /// A seat for contexts that are to have their turns together; it is no context.
    pub(crate) fn new_seat(&mut self) -> ContextId {
        let seat = ContextId(self.next_id);
        self.next_id += 1;
        seat
    }

    /// Takes a context away with its work. If it is on the GPU, its kernel stops now.
    pub(crate) fn remove(&mut self, id: ContextId) -> Option<Context> {
        let index = self.index(id)?;
        let context = self.contexts.remove(index);
        let is_last = self.contexts.iter().all(|other| other.seat != context.seat);
        if is_last && self.resident == Some(context.seat) {
            self.resident = None;
            self.switch_left_ns = 0;
        }
        self.settle();
        Some(context)
    }

    /// Makes the decisions that take no time: completes markers at the head of the contexts on the GPU, and gives
    /// a GPU that nobody uses to the next ones with work.
    pub(crate) fn settle(&mut self) {
        while self.switch_left_ns == 0 {
            let mut has_work = false;
            for context in self.contexts.iter_mut().filter(|context| Some(context.seat) == self.resident) {
                while context.queue.head() == Some(Head::Marker) {
                    context.complete_marker(self.clock_ns);
                }
                has_work |= !context.queue.is_empty();
            }
            if has_work {
                return;
            }
            match self.rival() {
                Some(seat) => self.place(seat),
                None => return,
            }
        }
    }

    /// Goes on to the next moment at which something changes, at the latest to `until_ns`, and says what happened
    /// in between; who executed what is left in `executed`. None when the clock is there already.
    pub(crate) fn step(&mut self, until_ns: u64, executed: &mut Vec<Executed>) -> Option<Segment> {
        executed.clear();
        self.settle();
        let start_ns = self.clock_ns;
        if start_ns >= until_ns {
            return None;
        }
        let available_ns = until_ns - start_ns;
        let rival = self.rival();
        if self.switch_left_ns == 0
            && self.slice_left_ns == 0
            && let Some(seat) = rival
        {
            self.place(seat);
            return self.step(until_ns, executed);
        }
        let activity = if self.switch_left_ns > 0 {
            let elapsed_ns = self.switch_left_ns.min(available_ns);
            self.switch_left_ns -= elapsed_ns;
            self.clock_ns += elapsed_ns;
            Activity::Switch
        } else if let Some(lasts_ns) = self.next_end_ns() {
            let limit_ns = if rival.is_some() { self.slice_left_ns } else { u64::MAX };
            let elapsed_ns = lasts_ns.min(available_ns).min(limit_ns).min(self.until_next_sample_ns());
            self.execute(elapsed_ns, executed);
            self.spend_slice(elapsed_ns, rival.is_some());
            self.clock_ns += elapsed_ns;
            Activity::Busy
        } else {
            self.clock_ns = until_ns;
            Activity::Idle
        };
        self.settle();
        Some(Segment { start_ns, end_ns: self.clock_ns, activity })
    }

    /// The next moment at which something changes if nobody submits anything; None while no context has work.
    pub(crate) fn next_change_ns(&self) -> Option<u64> {
        if self.switch_left_ns > 0 {
            return Some(self.clock_ns + self.switch_left_ns);
        }
        let lasts_ns = self.next_end_ns()?;
        if lasts_ns <= self.slice_left_ns || self.rival().is_none() {
            return Some(self.clock_ns.saturating_add(lasts_ns));
        }
        // At the end of a slice the switch begins at once; that is no stretch of time of its own.
        let lasts_ns = if self.slice_left_ns > 0 { self.slice_left_ns } else { self.switch_cost_ns.max(1) };
        Some(self.clock_ns + lasts_ns)
    }

    /// The contexts on the GPU that have a kernel at their head, and how much of that remains.
    fn running(&self) -> impl Iterator<Item = (usize, &Context, u64)> {
        let on_it = |(_, context): &(usize, &Context)| Some(context.seat) == self.resident;
        self.contexts.iter().enumerate().filter(on_it).filter_map(|(index, context)| match context.queue.head() {
            Some(Head::Kernel { remaining_ns }) => Some((index, context, remaining_ns)),
            Some(Head::Marker) | None => None,
        })
    }

    /// The parts into which the device is divided now: hundredths, or as many as those who run may have together if that
    /// is more.
    fn parts(&self) -> u64 {
        let asked: u64 = self.running().map(|(_, context, _)| u64::from(context.percent)).sum();
        asked.max(WHOLE_PERCENT.into())
    }

    /// How long until the first of the kernels on the GPU ends; none if none is there.
    fn next_end_ns(&self) -> Option<u64> {
        let all = self.parts();
        self.running().map(|(_, context, remaining_ns)| context.lasts_ns(remaining_ns, all)).min()
    }

    fn execute(&mut self, elapsed_ns: u64, executed: &mut Vec<Executed>) {
        let all = self.parts();
        executed.extend(self.running().map(|(index, ..)| Executed { index, done_ns: 0, complete: false }));
        for one in executed {
            (one.done_ns, one.complete) = self.contexts[one.index].execute(elapsed_ns, all);
        }
    }

    /// Who has a part of the device is metered by period, so that what he had does not lie in another one.
    fn until_next_sample_ns(&self) -> u64 {
        let is_shared = self.running().any(|(_, context, _)| context.seat != context.id);
        if is_shared { SAMPLE_PERIOD_NS - self.clock_ns % SAMPLE_PERIOD_NS } else { u64::MAX }
    }

    /// While nobody else has work, a slice that ends is followed by another one of the same context.
    fn spend_slice(&mut self, elapsed_ns: u64, contested: bool) {
        self.slice_left_ns = if elapsed_ns < self.slice_left_ns {
            self.slice_left_ns - elapsed_ns
        } else if contested {
            0
        } else {
            self.time_slice_ns - (elapsed_ns - self.slice_left_ns) % self.time_slice_ns
        };
    }

    /// The next seat in the round with work, other than the one on the GPU.
    fn rival(&self) -> Option<ContextId> {
        let is_waiting = |context: &&Context| !context.queue.is_empty() && Some(context.seat) != self.resident;
        let seats = self.contexts.iter().filter(is_waiting).map(|context| context.seat);
        seats.min_by_key(|seat| (*seat <= self.position, *seat))
    }

    /// Puts the contexts of a seat on the GPU, which costs a switch unless the GPU holds none.
    fn place(&mut self, seat: ContextId) {
        self.switch_left_ns = if self.resident.is_some() { self.switch_cost_ns } else { 0 };
        self.slice_left_ns = self.time_slice_ns;
        self.resident = Some(seat);
        self.position = seat;
    }

    fn index(&self, id: ContextId) -> Option<usize> {
        self.contexts.binary_search_by_key(&id, |context| context.id).ok()
    }
}
