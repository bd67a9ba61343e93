//! A client as the shim behaves: bursts of about a millisecond, three in flight, an announcement at the end of its
//! slice, a watcher that rings when it falls silent.

use std::collections::VecDeque;

use gpool_device_model::{ContextId, Device, Ticket};
use gpool_policy::TenantId;
use gpool_policy::slice::Input;

use crate::random::Random;

const BURST_NS: u64 = 1_000_000;
const DEPTH_NS: u64 = 3_000_000;
/// With one burst in flight the device would idle while the client wakes: 1 % with kernels of 2 ms.
const LEAST_IN_FLIGHT: usize = 2;
const SILENCE_NS: u64 = 500_000;

/// Work that was issued together.
#[derive(Clone, Debug)]
struct Issued {
    begin: Ticket,
    end: Ticket,
    kernels: u64,
    estimate_ns: u64,
    /// When it began on the device, once that is known.
    start_ns: u64,
}

/// What a client wants the world to do after it has looked around.
#[derive(Debug, Default)]
pub struct Wish {
    /// Ring with these inputs.
    pub ring: Vec<Input>,
    /// Look again at this time.
    pub look_ns: Option<u64>,
    /// It has issued work.
    pub issued: bool,
}

#[derive(Debug)]
pub struct Client {
    pub tenant: TenantId,
    pub context: ContextId,
    /// Kernel lengths, uniform between both.
    pub kernel_ns: (u64, u64),
    /// Length of the next kernel, once.
    pub surprise_ns: Option<u64>,
    /// Dead or hostile: does nothing any more.
    pub mute: bool,
    /// Has always work while true.
    pub demand: bool,
    /// The longest kernel it has issued.
    pub longest_ns: u64,
    gate_until_ns: Option<u64>,
    gate_command: u64,
    opened_ns: Option<u64>,
    asked: bool,
    in_flight: VecDeque<Issued>,
    kernel_estimate_ns: Option<u64>,
    estimated_end_ns: u64,
    unreported: Vec<Input>,
    silent_since_ns: Option<u64>,
}

impl Client {
    pub fn new(tenant: TenantId, context: ContextId, kernel_ns: (u64, u64)) -> Self {
        Self {
            tenant,
            context,
            kernel_ns,
            surprise_ns: None,
            mute: false,
            demand: false,
            longest_ns: 0,
            gate_until_ns: None,
            gate_command: 0,
            opened_ns: None,
            asked: false,
            in_flight: VecDeque::new(),
            kernel_estimate_ns: None,
            estimated_end_ns: 0,
            unreported: Vec::new(),
            silent_since_ns: None,
        }
    }

    /// The gate as it is seen now. An older command than the last one seen is ignored.
    pub fn see_gate(&mut self, command: u64, until_ns: Option<u64>, commanded_ns: u64) {
        if command < self.gate_command {
            return;
        }
        self.gate_command = command;
        if self.gate_until_ns.is_none() && until_ns.is_some() {
            self.opened_ns = Some(commanded_ns);
        }
        // A closed gate finds a client that has announced standing at it already.
        self.asked = self.asked && until_ns.is_none();
        self.gate_until_ns = until_ns;
    }

    /// The end of the oldest burst that is not complete.
    pub fn next_end_after(&self, completed: Ticket) -> Option<Ticket> {
        self.in_flight.iter().map(|issued| issued.end).find(|&end| end > completed)
    }

    /// Settles what is done, issues what may be issued, says what is to be said.
    pub fn look(&mut self, now: u64, device: &mut Device, random: &mut Random) -> Wish {
        let mut wish = Wish::default();
        if self.mute {
            return wish;
        }
        let drained = self.settle(now, device);
        if self.demand {
            self.silent_since_ns = None;
            self.issue(now, device, random, &mut wish);
        } else if self.in_flight.is_empty() {
            self.fall_silent(now, &mut wish);
        }
        if drained && self.asked && self.demand && wish.ring.is_empty() {
            // The gate is closed, or the announced end was too late: both are news.
            let (tenant, estimated_end_ns) = (self.tenant, now);
            wish.ring.push(match self.gate_until_ns {
                Some(_) => Input::Announced { tenant, estimated_end_ns },
                None => Input::Wants { tenant },
            });
        }
        if !wish.ring.is_empty() {
            let said = std::mem::replace(&mut wish.ring, std::mem::take(&mut self.unreported));
            wish.ring.extend(said);
        }
        wish
    }

