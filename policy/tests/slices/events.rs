//! What is going to happen, in order of time.

use std::collections::BTreeMap;

use gpool_policy::slice::Input;

/// Something that happens to a client or to the scheduler.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client sees what its gate says: until when it is open, or that it is closed.
    Gate { client: usize, command: u64, until_ns: Option<u64>, commanded_ns: u64 },
    /// The scheduler reads what a client rang.
    Ring { inputs: Vec<Input> },
    /// A client looks again: its thread wakes, or its watcher.
    Look { client: usize },
    /// A client's application starts or stops to have work.
    Demand { client: usize, on: bool },
}

/// Events by time; those of one time in the order in which they were added.
#[derive(Debug, Default)]
pub struct Agenda {
    events: BTreeMap<(u64, u64), Event>,
    added: u64,
}

impl Agenda {
    pub fn add(&mut self, at_ns: u64, event: Event) {
        self.added += 1;
        self.events.insert((at_ns, self.added), event);
    }

    pub fn next_ns(&self) -> Option<u64> {
        self.events.first_key_value().map(|(&(at, _), _)| at)
    }

    pub fn take(&mut self) -> Option<Event> {
        self.events.pop_first().map(|(_, event)| event)
    }
}
