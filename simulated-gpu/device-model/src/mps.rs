//! MPS: processes that share a server, and with it the device and their fate.
//!
//! The clients of one server execute side by side, each with at most its percentage of the device and all of them with at
//! most all of it: of clients that may have more together each gets its part by percentage. A kernel is taken to fill
//! whatever part it gets. Beside other contexts the server has turns like one of them.
//!
//! As NVIDIA's documentation of MPS has it, a fatal fault of one client ends the work of all clients of the server on that
//! device, and the server takes nobody in there until they have all ended; the end of the server ends its clients' work.

use crate::context::{ContextId, WHOLE_PERCENT};
use crate::device::Device;
use crate::memory::OutOfMemory;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a server itself holds of a device. An invention; no product is measured here.
const SERVER_BYTES: u64 = 32 << 20;
/// Why a context was lost is known of so many, the latest.
const LOSSES_KEPT: usize = 256;
/// No server has more clients on a device, as NVIDIA's documentation says of Volta and later.
const CLIENTS_LIMIT: usize = 48;

/// What a client may have of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientLimits {
    /// Of its multiprocessors, 1 to 100 per cent.
    pub percent: u32,
    /// Of its memory, contexts included; none: all of it.
    pub memory_bytes: Option<u64>,
}

/// Why a process does not become a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientRefusal {
    /// No memory for its context.
    OutOfMemory(OutOfMemory),
    /// The server has ended.
    NoServer,
    /// Clients that a fault has reached have not ended yet.
    Recovering,
    /// The server has as many as it can have.
    TooMany,
}

/// Why a client's context is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loss {
    /// The server has ended.
    ServerGone,
    /// A client, this one or another, had a fatal fault.
    Fault,
    /// The server was told to end this client.
    Terminated,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Server {
    seat: ContextId,
    /// Processes that a fault has reached and that have not ended.
    faulted: BTreeSet<u32>,
}

/// The servers of one device, by host pid.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Servers {
    running: BTreeMap<u32, Server>,
    losses: VecDeque<(ContextId, Loss)>,
}

impl Device {
    /// From now on the process with this host pid, which belongs to `owner`, is an MPS server. Said again it changes nothing.
    ///
    /// # Errors
    /// No memory for it.
    pub fn start_server(&mut self, now_ns: u64, server: u32, owner: &str) -> Result<(), OutOfMemory> {
        self.advance(now_ns);
        if self.servers.running.contains_key(&server) {
            return Ok(());
        }
        self.allocate_physical(now_ns, server, owner, SERVER_BYTES)?;
        let seat = self.engine.new_seat();
        self.servers.running.insert(server, Server { seat, faulted: BTreeSet::new() });
        Ok(())
    }

    /// Makes a context as [`Device::create_context`] does, for a client of the server with that host pid.
    ///
    /// # Errors
    /// Why the server does not take it in.
    pub fn create_client(
        &mut self,
        now_ns: u64,
        process: u32,
        owner: &str,
        server: u32,
        limits: ClientLimits,
    ) -> Result<ContextId, ClientRefusal> {
        self.advance(now_ns);
        let Some(found) = self.servers.running.get(&server) else { return Err(ClientRefusal::NoServer) };
        if !found.faulted.is_empty() {
            return Err(ClientRefusal::Recovering);
        }
        let seat = found.seat;
        if self.engine.contexts().iter().filter(|context| context.seat == seat).count() >= CLIENTS_LIMIT {
            return Err(ClientRefusal::TooMany);
        }
        let id = self.create_context(now_ns, process, owner).map_err(ClientRefusal::OutOfMemory)?;
        if let Some(context) = self.engine.context_mut(id) {
            context.seat = seat;
            context.percent = limits.percent.clamp(1, WHOLE_PERCENT);
            context.limit_bytes = limits.memory_bytes;
        }
        Ok(id)
    }

    /// A fatal fault of a process: it loses its contexts, and with it all clients of its server.
    pub fn fault_process(&mut self, now_ns: u64, process: u32) {
        self.advance(now_ns);
        let its = self.engine.contexts().iter().filter(|context| context.process == process);
        let seats: BTreeSet<ContextId> = its.map(|context| context.seat).collect();
        let reached = self.engine.contexts().iter().filter(|context| seats.contains(&context.seat));
        let reached: Vec<(ContextId, ContextId, u32)> =
            reached.map(|context| (context.id, context.seat, context.process)).collect();
        for (id, seat, process) in reached {
            if let Some(server) = self.servers.running.values_mut().find(|server| server.seat == seat) {
                server.faulted.insert(process);
            }
            self.lose(now_ns, id, Loss::Fault);
        }
    }

    /// The server ends one client, and nobody else.
    pub fn terminate_client(&mut self, now_ns: u64, process: u32) {
        self.advance(now_ns);
        let its = |context: &&crate::context::Context| context.process == process && context.seat != context.id;
        for id in self.engine.contexts().iter().filter(its).map(|context| context.id).collect::<Vec<_>>() {
            self.lose(now_ns, id, Loss::Terminated);
        }
    }

    /// Processes with a context by the server with this host pid.
    pub fn clients_of(&self, server: u32) -> BTreeSet<u32> {
        let seat = self.servers.running.get(&server).map(|server| server.seat);
        let its = self.engine.contexts().iter().filter(|context| Some(context.seat) == seat);
        its.map(|context| context.process).collect()
    }

    /// Whether that server takes nobody in because of a fault.
    pub fn is_recovering(&self, server: u32) -> bool {
        self.servers.running.get(&server).is_some_and(|server| !server.faulted.is_empty())
    }

    /// Why a context is gone, if that was by MPS and is known still.
    pub fn loss_of(&self, context: ContextId) -> Option<Loss> {
        self.servers.losses.iter().find(|(id, _)| *id == context).map(|(_, loss)| *loss)
    }

    /// A process has ended: as a server it takes its clients' contexts with it.
    pub(crate) fn reap_server(&mut self, now_ns: u64, process: u32) {
        for server in self.servers.running.values_mut() {
            server.faulted.remove(&process);
        }
        let Some(server) = self.servers.running.remove(&process) else { return };
        let clients = self.engine.contexts().iter().filter(|context| context.seat == server.seat);
        for id in clients.map(|context| context.id).collect::<Vec<_>>() {
            self.lose(now_ns, id, Loss::ServerGone);
        }
    }

    /// Whether a process may hold `bytes` more as a client.
    pub(crate) fn check_client_limit(&self, process: u32, bytes: u64) -> Result<(), OutOfMemory> {
        let its = self.engine.contexts().iter().filter(|context| context.process == process);
        let Some(limit_bytes) = its.filter_map(|context| context.limit_bytes).min() else { return Ok(()) };
        let held_bytes = self.processes().into_iter().find(|(pid, _)| *pid == process).map_or(0, |(_, bytes)| bytes);
        let free_bytes = limit_bytes.saturating_sub(held_bytes);
        if bytes <= free_bytes { Ok(()) } else { Err(OutOfMemory { requested_bytes: bytes, free_bytes }) }
    }

    fn lose(&mut self, now_ns: u64, context: ContextId, loss: Loss) {
        self.destroy_context(now_ns, context);
        if self.servers.losses.len() >= LOSSES_KEPT {
            self.servers.losses.pop_front();
        }
        self.servers.losses.push_back((context, loss));
    }
}
