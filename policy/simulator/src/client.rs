//! A client as the shim behaves: bursts as long as its gate asks for, as much work ahead as its gate allows, an announcement
//! at the end of its slice or when it is about to leave the device, a watcher that rings when it falls silent.

use std::collections::VecDeque;

use gpool_device_model::{ContextId, Device, Ticket};
use gpool_policy::TenantId;
use gpool_policy::slice::Input;

use crate::agenda::Seen;
use crate::pause::Pause;
use crate::work::Work;

/// What a launch is taken to cost before one has been measured.
const UNKNOWN_LAUNCH_NS: u64 = 1_000_000;
/// The longest sleep for depth, so that a wrong estimate cannot stall a client.
const DEPTH_SLEEP_LIMIT_NS: u64 = 10_000_000;
/// A gate that is open until then is none: nobody waits for its end, so a silent client has nothing to say.
pub(crate) const NO_GATE_NS: u64 = u64::MAX;
/// A client whose work ends sooner says nothing before it does: what it says would come too late.
const LEAVES_LEAST_NS: u64 = 100_000;
/// Bursts that may be unfinished at once.
const BURSTS: usize = 64;

/// Work that was issued together.
#[derive(Clone, Debug)]
struct Issued {
    begin: Ticket,
    end: Ticket,
    kernels: u64,
    estimate_ns: u64,
    /// How long its kernels really are.
    length_ns: u64,
    /// When it began on the device, once that is known.
    start_ns: u64,
    /// When it was issued: from then on its context had work.
    issued_ns: u64,
    /// When the request arrived that ends with it.
    completes: Option<u64>,
}

/// A request that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Served {
    /// When it came.
    pub arrived_ns: u64,
    /// When its last kernel ended on the device, or its process.
    pub ended_ns: u64,
}

/// What a client wants the world to do after it has looked around.
#[derive(Debug, Default)]
pub(crate) struct Wish {
    /// Ring with these inputs.
    pub(crate) ring: Vec<Input>,
    /// Look again at this time.
    pub(crate) look_ns: Option<u64>,
}

/// One tenant's process.
#[derive(Debug)]
pub struct Client {
    /// Whose.
    pub tenant: TenantId,
    /// Its context on the device.
    pub context: ContextId,
    /// What it wants to run.
    pub work: Work,
    /// Dead or hostile: does nothing any more.
    pub mute: bool,
    /// The longest kernel it has issued.
    pub longest_ns: u64,
    /// The most work that it has had issued and not seen to end, by how long its kernels really are: more than its depth
    /// where several of them are longer than usual.
    pub most_ahead_ns: u64,
    /// Its requests that are done.
    pub served: Vec<Served>,
    /// Its requests that were not when its process ended, each with that end.
    pub lost: Vec<Served>,
    gate_until_ns: Option<u64>,
    depth_ns: u64,
    burst_ns: u64,
    gate_command: u64,
    opened_ns: Option<u64>,
    asked: bool,
    /// A gatekeeper that counts launches lets no more of them through until it opens the gate again.
    out_of_launches: bool,
    in_flight: VecDeque<Issued>,
    kernel_estimate_ns: Option<u64>,
    estimated_end_ns: u64,
    /// When the last burst ended on the device.
    last_end_ns: u64,
    /// Bursts and first launches in its report that nobody has read.
    unreported: Vec<Input>,
    pause: Pause,
    /// Whether it has had something to do since its work last ended.
    is_at_work: bool,
    /// Whether it has issued all that it wanted, and waits for that.
    has_issued_all: bool,
    /// Whether it has said that it leaves since it issued something.
    has_said_leaving: bool,
    /// Whether it has said that it is idle since then.
    has_said_idle: bool,
    woken_for: Ticket,
}

impl Client {
    pub(crate) fn new(tenant: TenantId, context: ContextId, work: Work) -> Self {
        Self {
            tenant,
            context,
            work,
            mute: false,
            longest_ns: 0,
            most_ahead_ns: 0,
            served: Vec::new(),
            lost: Vec::new(),
            gate_until_ns: None,
            depth_ns: 0,
            burst_ns: 0,
            gate_command: 0,
            opened_ns: None,
            asked: false,
            out_of_launches: false,
            in_flight: VecDeque::new(),
            kernel_estimate_ns: None,
            estimated_end_ns: 0,
            last_end_ns: 0,
            unreported: Vec::new(),
            pause: Pause::default(),
            is_at_work: true,
            has_issued_all: false,
            has_said_leaving: false,
            has_said_idle: true,
            woken_for: Ticket(0),
        }
    }

