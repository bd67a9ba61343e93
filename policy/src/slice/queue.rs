//! The tenants of a GPU: who is active, who wants, who may be served, who lingers.

use std::collections::{BTreeMap, BTreeSet};

use super::account::Account;
use super::ceiling::Ceiling;
use super::habits::Habits;
use super::lead::Lead;
use super::overdraft::Overdraft;
use super::pauses::Excused;
use super::ready::{Candidate, Ready};
use super::returns::Returns;
use super::silence::Silence;
use super::unmeasured::Unmeasured;
use super::virtual_clock::VirtualClock;
use super::{Class, Parameters, Priority, Share, TenantId};

mod booking;
mod ceilings;
mod neighbours;
mod slack;
mod work;

use work::OwnTimes;

/// A tenant and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) share: Share,
    pub(super) account: Account,
    pub(super) ceiling: Ceiling,
    pub(super) habits: Habits,
    pub(super) unmeasured: Unmeasured,
    /// Since when it stands at its gate.
    pub(super) wants_since_ns: Option<u64>,
    pub(super) paused: bool,
    /// A gang that cannot have all its GPUs now.
    pub(super) held_back: bool,
    /// A gang that is behind what was promised to it.
    pub(super) is_behind: bool,
    /// Of a latency tenant: what it has had beyond its part, while all who have joined want theirs.
    pub(super) overdraft: Overdraft,
    /// The same while all who are at work do.
    pub(super) lead: Lead,
    /// A latency tenant has used up its slack: until it has rested or is owed time, it competes as batch.
    pub(super) slack_spent: bool,
    /// The slice, by its number, during which it was found whether it shortens that.
    pub(super) judged_in: Option<u64>,
    /// What of its slices is not booked as paused because it may have been work.
    pub(super) excused: Excused,
    /// What it stood before the device for counts up to here.
    pub(super) queued_to_ns: u64,
    pub(super) silence: Silence,
    returns: Returns,
    /// Idle and still active, until then.
    lingers_until_ns: Option<u64>,
    /// Blocked by its ceiling, until then.
    blocked_until_ns: Option<u64>,
    /// When it was last seen to be active.
    seen_ns: u64,
}

impl Place {
    /// All that the tenant has launched in its slices has been reported, or so is assumed: what was excused was a pause.
    pub(super) fn forfeit(&mut self, clock: &mut VirtualClock) {
        let (end_ns, paused_ns) = (self.excused.end_ns(), self.excused.take());
        if paused_ns > 0 {
            self.account.hold(clock, end_ns, paused_ns.cast_signed());
        }
    }
}

/// A tenant is *active*, and counts in the virtual time of its priority, from its first want until it has been idle
/// for the linger time; it *wants* while it stands at its gate; it is *ready* while it wants and nothing forbids it.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) parameters: Parameters,
    clocks: [VirtualClock; Priority::COUNT],
    places: BTreeMap<TenantId, Place>,
    ready: Ready,
    /// Those that linger, by when that ends.
    lingering: BTreeSet<(u64, TenantId)>,
    /// Those that want and are above their ceilings, by when they are not.
    blocked: BTreeSet<(u64, TenantId)>,
    pub(super) latency_tenants: BTreeSet<TenantId>,
    /// Those that come back from being idle often, until when they count as that, and how long their last returns took.
    returning: BTreeMap<TenantId, (u64, u64)>,
    active_count: usize,
    /// Weights of all that have joined, by priority.
    weights: [u64; Priority::COUNT],
    /// When it is.
    now_ns: u64,
    own_times: OwnTimes,
    /// What a batch tenant asks for.
    pub(super) slice_ns: u64,
}

impl Queue {
    pub(super) fn new(parameters: Parameters, slice_ns: u64) -> Self {
        Self {
            parameters,
            clocks: Default::default(),
            places: BTreeMap::new(),
            ready: Ready::default(),
            lingering: BTreeSet::new(),
            blocked: BTreeSet::new(),
            latency_tenants: BTreeSet::new(),
            returning: BTreeMap::new(),
            active_count: 0,
            weights: [0; Priority::COUNT],
            now_ns: 0,
            own_times: OwnTimes::default(),
            slice_ns,
        }
    }

