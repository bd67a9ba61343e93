//! What is going to happen, in order of time.

use std::collections::BTreeMap;

use gpool_policy::slice::Input;

/// Something that happens to a client or to the gatekeeper.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A client sees what its gate says.
    Gate { client: usize, command: u64, seen: Seen },
    /// The gatekeeper reads what a client rang.
    Ring { inputs: Vec<Input> },
    /// A client looks because a burst has ended.
    Look { client: usize },
    /// A client's sleep ends, if it has not been replaced by another one meanwhile.
    Wake { client: usize, sleep: u64 },
    /// A client's application starts or stops to have work without end.
    Demand { client: usize, on: bool },
    /// A request arrives at a client's application.
    Request { client: usize, work_ns: u64 },
    /// A client's process ends, and its lease with it.
    End { client: usize },
    /// Something that the world's owner tells the gatekeeper, for example that a lease ends.
    Tell { input: Input },
}

/// What a gate says.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seen {
    /// Open until then, since the gatekeeper commanded it.
    Open { until_ns: u64, depth_ns: u64, burst_ns: u64, commanded_ns: u64 },
    /// Closed.
    Closed,
}

/// Events by time; those of one time in the order in which they were added.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    events: BTreeMap<(u64, u64), Event>,
    added: u64,
}

impl Agenda {
    pub(crate) fn add(&mut self, at_ns: u64, event: Event) {
        self.added += 1;
        self.events.insert((at_ns, self.added), event);
    }

    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.events.first_key_value().map(|(&(at, _), _)| at)
    }

    pub(crate) fn take(&mut self) -> Option<Event> {
        self.events.pop_first().map(|(_, event)| event)
    }
}