    /// The gate as it is seen now. An older command than the last one seen changes nothing, but who is woken by an
    /// opening that has been closed again asks anew.
    pub(crate) fn see_gate(&mut self, command: u64, seen: Seen) {
        if command < self.gate_command {
            self.asked &= self.gate_until_ns.is_some();
            return;
        }
        self.gate_command = command;
        match seen {
            Seen::Open { until_ns, depth_ns, burst_ns, commanded_ns } => {
                if self.gate_until_ns.is_none() {
                    self.opened_ns = Some(commanded_ns);
                }
                self.asked = false;
                self.out_of_launches = false;
                (self.depth_ns, self.burst_ns) = (depth_ns, burst_ns);
                self.gate_until_ns = Some(until_ns);
            }
            // A closed gate finds a client that has announced standing at it already.
            Seen::Closed => self.gate_until_ns = None,
        }
    }

    /// Whether a burst has ended on the device since this was last true.
    pub(crate) fn notices_end(&mut self, completed: Ticket) -> bool {
        let ended = self.in_flight.iter().map(|issued| issued.end).take_while(|&end| end <= completed).last();
        let news = ended.is_some_and(|end| end > self.woken_for);
        if news {
            self.woken_for = completed;
        }
        news
    }

    /// The process is gone, and with it what it was asked for and had launched.
    pub(crate) fn end(&mut self, now_ns: u64) {
        let lost = |arrived_ns| Served { arrived_ns, ended_ns: now_ns };
        self.lost = self.unserved_since_ns().map(lost).collect();
        self.mute = true;
        self.work.end();
        self.in_flight.clear();
    }

    /// Arrival times of requests that are not done, of a process that is there.
    pub fn unserved_since_ns(&self) -> impl Iterator<Item = u64> {
        self.in_flight.iter().filter_map(|issued| issued.completes).chain(self.work.waiting_since_ns())
    }

    /// Settles what is done, issues what may be issued, says what is to be said. `admit` says how many of the wanted
    /// launches may be made.
    pub(crate) fn look(
        &mut self,
        now_ns: u64,
        device: &mut Device,
        admit: &mut dyn FnMut(TenantId, u64) -> u64,
    ) -> Wish {
        let mut wish = Wish::default();
        if self.mute {
            return wish;
        }
        let drained = self.settle(now_ns, device);
        if self.work.waits() {
            if !self.is_at_work {
                self.is_at_work = true;
                self.pause.learn(now_ns - self.last_end_ns);
            } else if self.has_issued_all {
                self.pause.did_not_come();
            }
            self.has_issued_all = false;
            self.issue(now_ns, device, admit, &mut wish);
        }
        if !self.work.waits() {
            if self.in_flight.is_empty() {
                self.is_at_work = false;
                self.fall_silent(now_ns, &mut wish);
            } else {
                self.has_issued_all = true;
                self.leave(now_ns, &mut wish);
            }
        }
        if drained && self.asked && self.work.waits() && wish.ring.is_empty() {
            // The gate is closed, or the announced end was too late: both are news.
            let (tenant, estimated_end_ns) = (self.tenant, now_ns);
            wish.ring.push(match self.gate_until_ns {
                Some(_) => Input::Announced { tenant, estimated_end_ns },
                None => Input::Drained { tenant },
            });
        }
        wish
    }

    /// What stands in its report when somebody reads it because it has rung: that it leaves only if it still does.
    pub(crate) fn still_says(&self, input: &Input) -> bool {
        self.has_said_leaving || !matches!(input, Input::Leaves { tenant, .. } if *tenant == self.tenant)
    }

    /// What it has measured since this was asked last: its report, which is read whenever the gatekeeper looks.
    pub(crate) fn take_report(&mut self) -> Vec<Input> {
        std::mem::take(&mut self.unreported)
    }

    /// Reads the markers of finished bursts. True if that left nothing in flight.
    fn settle(&mut self, now_ns: u64, device: &mut Device) -> bool {
        let had_work = !self.in_flight.is_empty();
        for (ticket, at_ns) in device.take_marker_times(self.context) {
            if let Some(begun) = self.in_flight.iter_mut().find(|issued| issued.begin == ticket) {
                begun.start_ns = at_ns;
            } else if let Some(issued) = self.in_flight.pop_front() {
                debug_assert_eq!(issued.end, ticket, "markers come in order");
                self.finish(&issued, at_ns);
            }
        }
        self.estimated_end_ns = self.estimated_end_ns.max(now_ns);
        had_work && self.in_flight.is_empty()
    }

    /// Learns from a burst that ended at `end_ns` and writes it into its report.
    fn finish(&mut self, issued: &Issued, end_ns: u64) {
        let (tenant, context) = (self.tenant, self.context.0);
        // While somebody else is on the device, the marker of the start waits for its turn like a kernel: from the moment on at which
        // it was issued or the burst before it ended.
        let (queued_ns, start_ns) = (issued.issued_ns.max(self.last_end_ns), issued.start_ns);
        self.last_end_ns = end_ns;
        self.unreported.push(if queued_ns < start_ns {
            Input::Arrival { tenant, context, queued_ns, start_ns, end_ns }
        } else {
            Input::Burst { tenant, context, start_ns, end_ns }
        });
        let measured_ns = (end_ns - issued.start_ns) / issued.kernels;
        let known_ns = self.kernel_estimate_ns.unwrap_or(measured_ns);
        self.kernel_estimate_ns = Some((known_ns * 7 + measured_ns) / 8);
        self.estimated_end_ns = end_ns + self.in_flight.iter().map(|issued| issued.estimate_ns).sum::<u64>();
        if let Some(arrived_ns) = issued.completes {
            self.served.push(Served { arrived_ns, ended_ns: end_ns });
        }
    }

