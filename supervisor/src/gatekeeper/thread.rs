//! The gatekeeper's loop.

use super::order::{Notice, Order, Standing, Statistics};
use super::server::Server;
use super::tenant::Tenant;
use super::wakeup::{Doorbell, Wakeup};
use crate::clock;
use crate::region::Report;
use gpool_policy::TenantId;
use gpool_policy::slice::{Input, Share};
use gpool_shared_region::HEARTBEAT_PERIOD_NS;
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Sends orders to the gatekeeper; clones go to other threads.
#[derive(Clone)]
pub struct Gatekeeper {
    orders: Sender<Order>,
    doorbell: Doorbell,
}

impl Gatekeeper {
    /// Sends an order. A gatekeeper that is gone ends the whole process, so there is nobody to tell.
    pub fn order(&self, order: Order) {
        let _ = self.orders.send(order);
        self.doorbell.ring();
    }

    /// The figures of this moment; empty when the thread has ended.
    pub fn statistics(&self) -> Statistics {
        let (sender, receiver) = channel();
        self.order(Order::Statistics(sender));
        receiver.recv().unwrap_or_default()
    }

    /// Takes what the processes of a tenant still have to tell.
    pub fn collect(&self, tenant: TenantId) {
        let (sender, receiver) = channel();
        self.order(Order::Collect { tenant, done: sender });
        let _ = receiver.recv();
    }

    /// Ends a tenant; what it owed.
    pub fn leave(&self, tenant: TenantId) -> u64 {
        let (sender, receiver) = channel();
        self.order(Order::Leave { tenant, debt_ns: sender });
        receiver.recv().unwrap_or(0)
    }
}

/// Starts the thread for `gpus` GPUs. What others should act on goes to `notice`.
///
/// # Errors
/// When the kernel gives no thread or no descriptors.
pub fn start(gpus: usize, notice: impl Fn(Notice) + Send + 'static) -> io::Result<(Gatekeeper, JoinHandle<()>)> {
    let (sender, receiver) = channel();
    let wakeup = Wakeup::new()?;
    let gatekeeper = Gatekeeper { orders: sender, doorbell: wakeup.doorbell() };
    let now_ns = clock::now_ns();
    let state = Loop {
        servers: (0..gpus).map(|_| Server::new(now_ns)).collect(),
        tenants: BTreeMap::new(),
        wakeup,
        orders: receiver,
        notice: Box::new(notice),
        report: Report::new(),
        beat_ns: now_ns,
    };
    let thread = std::thread::Builder::new().name("gatekeeper".into()).spawn(move || state.run())?;
    Ok((gatekeeper, thread))
}

/// The thread works for some microseconds at a time and must not queue behind busy programs: late by 4 ms at the 99th
/// percentile without, by 0.1 ms with. Where the kernel refuses, hand-offs are later and nothing else.
fn ask_for_priority() {
    let parameter = nix::libc::sched_param { sched_priority: 1 };
    let policy = nix::libc::SCHED_FIFO | nix::libc::SCHED_RESET_ON_FORK;
    // SAFETY: `parameter` is a valid description; 0 means the calling thread.
    let _ = unsafe { nix::libc::sched_setscheduler(0, policy, &parameter) };
}

struct Loop {
    servers: Vec<Server>,
    tenants: BTreeMap<TenantId, Tenant>,
    wakeup: Wakeup,
    orders: Receiver<Order>,
    notice: Box<dyn Fn(Notice) + Send>,
    report: Report,
    beat_ns: u64,
}

impl Loop {
    fn run(mut self) {
        ask_for_priority();
        let mut rung = Vec::new();
        loop {
            self.wakeup.wait(self.next_ns(), &mut rung);
            let now_ns = clock::now_ns();
            let mut again = Vec::new();
            while let Ok(order) = self.orders.try_recv() {
                self.obey(order, &mut again);
            }
            again.extend(rung.iter().map(|token| TenantId(*token)));
            self.look(&again, now_ns);
            if now_ns >= self.beat_ns {
                self.beat(now_ns);
            }
        }
    }

    /// The next timer of any scheduler, and the heartbeat while there is somebody to hear it.
    fn next_ns(&self) -> Option<u64> {
        let timers = self.servers.iter().filter_map(|server| server.scheduler.next_timer());
        let beat = (!self.tenants.is_empty()).then_some(self.beat_ns);
        timers.chain(beat).min()
    }

