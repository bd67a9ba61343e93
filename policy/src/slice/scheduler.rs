//! The state machine: what it is told.

use std::collections::BTreeSet;

use super::account::Charge;
use super::at_work::AtWork;
use super::handoff::Handoff;
use super::queue::Queue;
use super::turn::Turn;
use super::{Class, Command, Input, Parameters, Share, TenantId};
use crate::request::Wait;
use crate::timeline::{Bounds, Burst, Delta, Entered, Timeline, Use, Verdict};

/// Decides for one GPU (or MIG instance) whose gate is open.
///
/// At most one tenant holds a slice. Others may still have work in flight: that overlaps, and is charged as such.
#[derive(Clone, Debug)]
pub struct SliceScheduler {
    pub(super) parameters: Parameters,
    pub(super) now_ns: u64,
    pub(super) queue: Queue,
    pub(super) turn: Option<Turn>,
    /// Slices given or renewed so far.
    pub(super) slices: u64,
    pub(super) handoff: Handoff,
    /// Tenants that hold several GPUs: the end of their turns is decided for all of them together.
    pub(super) gangs: BTreeSet<TenantId>,
    /// A gang's turn should be decided on.
    pub(super) gang_is_due: bool,
    pub(super) timeline: Timeline,
    /// When the current period of the audit began.
    period_start_ns: u64,
    total_charged_ns: i64,
    doubtful_bursts: u64,
    deltas: Vec<Delta>,
    /// When somebody may have been silent for too long.
    pub(super) next_silence_check_ns: Option<u64>,
    /// Whether anybody counts as hung earlier while a latency tenant waits.
    heeds_latency: bool,
    /// When the bursts of somebody who ran were long last.
    pub(super) shared_from_ns: u64,
    /// Who was at work last.
    pub(super) at_work: AtWork,
}

impl SliceScheduler {
    /// A scheduler without tenants. Times are nanoseconds of `CLOCK_MONOTONIC`.
    #[must_use]
    pub fn new(parameters: Parameters, now_ns: u64) -> Self {
        let handoff = Handoff::new(&parameters);
        Self {
            parameters,
            now_ns,
            queue: Queue::new(parameters, handoff.slice_ns(&parameters)),
            turn: None,
            slices: 0,
            handoff,
            gangs: BTreeSet::new(),
            gang_is_due: false,
            timeline: Timeline::new(Bounds::default()),
            period_start_ns: now_ns,
            total_charged_ns: 0,
            doubtful_bursts: 0,
            deltas: Vec::new(),
            next_silence_check_ns: None,
            heeds_latency: false,
            shared_from_ns: 0,
            at_work: AtWork::default(),
        }
    }

    /// Takes an input and adds what to do to `commands`. A time before the last one is taken as the last one.
    pub fn handle(&mut self, now_ns: u64, input: Input, commands: &mut Vec<Command>) {
        self.take_in(now_ns, input, commands);
        self.decide(commands);
    }

    /// When to call [`handle`](Self::handle) with [`Input::Pass`], if nothing else happens before. `None`: never.
    #[must_use]
    pub fn next_timer(&self) -> Option<u64> {
        let decision = self.turn.as_ref().and_then(|turn| self.decision_ns(turn));
        let listen = self.turn.as_ref().and_then(|turn| self.listen_ns(turn));
        [decision, listen, self.queue.timer_ns(), self.next_silence_check_ns].into_iter().flatten().min()
    }

    /// The hand-off to expect, from the measured ones: gate opened to first launch.
    #[must_use]
    pub fn handoff_ns(&self) -> u64 {
        self.handoff.ns()
    }

    /// The slice of a tenant without debt.
    #[must_use]
    pub fn slice_ns(&self) -> u64 {
        self.queue.slice_ns
    }

