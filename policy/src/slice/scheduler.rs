//! The state machine.

use super::account::Account;
use super::handoff::Handoff;
use super::pick::{Candidate, pick};
use super::queue::Queue;
use super::turn::Turn;
use super::{Command, Input, Parameters, TenantId};
use crate::timeline::{Bounds, Burst, Delta, Timeline, Verdict};

/// Decides for one GPU (or MIG instance) whose gate is open.
///
/// At most one tenant holds a slice. Others may still have work in flight: that overlaps, and is charged as such.
#[derive(Clone, Debug)]
pub struct SliceScheduler {
    parameters: Parameters,
    now_ns: u64,
    queue: Queue,
    turn: Option<Turn>,
    handoff: Handoff,
    timeline: Timeline,
    total_charged_ns: i64,
    doubtful_bursts: u64,
    deltas: Vec<Delta>,
}

impl SliceScheduler {
    /// A scheduler without tenants. Times are nanoseconds of `CLOCK_MONOTONIC`.
    #[must_use]
    pub fn new(parameters: Parameters, now_ns: u64) -> Self {
        Self {
            parameters,
            now_ns,
            queue: Queue::default(),
            turn: None,
            handoff: Handoff::new(&parameters),
            timeline: Timeline::new(Bounds::default()),
            total_charged_ns: 0,
            doubtful_bursts: 0,
            deltas: Vec::new(),
        }
    }

    /// Takes an input and adds what to do to `commands`. A time before the last one is taken as the last one.
    pub fn handle(&mut self, now_ns: u64, input: Input, commands: &mut Vec<Command>) {
        self.now_ns = self.now_ns.max(now_ns);
        self.queue.retire_lingering(self.now_ns);
        self.take(input, commands);
        self.decide(commands);
    }

    /// When to call [`handle`](Self::handle) with [`Input::Pass`], if nothing else happens before. `None`: never.
    #[must_use]
    pub fn next_timer(&self) -> Option<u64> {
        let decision = self.turn.as_ref().and_then(|turn| self.decision_ns(turn));
        [decision, self.queue.linger_timer()].into_iter().flatten().min()
    }

    /// The hand-off to expect, from the measured ones: gate opened to first launch.
    #[must_use]
    pub fn handoff_ns(&self) -> u64 {
        self.handoff.ns()
    }

    /// The slice of a tenant without debt.
    #[must_use]
    pub fn slice_ns(&self) -> u64 {
        self.handoff.slice_ns(&self.parameters)
    }

    /// GPU time a tenant has been charged since it joined.
    #[must_use]
    pub fn charged_ns(&self, tenant: TenantId) -> Option<u64> {
        self.queue.get(tenant).map(|account| u64::try_from(account.charged_ns()).unwrap_or(0))
    }

    /// GPU time a tenant is owed (positive) or owes: `w (V - ve)`. Of a tenant that is not active, what it would be
    /// if it became active now.
    #[must_use]
    pub fn lag_ns(&self, tenant: TenantId) -> Option<i64> {
        self.queue.get(tenant).map(|account| account.lag_ns(&self.queue.clock))
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

    fn take(&mut self, input: Input, commands: &mut Vec<Command>) {
        let now_ns = self.now_ns;
        match input {
            Input::Join { tenant, share, debt_ns } => {
                if self.queue.get(tenant).is_some() {
                    self.reweigh(tenant, share.weight_permille);
                } else {
                    let account = Account::new(&self.queue.clock, share.weight_permille, debt_ns, now_ns);
                    self.queue.join(tenant, account);
                }
            }
            Input::Leave { tenant } => {
                self.end_turn_of(tenant, commands);
                self.queue.remove(tenant, now_ns);
                self.timeline.forget(tenant);
            }
            Input::Change { tenant, share } => self.reweigh(tenant, share.weight_permille),
            Input::Pause { .. } | Input::Resume { .. } | Input::Owe { .. } => {}
            Input::Wants { tenant } => match &self.turn {
                Some(turn) if turn.tenant == tenant => {
                    if now_ns >= turn.until_ns && turn.announced_ns.is_none() {
                        self.announce(tenant, now_ns);
                    }
                }
                _ => self.want(tenant),
            },
            Input::Announced { tenant, estimated_end_ns } => self.announce(tenant, estimated_end_ns),
            Input::Idle { tenant } => {
                self.end_turn_of(tenant, commands);
                self.queue.rest(tenant, now_ns, self.parameters.linger_ns);
            }
            Input::Burst { tenant, context, start_ns, end_ns } => {
                self.charge(Burst { tenant, context, start_ns, end_ns });
            }
            Input::FirstLaunch { tenant, after_open_ns } => {
                if self.queue.get(tenant).is_some() {
                    self.handoff.learn(&self.parameters, after_open_ns);
                }
            }
            Input::Pass => {}
        }
    }

    fn reweigh(&mut self, tenant: TenantId, weight_permille: u16) {
        if let Some((account, clock)) = self.queue.book(tenant) {
            account.reweigh(clock, weight_permille);
        }
    }

    fn want(&mut self, tenant: TenantId) {
        let known = self.queue.want(tenant, self.now_ns, &self.parameters);
        if let Some(turn) = self.turn.as_mut().filter(|turn| known && turn.tenant != tenant) {
            turn.contest(self.now_ns);
        }
    }

    /// Of the tenant that runs, when its work ends; of another one, whose gate has closed meanwhile, that it wants.
    fn announce(&mut self, tenant: TenantId, estimated_end_ns: u64) {
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.tenant == tenant) {
            turn.announce(self.now_ns, estimated_end_ns, self.parameters.drain_limit_ns);
            if turn.announced_ns.is_none() {
                return;
            }
        }
        self.want(tenant);
    }

