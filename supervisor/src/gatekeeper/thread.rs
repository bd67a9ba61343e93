//! The gatekeeper's loop.

use super::gates::{Gates, Tenants};
use super::order::{Explained, Left, Notice, Order, Statistics};
use super::tenant::{DEAF_NS, Tenant};
use super::wakeup::{Doorbell, Wakeup};
use crate::clock;
use crate::faults::Faults;
use crate::region::{Report, tend_aside};
use gpool_policy::TenantId;
use gpool_policy::slice::Input;
use gpool_shared_region::{HEARTBEAT_PERIOD_NS, HEARTBEAT_STALE_NS};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// So many orders are carried out before bells and timers are looked at again: behind some of them is anybody who may ask the socket.
const ORDERS: usize = 8;
/// Figures no older than this are of this moment for whoever asks the socket.
const RECENT_NS: u64 = 50_000_000;

/// Sends orders to the gatekeeper; clones go to other threads.
#[derive(Clone)]
pub struct Gatekeeper {
    orders: Sender<Order>,
    doorbell: Doorbell,
    /// The figures that were asked for last by [`Gatekeeper::recent_statistics`].
    recent: Arc<Mutex<Statistics>>,
}

impl Gatekeeper {
    /// Sends an order. A gatekeeper that is gone ends the whole process, so there is nobody to tell.
    pub fn order(&self, order: Order) {
        let _ = self.orders.send(order);
        self.doorbell.ring();
    }

    /// Whether it answers within `patience`: it takes orders between two decisions.
    pub fn answers_within(&self, patience: Duration) -> bool {
        let (sender, receiver) = channel();
        self.order(Order::Statistics(sender));
        receiver.recv_timeout(patience).is_ok()
    }

    /// The figures of this moment; empty when the thread has ended.
    pub fn statistics(&self) -> Statistics {
        let (sender, receiver) = channel();
        self.order(Order::Statistics(sender));
        receiver.recv().unwrap_or_default()
    }

    /// The same, or what they were just before: they are dear, and anybody may ask the socket for them as often as he likes.
    pub fn recent_statistics(&self) -> Statistics {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if clock::now_ns().saturating_sub(recent.at_ns) >= RECENT_NS {
            *recent = self.statistics();
        }
        recent.clone()
    }

    /// Takes what the processes of a tenant still have to tell.
    pub fn collect(&self, tenant: TenantId) {
        let (sender, receiver) = channel();
        self.order(Order::Collect { tenant, done: sender });
        let _ = receiver.recv();
    }

    /// Ends a tenant; how it stood on each of its GPUs.
    pub fn leave(&self, tenant: TenantId) -> Vec<Left> {
        let (sender, receiver) = channel();
        self.order(Order::Leave { tenant, left: sender });
        receiver.recv().unwrap_or_default()
    }

    /// Where a tenant stands on each of its GPUs.
    pub fn explain(&self, tenant: TenantId) -> Explained {
        let (sender, receiver) = channel();
        self.order(Order::Explain { tenant, answer: sender });
        receiver.recv().unwrap_or_default()
    }
}

/// Starts the thread for `gpus` GPUs. What others should act on goes to `notice`.
///
/// # Errors
/// When the kernel gives no thread or no descriptors.
pub fn start(gpus: usize, notice: impl Fn(Notice) + Send + 'static) -> io::Result<(Gatekeeper, JoinHandle<()>)> {
    let (gatekeeper, state) = Loop::new(gpus, Box::new(notice))?;
    let thread = std::thread::Builder::new().name("gatekeeper".into()).spawn(move || state.run())?;
    Ok((gatekeeper, thread))
}

/// The thread works for some microseconds at a time and must not queue behind busy programs: late by 4 ms at the 99th
/// percentile without, by 0.1 ms with. Where the kernel refuses, hand-offs are later and nothing else, which is said once.
fn ask_for_priority() {
    let parameter = nix::libc::sched_param { sched_priority: 1 };
    let policy = nix::libc::SCHED_FIFO | nix::libc::SCHED_RESET_ON_FORK;
    // SAFETY: `parameter` is a valid description; 0 means the calling thread.
    if unsafe { nix::libc::sched_setscheduler(0, policy, &parameter) } != 0 {
        let cause = io::Error::last_os_error();
        log!(
            "GPUs are handed over later on a busy host, by some milliseconds: the kernel gives the thread that does it no real-time \
             priority ({cause}); let the service have CAP_SYS_NICE, and its cgroup of version 1 a part of cpu.rt_runtime_us"
        );
    }
}

