//! Who is on the GPU when: work-conserving round robin between the contexts that have work.

use crate::context::{Context, ContextId};
use crate::queue::Head;
use serde::{Deserialize, Serialize};

/// What the GPU did between two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    /// No context had work.
    Idle,
    /// Another context was being put on the GPU.
    Switch,
    /// A kernel of the context at this index executed, and was completed by the end or not.
    Busy { index: usize, complete: bool },
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
    /// The context on the GPU, which stays there while the GPU is idle.
    resident: Option<ContextId>,
    /// The last context that was put on the GPU, also when it is gone: where the round goes on.
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

    /// Takes a context away with its work. If it is on the GPU, its kernel stops now.
    pub(crate) fn remove(&mut self, id: ContextId) -> Option<Context> {
        let index = self.index(id)?;
        if self.resident == Some(id) {
            self.resident = None;
            self.switch_left_ns = 0;
        }
        let context = self.contexts.remove(index);
        self.settle();
        Some(context)
    }

    /// Makes the decisions that take no time: completes markers at the head of the context on the GPU, and gives
    /// a GPU that nobody uses to the next context with work.
    pub(crate) fn settle(&mut self) {
        while self.switch_left_ns == 0 {
            if let Some(index) = self.resident.and_then(|id| self.index(id)) {
                let context = &mut self.contexts[index];
                while context.queue.head() == Some(Head::Marker) {
                    context.complete_marker(self.clock_ns);
                }
                if !context.queue.is_empty() {
                    return;
                }
            }
            match self.rival() {
                Some(id) => self.place(id),
                None => return,
            }
        }
    }

    /// Goes on to the next moment at which something changes, at the latest to `until_ns`, and says what happened
    /// in between. None when the clock is there already.
    pub(crate) fn step(&mut self, until_ns: u64) -> Option<Segment> {
        self.settle();
        let start_ns = self.clock_ns;
        if start_ns >= until_ns {
            return None;
        }
        let available_ns = until_ns - start_ns;
        let rival = self.rival();
        if self.switch_left_ns == 0
            && self.slice_left_ns == 0
            && let Some(id) = rival
        {
            self.place(id);
            return self.step(until_ns);
        }
        let activity = if self.switch_left_ns > 0 {
            let elapsed_ns = self.switch_left_ns.min(available_ns);
            self.switch_left_ns -= elapsed_ns;
            self.clock_ns += elapsed_ns;
            Activity::Switch
        } else if let Some((index, remaining_ns)) = self.running() {
            let limit_ns = if rival.is_some() { self.slice_left_ns } else { u64::MAX };
            let elapsed_ns = remaining_ns.min(available_ns).min(limit_ns);
            let complete = self.contexts[index].queue.execute(elapsed_ns);
            self.contexts[index].completed += u64::from(complete);
            self.spend_slice(elapsed_ns, rival.is_some());
            self.clock_ns += elapsed_ns;
            Activity::Busy { index, complete }
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
        let (_, remaining_ns) = self.running()?;
        if remaining_ns <= self.slice_left_ns || self.rival().is_none() {
            return Some(self.clock_ns + remaining_ns);
        }
        // At the end of a slice the switch begins at once; that is no stretch of time of its own.
        let lasts_ns = if self.slice_left_ns > 0 { self.slice_left_ns } else { self.switch_cost_ns.max(1) };
        Some(self.clock_ns + lasts_ns)
    }

    /// The kernel on the GPU: the index of its context and how much of it remains.
    fn running(&self) -> Option<(usize, u64)> {
        let index = self.resident.and_then(|id| self.index(id))?;
        match self.contexts[index].queue.head() {
            Some(Head::Kernel { remaining_ns }) => Some((index, remaining_ns)),
            Some(Head::Marker) | None => None,
        }
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

    /// The next context in the round with work, other than the one on the GPU.
    fn rival(&self) -> Option<ContextId> {
        let waiting = |context: &&Context| !context.queue.is_empty() && Some(context.id) != self.resident;
        let split = self.contexts.partition_point(|context| context.id <= self.position);
        let (before, after) = self.contexts.split_at(split);
        after.iter().chain(before).find(waiting).map(|context| context.id)
    }

    /// Puts a context on the GPU, which costs a switch unless the GPU holds none.
    fn place(&mut self, id: ContextId) {
        self.switch_left_ns = if self.resident.is_some() { self.switch_cost_ns } else { 0 };
        self.slice_left_ns = self.time_slice_ns;
        self.resident = Some(id);
        self.position = id;
    }

    fn index(&self, id: ContextId) -> Option<usize> {
        self.contexts.binary_search_by_key(&id, |context| context.id).ok()
    }
}
