//! The slice that is being served.

use super::TenantId;
use super::pauses::Competition;

/// An open gate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// Whose.
    pub(super) tenant: TenantId,
    /// How many slices of this device were given or renewed before this one.
    pub(super) number: u64,
    /// When the slice was given or renewed: its begin on the device.
    pub(super) start_ns: u64,
    /// Since when the tenant has held the device, over all renewals.
    pub(super) since_ns: u64,
    /// The end of its slice, host time.
    pub(super) until_ns: u64,
    /// When its queued work is expected to end, once it has said so.
    pub(super) announced_ns: Option<u64>,
    /// The same of one that wants no more for now: see [`Input::Leaves`](super::Input::Leaves).
    pub(super) leaves_ns: Option<u64>,
    /// Since when somebody else has wanted the device.
    pub(super) contested_ns: Option<u64>,
    /// Whether somebody of its priority, or a higher one, has wanted the device since the slice was given.
    pub(super) is_competed_for: bool,
    /// When that was.
    pub(super) competition: Competition,
    /// What the tenant had been charged when the slice was given or renewed.
    pub(super) charged_before_ns: i64,
    /// Whether the tenant was a latency tenant within its slack.
    pub(super) in_slack: bool,
    /// Whether the tenant was a gang behind its promise: it keeps the slice to its end.
    pub(super) makes_up: bool,
}

impl Turn {
    /// Takes an announced end, bounded: not in the past and not beyond `until + 10 * drain limit`.
    ///
    /// A tenant may correct itself, and says so when its work ends before the announced end. But the first thing it
    /// says of a slice is that its work lasts until the end of the slice; an earlier end is about the slice before,
    /// and crossed the renewal on its way.
    pub(super) fn announce(&mut self, now_ns: u64, estimated_end_ns: u64, drain_limit_ns: u64) {
        let end_ns = self.believed_end_ns(now_ns, estimated_end_ns, drain_limit_ns);
        if self.announced_ns.is_some() || end_ns >= self.until_ns {
            (self.announced_ns, self.leaves_ns) = (Some(end_ns), None);
        }
    }

    /// Takes the end of the work of a tenant that wants no more for now, bounded in the same way.
    pub(super) fn leave(&mut self, now_ns: u64, estimated_end_ns: u64, drain_limit_ns: u64) {
        if self.announced_ns.is_none() {
            self.leaves_ns = Some(self.believed_end_ns(now_ns, estimated_end_ns, drain_limit_ns));
        }
    }

    fn believed_end_ns(&self, now_ns: u64, estimated_end_ns: u64, drain_limit_ns: u64) -> u64 {
        let latest_ns = self.until_ns.max(now_ns).saturating_add(drain_limit_ns.saturating_mul(10));
        estimated_end_ns.clamp(now_ns, latest_ns)
    }

    /// When its queued work ends, as far as its tenant has said.
    pub(super) fn end_ns(&self) -> Option<u64> {
        self.announced_ns.or(self.leaves_ns)
    }

    /// Somebody else wants the device.
    pub(super) fn contest(&mut self, now_ns: u64) {
        self.contested_ns.get_or_insert(now_ns);
    }

    /// Up to when the tenant may have kept the device from others in this slice: now, or the end of what it allowed, or of the
    /// work that it launched in it. That it is decided late is not its fault.
    pub(super) fn held_until_ns(&self, now_ns: u64) -> u64 {
        let allowed_ns = self.announced_ns.map_or(self.until_ns, |end_ns| end_ns.max(self.until_ns));
        now_ns.min(allowed_ns.max(self.competition.reported_to_ns()))
    }

    /// Nothing of the slice before `now_ns` is held against its tenant.
    pub(super) fn forgive(&mut self, now_ns: u64) {
        self.competition = Competition::default();
        self.contested_ns = self.contested_ns.map(|_| now_ns);
    }

    /// Ends the slice early, at `at_ns`, unless it ends about then anyway. Returns whether that changes anything.
    pub(super) fn cut(&mut self, at_ns: u64, least_gain_ns: u64) -> bool {
        let worth_it = self.announced_ns.is_none() && self.until_ns > at_ns.saturating_add(least_gain_ns);
        if worth_it {
            self.until_ns = at_ns;
        }
        worth_it
    }

    /// When to choose who is next: one hand-off before the announced end, but with somebody waiting not later than the
    /// drain limit.
    pub(super) fn decision_ns(&self, handoff_ns: u64, drain_limit_ns: u64) -> Option<u64> {
        let drained_ns = self.announced_ns.map(|end_ns| end_ns.saturating_sub(handoff_ns));
        let limit_ns = self.contested_ns.map(|_| self.until_ns.saturating_add(drain_limit_ns));
        [drained_ns, limit_ns].into_iter().flatten().min()
    }

    /// When the next slice begins on the device if the same tenant wins it, and if another one does: at the announced
    /// end, unless that is too far away to wait for.
    pub(super) fn next_start_ns(&self, now_ns: u64, handoff_ns: u64) -> (u64, u64) {
        match self.end_ns() {
            Some(end_ns) if end_ns <= now_ns.saturating_add(handoff_ns) => (end_ns.max(now_ns), end_ns.max(now_ns)),
            Some(end_ns) => (end_ns, now_ns),
            None => (now_ns, now_ns),
        }
    }
}