struct Loop {
    /// For threads that are to tell this one something.
    own: Gatekeeper,
    gates: Gates,
    tenants: Tenants,
    wakeup: Wakeup,
    orders: Receiver<Order>,
    notice: Box<dyn Fn(Notice) + Send>,
    report: Report,
    beat_ns: u64,
    /// Tenants whose bells are not listened to, and until when.
    unheard: Vec<(u64, TenantId)>,
    /// Why the kernel does not let bells be heard.
    faults: Faults<TenantId>,
}

impl Loop {
    fn new(gpus: usize, notice: Box<dyn Fn(Notice) + Send>) -> io::Result<(Gatekeeper, Self)> {
        let (sender, receiver) = channel();
        let wakeup = Wakeup::new()?;
        let gatekeeper = Gatekeeper { orders: sender, doorbell: wakeup.doorbell(), recent: Arc::default() };
        let now_ns = clock::now_ns();
        let state = Self {
            own: gatekeeper.clone(),
            gates: Gates::new(gpus, now_ns),
            tenants: Tenants::new(),
            wakeup,
            orders: receiver,
            notice,
            report: Report::new(),
            beat_ns: now_ns,
            unheard: Vec::new(),
            faults: Faults::default(),
        };
        Ok((gatekeeper, state))
    }

    fn run(mut self) {
        ask_for_priority();
        let mut rung = Vec::new();
        loop {
            self.wakeup.wait(self.next_ns(), &mut rung);
            let now_ns = clock::now_ns();
            let mut again = Vec::new();
            // Without tenants nobody beats, and nobody is kept waiting: who joins now has seen no standstill.
            let had_tenants = !self.tenants.is_empty();
            self.take_orders(&mut again);
            rung.iter().for_each(|token| self.hear(TenantId(*token)));
            again.extend(rung.iter().map(|token| TenantId(*token)));
            // Stopped for so long that tenants took us to be away: those that ran on unpaced have not taken it from
            // the others.
            let was_away = had_tenants && now_ns >= self.beat_ns.saturating_add(HEARTBEAT_STALE_NS);
            if was_away {
                again.extend(self.tenants.keys());
                self.gates.forget_requests(&mut self.tenants);
            }
            self.look(&again);
            if was_away {
                let for_ns = now_ns - self.beat_ns + HEARTBEAT_PERIOD_NS;
                let mut notices = vec![Notice::WasAway { for_ns }];
                self.feed(Input::Away, &mut notices);
                notices.into_iter().for_each(|notice| (self.notice)(notice));
            }
            if now_ns >= self.beat_ns {
                self.beat(now_ns);
            }
            self.listen_again(now_ns);
        }
    }

    /// Carries out the next orders; tenants to look at go to `again`. If more may be there the next wait is none.
    fn take_orders(&mut self, again: &mut Vec<TenantId>) {
        for _ in 0..ORDERS {
            let Ok(order) = self.orders.try_recv() else { return };
            self.obey(order, again);
        }
        self.wakeup.doorbell().ring();
    }

    /// The next timer of any scheduler, the heartbeat while there is somebody to hear it, and the next bell to listen to
    /// again.
    fn next_ns(&self) -> Option<u64> {
        let beat = (!self.tenants.is_empty()).then_some(self.beat_ns);
        let unheard = self.unheard.iter().map(|(until_ns, _)| *until_ns);
        self.gates.next_timer().into_iter().chain(beat).chain(unheard).min()
    }

    /// Says that the supervisor lives.
    fn beat(&mut self, now_ns: u64) {
        self.beat_ns = now_ns + HEARTBEAT_PERIOD_NS;
        for tenant in self.tenants.values_mut() {
            tenant.region.beat(now_ns);
            if tenant.begin_period() {
                empty_bell(&self.own, tenant);
            }
            if tenant.has_held() {
                (self.notice)(Notice::KeepsWaiting { tenant: tenant.id });
            }
        }
        tend_aside();
    }

    /// The bell of a tenant has been rung.
    fn hear(&mut self, id: TenantId) {
        let is_unheard = self.unheard.iter().any(|(_, unheard)| *unheard == id);
        let Some(tenant) = self.tenants.get_mut(&id).filter(|_| !is_unheard) else { return };
        if !tenant.hush() {
            tenant.region.bell().into_iter().for_each(|bell| self.wakeup.forget(bell));
            self.unheard.push((clock::now_ns() + DEAF_NS, id));
        }
        if !self.wakeup.tells_each_ring {
            empty_bell(&self.own, tenant);
        }
    }

    /// Listens to bells that have not been heard for long enough.
    fn listen_again(&mut self, now_ns: u64) {
        let due: Vec<(u64, TenantId)> = self.unheard.extract_if(.., |(until_ns, _)| *until_ns <= now_ns).collect();
        due.into_iter().for_each(|(_, id)| self.listen(id));
    }

