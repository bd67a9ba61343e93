//! What one tenant has had.

use super::virtual_clock::{SCALE, VirtualClock};

/// What a burst of a tenant's own costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    /// GPU time.
    pub(super) ns: i64,
    /// When the burst began.
    pub(super) began_ns: u64,
    /// How much longer it is known by the burst to have kept the device busy, whoever shared it.
    pub(super) busy_ns: u64,
    /// The part of that which lies before the current period of the audit.
    pub(super) earlier_ns: u64,
    /// When the burst ended.
    pub(super) ended_ns: u64,
}

/// A tenant's weight, service and place in virtual time.
///
/// `ve = origin + service * 2^20 / weight`, computed from the total service since the origin, so that rounding does
/// not accumulate.
#[derive(Clone, Debug)]
pub(super) struct Account {
    weight: i128,
    origin: i128,
    service_ns: i128,
    /// `ve`, kept for the sake of the many comparisons of a decision.
    eligible_at: i128,
    charged_ns: i64,
    /// How long it has kept the device busy, by its own reports.
    reported_ns: u64,
    /// Part of the service that was held and not yet seen as measured work.
    held_ns: i64,
    /// Up to when that was.
    held_until_ns: u64,
    /// What was held and was no work.
    paused_ns: i64,
    /// Part of the service that it did not report in time and has not reported since.
    owed_ns: u64,
    /// Up to when that was.
    owed_until_ns: u64,
    /// What it was found to have used: of what it has not reported the part that it has not reported since, whatever was forgiven; and
    /// what it had reported and was not charged.
    unreported_ns: u64,
    uncharged_ns: u64,
    /// What it has reported of such time afterwards: charged, but served before.
    redeemed_ns: u64,
    /// What it has reported in a later period of the audit than it was used in, and had not been booked as a debt.
    late_ns: u64,
    active: bool,
    /// When it was last active, or its latest work ended: what it launched may outlast its turn by far.
    active_ns: u64,
    /// When it joined: nothing before that can have been its work.
    joined_ns: u64,
    /// What began before this is charged and owed to nobody.
    forgiven_ns: u64,
}

impl Account {
    /// An account that is not active and owes `debt_ns`.
    pub(super) fn new(clock: &VirtualClock, weight_permille: u16, debt_ns: u64, now_ns: u64) -> Self {
        let weight = i128::from(weight_permille.max(1));
        let origin = clock.entry_with_debt(weight, debt_ns);
        Self {
            weight,
            origin,
            service_ns: 0,
            eligible_at: origin,
            charged_ns: 0,
            reported_ns: 0,
            held_ns: 0,
            held_until_ns: 0,
            paused_ns: 0,
            owed_ns: 0,
            owed_until_ns: 0,
            unreported_ns: 0,
            uncharged_ns: 0,
            redeemed_ns: 0,
            late_ns: 0,
            active: false,
            active_ns: now_ns,
            joined_ns: now_ns,
            forgiven_ns: 0,
        }
    }

    /// When it joined.
    pub(super) fn joined_ns(&self) -> u64 {
        self.joined_ns
    }

    /// What began before this is owed to nobody.
    pub(super) fn forgiven_ns(&self) -> u64 {
        self.forgiven_ns
    }

    /// Virtual eligible time.
    pub(super) fn eligible_at(&self) -> i128 {
        self.eligible_at
    }

    /// Virtual deadline of a request of so many GPU ns: `ve + r / w`.
    pub(super) fn deadline(&self, request_ns: u64) -> i128 {
        self.eligible_at + self.virtual_length(i128::from(request_ns) * SCALE)
    }

    /// The virtual time from which on it is eligible, if it may run ahead by `slack_ns` and has launched `pending_ns`
    /// that are not charged yet: `ve + (pending - slack) / w`, less half a nanosecond, so that a lag that rounds to zero
    /// counts as none.
    pub(super) fn threshold(&self, slack_ns: u64, pending_ns: u64) -> i128 {
        let slack = self.virtual_length(i128::from(slack_ns) * SCALE + SCALE / 2);
        self.eligible_at + self.virtual_length(i128::from(pending_ns) * SCALE) - slack
    }

    fn virtual_length(&self, scaled: i128) -> i128 {
        // A 64-bit division is several times as fast, and every sensible length fits.
        match (u64::try_from(scaled), u64::try_from(self.weight)) {
            (Ok(scaled), Ok(weight)) => i128::from(scaled / weight),
            _ => scaled / self.weight,
        }
    }