    /// GPU time a tenant has been charged since it joined.
    #[must_use]
    pub fn charged_ns(&self, tenant: TenantId) -> Option<u64> {
        self.queue.get(tenant).map(|place| u64::try_from(place.account.charged_ns()).unwrap_or(0))
    }

    /// What a tenant was found to have used beyond what it was charged, in nanoseconds. With that it is all that is known of its use.
    #[must_use]
    pub fn found_ns(&self, tenant: TenantId) -> Option<u64> {
        self.queue.get(tenant).map(|place| place.account.found_ns())
    }

    /// The part of that which had been booked as a debt before the tenant reported it; see [`Input::Owe`].
    #[must_use]
    pub fn redeemed_ns(&self, tenant: TenantId) -> Option<u64> {
        self.queue.get(tenant).map(|place| place.account.redeemed_ns())
    }

    /// How long a tenant has kept the device busy since it joined, by its own reports. Where others had work at the same
    /// time that is more than it was charged, and none of them can change it.
    #[must_use]
    pub fn reported_ns(&self, tenant: TenantId) -> Option<u64> {
        self.queue.get(tenant).map(|place| place.account.reported_ns())
    }

    /// The part of what it has reported that was used before the period of the audit in which it was reported, and
    /// had not been booked as a debt.
    #[must_use]
    pub fn late_ns(&self, tenant: TenantId) -> Option<u64> {
        self.queue.get(tenant).map(|place| place.account.late_ns())
    }

    /// A period of the audit begins now: of what is reported from now on, the part used before is late.
    pub fn begin_period(&mut self, now_ns: u64) {
        self.period_start_ns = now_ns;
    }

    /// GPU time a tenant is owed (positive) or owes: `w (V - ve)`. Of a tenant that is not active, what it would be
    /// if it became active now.
    #[must_use]
    pub fn lag_ns(&self, tenant: TenantId) -> Option<i64> {
        self.queue.get(tenant).map(|place| self.queue.lag_ns(place))
    }

    /// GPU time a tenant owes; 0 of one that has not joined.
    #[must_use]
    pub fn debt_ns(&self, tenant: TenantId) -> u64 {
        self.lag_ns(tenant).map_or(0, |lag| if lag < 0 { lag.unsigned_abs() } else { 0 })
    }

    /// Who holds the slice.
    #[must_use]
    pub fn running(&self) -> Option<TenantId> {
        self.turn.as_ref().map(|turn| turn.tenant)
    }

    /// Whether a tenant stands at its gate; of the one that runs, whether it has announced that it wants more.
    #[must_use]
    pub fn wants(&self, tenant: TenantId) -> bool {
        self.queue.wants(tenant)
    }

    /// Tenants that count in virtual time: those that run, want, or have done so within the linger time.
    #[must_use]
    pub fn active_count(&self) -> usize {
        self.queue.active_count()
    }

    /// What a tenant had of the device between two times, and what that costs it, as far as it has been reported by now.
    #[must_use]
    pub fn use_of(&self, tenant: TenantId, from_ns: u64, to_ns: u64) -> Use {
        self.timeline.use_of(tenant, from_ns, to_ns)
    }

    /// Before this nothing of that is remembered.
    #[must_use]
    pub fn remembered_from_ns(&self) -> u64 {
        self.timeline.remembered_from_ns()
    }

    /// Why a tenant stands at its gate, if it does: until when its own ceiling keeps it there, and what does after that.
    #[must_use]
    pub fn wait_of(&self, tenant: TenantId) -> Option<(u64, Wait)> {
        let place = self.queue.get(tenant).filter(|place| place.wants_since_ns.is_some() && !place.paused)?;
        let wait = if self.queue.is_eligible(place) { Wait::Turn } else { Wait::Share };
        Some((self.queue.opens_ns(place).unwrap_or(0), wait))
    }

    /// GPU time charged to all tenants, also those that have left: the length of the union of all bursts.
    #[must_use]
    pub fn total_charged_ns(&self) -> u64 {
        u64::try_from(self.total_charged_ns).unwrap_or(0)
    }