    fn issue(
        &mut self,
        now_ns: u64,
        device: &mut Device,
        admit: &mut dyn FnMut(TenantId, u64) -> u64,
        wish: &mut Wish,
    ) {
        let Some(until_ns) = self.gate_until_ns else {
            if !self.asked {
                self.asked = true;
                wish.ring.push(Input::Wants { tenant: self.tenant });
            }
            return;
        };
        while !self.asked && !self.out_of_launches && self.work.waits() && self.in_flight.len() < BURSTS {
            if self.estimated_end_ns >= until_ns {
                self.asked = true;
                let estimated_end_ns = self.estimated_end_ns;
                wish.ring.push(Input::Announced { tenant: self.tenant, estimated_end_ns });
                return;
            }
            if !self.in_flight.is_empty() && self.estimated_end_ns > now_ns.saturating_add(self.depth_ns) {
                let awake_ns = self.estimated_end_ns - self.depth_ns;
                wish.look_ns = Some(awake_ns.min(now_ns + DEPTH_SLEEP_LIMIT_NS));
                return;
            }
            if self.kernel_estimate_ns.is_none() && !self.in_flight.is_empty() {
                // The first launch runs alone; its end says what the others cost.
                return;
            }
            let kernel_ns = self.kernel_estimate_ns.unwrap_or(UNKNOWN_LAUNCH_NS).max(1);
            let burst_ns = self.burst_ns.min(until_ns - self.estimated_end_ns);
            let wanted = if self.kernel_estimate_ns.is_none() { 1 } else { (burst_ns / kernel_ns).max(1) };
            let kernels = admit(self.tenant, wanted);
            if kernels == 0 {
                self.out_of_launches = true;
                return;
            }
            if let Some(opened_ns) = self.opened_ns.take() {
                self.unreported.push(Input::FirstLaunch { tenant: self.tenant, after_open_ns: now_ns - opened_ns });
            }
            self.submit(now_ns, kernels, kernel_ns, device);
        }
    }

    /// Issues a burst of at most so many kernels; the end of a request is the end of a burst.
    fn submit(&mut self, now_ns: u64, most: u64, kernel_ns: u64, device: &mut Device) {
        let begin = device.submit_marker(now_ns, self.context);
        let (mut kernels, mut length_ns, mut completes) = (0, 0, None);
        while kernels < most && completes.is_none() {
            let Some(launch) = self.work.launch() else { break };
            self.longest_ns = self.longest_ns.max(launch.length_ns);
            device.submit_kernel(now_ns, self.context, launch.length_ns);
            completes = launch.completes;
            length_ns += launch.length_ns;
            kernels += 1;
        }
        let end = device.submit_marker(now_ns, self.context);
        let estimate_ns = kernels * kernel_ns;
        self.in_flight.push_back(Issued {
            begin,
            end,
            kernels,
            estimate_ns,
            length_ns,
            start_ns: now_ns,
            issued_ns: now_ns,
            completes,
        });
        let ahead_ns = self.in_flight.iter().map(|issued| issued.length_ns).sum();
        self.most_ahead_ns = self.most_ahead_ns.max(ahead_ns);
        self.estimated_end_ns += estimate_ns;
        self.has_said_idle = false;
        if std::mem::take(&mut self.has_said_leaving) {
            self.unreported.push(Input::Stays { tenant: self.tenant });
        }
    }

    /// All is issued. One that is expected to think for long then says when its work ends.
    fn leave(&mut self, now_ns: u64, wish: &mut Wish) {
        let estimated_end_ns = self.estimated_end_ns;
        let is_open = self.gate_until_ns.is_some_and(|until_ns| until_ns != NO_GATE_NS) && !self.asked;
        if is_open && self.pause.is_expected() && !self.has_said_leaving && estimated_end_ns > now_ns + LEAVES_LEAST_NS
        {
            self.has_said_leaving = true;
            wish.ring.push(Input::Leaves { tenant: self.tenant, estimated_end_ns });
        }
    }

    fn fall_silent(&mut self, now_ns: u64, wish: &mut Wish) {
        let has_news = self.gate_until_ns.is_some() || self.asked || !self.has_said_idle;
        if !has_news || self.gate_until_ns == Some(NO_GATE_NS) {
            return;
        }
        let quiet_until_ns = self.last_end_ns + self.pause.keep_ns();
        if now_ns < quiet_until_ns {
            wish.look_ns = Some(quiet_until_ns);
            return;
        }
        self.gate_until_ns = None;
        (self.asked, self.has_said_leaving, self.has_said_idle) = (false, false, true);
        wish.ring.push(Input::Idle { tenant: self.tenant });
    }
}