    /// Says that the supervisor lives, and listens again to bells that were too loud.
    fn beat(&mut self, now_ns: u64) {
        self.beat_ns = now_ns + HEARTBEAT_PERIOD_NS;
        for tenant in self.tenants.values_mut() {
            tenant.region.beat(now_ns);
            if tenant.begin_period() {
                listen(&self.wakeup, tenant);
            }
        }
    }

    fn look(&mut self, rung: &[TenantId], now_ns: u64) {
        let mut notices = Vec::new();
        for id in rung {
            if let Some(tenant) = self.tenants.get_mut(id)
                && !tenant.hush()
            {
                self.wakeup.forget(tenant.region.bell());
            }
        }
        for (gpu, server) in self.servers.iter_mut().enumerate() {
            let due = server.scheduler.next_timer().is_some_and(|at_ns| at_ns <= now_ns);
            let here = |id: &TenantId| self.tenants.get(id).is_some_and(|tenant| tenant.gpu == gpu);
            if due || rung.iter().any(here) {
                server.look(gpu, &mut self.tenants, rung, &mut self.report, &mut notices);
            }
        }
        notices.into_iter().for_each(|notice| (self.notice)(notice));
    }

    /// Carries out one order; tenants to look at go to `again`.
    fn obey(&mut self, order: Order, again: &mut Vec<TenantId>) {
        match order {
            Order::Join { tenant: id, gpu, region, weight_permille, debt_ns } => {
                let mut notices = Vec::new();
                let mut tenant = Tenant::new(id, gpu, region, &mut notices);
                tenant.region.beat(clock::now_ns());
                listen(&self.wakeup, &mut tenant);
                self.tenants.insert(id, tenant);
                let input = Input::Join { tenant: id, share: Share::of(weight_permille), debt_ns };
                self.servers[gpu].handle(&mut self.tenants, input);
                again.push(id);
                notices.into_iter().for_each(|notice| (self.notice)(notice));
            }
            Order::Leave { tenant: id, debt_ns } => {
                let mut debt = 0;
                if let Some(gpu) = self.tenants.get(&id).map(|tenant| tenant.gpu) {
                    self.collect_last(id);
                    debt = self.servers[gpu].scheduler.debt_ns(id);
                    self.servers[gpu].handle(&mut self.tenants, Input::Leave { tenant: id });
                }
                if let Some(mut tenant) = self.tenants.remove(&id) {
                    tenant.close();
                    self.wakeup.forget(tenant.region.bell());
                }
                let _ = debt_ns.send(debt);
            }
            Order::Weight { tenant: id, weight_permille } => {
                if let Some(gpu) = self.tenants.get(&id).map(|tenant| tenant.gpu) {
                    let input = Input::Change { tenant: id, share: Share::of(weight_permille) };
                    self.servers[gpu].handle(&mut self.tenants, input);
                }
            }
            Order::Collect { tenant, done } => {
                self.collect_last(tenant);
                let _ = done.send(());
            }
            Order::Look { tenant } => again.push(tenant),
            Order::Statistics(answer) => {
                let _ = answer.send(self.statistics());
            }
        }
    }

    /// The last bursts of a tenant that is leaving.
    fn collect_last(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        let (mut inputs, mut notices) = (Vec::new(), Vec::new());
        tenant.collect(&mut self.report, &mut inputs, &mut notices);
        let gpu = tenant.gpu;
        inputs.into_iter().for_each(|input| self.servers[gpu].handle(&mut self.tenants, input));
    }

    fn statistics(&self) -> Statistics {
        let standing = |tenant: &Tenant| {
            let scheduler = &self.servers[tenant.gpu].scheduler;
            Standing {
                tenant: tenant.id,
                charged_ns: scheduler.charged_ns(tenant.id).unwrap_or(0),
                lag_ns: scheduler.lag_ns(tenant.id).unwrap_or(0),
            }
        };
        Statistics {
            at_ns: clock::now_ns(),
            standings: self.tenants.values().map(standing).collect(),
            handoff_ns: self.servers.iter().map(|server| server.scheduler.handoff_ns()).max().unwrap_or(0),
            slice_ns: self.servers.iter().map(|server| server.scheduler.slice_ns()).max().unwrap_or(0),
        }
    }
}

fn listen(wakeup: &Wakeup, tenant: &mut Tenant) {
    if let Err(error) = wakeup.watch(tenant.region.bell(), tenant.id.0) {
        // Tried again at the next heartbeat.
        tenant.deafen();
        eprintln!("gpool-supervisor: a lease's bell cannot be heard: {error}");
    }
}