    /// Listens to the bell of a tenant, if there is one still. Where the kernel does not let it be heard, that is tried
    /// again with the next heartbeat.
    fn listen(&mut self, id: TenantId) {
        let Some(tenant) = self.tenants.get(&id) else { return };
        let unopened = || io::Error::other("a process of its container keeps everybody waiting who opens it");
        let bell = tenant.region.bell().ok_or_else(unopened);
        let heard = bell.and_then(|bell| self.wakeup.watch(bell, id.0));
        if heard.is_err() {
            self.unheard.push((clock::now_ns() + HEARTBEAT_PERIOD_NS, id));
        }
        self.faults.note(id, &heard.map_err(|error| format!("a lease's bell cannot be heard: {error}")));
    }

    fn look(&mut self, again: &[TenantId]) {
        let mut notices = Vec::new();
        self.gates.look(&mut self.tenants, again, &mut self.report, &mut notices);
        notices.into_iter().for_each(|notice| (self.notice)(notice));
    }

    /// Carries out one order; tenants to look at go to `again`.
    fn obey(&mut self, order: Order, again: &mut Vec<TenantId>) {
        let mut notices = Vec::new();
        match order {
            Order::Join { tenant: id, gpus, region, share, debt_ns } => {
                let tenant = Tenant::new(id, gpus, region, &mut notices);
                tenant.region.beat(clock::now_ns());
                self.tenants.insert(id, tenant);
                self.listen(id);
                self.gates.join(&mut self.tenants, id, share, debt_ns, &mut notices);
                again.push(id);
            }
            Order::Leave { tenant: id, left: answer } => {
                self.gates.collect_last(&mut self.tenants, id, &mut self.report, &mut notices);
                let left = self.gates.leave(&mut self.tenants, id, &mut notices);
                if let Some(mut tenant) = self.tenants.remove(&id) {
                    tenant.close();
                    tenant.region.bell().into_iter().for_each(|bell| self.wakeup.forget(bell));
                }
                self.faults.retain(|of| *of != id);
                let _ = answer.send(left);
            }
            Order::Change { tenant, share } => self.feed(Input::Change { tenant, share }, &mut notices),
            Order::Measure { tenant, is_measured, promise_ns } => {
                self.gates.measure(&mut self.tenants, tenant, is_measured, promise_ns);
            }
            Order::MeasureAnew { tenant, from_ns } => self.gates.measure_anew(&mut self.tenants, tenant, from_ns),
            Order::Pause { tenant } => self.feed(Input::Pause { tenant }, &mut notices),
            Order::Resume { tenant } => {
                self.feed(Input::Resume { tenant }, &mut notices);
                again.push(tenant);
            }
            Order::Owe { tenant, gpu, ns, until_ns } => {
                self.gates.owe(&mut self.tenants, tenant, gpu, (ns, until_ns), &mut notices);
            }
            Order::Excuse { tenant } => self.feed(Input::Excuse { tenant }, &mut notices),
            Order::TellAgain { tenant } => self.gates.tell_again(&mut self.tenants, tenant, &mut notices),
            Order::BeginPeriod { at_ns } => self.gates.begin_period(at_ns),
            Order::Explain { tenant, answer } => {
                let gpus = self.tenants.get(&tenant).map_or_else(Vec::new, |tenant| self.gates.explain(tenant));
                let _ = answer.send(Explained { at_ns: clock::now_ns(), gpus });
            }
            Order::Collect { tenant, done } => {
                self.gates.collect_last(&mut self.tenants, tenant, &mut self.report, &mut notices);
                let _ = done.send(());
            }
            Order::Look { tenant } => again.push(tenant),
            Order::Statistics(answer) => {
                self.gates.collect_all(&mut self.tenants, &mut self.report, &mut notices);
                self.gates.settle_requests(&mut self.tenants);
                let _ = answer.send(self.gates.statistics(&self.tenants));
            }
        }
        notices.into_iter().for_each(|notice| (self.notice)(notice));
    }

    fn feed(&mut self, input: Input, notices: &mut Vec<Notice>) {
        self.gates.handle(&mut self.tenants, input, notices);
    }
}

/// Has the bell of a tenant emptied. Who rings at that moment is looked at then.
fn empty_bell(own: &Gatekeeper, tenant: &Tenant) {
    let (own, tenant_id) = (own.clone(), tenant.id);
    tenant.region.empty_bell(move || own.order(Order::Look { tenant: tenant_id }));
}

#[cfg(test)]
#[path = "thread_tests.rs"]
mod tests;