    pub(super) fn get(&self, tenant: TenantId) -> Option<&Place> {
        self.places.get(&tenant)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (TenantId, &Place)> {
        self.places.iter().map(|(&tenant, place)| (tenant, place))
    }

    /// How many have joined.
    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    /// The virtual time that a tenant's priority goes by.
    pub(super) fn clock_of(&self, place: &Place) -> &VirtualClock {
        &self.clocks[place.share.priority as usize]
    }

    /// What a tenant is owed (positive) or owes, in GPU ns.
    pub(super) fn lag_ns(&self, place: &Place) -> i64 {
        place.account.lag_ns(self.clock_of(place))
    }

    pub(super) fn join(&mut self, tenant: TenantId, share: Share, debt_ns: u64, now_ns: u64) {
        let account = Account::new(&self.clocks[share.priority as usize], share.weight_permille, debt_ns, now_ns);
        let place = Place {
            share,
            account,
            ceiling: Ceiling::default(),
            habits: Habits::new(&self.parameters),
            unmeasured: Unmeasured::default(),
            wants_since_ns: None,
            paused: false,
            held_back: false,
            is_behind: false,
            overdraft: Overdraft::default(),
            lead: Lead::default(),
            slack_spent: false,
            judged_in: None,
            excused: Excused::default(),
            queued_to_ns: now_ns,
            silence: Silence::default(),
            returns: Returns::default(),
            lingers_until_ns: None,
            blocked_until_ns: None,
            seen_ns: now_ns,
        };
        self.weights[share.priority as usize] += u64::from(share.weight_permille);
        self.places.insert(tenant, place);
        if share.class == Class::Latency {
            self.latency_tenants.insert(tenant);
        }
    }

    /// Forgets a tenant.
    pub(super) fn remove(&mut self, tenant: TenantId, now_ns: u64) {
        self.serve(tenant);
        self.retire(tenant, now_ns);
        self.latency_tenants.remove(&tenant);
        self.returning.remove(&tenant);
        if let Some(place) = self.places.remove(&tenant) {
            self.weights[place.share.priority as usize] -= u64::from(place.share.weight_permille);
        }
    }

    /// Takes a new share; what the tenant owes stays, and what it is owed with its priority: those of another one owe it nothing, who
    /// may have kept it waiting for hours as they are promised. Whether it was above its ceiling: it is no longer, until
    /// that is found out again.
    pub(super) fn change(&mut self, tenant: TenantId, share: Share, now_ns: u64) -> bool {
        let was_blocked = self.set_blocked(tenant, None);
        let Some(place) = self.places.get_mut(&tenant) else { return false };
        let (old, new) = (place.share, share);
        place.lead.settle(place.standing(self.own_times.at(place, now_ns)));
        place.share = share;
        self.weights[old.priority as usize] -= u64::from(old.weight_permille);
        self.weights[new.priority as usize] += u64::from(new.weight_permille);
        if old.weight_permille != new.weight_permille || old.priority != new.priority {
            let lag = place.account.depart(&mut self.clocks[old.priority as usize]);
            let lag = if old.priority == new.priority { lag } else { lag.min(0) };
            place.account.arrive(&mut self.clocks[new.priority as usize], new.weight_permille, lag);
        }
        match (old.limit_permille, new.limit_permille) {
            (Some(old), Some(new)) if old != new => place.ceiling.change(now_ns, old, new),
            (_, None) => place.ceiling = Ceiling::default(),
            _ => {}
        }
        place.slack_spent = false;
        if new.class != Class::Latency {
            place.lead.forget();
        }
        for priority in [old.priority, new.priority] {
            self.own_times.note_weight(priority, &self.clocks[priority as usize], now_ns);
        }
        place.lead.go_over(self.own_times.at(place, now_ns));
        if new.class == Class::Latency {
            self.latency_tenants.insert(tenant);
        } else {
            self.latency_tenants.remove(&tenant);
        }
        self.place(tenant);
        was_blocked
    }

    /// Whether a latency tenant is about: it has joined, and was active not long ago.
    pub(super) fn latency_is_about(&self, now_ns: u64) -> bool {
        let about = |tenant: &TenantId| {
            let place = self.places.get(tenant)?;
            let seen = now_ns.saturating_sub(place.seen_ns) <= self.parameters.latency_about_ns;
            Some(!place.paused && (place.account.is_active() || seen))
        };
        self.latency_tenants.iter().any(|tenant| about(tenant) == Some(true))
    }

    /// Whether a latency tenant other than `beside` wants the device or works on it.
    pub(super) fn latency_waits(&self, beside: TenantId) -> bool {
        let waits = |tenant: &TenantId| self.places.get(tenant).is_some_and(|place| place.account.is_active());
        self.latency_tenants.iter().filter(|tenant| **tenant != beside).any(waits)
    }

    /// Whether a latency tenant within its slack, of this priority or a higher one and not among `gangs`, is ready, and its
    /// ceiling lets it be served at `now_ns`.
    pub(super) fn latency_is_next(&self, priority: Priority, gangs: &BTreeSet<TenantId>, now_ns: u64) -> bool {
        let may_open = |place: &Place| self.opens_ns(place).is_none_or(|opens_ns| opens_ns <= now_ns);
        let ranks = |tenant: &TenantId| {
            self.places.get(tenant).is_some_and(|place| place.share.priority <= priority && may_open(place))
        };
        let single = self.latency_tenants.iter().filter(|tenant| !gangs.contains(tenant));
        single.filter(|tenant| ranks(tenant)).any(|tenant| self.eligibility(*tenant).1)
    }

    /// The tenant stands at its gate. Returns whether it may be served: it is known and not paused.
    pub(super) fn want(&mut self, tenant: TenantId, now_ns: u64) -> bool {
        let Some(place) = self.places.get_mut(&tenant) else { return false };
        place.wants_since_ns.get_or_insert(now_ns);
        if place.paused {
            return false;
        }
        if !place.account.is_active() {
            self.begin_work(tenant, now_ns);
        }
        let Some(place) = self.places.get_mut(&tenant) else { return false };
        place.seen_ns = now_ns;
        let window_ns = self.parameters.returns_ns;
        if let Some(span_ns) = place.returns.want(now_ns, window_ns) {
            self.returning.insert(tenant, (now_ns.saturating_add(window_ns), span_ns));
        }
        if let Some(until_ns) = place.lingers_until_ns.take() {
            self.lingering.remove(&(until_ns, tenant));
        }
        self.place(tenant);
        true
    }

    /// The tenant stands at its gate no longer.
    pub(super) fn serve(&mut self, tenant: TenantId) {
        if let Some(place) = self.places.get_mut(&tenant) {
            place.wants_since_ns = None;
            self.place(tenant);
        }
    }

    /// The tenant wants nothing that we know of; it stays active until `until_ns`, or for as long as was said before.
    pub(super) fn rest(&mut self, tenant: TenantId, until_ns: u64) {
        self.serve(tenant);
        let Some(place) = self.places.get_mut(&tenant) else { return };
        if place.account.is_active() && place.lingers_until_ns.is_none() {
            place.lingers_until_ns = Some(until_ns);
            self.lingering.insert((until_ns, tenant));
        }
    }

    /// The tenant says that it is idle: it lingers for the linger time from now on at most.
    pub(super) fn idle(&mut self, tenant: TenantId, now_ns: u64) {
        let until_ns = now_ns.saturating_add(self.parameters.linger_ns);
        let Some(place) = self.places.get_mut(&tenant) else { return };
        place.silence.end();
        place.returns.idle();
        if place.account.is_active() {
            place.seen_ns = now_ns;
            place.habits.end_request(&self.parameters, place.account.used_ns());
        }
        if let Some(later_ns) = place.lingers_until_ns.take_if(|at_ns| *at_ns > until_ns) {
            self.lingering.remove(&(later_ns, tenant));
        }
        self.rest(tenant, until_ns);
    }

    /// All lags are zero from now on.
    pub(super) fn forgive(&mut self, now_ns: u64) {
        let now = self.clocks.each_ref().map(VirtualClock::now);
        for place in self.places.values_mut() {
            let priority = place.share.priority as usize;
            place.account.forgive(&mut self.clocks[priority], now[priority], now_ns);
            place.silence.restart(now_ns);
            place.unmeasured.end();
            place.excused = Excused::default();
            place.overdraft = Overdraft::default();
            place.lead.forget();
            place.ceiling = Ceiling::default();
        }
        for tenant in self.places.keys().copied().collect::<Vec<_>>() {
            // Nobody is above its ceiling any more.
            self.set_blocked(tenant, None);
            self.place(tenant);
        }
    }

    pub(super) fn pause(&mut self, tenant: TenantId, now_ns: u64) {
        let Some(place) = self.places.get_mut(&tenant) else { return };
        place.paused = true;
        self.set_blocked(tenant, None);
        self.place(tenant);
        self.retire(tenant, now_ns);
    }

    pub(super) fn resume(&mut self, tenant: TenantId) -> bool {
        let Some(place) = self.places.get_mut(&tenant) else { return false };
        place.paused = false;
        place.wants_since_ns.is_some()
    }

    /// Sets whether a tenant may not be chosen here, because another GPU of it is not to be had.
    pub(super) fn hold_back(&mut self, tenant: TenantId, held_back: bool) -> bool {
        let Some(place) = self.places.get_mut(&tenant).filter(|place| place.held_back != held_back) else {
            return false;
        };
        place.held_back = held_back;
        self.place(tenant);
        true
    }

    /// The tenant has work until then.
    pub(super) fn expect(&mut self, tenant: TenantId, until_ns: u64) {
        if let Some(place) = self.places.get_mut(&tenant) {
            place.unmeasured.extend(until_ns);
            self.place(tenant);
        }
    }

    /// Changes what does not bear on its place.
    pub(super) fn note(&mut self, tenant: TenantId, change: impl FnOnce(&mut Place)) {
        if let Some(place) = self.places.get_mut(&tenant) {
            change(place);
        }
    }

    /// Time has passed: who lingered long enough is active no longer, who was above its ceiling long enough is ready.
    /// Those that became ready are added to `news`.
    pub(super) fn pass(&mut self, now_ns: u64, news: &mut Vec<TenantId>) {
        self.now_ns = now_ns;
        self.returning.retain(|_, (until_ns, _)| *until_ns > now_ns);
        while let Some(&(until_ns, tenant)) = self.lingering.first().filter(|(until_ns, _)| *until_ns <= now_ns) {
            self.retire(tenant, until_ns);
        }
        while let Some(&(until_ns, tenant)) = self.blocked.first().filter(|(until_ns, _)| *until_ns <= now_ns) {
            self.limit_credit(tenant);
            self.blocked.remove(&(until_ns, tenant));
            if self.set_blocked(tenant, None) {
                let candidate = self.candidate(tenant);
                self.ready.place(tenant, candidate);
                news.push(tenant);
            }
        }
    }

    /// When something here changes by itself.
    pub(super) fn timer_ns(&self) -> Option<u64> {
        [&self.lingering, &self.blocked].iter().filter_map(|set| set.first().map(|&(until_ns, _)| until_ns)).min()
    }

    /// Who is next, and whether finding that out has changed anything else.
    pub(super) fn choose(&mut self) -> (Option<TenantId>, bool) {
        // While it is blocked as well: a small limit can mean a wait of half a second, and all that time the others
        // would sink into debt.
        let blocked: Vec<TenantId> = self.blocked.iter().map(|&(_, tenant)| tenant).collect();
        let limited = blocked.into_iter().filter(|tenant| self.limit_credit(*tenant)).count();
        (self.ready.choose(&self.clocks), limited > 0)
    }

    pub(super) fn is_ready(&self, tenant: TenantId) -> bool {
        self.ready.contains(tenant)
    }

    pub(super) fn anybody_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether anybody of this priority or a higher one is ready.
    pub(super) fn anybody_ready_from(&self, priority: Priority) -> bool {
        self.ready.is_any_from(priority)
    }

    /// Whether anybody but this tenant, of this priority or a higher one, is ready.
    pub(super) fn anybody_else_ready_from(&self, priority: Priority, tenant: TenantId) -> bool {
        self.ready.count_from(priority) > usize::from(self.ready.contains(tenant))
    }

    /// Whether a ready tenant is eligible, and whether as a latency tenant within its slack.
    pub(super) fn eligibility(&self, tenant: TenantId) -> (bool, bool) {
        self.ready.get(tenant).map_or((false, false), |candidate| {
            let eligible = self.clocks[candidate.priority as usize].has_reached(candidate.threshold);
            (eligible, eligible && candidate.latency)
        })
    }

    /// Whether a tenant is not ahead of its share by more than it may be, ready or not.
    pub(super) fn is_eligible(&self, place: &Place) -> bool {
        self.clock_of(place).has_reached(place.account.threshold(self.slack_ns(place), place.unmeasured.ns()))
    }

    /// Whether nobody but this tenant is ready.
    pub(super) fn is_alone(&self, tenant: TenantId) -> bool {
        self.ready.is_only(tenant)
    }

    pub(super) fn wants(&self, tenant: TenantId) -> bool {
        self.places.get(&tenant).is_some_and(|place| place.wants_since_ns.is_some() && !place.paused)
    }

    pub(super) fn active_count(&self) -> usize {
        self.active_count
    }

    /// The virtual deadline of what a tenant asks for.
    pub(super) fn deadline(&self, place: &Place) -> i128 {
        let slack_ns = self.slack_ns(place);
        // Of a batch tenant that of a full slice: only debtors ask for less, and they are not eligible.
        let request_ns = if slack_ns > 0 { self.request_ns(place) } else { self.full_slice_ns(place) };
        place.account.deadline(request_ns.saturating_add(place.unmeasured.ns()))
    }

    fn candidate(&self, tenant: TenantId) -> Option<Candidate> {
        let place = self.places.get(&tenant)?;
        let forbidden = place.paused || place.held_back || place.blocked_until_ns.is_some();
        if place.wants_since_ns.is_none() || forbidden || !place.account.is_active() {
            return None;
        }
        let slack_ns = self.slack_ns(place);
        Some(Candidate {
            priority: place.share.priority,
            latency: slack_ns > 0,
            eligible_at: place.account.eligible_at(),
            threshold: place.account.threshold(slack_ns, place.unmeasured.ns()),
            deadline: self.deadline(place),
        })
    }

    /// Puts a tenant where it belongs. Being blocked is found out when it is to be served, and ends with a change of
    /// what it wants.
    fn place(&mut self, tenant: TenantId) {
        let Some(place) = self.places.get(&tenant) else { return };
        let may_be_blocked = place.wants_since_ns.is_some() && place.share.limit_permille.is_some();
        if place.blocked_until_ns.is_some() && !may_be_blocked {
            self.set_blocked(tenant, None);
        }
        let candidate = self.candidate(tenant);
        self.ready.place(tenant, candidate);
    }

    fn retire(&mut self, tenant: TenantId, at_ns: u64) {
        let Some(place) = self.places.get_mut(&tenant) else { return };
        if let Some(until_ns) = place.lingers_until_ns.take() {
            self.lingering.remove(&(until_ns, tenant));
        }
        if place.account.is_active() {
            self.end_work(tenant, at_ns);
        }
    }
}