    pub(super) fn is_active(&self) -> bool {
        self.active
    }

    /// Measured GPU time so far.
    pub(super) fn charged_ns(&self) -> i64 {
        self.charged_ns
    }

    /// How long it has kept the device busy by its own reports, whoever shared it.
    pub(super) fn reported_ns(&self) -> u64 {
        self.reported_ns
    }

    /// What it was found to have used beyond what it was charged by now.
    pub(super) fn found_ns(&self) -> u64 {
        self.unreported_ns.saturating_add(self.uncharged_ns)
    }

    /// Part of the measured GPU time that had been booked as a debt before it was reported.
    pub(super) fn redeemed_ns(&self) -> u64 {
        self.redeemed_ns
    }

    /// Part of what it has reported that was reported in a later period of the audit than it was used in.
    pub(super) fn late_ns(&self) -> u64 {
        self.late_ns
    }

    /// What it is owed (positive) or owes, in GPU ns. A tenant that is not active is never owed anything.
    pub(super) fn lag_ns(&self, clock: &VirtualClock) -> i64 {
        if self.active {
            clock.lag_ns(self.weight, self.eligible_at())
        } else {
            clock.lag_on_entry_ns(self.weight, self.eligible_at()).min(0)
        }
    }

    /// Becomes active: no credit for having slept, but a debt stays, for `debt_keep_ns`. Whether it has been for longer.
    pub(super) fn wake(&mut self, clock: &mut VirtualClock, now_ns: u64, debt_keep_ns: u64) -> bool {
        if self.active {
            return false;
        }
        let behind = clock.now() - self.eligible_at();
        let is_forgotten = now_ns.saturating_sub(self.active_ns) > debt_keep_ns;
        if behind > 0 || is_forgotten {
            self.origin += behind;
            self.eligible_at += behind;
        }
        if behind < 0 && is_forgotten {
            self.owed_ns = 0;
        }
        if is_forgotten {
            self.keep_held();
        }
        self.active = true;
        clock.enter(self.weight, self.eligible_at());
        is_forgotten
    }

    /// Is active no longer.
    pub(super) fn retire(&mut self, clock: &mut VirtualClock, now_ns: u64) {
        if self.active {
            clock.leave(self.weight, self.eligible_at());
            self.active = false;
            self.active_ns = self.active_ns.max(now_ns);
        }
    }

    /// Leaves `clock`, whether active or not; its lag, in units of weight times virtual time.
    pub(super) fn depart(&mut self, clock: &mut VirtualClock) -> i128 {
        let lag = self.weight * (clock.now() - self.eligible_at);
        if self.active {
            clock.leave(self.weight, self.eligible_at);
        }
        lag
    }

    /// Enters `clock`, the same or another, after [`depart`](Self::depart), with a weight: the lag stays. Where nobody
    /// else is active there is nobody to owe anything.
    pub(super) fn arrive(&mut self, clock: &mut VirtualClock, weight_permille: u16, lag: i128) {
        self.arrive_with(clock, i128::from(weight_permille.max(1)), lag);
    }

    fn arrive_with(&mut self, clock: &mut VirtualClock, weight: i128, lag: i128) {
        self.weight = weight;
        self.origin = clock.entry_with_lag(self.weight, lag, self.active);
        self.service_ns = 0;
        self.eligible_at = self.origin;
        if self.active {
            clock.enter(self.weight, self.eligible_at);
        }
    }

    /// Is owed no more than `credit_ns`; what the others owe it shrinks by as much.
    pub(super) fn limit_credit(&mut self, clock: &mut VirtualClock, credit_ns: u64) {
        let credit = i128::from(credit_ns) * SCALE;
        let weight = self.weight;
        let lag = self.depart(clock);
        self.arrive_with(clock, weight, lag.min(credit));
    }

    /// Neither owes nor is owed anything from now on. To be done for all that share `clock`: the sum of their lags is
    /// zero before and after.
    pub(super) fn forgive(&mut self, clock: &mut VirtualClock, now: i128, now_ns: u64) {
        let before = self.eligible_at;
        self.origin = now;
        (self.service_ns, self.held_ns, self.owed_ns, self.eligible_at) = (0, 0, 0, now);
        self.forgiven_ns = now_ns;
        if self.active {
            clock.shift(self.weight, before, now);
        }
    }

