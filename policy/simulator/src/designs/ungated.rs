//! No gate at all: what the driver does by itself.

use gpool_policy::slice::{Command, Input};

use crate::client::NO_GATE_NS;
use crate::gatekeeper::Gatekeeper;

/// How far a program without a gate runs ahead. More changes nothing: its context always has work.
pub(super) const AHEAD_NS: u64 = 20_000_000;
/// Work that is measured together.
pub(super) const BURST_NS: u64 = 1_000_000;

/// Opens every gate for ever.
pub(super) struct Ungated;

impl Gatekeeper for Ungated {
    fn handle(&mut self, _now_ns: u64, input: Input, commands: &mut Vec<Command>) {
        if let Input::Join { tenant, .. } = input {
            commands.push(Command::Open { tenant, until_ns: NO_GATE_NS, depth_ns: AHEAD_NS, burst_ns: BURST_NS });
        }
    }

    fn next_timer(&self) -> Option<u64> {
        None
    }
}
