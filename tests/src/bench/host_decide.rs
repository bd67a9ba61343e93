//! What deciding costs a host with many GPUs, all of them wanted by many: CPU time over virtual time. Once where each tenant has
//! one GPU, and once where some have four and as many again and more that have joined are idle.
//!
//! The scheduler is fed as the gatekeeper feeds it; tenants and GPUs are played in virtual time. Reading reports and
//! moving gates is not part of it.

use super::process_cost::thread_cpu_ns;
use super::sheet::Sheet;
use crate::failure::{Result, ensure};
use gpool_policy::TenantId;
use gpool_policy::slice::{Command, HostScheduler, Input, Parameters, ServerSet, Share};
use gpool_policy::timeline::Burst;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const GPUS: usize = 16;
/// Busy ones.
const TENANTS_PER_GPU: usize = 8;
/// GPUs of a tenant that has several.
const GANG: usize = 4;
/// Such tenants that are busy, and such that are idle.
const GANGS: (usize, usize) = (12, 20);
const MS: u64 = 1_000_000;
/// Until the schedulers have learnt how long a hand-off takes, and with it the length of a slice.
const SETTLE_NS: u64 = 2_000 * MS;
/// Virtual time of one round.
const LENGTH_NS: u64 = 4_000 * MS;
/// From an opened gate to the first launch: with [`EXCHANGE_NS`] a slice becomes 6 ms long.
const HANDOFF_NS: u64 = 60_000;
/// What exchanging contexts is taken to cost: less than by default, where slices are twice as long and need half the
/// decisions.
const EXCHANGE_NS: u64 = 90_000;
/// From a renewal to the next announcement.
const RING_NS: u64 = 20_000;
/// A tenant measures bursts of about this length.
const BURST_NS: u64 = MS;

/// Adds one round.
pub fn measure(sheet: &mut Sheet) -> Result<()> {
    for (name, gangs) in [("host.decide_128", (0, 0)), ("host.decide_gangs", GANGS)] {
        let stage = Stage::settled(gangs);
        let before_ns = thread_cpu_ns();
        let ended = stage.play(LENGTH_NS);
        let used_ns = thread_cpu_ns() - before_ns;
        ended.check()?;
        sheet.add(name, &[used_ns as f64 / LENGTH_NS as f64], &[])?;
    }
    Ok(())
}

/// What a tenant does next by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// It has issued work up to the end of its slice.
    Announce,
    /// All it has issued is done, and its gate is closed.
    Drain,
}

#[derive(Debug, Clone, Copy, Default)]
struct Tenant {
    gpus: ServerSet,
    is_open: bool,
    /// Its gate was opened, and it has not told of its first launch yet.
    is_fresh: bool,
    /// Work up to here has been told of, and work up to there has been issued.
    told_ns: u64,
    end_ns: u64,
    /// Of each of its GPUs.
    received_ns: u64,
}

/// The scheduler with those who talk to it.
struct Stage {
    scheduler: HostScheduler,
    commands: Vec<Command>,
    tenants: Vec<Tenant>,
    /// When each GPU has done all that was issued.
    free_ns: [u64; GPUS],
    agenda: BinaryHeap<Reverse<(u64, Step, usize)>>,
    slices: u64,
    counted_from_ns: u64,
    now_ns: u64,
    /// How many are idle.
    idle: usize,
}

impl Stage {
    /// So many tenants of several GPUs, and as many of one that each GPU is wanted by [`TENANTS_PER_GPU`], stand at their gates. The
    /// first ones are idle.
    fn new((busy, idle): (usize, usize)) -> Self {
        let several = (0..idle + busy).map(|index| (0..GANG).map(|gpu| (index * GANG + gpu) % GPUS).collect());
        let single = (0..GPUS * TENANTS_PER_GPU - busy * GANG).map(|index| ServerSet::one(index % GPUS));
        let tenants = several.chain(single).map(|gpus| Tenant { gpus, ..Tenant::default() });
        let mut stage = Self {
            scheduler: HostScheduler::new(parameters(), GPUS, 0),
            commands: Vec::new(),
            tenants: tenants.collect(),
            free_ns: [0; GPUS],
            agenda: BinaryHeap::new(),
            slices: 0,
            counted_from_ns: 0,
            now_ns: 0,
            idle,
        };
        let share = Share::of(1000 / TENANTS_PER_GPU as u16);
        for index in 0..stage.tenants.len() {
            let gpus = stage.tenants[index].gpus;
            stage.scheduler.join(0, id_of(index), gpus, share, 0, &mut stage.commands);
            if index >= idle {
                stage.say(Input::Wants { tenant: id_of(index) });
            }
        }
        stage
    }

    /// The same after a while, with nothing counted yet.
    fn settled(gangs: (usize, usize)) -> Self {
        let mut stage = Self::new(gangs).play(SETTLE_NS);
        (stage.slices, stage.counted_from_ns) = (0, stage.now_ns);
        stage.tenants.iter_mut().for_each(|tenant| tenant.received_ns = 0);
        stage
    }

    /// Lets so much virtual time pass.
    fn play(mut self, length_ns: u64) -> Self {
        let last_ns = self.now_ns + length_ns;
        loop {
            let step_ns = self.agenda.peek().map(|Reverse((at_ns, ..))| *at_ns);
            let timer_ns = self.scheduler.next_timer();
            let Some(next_ns) = step_ns.into_iter().chain(timer_ns).min().filter(|at_ns| *at_ns < last_ns) else {
                self.now_ns = last_ns;
                return self;
            };
            self.now_ns = next_ns.max(self.now_ns);
            if step_ns == Some(next_ns)
                && let Some(Reverse((_, step, index))) = self.agenda.pop()
            {
                self.ring(step, index);
            } else {
                self.tell_of_due();
            }
            self.say(Input::Pass);
        }
    }

