//! One exclusive token, after Gemini (Chen et al. 2020, "Gemini: Enabling multi-tenant GPU sharing based on kernel
//! burst estimation").
//!
//! Whoever holds the token has the device alone for a quota, which follows an average of how long it has used it, and
//! gives it back drained. The next holder is the one that has had least of its share within the last ten seconds.

use std::collections::{BTreeMap, VecDeque};

use gpool_policy::TenantId;
use gpool_policy::slice::{Command, Input};

use super::ungated::{AHEAD_NS, BURST_NS};
use crate::gatekeeper::Gatekeeper;

const QUOTA_LEAST_NS: u64 = 100_000_000;
const QUOTA_MOST_NS: u64 = 250_000_000;
const WINDOW_NS: u64 = 10_000_000_000;
/// When to look again if all who want have had their limit.
const RETRY_NS: u64 = 10_000_000;

struct Member {
    weight_permille: u64,
    limit_permille: u64,
    wants: bool,
    quota_ns: u64,
    /// Within the window.
    used_ns: u64,
}

struct Hold {
    tenant: TenantId,
    used_ns: u64,
}

#[derive(Default)]
pub(super) struct ExclusiveToken {
    members: BTreeMap<TenantId, Member>,
    hold: Option<Hold>,
    /// End and length of each burst in the window.
    bursts: VecDeque<(u64, TenantId, u64)>,
    retry_ns: Option<u64>,
}

impl ExclusiveToken {
    fn want(&mut self, tenant: TenantId) {
        if let Some(member) = self.members.get_mut(&tenant) {
            member.wants = true;
        }
    }

    fn give_back(&mut self, commands: &mut Vec<Command>) {
        if let Some(Hold { tenant, used_ns }) = self.hold.take() {
            commands.push(Command::Close { tenant });
            if let Some(member) = self.members.get_mut(&tenant) {
                // What was used beyond the quota is not a reason for a longer one.
                let average_ns = member.quota_ns.midpoint(used_ns.min(member.quota_ns));
                member.quota_ns = average_ns.clamp(QUOTA_LEAST_NS, QUOTA_MOST_NS);
            }
        }
    }

    fn charge(&mut self, tenant: TenantId, end_ns: u64, ns: u64) {
        if let Some(member) = self.members.get_mut(&tenant) {
            member.used_ns += ns;
            self.bursts.push_back((end_ns, tenant, ns));
        }
        if let Some(hold) = self.hold.as_mut().filter(|hold| hold.tenant == tenant) {
            hold.used_ns += ns;
        }
    }

    fn forget(&mut self, now_ns: u64) {
        while let Some(&(end_ns, tenant, ns)) = self.bursts.front().filter(|burst| burst.0 + WINDOW_NS < now_ns) {
            self.bursts.pop_front();
            if let Some(member) = self.members.get_mut(&tenant).filter(|_| end_ns > 0) {
                member.used_ns = member.used_ns.saturating_sub(ns);
            }
        }
    }

    fn grant(&mut self, now_ns: u64, commands: &mut Vec<Command>) {
        self.forget(now_ns);
        self.retry_ns = None;
        if self.hold.is_some() {
            return;
        }
        let window_ns = WINDOW_NS.min(now_ns).max(1);
        let may = |member: &Member| member.used_ns * 1000 < member.limit_permille * window_ns || now_ns == 0;
        let wanting = self.members.iter().filter(|(_, member)| member.wants);
        let next = wanting.clone().filter(|(_, member)| may(member));
        let next = next.min_by_key(|(tenant, member)| (member.used_ns * 1000 / member.weight_permille, **tenant));
        match next.map(|(&tenant, _)| tenant) {
            Some(tenant) => {
                let Some(member) = self.members.get_mut(&tenant) else { return };
                member.wants = false;
                self.hold = Some(Hold { tenant, used_ns: 0 });
                commands.push(Command::Open {
                    tenant,
                    until_ns: now_ns + member.quota_ns,
                    depth_ns: AHEAD_NS,
                    burst_ns: BURST_NS,
                });
            }
            None => self.retry_ns = wanting.clone().next().map(|_| now_ns + RETRY_NS),
        }
    }
}

impl Gatekeeper for ExclusiveToken {
    fn handle(&mut self, now_ns: u64, input: Input, commands: &mut Vec<Command>) {
        let holder = self.hold.as_ref().map(|hold| hold.tenant);
        match input {
            Input::Join { tenant, share, .. } => {
                let weight_permille = u64::from(share.weight_permille.max(1));
                let limit_permille = u64::from(share.limit_permille.unwrap_or(1000).max(1));
                let quota_ns = QUOTA_LEAST_NS;
                let member = Member { weight_permille, limit_permille, wants: false, quota_ns, used_ns: 0 };
                self.members.insert(tenant, member);
            }
            Input::Leave { tenant } => {
                self.members.remove(&tenant);
                self.hold.take_if(|hold| hold.tenant == tenant);
            }
            Input::Wants { tenant } if holder != Some(tenant) => self.want(tenant),
            Input::Announced { tenant, estimated_end_ns } => {
                self.want(tenant);
                // The first announcement names an end to come; the one after it says that the work has drained.
                if holder == Some(tenant) && estimated_end_ns <= now_ns {
                    self.give_back(commands);
                }
            }
            Input::Idle { tenant } => {
                if let Some(member) = self.members.get_mut(&tenant) {
                    member.wants = false;
                }
                if holder == Some(tenant) {
                    self.give_back(commands);
                }
            }
            Input::Burst { tenant, start_ns, end_ns, .. }
            | Input::Arrival { tenant, queued_ns: start_ns, end_ns, .. } => {
                self.charge(tenant, end_ns, end_ns.saturating_sub(start_ns));
            }
            _ => {}
        }
        self.grant(now_ns, commands);
    }

    fn next_timer(&self) -> Option<u64> {
        self.retry_ns
    }
}
