//! The device as the driver libraries see it.

use crate::context::{Context, ContextId, Ticket};
use crate::engine::{Activity, Engine, Executed};
use crate::limits::Limits;
use crate::memory::{OutOfMemory, rounded_bytes};
use crate::meter::Meter;
use crate::mig::MigState;
use crate::mps::Servers;
use crate::parameters::DeviceParameters;
use crate::sharing::{Share, ShareId};
use crate::suspension::Suspended;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A context with this many pieces of work takes no more until one completes; see [`Device::is_full`].
pub const QUEUE_LIMIT: usize = 1024;

/// A look into the future ends after this many changes on the GPU, so that no caller computes for long.
const PROJECTION_LIMIT: usize = 20_000;

/// One simulated GPU. Every operation first advances it to the `now_ns` that it is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    parameters: DeviceParameters,
    memory_used_bytes: u64,
    pub(crate) engine: Engine,
    meter: Meter,
    /// MPS servers, and who lost what through them.
    pub(crate) servers: Servers,
    /// What processes hold outside their contexts, by host pid.
    pub(crate) physical: BTreeMap<u32, Physical>,
    /// What processes held that have been taken off the device, by host pid.
    pub(crate) suspended: BTreeMap<u32, Suspended>,
    /// What several may hold.
    pub(crate) shares: BTreeMap<ShareId, Share>,
    pub(crate) last_share: u64,
    /// What cgroups may hold at most.
    pub(crate) limits: Limits,
    /// What the board is divided into.
    pub mig: MigState,
    /// A MIG instance that is gone takes nobody in.
    is_closed: bool,
}

/// Memory that belongs to a process and to no context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Physical {
    pub(crate) owner: String,
    pub(crate) bytes: u64,
}

impl Device {
    /// A device without contexts, made at `now_ns`.
    pub fn new(parameters: DeviceParameters, now_ns: u64) -> Self {
        let engine = Engine::new(now_ns, parameters.time_slice_ns, parameters.switch_cost_ns);
        Self {
            memory_used_bytes: parameters.held_bytes,
            parameters,
            engine,
            meter: Meter::new(now_ns),
            servers: Servers::default(),
            physical: BTreeMap::new(),
            suspended: BTreeMap::new(),
            shares: BTreeMap::new(),
            last_share: 0,
            limits: Limits::default(),
            mig: MigState::default(),
            is_closed: false,
        }
    }

    /// The fixed properties.
    pub fn parameters(&self) -> &DeviceParameters {
        &self.parameters
    }

    /// What the device has seen up to the time it was last advanced to.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// The time that the device was last advanced to.
    pub fn now_ns(&self) -> u64 {
        self.engine.clock_ns
    }

    /// Computes what happened up to `now_ns`. A time before the last one changes nothing.
    pub fn advance(&mut self, now_ns: u64) {
        let mut executed = Vec::new();
        let begun_ns = self.engine.clock_ns;
        while let Some(segment) = self.engine.step(now_ns, &mut executed) {
            match segment.activity {
                Activity::Idle => {}
                Activity::Switch => self.meter.switch(segment.end_ns - segment.start_ns),
                Activity::Busy => self.meter.busy(segment.start_ns, segment.end_ns),
            }
            for Executed { index, done_ns, complete } in &executed {
                let Context { process, owner, .. } = &self.engine.contexts()[*index];
                self.meter.execute(*process, owner, segment.start_ns, *done_ns, *complete);
            }
        }
        self.meter.now_ns = self.engine.clock_ns;
        if !self.engine.contexts().is_empty() {
            self.meter.context_ns += self.meter.now_ns - begun_ns;
        }
    }

    /// Makes a context for the process with this host pid, which belongs to `owner`, its cgroup path.
    /// Takes the parameters' `context_bytes` of memory, or fails for lack of it.
    pub fn create_context(&mut self, now_ns: u64, process: u32, owner: &str) -> Result<ContextId, OutOfMemory> {
        self.advance(now_ns);
        let bytes = self.parameters.context_bytes;
        self.reserve(owner, bytes)?;
        self.meter.hold(owner, bytes);
        Ok(self.engine.add(process, owner, bytes))
    }

    /// Takes a context away: its queued work is discarded, its kernel stops, its memory is free. An unknown one
    /// changes nothing.
    pub fn destroy_context(&mut self, now_ns: u64, context: ContextId) {
        self.advance(now_ns);
        if let Some(context) = self.engine.remove(context) {
            self.release(&context, context.bytes);
        }
    }

    /// Takes nobody in any more, for ever, unless somebody is there; false if somebody is.
    pub fn close(&mut self, now_ns: u64) -> bool {
        self.advance(now_ns);
        self.is_closed |= self.memory_used_bytes == 0;
        self.is_closed
    }