    /// Reads the markers of finished bursts. True if that left nothing in flight.
    fn settle(&mut self, now: u64, device: &mut Device) -> bool {
        let times: Vec<(Ticket, u64)> = device.take_marker_times(self.context);
        let had_work = !self.in_flight.is_empty();
        for (ticket, at) in times {
            if let Some(begun) = self.in_flight.iter_mut().find(|issued| issued.begin == ticket) {
                begun.start_ns = at;
            } else if let Some(issued) = self.in_flight.pop_front() {
                assert_eq!(issued.end, ticket, "markers come in order");
                self.finish(&issued, at);
            }
        }
        self.estimated_end_ns = self.estimated_end_ns.max(now);
        had_work && self.in_flight.is_empty()
    }

    /// Learns from a burst that ended at `end_ns` and keeps it for the next ring.
    fn finish(&mut self, issued: &Issued, end_ns: u64) {
        let (tenant, context, start_ns) = (self.tenant, self.context.0, issued.start_ns);
        self.unreported.push(Input::Burst { tenant, context, start_ns, end_ns });
        let measured = (end_ns - start_ns) / issued.kernels;
        let known = self.kernel_estimate_ns.unwrap_or(measured);
        self.kernel_estimate_ns = Some((known * 7 + measured) / 8);
        self.estimated_end_ns = end_ns + self.in_flight.iter().map(|issued| issued.estimate_ns).sum::<u64>();
    }

    fn issue(&mut self, now: u64, device: &mut Device, random: &mut Random, wish: &mut Wish) {
        let Some(until) = self.gate_until_ns else {
            if !self.asked {
                self.asked = true;
                wish.ring.push(Input::Wants { tenant: self.tenant });
            }
            return;
        };
        while !self.asked {
            if !self.in_flight.is_empty() && self.estimated_end_ns >= until || now >= until {
                self.asked = true;
                let estimated_end_ns = self.estimated_end_ns;
                wish.ring.push(Input::Announced { tenant: self.tenant, estimated_end_ns });
                return;
            }
            let kernel = self.kernel_estimate_ns.unwrap_or(BURST_NS);
            let kernels = (BURST_NS / kernel.max(1)).max(1);
            let estimate_ns = kernels * kernel;
            if self.in_flight.len() >= LEAST_IN_FLIGHT && self.estimated_end_ns - now + estimate_ns > DEPTH_NS {
                return;
            }
            if let Some(opened) = self.opened_ns.take() {
                self.unreported.push(Input::FirstLaunch { tenant: self.tenant, after_open_ns: now - opened });
            }
            self.submit(now, kernels, estimate_ns, device, random);
            wish.issued = true;
        }
    }

    fn submit(&mut self, now: u64, kernels: u64, estimate_ns: u64, device: &mut Device, random: &mut Random) {
        let begin = device.submit_marker(now, self.context);
        for _ in 0..kernels {
            let drawn = random.within(self.kernel_ns.0, self.kernel_ns.1);
            let length = self.surprise_ns.take().unwrap_or(drawn);
            self.longest_ns = self.longest_ns.max(length);
            device.submit_kernel(now, self.context, length);
        }
        let end = device.submit_marker(now, self.context);
        self.in_flight.push_back(Issued { begin, end, kernels, estimate_ns, start_ns: now });
        self.estimated_end_ns += estimate_ns;
    }

    fn fall_silent(&mut self, now: u64, wish: &mut Wish) {
        if self.gate_until_ns.is_none() && !self.asked {
            return;
        }
        let since = *self.silent_since_ns.get_or_insert(now);
        if now < since + SILENCE_NS {
            wish.look_ns = Some(since + SILENCE_NS);
            return;
        }
        self.gate_until_ns = None;
        self.asked = false;
        wish.ring.push(Input::Idle { tenant: self.tenant });
    }
}
