//! Processes that have been taken off the device: what they held is free for others, and comes back with them or not at all.

use crate::context::Context;
use crate::device::{Device, Physical};
use crate::memory::OutOfMemory;
use serde::{Deserialize, Serialize};

/// What a process held. Its contexts keep their ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Suspended {
    contexts: Vec<Context>,
    physical: Option<Physical>,
}

impl Suspended {
    /// Whose it was: of one process all is its cgroup's.
    fn owner(&self) -> Option<&str> {
        let of_contexts = self.contexts.first().map(|context| context.owner.as_str());
        of_contexts.or(self.physical.as_ref().map(|physical| physical.owner.as_str()))
    }

    fn bytes(&self) -> u64 {
        let of_contexts: u64 = self.contexts.iter().map(|context| context.bytes).sum();
        of_contexts + self.physical.as_ref().map_or(0, |physical| physical.bytes)
    }
}

impl Device {
    /// Whether work of this process has not ended.
    pub fn has_work(&self, process: u32) -> bool {
        self.engine.contexts().iter().any(|context| context.process == process && !context.queue.is_empty())
    }

    /// Whether this process holds memory that others can hold too.
    pub fn has_shares(&self, process: u32) -> bool {
        self.shares.values().any(|share| share.is_held_by(process))
    }

    /// Takes a process off the device: its contexts, and all memory that it holds alone. False if it held nothing.
    pub fn suspend(&mut self, now_ns: u64, process: u32) -> bool {
        self.advance(now_ns);
        let ids = self.engine.contexts().iter().filter(|context| context.process == process);
        let ids: Vec<_> = ids.map(|context| context.id).collect();
        let contexts: Vec<Context> = ids.into_iter().filter_map(|id| self.engine.remove(id)).collect();
        let suspended = Suspended { contexts, physical: self.physical.remove(&process) };
        for context in &suspended.contexts {
            self.uncount(&context.owner, context.bytes);
        }
        if let Some(physical) = &suspended.physical {
            self.uncount(&physical.owner, physical.bytes);
        }
        let held = !suspended.contexts.is_empty() || suspended.physical.is_some();
        if held {
            self.suspended.insert(process, suspended);
        }
        held
    }

    /// Puts a process back on the device as [`Device::suspend`] found it. False if the device knows nothing of it.
    ///
    /// # Errors
    /// There is not enough memory for all that it held, or its cgroup may not have so much; then nothing has changed.
    pub fn resume(&mut self, now_ns: u64, process: u32) -> Result<bool, OutOfMemory> {
        self.advance(now_ns);
        let Some(requested_bytes) = self.suspended.get(&process).map(Suspended::bytes) else { return Ok(false) };
        let owner = self.suspended.get(&process).and_then(Suspended::owner).unwrap_or_default().to_owned();
        let free_bytes = self.memory_free_for(&owner);
        if requested_bytes > free_bytes {
            return Err(OutOfMemory { requested_bytes, free_bytes });
        }
        let Some(Suspended { contexts, physical }) = self.suspended.remove(&process) else { return Ok(false) };
        if let Some(physical) = physical {
            self.count(&physical.owner, physical.bytes);
            self.physical.insert(process, physical);
        }
        for context in contexts {
            self.count(&context.owner, context.bytes);
            self.engine.insert(context);
        }
        Ok(true)
    }
}