    /// Bursts that could not be true as reported and were shortened or thrown away.
    #[must_use]
    pub fn doubtful_bursts(&self) -> u64 {
        self.doubtful_bursts
    }

    pub(super) fn take(&mut self, input: Input, commands: &mut Vec<Command>) {
        let (now_ns, alone) = (self.now_ns, self.long_runner());
        match input {
            Input::Join { tenant, share, debt_ns } => {
                self.heeds_latency |= share.hang.heeds_latency();
                if self.queue.get(tenant).is_some() {
                    self.change(tenant, share, commands);
                } else {
                    self.queue.join(tenant, share, debt_ns, now_ns);
                    self.at_work.note(tenant, now_ns);
                }
            }
            Input::Leave { tenant } => {
                self.end_turn_of(tenant, commands);
                self.queue.remove(tenant, now_ns);
                self.timeline.forget(tenant);
                self.gangs.remove(&tenant);
            }
            Input::Change { tenant, share } => {
                self.heeds_latency |= share.hang.heeds_latency();
                self.change(tenant, share, commands);
                self.listen_anew();
            }
            Input::Pause { tenant } => {
                self.end_turn_of(tenant, commands);
                self.queue.pause(tenant, now_ns);
                self.at_work.note(tenant, now_ns);
            }
            Input::Resume { tenant } => {
                if self.queue.resume(tenant) {
                    self.want(tenant, commands);
                }
            }
            Input::Owe { tenant, ns, until_ns } => {
                self.queue.book(tenant, |place, clock| {
                    place.account.owe(clock, now_ns, (ns, until_ns));
                    if let Some(limit_permille) = place.share.limit_permille {
                        place.ceiling.charge(limit_permille, now_ns.saturating_sub(ns), ns);
                    }
                });
            }
            Input::Wants { tenant } => match &self.turn {
                Some(turn) if turn.tenant == tenant => {
                    if now_ns >= turn.until_ns && turn.announced_ns.is_none() {
                        self.announce(tenant, now_ns, commands);
                    }
                }
                _ => self.want(tenant, commands),
            },
            Input::Announced { tenant, estimated_end_ns } => self.announce(tenant, estimated_end_ns, commands),
            Input::Leaves { tenant, estimated_end_ns } => self.leave(tenant, estimated_end_ns),
            Input::Stays { tenant } => {
                if let Some(turn) = self.turn.as_mut().filter(|turn| turn.tenant == tenant) {
                    turn.leaves_ns = None;
                }
            }
            Input::Drained { tenant } => {
                // That it stands at its gate says nothing of what it has launched; this does.
                if self.running() != Some(tenant) {
                    self.queue.note(tenant, |place| place.silence.end());
                }
                self.nothing_is_left(tenant);
                self.want(tenant, commands);
            }
            Input::Idle { tenant } => {
                self.end_turn_of(tenant, commands);
                self.nothing_is_left(tenant);
                if self.queue.get(tenant).is_some_and(|place| place.account.is_active()) {
                    self.at_work.note(tenant, now_ns);
                }
                self.queue.idle(tenant, now_ns);
            }
            Input::Excuse { tenant } => {
                self.queue.note(tenant, |place| place.silence.excuse(now_ns));
                self.listen_to(tenant);
            }
            Input::Burst { tenant, context, start_ns, end_ns } => {
                self.charge(Burst { tenant, context, start_ns, end_ns }, start_ns);
            }
            Input::Arrival { tenant, context, queued_ns, start_ns, end_ns } => {
                self.charge(Burst { tenant, context, start_ns, end_ns }, queued_ns);
            }
            Input::FirstLaunch { tenant, after_open_ns } => {
                if self.queue.get(tenant).is_some() {
                    self.handoff.learn(&self.parameters, after_open_ns);
                    self.queue.slice_ns = self.handoff.slice_ns(&self.parameters);
                }
            }
            Input::Away => {
                self.queue.forgive(now_ns);
                if let Some(turn) = self.turn.as_mut() {
                    turn.forgive(now_ns);
                }
            }
            Input::Pass => {}
        }
        if alone.is_some() && alone == self.running() && self.long_runner().is_none() {
            self.end_long_turn(commands);
        }
    }