    fn charge(&mut self, mut burst: Burst) {
        let Some(joined_ns) = self.queue.get(burst.tenant).map(Account::joined_ns) else { return };
        if burst.start_ns < joined_ns {
            self.doubtful_bursts += 1;
            burst.start_ns = joined_ns;
            burst.end_ns = burst.end_ns.max(joined_ns);
        }
        let mut deltas = std::mem::take(&mut self.deltas);
        if self.timeline.add(self.now_ns, burst, &mut deltas) != Verdict::Accepted {
            self.doubtful_bursts += 1;
        }
        for delta in deltas.drain(..) {
            self.total_charged_ns = self.total_charged_ns.saturating_add(delta.ns);
            match self.queue.book(delta.tenant) {
                Some((account, clock)) if delta.tenant == burst.tenant => {
                    account.charge(clock, delta.ns, burst.start_ns);
                }
                Some((account, clock)) => account.correct(clock, delta.ns),
                None => {}
            }
        }
        self.deltas = deltas;
    }

    fn decision_ns(&self, turn: &Turn) -> Option<u64> {
        turn.decision_ns(self.handoff.lead_ns(), self.parameters.drain_limit_ns)
    }

    /// Opens the gate of whoever is next, if it is time to.
    fn decide(&mut self, commands: &mut Vec<Command>) {
        let now_ns = self.now_ns;
        let Some(turn) = self.turn else {
            return self.open_next(now_ns, commands);
        };
        if self.decision_ns(&turn).is_none_or(|at| at > now_ns) {
            return;
        }
        let (own_start_ns, other_start_ns) = turn.next_start_ns(now_ns, self.handoff.lead_ns());
        let limit_ns = turn.until_ns.saturating_add(self.parameters.drain_limit_ns);
        if now_ns >= limit_ns && turn.announced_ns.is_none_or(|end_ns| end_ns > limit_ns) {
            self.book_silence(&turn, limit_ns);
        }
        if self.choose() == Some(turn.tenant) {
            return self.open(turn.tenant, own_start_ns, commands);
        }
        self.end_turn_of(turn.tenant, commands);
        if turn.announced_ns.is_none() {
            self.queue.rest(turn.tenant, now_ns, self.parameters.linger_ns);
        }
        self.open_next(other_start_ns, commands);
    }

    /// A tenant that did not drain in time has used the device while others waited, as far as can be known now. What
    /// the scheduler itself was late is not its fault.
    fn book_silence(&mut self, turn: &Turn, limit_ns: u64) {
        let since_ns = turn.contested_ns.unwrap_or(limit_ns);
        let silent_ns = i64::try_from(limit_ns.saturating_sub(since_ns)).unwrap_or(i64::MAX);
        if let Some((account, clock)) = self.queue.book(turn.tenant) {
            let measured_ns = account.charged_ns() - turn.charged_before_ns;
            account.hold(clock, self.now_ns, (silent_ns - measured_ns.max(0)).max(0));
        }
    }

    fn choose(&self) -> Option<TenantId> {
        if !self.queue.anybody_wants() {
            return None;
        }
        let slice_ns = self.slice_ns();
        pick(self.queue.wanting().map(|(tenant, account)| Candidate {
            tenant,
            eligible_at: account.eligible_at(),
            deadline: account.deadline(slice_ns),
            eligible: account.is_eligible(&self.queue.clock),
        }))
    }

    /// The slice of a tenant: debt shortens it, `max(least, q + min(0, lag))`.
    fn request_ns(&self, account: &Account) -> u64 {
        let slice_ns = self.slice_ns();
        let lag_ns = account.lag_ns(&self.queue.clock);
        let debt_ns = if lag_ns < 0 { lag_ns.unsigned_abs() } else { 0 };
        slice_ns.saturating_sub(debt_ns).max(self.parameters.least_slice_ns)
    }

    fn open_next(&mut self, start_ns: u64, commands: &mut Vec<Command>) {
        if let Some(tenant) = self.choose() {
            self.open(tenant, start_ns, commands);
        }
    }

    /// Gives or renews a slice that begins, on the device, at `start_ns`.
    fn open(&mut self, tenant: TenantId, start_ns: u64, commands: &mut Vec<Command>) {
        let Some(account) = self.queue.get(tenant) else { return };
        let until_ns = start_ns.saturating_add(self.request_ns(account));
        let charged_before_ns = account.charged_ns();
        self.queue.serve(tenant);
        let contested_ns = self.queue.anybody_wants().then_some(self.now_ns);
        self.turn = Some(Turn { tenant, until_ns, announced_ns: None, contested_ns, charged_before_ns });
        commands.push(Command::Open { tenant, until_ns, depth_ns: self.parameters.depth_ns });
    }

    fn end_turn_of(&mut self, tenant: TenantId, commands: &mut Vec<Command>) {
        if self.turn.take_if(|turn| turn.tenant == tenant).is_some() {
            commands.push(Command::Close { tenant });
        }
    }
}