    /// A fault of the device ends all its contexts, whosever they are.
    pub fn fault(&mut self, now_ns: u64) {
        for id in self.engine.contexts().iter().map(|context| context.id).collect::<Vec<_>>() {
            self.destroy_context(now_ns, id);
        }
    }

    /// Takes away all contexts of a process that is gone, what it held outside them, and what was to come back.
    pub fn reap_process(&mut self, now_ns: u64, process: u32) {
        let of_process = self.engine.contexts().iter().filter(|context| context.process == process);
        for id in of_process.map(|context| context.id).collect::<Vec<_>>() {
            self.destroy_context(now_ns, id);
        }
        self.advance(now_ns);
        self.reap_server(now_ns, process);
        self.free_physical(now_ns, process, u64::MAX);
        self.reap_shares(process);
        self.suspended.remove(&process);
    }

    /// Allocates [`rounded_bytes`]`(bytes)`. A context that is gone gets nothing.
    pub fn allocate(&mut self, now_ns: u64, context: ContextId, bytes: u64) -> Result<(), OutOfMemory> {
        self.advance(now_ns);
        let bytes = rounded_bytes(bytes);
        let its = self.engine.context(context).map(|context| (context.process, context.owner.clone()));
        let Some((process, owner)) = its else {
            return Err(OutOfMemory { requested_bytes: bytes, free_bytes: 0 });
        };
        self.check_client_limit(process, bytes)?;
        self.reserve(&owner, bytes)?;
        if let Some(context) = self.engine.context_mut(context) {
            context.bytes += bytes;
            self.meter.hold(&context.owner, bytes);
        }
        Ok(())
    }

    /// Gives back what [`Device::allocate`] of the same size took. Never more than the context has allocated.
    pub fn free(&mut self, now_ns: u64, context: ContextId, bytes: u64) {
        self.advance(now_ns);
        if let Some(context) = self.engine.context_mut(context) {
            let allocated = context.bytes - self.parameters.context_bytes;
            let bytes = rounded_bytes(bytes).min(allocated);
            context.bytes -= bytes;
            self.memory_used_bytes -= bytes;
            self.meter.release(&context.owner, bytes);
        }
    }

    /// Allocates [`rounded_bytes`]`(bytes)` for a process with this host pid, which belongs to `owner`, its cgroup path.
    /// They outlive its contexts.
    pub fn allocate_physical(&mut self, now_ns: u64, process: u32, owner: &str, bytes: u64) -> Result<(), OutOfMemory> {
        self.advance(now_ns);
        let bytes = rounded_bytes(bytes);
        self.check_client_limit(process, bytes)?;
        self.reserve(owner, bytes)?;
        self.meter.hold(owner, bytes);
        self.physical.entry(process).or_insert_with(|| Physical { owner: owner.to_owned(), bytes: 0 }).bytes += bytes;
        Ok(())
    }

    /// Gives back what [`Device::allocate_physical`] of the same size took. Never more than the process has.
    pub fn free_physical(&mut self, now_ns: u64, process: u32, bytes: u64) {
        self.advance(now_ns);
        let Some(physical) = self.physical.get_mut(&process) else { return };
        let bytes = rounded_bytes(bytes).min(physical.bytes);
        physical.bytes -= bytes;
        self.memory_used_bytes -= bytes;
        self.meter.release(&physical.owner, bytes);
        if physical.bytes == 0 {
            self.physical.remove(&process);
        }
    }

    /// Takes [`rounded_bytes`]`(bytes)` out of what a process holds outside its contexts, with the device counting them
    /// on: the process's owner, and how many. None if it holds less.
    pub(crate) fn take_physical(&mut self, process: u32, bytes: u64) -> Option<(String, u64)> {
        let physical = self.physical.get_mut(&process)?;
        let bytes = rounded_bytes(bytes);
        physical.bytes = physical.bytes.checked_sub(bytes)?;
        let owner = physical.owner.clone();
        if physical.bytes == 0 {
            self.physical.remove(&process);
        }
        Some((owner, bytes))
    }

    /// Counts memory that is there with `owner` too.
    pub(crate) fn count(&mut self, owner: &str, bytes: u64) {
        self.memory_used_bytes += bytes;
        self.meter.hold(owner, bytes);
    }

    /// No longer counts memory with `owner`.
    pub(crate) fn uncount(&mut self, owner: &str, bytes: u64) {
        self.memory_used_bytes -= bytes;
        self.meter.release(owner, bytes);
    }

    /// Queues a kernel of `duration_ns` GPU time (at least 1) on a whole device; a MIG instance takes longer. Callers hold back while [`Device::is_full`]. A context
    /// that is gone gives `Ticket(0)`.
    pub fn submit_kernel(&mut self, now_ns: u64, context: ContextId, duration_ns: u64) -> Ticket {
        let (slices, of) = self.parameters.compute;
        let duration_ns = duration_ns.saturating_mul(of.into()) / u64::from(slices.max(1));
        self.submit(now_ns, context, |context| context.queue.push_kernel(duration_ns))
    }