    fn change(&mut self, tenant: TenantId, share: Share, commands: &mut Vec<Command>) {
        let was_blocked = self.queue.change(tenant, share, self.now_ns);
        if was_blocked {
            // Its new ceiling may let it be served, or not.
            self.queue.block(tenant, self.now_ns);
            self.rival(tenant, commands);
        }
    }

    fn want(&mut self, tenant: TenantId, commands: &mut Vec<Command>) {
        let now_ns = self.now_ns;
        self.at_work.note(tenant, now_ns);
        if self.queue.want(tenant, now_ns) {
            let at_work = self.turn.is_some_and(|turn| turn.tenant == tenant);
            let error_ns = self.slice_ns();
            self.queue.book(tenant, |place, clock| {
                if !at_work && place.unmeasured.settle(now_ns, error_ns) {
                    place.forfeit(clock);
                }
            });
            if self.heeds_latency && self.queue.get(tenant).is_some_and(|place| place.share.class == Class::Latency) {
                self.listen_anew();
            }
            self.queue.block(tenant, now_ns);
            self.rival(tenant, commands);
        }
    }

    /// Of the tenant that runs, when its work ends; of another one, whose gate has closed meanwhile, that it wants.
    fn announce(&mut self, tenant: TenantId, estimated_end_ns: u64, commands: &mut Vec<Command>) {
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.tenant == tenant) {
            turn.announce(self.now_ns, estimated_end_ns, self.parameters.drain_limit_ns);
            if turn.announced_ns.is_none() {
                return;
            }
        }
        self.want(tenant, commands);
    }

    /// Whether a tenant is taken at its word when it says that it leaves, and somebody may gain by that. Not a gang, whose
    /// turns end on all its GPUs together; nor a latency tenant beside others than its like, whose answer would come later where
    /// its end is expected too early.
    #[must_use]
    pub fn heeds_leaving(&self, tenant: TenantId) -> bool {
        let Some(place) = self.queue.get(tenant) else { return false };
        let may_gain = place.share.class.is_batch() || self.queue.latency_alone_is_at_work();
        may_gain && self.queue.count() > 1 && !self.is_quiet(tenant) && !self.gangs.contains(&tenant)
    }

    fn leave(&mut self, tenant: TenantId, estimated_end_ns: u64) {
        let is_heeded = self.heeds_leaving(tenant);
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.tenant == tenant && is_heeded) {
            turn.leave(self.now_ns, estimated_end_ns, self.parameters.drain_limit_ns);
        }
    }

    fn charge(&mut self, mut burst: Burst, queued_ns: u64) {
        let Some(joined_ns) = self.queue.get(burst.tenant).map(|place| place.account.joined_ns()) else { return };
        self.at_work.note(burst.tenant, self.now_ns);
        if burst.start_ns < joined_ns {
            self.doubtful_bursts += 1;
            burst.start_ns = joined_ns;
            burst.end_ns = burst.end_ns.max(joined_ns);
        }
        let queued_ns = self.queue_of(&mut burst, queued_ns, joined_ns);
        let mut deltas = std::mem::take(&mut self.deltas);
        let began_ns = self.timeline.believed_start_ns(self.now_ns, burst);
        let ended_ns = burst.end_ns.min(self.now_ns);
        let length_ns = ended_ns.saturating_sub(began_ns);
        let before_ns = self.period_start_ns.saturating_sub(began_ns).min(length_ns);
        let Entered { verdict, busy_ns, .. } = match queued_ns {
            Some(queued_ns) => self.timeline.add_arrival(self.now_ns, burst, queued_ns, &mut deltas),
            None => self.timeline.add(self.now_ns, burst, &mut deltas),
        };
        if verdict != Verdict::Accepted {
            self.doubtful_bursts += 1;
        }
        let earlier_ns = part_ns(busy_ns, before_ns, length_ns);
        for delta in deltas.drain(..) {
            self.total_charged_ns = self.total_charged_ns.saturating_add(delta.ns);
            self.queue.book_since(delta.tenant, Some(began_ns), |place, clock| {
                let booked_ns = if delta.tenant == burst.tenant {
                    place.account.charge(clock, Charge { ns: delta.ns, began_ns, busy_ns, earlier_ns, ended_ns })
                } else {
                    place.account.correct(clock, delta.ns);
                    0
                };
                // What began while nobody decided counts against no ceiling.
                let is_counted = began_ns >= place.account.forgiven_ns();
                let Some(limit_permille) = place.share.limit_permille.filter(|_| is_counted) else { return };
                match u64::try_from(delta.ns) {
                    // What was booked as a debt counts against its ceiling by that.
                    Ok(ns) => place.ceiling.charge(limit_permille, began_ns, ns.saturating_sub(booked_ns)),
                    Err(_) => place.ceiling.correct(limit_permille, delta.ns.unsigned_abs()),
                }
            });
        }
        self.deltas = deltas;
        if let Some(queued_ns) = queued_ns.filter(|_| busy_ns > 0) {
            self.note_queue(burst.tenant, (queued_ns, began_ns));
        }
        self.note_work(burst.tenant, (began_ns, ended_ns), busy_ns);
        self.observe(burst);
    }

    /// A stretch of time of which `busy_ns` are now known to have been work of `tenant` was no pause.
    fn note_work(&mut self, tenant: TenantId, (begin_ns, end_ns): (u64, u64), busy_ns: u64) {
        let mut news_ns = busy_ns;
        self.queue.note(tenant, |place| news_ns = place.excused.report(begin_ns, end_ns, busy_ns));
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.tenant == tenant) {
            turn.competition.report(begin_ns, end_ns, news_ns);
        }
    }

    /// Learns from a burst, as far as it can be true.
    fn observe(&mut self, burst: Burst) {
        let (now_ns, parameters, slice_ns) = (self.now_ns, self.parameters, self.slice_ns());
        let length_ns = burst.end_ns.min(now_ns).saturating_sub(burst.start_ns);
        let ended_ns = self.turn.filter(|turn| turn.tenant == burst.tenant).map(|turn| turn.until_ns);
        // As long as its bursts are while nobody else is at work it launches nothing at once later. Beside others that are idle one
        // that is longer than a slice is a long kernel, or as good as one.
        let is_kernel = length_ns > slice_ns && !self.is_sole(burst.tenant) && burst.start_ns >= self.shared_from_ns;
        let is_long = !is_kernel && (self.has_long_bursts(burst.tenant) || burst.start_ns < self.shared_from_ns);
        self.queue.book(burst.tenant, |place, _| {
            if length_ns > 0 {
                if !is_long {
                    place.habits.burst(now_ns, length_ns);
                }
                place.unmeasured.measured(burst.end_ns.min(now_ns));
            }
            if ended_ns.is_some_and(|until_ns| burst.end_ns.min(now_ns) > until_ns.saturating_add(slice_ns)) {
                place.habits.outran(&parameters, now_ns, slice_ns);
            }
        });
        self.hear(burst.tenant, burst.end_ns.min(now_ns));
    }
}

/// `ns * part / whole`.
fn part_ns(ns: u64, part_ns: u64, whole_ns: u64) -> u64 {
    let product = u128::from(ns) * u128::from(part_ns);
    u64::try_from(product.checked_div(u128::from(whole_ns)).unwrap_or(0)).unwrap_or(ns)
}
