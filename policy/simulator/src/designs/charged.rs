//! Three textbook rules with slices of 5 ms that are charged after use.
//!
//! They hand over as the slice scheduler does: a tenant announces when its work will end, and shortly before that the
//! rule chooses who is next. Overlaps are charged by the same timeline. None of them knows classes, priorities or
//! limits.

use std::collections::BTreeMap;

use gpool_policy::TenantId;
use gpool_policy::slice::{Command, Input, Parameters};
use gpool_policy::timeline::{Bounds, Burst, Timeline};

use crate::gatekeeper::Gatekeeper;

const SLICE_NS: u64 = 5_000_000;
/// How long before the announced end to choose: about a hand-off.
const LEAD_NS: u64 = 130_000;
/// Virtual time units per nanosecond at a weight of one permille.
const SCALE: i128 = 1 << 20;

/// Who is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Least pass; who returns keeps its distance to the global pass (Waldspurger & Weihl 1995).
    Stride,
    /// Least start tag; who returns starts at the tag that is being served (Goyal, Vin & Cheng 1996).
    Sfq,
    /// Earliest virtual deadline among those with `ve <= V`; who returns starts at V but keeps a debt (Stoica &
    /// Abdel-Wahab 1995).
    Eevdf,
}

struct Account {
    weight: i128,
    /// Pass, start tag or virtual eligible time.
    tag: i128,
    /// Wants or runs.
    active: bool,
    wants: bool,
}

struct Turn {
    tenant: TenantId,
    announced_ns: Option<u64>,
}

pub(super) struct Charged {
    rule: Rule,
    accounts: BTreeMap<TenantId, Account>,
    turn: Option<Turn>,
    timeline: Timeline,
    /// The global pass of Stride; the tag in service of SFQ.
    virtual_now: i128,
}

impl Charged {
    pub(super) fn new(rule: Rule) -> Self {
        let timeline = Timeline::new(Bounds::default());
        Self { rule, accounts: BTreeMap::new(), turn: None, timeline, virtual_now: 0 }
    }

    fn active(&self) -> impl Iterator<Item = &Account> {
        self.accounts.values().filter(|account| account.active)
    }

    fn active_weight(&self) -> i128 {
        self.active().map(|account| account.weight).sum()
    }

    /// The virtual time at which somebody who owes nothing and is owed nothing starts.
    fn now(&self) -> i128 {
        match self.rule {
            Rule::Stride | Rule::Sfq => self.virtual_now,
            Rule::Eevdf => match self.active_weight() {
                0 => self.virtual_now,
                weight => self.active().map(|account| account.weight * account.tag).sum::<i128>().div_euclid(weight),
            },
        }
    }

    fn want(&mut self, tenant: TenantId) {
        let (rule, now) = (self.rule, self.now());
        let Some(account) = self.accounts.get_mut(&tenant) else { return };
        account.wants = true;
        if !account.active {
            account.active = true;
            account.tag = match rule {
                // While it is away its tag holds the distance.
                Rule::Stride => now + account.tag,
                Rule::Sfq | Rule::Eevdf => account.tag.max(now),
            };
        }
    }

    fn rest(&mut self, tenant: TenantId) {
        let (rule, now) = (self.rule, self.now());
        let Some(account) = self.accounts.get_mut(&tenant).filter(|account| account.active) else { return };
        (account.active, account.wants) = (false, false);
        if rule == Rule::Stride {
            account.tag -= now;
        }
        if rule == Rule::Eevdf {
            self.virtual_now = now;
        }
    }

    fn charge(&mut self, now_ns: u64, burst: Burst, queued_ns: u64) {
        let mut deltas = Vec::new();
        if queued_ns < burst.start_ns {
            self.timeline.add_arrival(now_ns, burst, queued_ns, &mut deltas);
        } else {
            self.timeline.add(now_ns, burst, &mut deltas);
        }
        for delta in deltas {
            let scaled = i128::from(delta.ns) * SCALE;
            if self.rule == Rule::Stride {
                self.virtual_now += scaled / self.active_weight().max(1);
            }
            if let Some(account) = self.accounts.get_mut(&delta.tenant) {
                account.tag += scaled / account.weight;
            }
        }
    }