    /// A tenant's bell: first its bursts, then what it says.
    fn ring(&mut self, step: Step, index: usize) {
        self.tell_bursts(index);
        let tenant = id_of(index);
        if std::mem::take(&mut self.tenants[index].is_fresh) {
            self.say(Input::FirstLaunch { tenant, after_open_ns: HANDOFF_NS });
        }
        match step {
            Step::Announce => {
                self.say(Input::Announced { tenant, estimated_end_ns: self.tenants[index].end_ns });
            }
            Step::Drain => self.say(Input::Wants { tenant }),
        }
    }

    /// A timer: who is at work on a GPU whose time has come tells of its bursts.
    fn tell_of_due(&mut self) {
        let is_due = |gpu: &usize| self.scheduler.server(*gpu).next_timer().is_some_and(|at_ns| at_ns <= self.now_ns);
        let due: ServerSet = (0..GPUS).filter(is_due).collect();
        for index in 0..self.tenants.len() {
            if self.tenants[index].is_open && self.tenants[index].gpus.iter().any(|gpu| due.contains(gpu)) {
                self.tell_bursts(index);
            }
        }
    }

    /// Whole bursts that are over, and the rest when all is done.
    fn tell_bursts(&mut self, index: usize) {
        loop {
            let Tenant { gpus, told_ns, end_ns, .. } = self.tenants[index];
            let until_ns = (told_ns + BURST_NS).min(end_ns);
            if until_ns > self.now_ns || until_ns <= told_ns {
                return;
            }
            let burst = |gpu| Burst { tenant: id_of(index), context: gpu as u64, start_ns: told_ns, end_ns: until_ns };
            let bursts = gpus.iter().map(|gpu| (gpu, burst(gpu), told_ns));
            self.scheduler.arrivals(self.now_ns, bursts, &mut self.commands);
            self.tenants[index].told_ns = until_ns;
            self.tenants[index].received_ns += until_ns - told_ns;
            self.obey();
        }
    }

    fn say(&mut self, input: Input) {
        self.scheduler.handle(self.now_ns, input, &mut self.commands);
        self.obey();
    }

    /// What gates that move make the tenants do.
    fn obey(&mut self) {
        for command in self.commands.drain(..) {
            match command {
                Command::Open { tenant, until_ns, .. } => {
                    let index = index_of(tenant);
                    let tenant = &mut self.tenants[index];
                    let delay_ns = if tenant.is_open { RING_NS } else { HANDOFF_NS };
                    self.slices += tenant.gpus.len() as u64;
                    if !std::mem::replace(&mut tenant.is_open, true) {
                        tenant.is_fresh = true;
                        let free_ns = tenant.gpus.iter().map(|gpu| self.free_ns[gpu]).max().unwrap_or(0);
                        tenant.told_ns = free_ns.max(self.now_ns + HANDOFF_NS);
                    }
                    tenant.end_ns = until_ns.max(tenant.told_ns + BURST_NS);
                    tenant.gpus.iter().for_each(|gpu| self.free_ns[gpu] = tenant.end_ns);
                    self.agenda.push(Reverse((self.now_ns + delay_ns, Step::Announce, index)));
                }
                Command::Close { tenant } => {
                    let index = index_of(tenant);
                    self.tenants[index].is_open = false;
                    let drained_ns = self.tenants[index].end_ns.max(self.now_ns);
                    self.agenda.push(Reverse((drained_ns, Step::Drain, index)));
                }
                Command::Hung { .. } => {}
            }
        }
    }

    /// Only a schedule in which everybody was served in slices of the usual length says what deciding costs.
    fn check(&self) -> Result<()> {
        let counted_ns = (self.now_ns - self.counted_from_ns) as f64;
        let slice_ms = GPUS as f64 * counted_ns / MS as f64 / self.slices.max(1) as f64;
        let share = |tenant: &Tenant| tenant.received_ns as f64 / counted_ns;
        let busy = &self.tenants[self.idle..];
        let least = busy.iter().map(share).fold(1.0, f64::min);
        let sum: f64 = busy.iter().map(|tenant| tenant.gpus.len() as f64 * share(tenant)).sum();
        let due = 1.0 / TENANTS_PER_GPU as f64;
        let is_usual = (5.5..=6.5).contains(&slice_ms) && least >= 0.9 * due && sum >= 0.95 * GPUS as f64;
        ensure(is_usual, || {
            format!(
                "slices of {slice_ms:.2} ms, {sum:.2} of {GPUS} GPUs used, {least:.3} of one for a tenant: no usual load"
            )
        })
    }
}

fn parameters() -> Parameters {
    Parameters { exchange_ns: EXCHANGE_NS, slice_min_ns: 5 * MS, ..Parameters::default() }
}

fn id_of(index: usize) -> TenantId {
    TenantId(index as u64 + 1)
}

fn index_of(tenant: TenantId) -> usize {
    tenant.0 as usize - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_tenants_of_all_gpus_are_served_in_slices_of_6_ms() {
        for gangs in [(0, 0), GANGS] {
            Stage::settled(gangs).play(1_000 * MS).check().unwrap();
        }
    }

    #[test]
    fn a_schedule_in_which_nothing_happens_is_no_measurement() {
        let told = Stage::new((0, 0)).play(MS).check().unwrap_err().to_string();
        assert!(told.contains("no usual load"), "{told}");
    }
}