    /// Books a debt for time up to `until_ns` that was used and not reported; for time that was reported and not charged if that is 0.
    pub(super) fn owe(&mut self, clock: &mut VirtualClock, now_ns: u64, (ns, until_ns): (u64, u64)) {
        if until_ns == 0 {
            self.uncharged_ns = self.uncharged_ns.saturating_add(ns);
            // Found long after it was used: it is owed for as long as a debt from now on.
            self.active_ns = self.active_ns.max(now_ns);
            return self.serve(clock, i64::try_from(ns).unwrap_or(i64::MAX));
        }
        self.owed_ns = self.owed_ns.saturating_add(ns);
        self.unreported_ns = self.unreported_ns.saturating_add(ns);
        self.owed_until_ns = self.owed_until_ns.max(until_ns);
        self.active_ns = self.active_ns.max(until_ns);
        self.serve(clock, i64::try_from(ns).unwrap_or(i64::MAX));
    }

    /// How much of `ns` of work that began at `began_ns` is already booked as a debt: a kernel of many seconds is
    /// reported when it ends.
    fn redeem(&mut self, ns: i64, began_ns: u64) -> u64 {
        let before_ns = self.owed_until_ns.saturating_sub(began_ns);
        let redeemed_ns = u64::try_from(ns).unwrap_or(0).min(self.owed_ns).min(before_ns);
        self.owed_ns -= redeemed_ns;
        self.redeemed_ns = self.redeemed_ns.saturating_add(redeemed_ns);
        redeemed_ns
    }

    /// Books GPU time of a burst of its own. What was booked as held and turns out to have
    /// been work is not booked again; the rest stays booked.
    /// Nor is what was booked as a debt: so much that was, in nanoseconds.
    pub(super) fn charge(&mut self, clock: &mut VirtualClock, charge: Charge) -> u64 {
        let Charge { ns, began_ns, busy_ns, earlier_ns, ended_ns } = charge;
        self.active_ns = self.active_ns.max(ended_ns);
        self.reported_ns = self.reported_ns.saturating_add(busy_ns);
        let found_ns = u64::try_from(ns).unwrap_or(0).min(self.owed_until_ns.saturating_sub(began_ns));
        self.unreported_ns = self.unreported_ns.saturating_sub(found_ns);
        if began_ns < self.forgiven_ns {
            self.charged_ns = self.charged_ns.saturating_add(ns);
            return 0;
        }
        // Of the time before that: what began later was not held.
        let before_ns = i64::try_from(self.held_until_ns.saturating_sub(began_ns)).unwrap_or(i64::MAX);
        // It was held whole, and is charged what others had no part in.
        let known = busy_ns.cast_signed().clamp(0, self.held_ns.min(before_ns));
        self.held_ns -= known;
        self.charged_ns = self.charged_ns.saturating_add(ns);
        let redeemed_ns = self.redeem(ns - known, began_ns);
        self.late_ns = self.late_ns.saturating_add(earlier_ns.saturating_sub(redeemed_ns));
        self.serve(clock, ns - known - redeemed_ns.cast_signed());
        redeemed_ns
    }

    /// Corrects what it was charged because of a burst of somebody else.
    pub(super) fn correct(&mut self, clock: &mut VirtualClock, ns: i64) {
        self.charged_ns = self.charged_ns.saturating_add(ns);
        self.serve(clock, ns);
    }

    /// Books device time that was withheld from others up to `until_ns`, until measured work takes its place.
    pub(super) fn hold(&mut self, clock: &mut VirtualClock, until_ns: u64, ns: i64) {
        self.held_ns = self.held_ns.saturating_add(ns);
        self.held_until_ns = self.held_until_ns.max(until_ns);
        self.serve(clock, ns);
    }

    /// What is held by now was no work, and stays booked.
    pub(super) fn keep_held(&mut self) {
        self.paused_ns = self.paused_ns.saturating_add(std::mem::take(&mut self.held_ns));
    }

    /// What it has used of the device's time: what was measured, and what was held and has not proved to be work.
    pub(super) fn used_ns(&self) -> i64 {
        self.charged_ns.saturating_add(self.held_ns).saturating_add(self.paused_ns)
    }

    fn serve(&mut self, clock: &mut VirtualClock, ns: i64) {
        let before = self.eligible_at;
        self.service_ns += i128::from(ns);
        self.eligible_at = self.origin + (self.service_ns * SCALE).div_euclid(self.weight);
        if self.active {
            clock.shift(self.weight, before, self.eligible_at);
        }
    }
}