    fn choose(&self) -> Option<TenantId> {
        let now = self.now();
        let order = |account: &Account| match self.rule {
            Rule::Stride | Rule::Sfq => (false, account.tag),
            Rule::Eevdf if account.tag <= now => (false, account.tag + i128::from(SLICE_NS) * SCALE / account.weight),
            Rule::Eevdf => (true, account.tag),
        };
        let wanting = self.accounts.iter().filter(|(_, account)| account.wants);
        wanting.min_by_key(|(tenant, account)| (order(account), **tenant)).map(|(&tenant, _)| tenant)
    }

    fn decide(&mut self, now_ns: u64, commands: &mut Vec<Command>) {
        let mut start_ns = now_ns;
        if let Some(turn) = &self.turn {
            let Some(end_ns) = turn.announced_ns.filter(|end_ns| now_ns + LEAD_NS >= *end_ns) else { return };
            start_ns = end_ns.max(now_ns);
        }
        let next = self.choose();
        if let Some(before) = self.turn.take().filter(|before| Some(before.tenant) != next) {
            commands.push(Command::Close { tenant: before.tenant });
        }
        let Some(tenant) = next else { return };
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.wants = false;
            if self.rule == Rule::Sfq {
                self.virtual_now = account.tag;
            }
        }
        self.turn = Some(Turn { tenant, announced_ns: None });
        let Parameters { depth_ns, burst_ns, .. } = Parameters::default();
        commands.push(Command::Open { tenant, until_ns: start_ns + SLICE_NS, depth_ns, burst_ns });
    }

    fn end_turn_of(&mut self, tenant: TenantId, commands: &mut Vec<Command>) {
        if self.turn.take_if(|turn| turn.tenant == tenant).is_some() {
            commands.push(Command::Close { tenant });
        }
    }
}

impl Gatekeeper for Charged {
    fn handle(&mut self, now_ns: u64, input: Input, commands: &mut Vec<Command>) {
        match input {
            Input::Join { tenant, share, .. } => {
                let tag = if self.rule == Rule::Stride { 0 } else { self.now() };
                let weight = i128::from(share.weight_permille.max(1));
                self.accounts.insert(tenant, Account { weight, tag, active: false, wants: false });
            }
            Input::Leave { tenant } => {
                self.rest(tenant);
                self.end_turn_of(tenant, commands);
                self.accounts.remove(&tenant);
            }
            Input::Wants { tenant } if self.turn.as_ref().is_none_or(|turn| turn.tenant != tenant) => {
                self.want(tenant);
            }
            Input::Announced { tenant, estimated_end_ns } => {
                self.want(tenant);
                if let Some(turn) = self.turn.as_mut().filter(|turn| turn.tenant == tenant) {
                    turn.announced_ns = Some(estimated_end_ns);
                }
            }
            Input::Idle { tenant } => {
                self.rest(tenant);
                self.end_turn_of(tenant, commands);
            }
            Input::Burst { tenant, context, start_ns, end_ns } => {
                self.charge(now_ns, Burst { tenant, context, start_ns, end_ns }, start_ns);
            }
            Input::Arrival { tenant, context, queued_ns, start_ns, end_ns } => {
                self.charge(now_ns, Burst { tenant, context, start_ns, end_ns }, queued_ns);
            }
            _ => {}
        }
        self.decide(now_ns, commands);
    }

    fn next_timer(&self) -> Option<u64> {
        let announced_ns = self.turn.as_ref().and_then(|turn| turn.announced_ns);
        announced_ns.map(|end_ns| end_ns.saturating_sub(LEAD_NS))
    }
}
