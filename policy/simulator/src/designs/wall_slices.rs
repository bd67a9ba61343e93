//! Slices of wall time in proportion to the shares, after the utilisation partition of XSched (Shen et al. 2025).
//!
//! Whoever has the slice launches up to a threshold ahead; at the end of the slice its launches stop and the next
//! tenant's begin. What is still in flight runs on and is charged to nobody.

use std::collections::BTreeMap;

use gpool_policy::TenantId;
use gpool_policy::slice::{Command, Input};

use super::ungated::{AHEAD_NS, BURST_NS};
use crate::client::NO_GATE_NS;
use crate::gatekeeper::Gatekeeper;

/// The slices of all tenants together, if their shares sum to one.
const ROUND_NS: u64 = 50_000_000;
/// Launches end when the slice does, not by an estimate.
const UNTIL_CLOSED_NS: u64 = NO_GATE_NS - 1;

struct Member {
    slice_ns: u64,
    wants: bool,
}

#[derive(Default)]
pub(super) struct WallSlices {
    members: BTreeMap<TenantId, Member>,
    /// Who has the slice, and until when.
    turn: Option<(TenantId, u64)>,
    /// Who had it last; the round goes on after that one.
    last: Option<TenantId>,
}

impl WallSlices {
    fn want(&mut self, tenant: TenantId, wants: bool) {
        if let Some(member) = self.members.get_mut(&tenant) {
            member.wants = wants;
        }
    }

    fn next_in_round(&self) -> Option<TenantId> {
        let wanting = self.members.iter().filter(|(_, member)| member.wants).map(|(&tenant, _)| tenant);
        wanting.clone().find(|&tenant| Some(tenant) > self.last).or_else(|| wanting.clone().next())
    }

    fn decide(&mut self, now_ns: u64, commands: &mut Vec<Command>) {
        if let Some((tenant, until_ns)) = self.turn {
            if now_ns < until_ns {
                return;
            }
            let Some(_) = self.next_in_round().filter(|&next| next != tenant) else {
                // Nobody else wants: it goes on.
                let slice_ns = self.members.get(&tenant).map_or(ROUND_NS, |member| member.slice_ns);
                self.turn = Some((tenant, now_ns + slice_ns));
                return;
            };
            self.turn = None;
            commands.push(Command::Close { tenant });
        }
        if let Some(tenant) = self.next_in_round() {
            self.want(tenant, false);
            let slice_ns = self.members.get(&tenant).map_or(ROUND_NS, |member| member.slice_ns);
            self.turn = Some((tenant, now_ns + slice_ns));
            self.last = Some(tenant);
            commands.push(Command::Open { tenant, until_ns: UNTIL_CLOSED_NS, depth_ns: AHEAD_NS, burst_ns: BURST_NS });
        }
    }
}

impl Gatekeeper for WallSlices {
    fn handle(&mut self, now_ns: u64, input: Input, commands: &mut Vec<Command>) {
        let holder = self.turn.map(|(tenant, _)| tenant);
        match input {
            Input::Join { tenant, share, .. } => {
                let slice_ns = ROUND_NS * u64::from(share.weight_permille.max(1)) / 1000;
                self.members.insert(tenant, Member { slice_ns, wants: false });
            }
            Input::Leave { tenant } => {
                self.members.remove(&tenant);
                self.turn.take_if(|(holder, _)| *holder == tenant);
            }
            Input::Wants { tenant } | Input::Announced { tenant, .. } if holder != Some(tenant) => {
                self.want(tenant, true);
            }
            Input::Idle { tenant } => {
                self.want(tenant, false);
                if self.turn.take_if(|(holder, _)| *holder == tenant).is_some() {
                    commands.push(Command::Close { tenant });
                }
            }
            _ => {}
        }
        self.decide(now_ns, commands);
    }

    fn next_timer(&self) -> Option<u64> {
        self.turn.map(|(_, until_ns)| until_ns)
    }
}
