//! What one GPU does for a tenant that holds others too.

use super::scheduler::SliceScheduler;
use super::{Command, Input, TenantId};

/// Slices that a gang waits for the others' slices to end at once.
const PATIENCE: u64 = 2;

impl SliceScheduler {
    /// Takes an input without deciding: see [`decide`](Self::decide).
    pub(super) fn take_in(&mut self, now_ns: u64, input: Input, commands: &mut Vec<Command>) {
        self.now_ns = self.now_ns.max(now_ns);
        self.pass(commands);
        self.take(input, commands);
        self.see_who_competes();
        // Last: what has just been heard has ended.
        self.look_for_the_hung(commands);
    }

    /// Whoever competed with the tenant that runs may want the device no longer.
    fn see_who_competes(&mut self) {
        let Some(turn) = self.turn.as_mut().filter(|turn| turn.competition.is_under_way()) else { return };
        let priority = self.queue.get(turn.tenant).map(|place| place.share.priority);
        if !priority.is_some_and(|priority| self.queue.anybody_else_ready_from(priority, turn.tenant)) {
            turn.competition.end(self.now_ns);
        }
    }

    /// A gang whose turn should be decided on for all its GPUs.
    pub(super) fn take_due_gang(&mut self) -> Option<TenantId> {
        let is_due = std::mem::take(&mut self.gang_is_due);
        self.turn.filter(|_| is_due).map(|turn| turn.tenant)
    }

    pub(super) fn hold_back(&mut self, gang: TenantId, held_back: bool) -> bool {
        self.queue.hold_back(gang, held_back)
    }

    /// Whether a gang wants this GPU and it is its due.
    pub(super) fn is_due(&self, gang: TenantId) -> bool {
        let wanting = self.queue.get(gang).filter(|_| self.queue.wants(gang));
        wanting.is_some_and(|place| self.queue.is_eligible(place) || self.queue.is_alone(gang))
    }

    /// From when on a gang could have this GPU, if another one of it chooses it: none while it is not its due. It may
    /// take a slice over that has lasted a whole slice, or one of somebody who has had more than his share; never from
    /// a latency tenant within its slack. Once all its GPUs have been its due for `waited_ns` of several slices it need
    /// not wait for whole ones: where the others' slices are out of step, they never have lasted long enough at once.
    pub(super) fn accepts_from_ns(&self, gang: TenantId, waited_ns: u64) -> Option<u64> {
        let place = self.queue.get(gang).filter(|_| self.is_due(gang))?;
        let allowed_ns = self.queue.opens_ns(place).unwrap_or(0);
        let Some(turn) = self.turn.filter(|turn| turn.tenant != gang) else {
            return Some(allowed_ns.max(self.now_ns));
        };
        let holder = self.queue.get(turn.tenant)?;
        if turn.in_slack || place.share.priority > holder.share.priority || !self.queue.is_eligible(place) {
            return None;
        }
        let outranks = place.share.priority < holder.share.priority;
        let has_waited = waited_ns >= self.slice_ns().saturating_mul(PATIENCE);
        let lasted_ns = match (outranks, has_waited || self.queue.lag_ns(holder) < 0) {
            (true, _) => 0,
            (false, true) => self.parameters.least_slice_ns,
            (false, false) => self.slice_ns(),
        };
        Some(turn.since_ns.saturating_add(lasted_ns).max(allowed_ns))
    }

    /// Gives the slice to a gang that this or another GPU has chosen, and says when it ends. Whoever had it is told to
    /// close.
    pub(super) fn seize(&mut self, now_ns: u64, gang: TenantId, commands: &mut Vec<Command>) -> u64 {
        self.now_ns = self.now_ns.max(now_ns);
        self.interrupt(commands);
        self.begin_turn(gang, self.now_ns).unwrap_or(self.now_ns)
    }

    /// The gang's slice ends at the same time on all its GPUs.
    pub(super) fn set_turn_end(&mut self, gang: TenantId, until_ns: u64) {
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.tenant == gang) {
            turn.until_ns = until_ns;
        }
    }

    /// Another GPU has taken the slice from a gang, or has found that it is idle.
    pub(super) fn release(&mut self, gang: TenantId) {
        if self.running() == Some(gang) {
            self.interrupt(&mut Vec::new());
        }
    }
}