    /// Queues a marker, which takes no time but completes only while its context is on the GPU: at once if it is
    /// there and has no other work, after a switch if the GPU is free. Its time comes from
    /// [`Device::take_marker_times`].
    pub fn submit_marker(&mut self, now_ns: u64, context: ContextId) -> Ticket {
        self.submit(now_ns, context, |context| context.queue.push_marker())
    }

    /// The newest ticket that is complete. For a context that is gone every ticket is.
    pub fn last_completed(&self, context: ContextId) -> Ticket {
        self.engine.context(context).map_or(Ticket(u64::MAX), |context| Ticket(context.completed))
    }

    /// Fetches the completion times of markers since the last call, oldest first. They are kept until fetched, the
    /// newest 4096 of a context at most.
    pub fn take_marker_times(&mut self, context: ContextId) -> Vec<(Ticket, u64)> {
        self.engine.context_mut(context).map(|context| std::mem::take(&mut context.marker_times)).unwrap_or_default()
    }

    /// When this ticket will be complete if nothing more is submitted; the present time if it is already. Exact,
    /// unless the GPU would change hands more than twenty thousand times until then: in that case a time before
    /// completion. None for a ticket not yet issued and for a context that is gone.
    pub fn projected_completion(&self, context: ContextId, ticket: Ticket) -> Option<u64> {
        if ticket > self.engine.context(context)?.issued() {
            return None;
        }
        if ticket <= self.last_completed(context) {
            return Some(self.now_ns());
        }
        let (mut future, mut executed) = (self.engine.clone(), Vec::new());
        for _ in 0..PROJECTION_LIMIT {
            if future.context(context)?.completed >= ticket.0 {
                break;
            }
            future.step(u64::MAX, &mut executed)?;
        }
        Some(future.clock_ns)
    }

    /// The next time at which something changes on the GPU (a kernel, a slice or a switch ends) if nobody submits
    /// anything. None while no context has work. Between the present and then one context at most has executed, or the
    /// clients of one MPS server, so a caller that goes from change to change sees every stretch of execution by itself,
    /// without a look into the future.
    pub fn next_change_ns(&self) -> Option<u64> {
        self.engine.next_change_ns()
    }

    /// Pieces of work not yet complete, the one that executes included. 0 for a context that is gone.
    pub fn queued(&self, context: ContextId) -> usize {
        self.engine.context(context).map_or(0, |context| context.queue.length() as usize)
    }

    /// Whether a submitter has to wait: at least [`QUEUE_LIMIT`] pieces of work are queued.
    pub fn is_full(&self, context: ContextId) -> bool {
        self.queued(context) >= QUEUE_LIMIT
    }

    /// Whether the context exists.
    pub fn has_context(&self, context: ContextId) -> bool {
        self.engine.context(context).is_some()
    }

    /// Memory held by contexts, their allocations and processes, in bytes.
    pub fn memory_used(&self) -> u64 {
        self.memory_used_bytes
    }

    /// Memory that is left, in bytes.
    pub fn memory_free(&self) -> u64 {
        if self.is_closed {
            return 0;
        }
        self.parameters.memory_bytes - self.memory_used_bytes
    }

    /// Host pid and bytes held of every process that holds something, by pid. Contexts are included, but for the part that is
    /// listed for nobody.
    pub fn processes(&self) -> Vec<(u32, u64)> {
        let mut bytes_by_process = BTreeMap::new();
        for context in self.engine.contexts() {
            *bytes_by_process.entry(context.process).or_insert(0) +=
                context.bytes.saturating_sub(self.parameters.unlisted_bytes);
        }
        for (process, physical) in &self.physical {
            *bytes_by_process.entry(*process).or_insert(0) += physical.bytes;
        }
        for (process, bytes) in self.shares.values().filter_map(Share::counted) {
            *bytes_by_process.entry(process).or_insert(0) += bytes;
        }
        bytes_by_process.into_iter().collect()
    }

    fn submit(&mut self, now_ns: u64, context: ContextId, push: impl FnOnce(&mut Context)) -> Ticket {
        self.advance(now_ns);
        let Some(context) = self.engine.context_mut(context) else { return Ticket(0) };
        push(context);
        let ticket = context.issued();
        self.engine.settle();
        ticket
    }

    fn reserve(&mut self, owner: &str, bytes: u64) -> Result<(), OutOfMemory> {
        let free_bytes = self.memory_free_for(owner);
        if bytes > free_bytes {
            return Err(OutOfMemory { requested_bytes: bytes, free_bytes });
        }
        self.memory_used_bytes += bytes;
        Ok(())
    }

    fn release(&mut self, context: &Context, bytes: u64) {
        self.memory_used_bytes -= bytes;
        self.meter.release(&context.owner, bytes);
    }
}
