//! What one GPU does for a tenant that holds others too.

use super::queue::Place;
use super::scheduler::SliceScheduler;
use super::turn::Turn;
use super::{Command, Input, Priority, TenantId};

/// Slices that a gang waits for the others' slices to end at once.
const PATIENCE: u64 = 2;

/// How a gang stands before one GPU.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Standing {
    /// Whether it stands at its gate, and is not paused.
    pub(super) wants: bool,
    /// Whether it wants this GPU and it is its due.
    pub(super) is_due: bool,
    /// When its ceiling lets it be served, if it has one.
    pub(super) opens_ns: Option<u64>,
}

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

    /// Whether [`Input::Pass`] changes nothing here that bears on what gangs may have: nobody begins or ceases to count, and nobody's
    /// slack goes by the time.
    pub(super) fn is_still_at(&self, now_ns: u64) -> bool {
        self.queue.latency_tenants.is_empty() && self.queue.timer_ns().is_none_or(|at_ns| at_ns > now_ns)
    }

    /// A gang whose turn should be decided on for all its GPUs.
    pub(super) fn take_due_gang(&mut self) -> Option<TenantId> {
        let is_due = std::mem::take(&mut self.gang_is_due);
        self.turn.filter(|_| is_due).map(|turn| turn.tenant)
    }

    pub(super) fn hold_back(&mut self, gang: TenantId, held_back: bool) -> bool {
        self.queue.hold_back(gang, held_back)
    }

    /// The part of this GPU that was promised to a gang, in permille, and a slice.
    pub(super) fn promise(&self, gang: TenantId) -> (u16, u64) {
        let guaranteed = self.queue.get(gang).filter(|place| place.share.priority == Priority::Guaranteed);
        (guaranteed.map_or(0, |place| place.share.weight_permille.min(1000)), self.slice_ns())
    }

    /// Notes whether a gang is behind what was promised to it.
    pub(super) fn set_behind(&mut self, gang: TenantId, is_behind: bool) {
        self.queue.note(gang, |place| place.is_behind = is_behind);
    }

    /// How a gang stands here.
    pub(super) fn standing(&self, gang: TenantId) -> Standing {
        let Some(place) = self.queue.get(gang) else { return Standing::default() };
        let wants = place.wants_since_ns.is_some() && !place.paused;
        let is_due = wants && (self.queue.is_eligible(place) || self.queue.is_alone(gang));
        Standing { wants, is_due, opens_ns: self.queue.opens_ns(place) }
    }

    /// From when on a gang whose due this GPU is could have it, if another one of it chooses it. This GPU may
    /// have heard of nothing for long, so the host says what time it is. A latency
    /// tenant within its slack that stands at its gate for a free GPU comes first.
    pub(super) fn accepts_from_ns(&self, gang: TenantId, now_ns: u64, waited_ns: u64) -> Option<u64> {
        let place = self.queue.get(gang)?;
        let allowed_ns = self.queue.opens_ns(place).unwrap_or(0).max(now_ns);
        let from_ns = match self.turn.filter(|turn| turn.tenant != gang) {
            Some(turn) => self.gives_way_from_ns(&turn, place, now_ns, waited_ns),
            None if self.queue.latency_is_next(place.share.priority, &self.gangs, now_ns) => {
                self.insists_from_ns(place, now_ns, waited_ns)
            }
            None => Some(now_ns),
        };
        from_ns.map(|from_ns| from_ns.max(allowed_ns))
    }

    /// When that becomes another answer by itself, if nothing happens here: when it has waited for long enough, or when a ceiling lets a
    /// latency tenant be served.
    pub(super) fn turns_ns(&self, now_ns: u64, due_since_ns: u64) -> Option<u64> {
        let waited_ns = due_since_ns.saturating_add(self.slice_ns().saturating_mul(PATIENCE));
        let latency_ns = self.queue.latency_opens_ns(&self.gangs);
        latency_ns.chain([waited_ns]).filter(|at_ns| *at_ns > now_ns).min()
    }

    /// From when on a gang may take the slice over from who has it: once that has lasted a whole slice, or at once if that
    /// one has had more than its share. Once all its GPUs have been its due for `waited_ns` of several slices it need not
    /// wait for whole ones: where the others' slices are out of step, they never have lasted long enough at once. Nor need
    /// one of the class `latency` within its slack. A gang that makes up for what it missed keeps a slice from others of its
    /// priority, and no more: nobody else ends its turn if nothing is heard of it, since who is held back is no rival.
    fn gives_way_from_ns(&self, turn: &Turn, place: &Place, now_ns: u64, waited_ns: u64) -> Option<u64> {
        let holder = self.queue.get(turn.tenant)?;
        if place.share.priority > holder.share.priority {
            return None;
        }
        // Who says nothing by then has its turn ended by a rival. Of one that is frozen no time passes either, so that nobody
        // would come to be due beside it.
        let silent_ns = turn.until_ns.saturating_add(self.parameters.drain_limit_ns);
        if !self.queue.is_eligible(place) {
            return Some(silent_ns);
        }
        let least_ns = self.parameters.least_slice_ns;
        if turn.in_slack {
            let from_ns = self.insists_from_ns(place, now_ns, waited_ns);
            return Some(from_ns.map_or(silent_ns, |from_ns| from_ns.min(silent_ns)));
        }
        let outranks = place.share.priority < holder.share.priority;
        let is_urgent = self.queue.slack_ns(place) > 0;
        let has_waited = waited_ns >= self.slice_ns().saturating_mul(PATIENCE) || self.queue.lag_ns(holder) < 0;
        let lasted_ns = match (outranks, turn.makes_up, is_urgent, has_waited) {
            (true, ..) | (_, false, true, _) => 0,
            (_, false, false, true) => least_ns,
            (_, true, ..) | (_, false, false, false) => self.slice_ns(),
        };
        Some(turn.since_ns.saturating_add(lasted_ns))
    }

    /// From when on a gang need not wait for latency tenants within their slack: once all its GPUs have been its due for
    /// half a slice, if it is behind its promise. Of many GPUs one is always busy.
    fn insists_from_ns(&self, place: &Place, now_ns: u64, waited_ns: u64) -> Option<u64> {
        let patience_ns = self.slice_ns() / 2;
        place.is_behind.then(|| now_ns.saturating_add(patience_ns).saturating_sub(waited_ns))
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

    /// Whether a gang has this GPU to itself and has never used it.
    pub(super) fn is_left_alone_by(&self, gang: TenantId) -> bool {
        self.queue.count() == 1 && self.charged_ns(gang) == Some(0)
    }

    /// Another GPU has taken the slice from a gang, or has found that it is idle.
    pub(super) fn release(&mut self, gang: TenantId) {
        if self.running() == Some(gang) {
            self.interrupt(&mut Vec::new());
        }
    }
}
