//! The state machine: what it does.

use super::pauses::Competition;
use super::queue::Place;
use super::scheduler::SliceScheduler;
use super::turn::Turn;
use super::{Class, Command, Parameters, TenantId};

impl SliceScheduler {
    /// Lets time pass: who has become ready meanwhile is a rival of the tenant that runs.
    pub(super) fn pass(&mut self, commands: &mut Vec<Command>) {
        let mut news = Vec::new();
        self.queue.pass(self.now_ns, &mut news);
        for tenant in news {
            self.rival(tenant, commands);
        }
    }

    /// A tenant is ready: the one that runs may have to make room.
    ///
    /// * A latency tenant within its slack gets the device at once; what the other one has launched overlaps. Not from a
    ///   gang that makes up for what it missed, whose slice nobody of its priority cuts.
    /// * One of a higher priority has the other's slice cut short: that one finishes what it has launched, and nobody
    ///   idles.
    /// * So has one that is not ahead of its share, if the other one has had more than its own or has the later deadline:
    ///   that one keeps a least slice. That is found out once in a slice, when it comes: of the time that the other one has
    ///   had since, everybody who waits has the earlier deadline sooner or later, and who came again, or with a second
    ///   thread, would make slices shorter than they should be.
    /// * So has, once that one has had a whole slice since it took the device, who comes first to one that nobody of its
    ///   priority has competed with: what that one has been given beyond was given because nobody wanted it. Whether it
    ///   loses the device is decided when its work ends, as ever.
    pub(super) fn rival(&mut self, tenant: TenantId, commands: &mut Vec<Command>) {
        let now_ns = self.now_ns;
        let Some(turn) = self.turn.as_mut().filter(|turn| turn.tenant != tenant) else { return };
        if !self.queue.is_ready(tenant) {
            return;
        }
        turn.contest(now_ns);
        let turn = *turn;
        let (Some(holder), Some(comer)) = (self.queue.get(turn.tenant), self.queue.get(tenant)) else { return };
        let (eligible, in_slack) = self.queue.eligibility(tenant);
        let outranks = comer.share.priority < holder.share.priority;
        let same_rank = comer.share.priority == holder.share.priority;
        let may_cut = same_rank && !turn.in_slack && !turn.makes_up;
        if in_slack && (outranks || may_cut) {
            self.interrupt(commands);
            return self.open(tenant, now_ns, commands);
        }
        let holds_lent_time = self.queue.lag_ns(holder) < 0;
        let is_due_earlier = self.queue.deadline(comer) < self.queue.deadline(holder);
        let least_ns = self.parameters.least_slice_ns;
        let at_once = outranks.then_some(now_ns);
        let is_first = comer.judged_in != Some(turn.number);
        let least = is_first && may_cut && eligible && (holds_lent_time || is_due_earlier);
        let after_least = least.then(|| turn.start_ns.saturating_add(least_ns));
        let whole = may_cut && !turn.is_competed_for;
        let after_whole = whole.then(|| turn.since_ns.saturating_add(self.queue.full_slice_ns(holder)));
        let at_ns = [at_once, after_least, after_whole].into_iter().flatten().min();
        self.queue.note(tenant, |place| place.judged_in = Some(turn.number));
        let Some(turn) = self.turn.as_mut() else { return };
        if same_rank || outranks {
            turn.is_competed_for = true;
            turn.competition.begin(now_ns);
        }
        if let Some(at_ns) = at_ns.map(|at_ns| at_ns.max(now_ns))
            && turn.cut(at_ns, least_ns)
        {
            let (tenant, until_ns) = (turn.tenant, turn.until_ns);
            commands.push(self.open_until(tenant, until_ns));
        }
    }

    pub(super) fn decision_ns(&self, turn: &Turn) -> Option<u64> {
        let early_ns = self.early_renewal_ns(turn);
        [self.usual_decision_ns(turn), early_ns, self.leave_ns(turn)].into_iter().flatten().min()
    }

    fn usual_decision_ns(&self, turn: &Turn) -> Option<u64> {
        turn.decision_ns(self.handoff.lead_ns(), self.parameters.drain_limit_ns)
    }

    /// When the device is handed over by one that wants no more for now, if anybody wants it.
    fn leave_ns(&self, turn: &Turn) -> Option<u64> {
        let is_due = self.queue.anybody_ready() && self.heeds_leaving(turn.tenant);
        let end_ns = turn.leaves_ns.filter(|_| is_due)?;
        Some(end_ns.saturating_sub(self.handoff.lead_ns()))
    }

    /// When the slice of a tenant that nobody competes with is renewed: so early that neither its launches nor the device
    /// wait for a decision that has one outcome. Whoever comes later ends it.
    ///
    /// That is when it says that it wants more, for work that ends soon; or, for one of which something was measured in this
    /// slice, before it has come to ask. Not of a tenant with a limit, whose slices end where that says; nor of one that owes
    /// time, to others that are at theirs; nor unasked of a latency tenant, whose slack is judged when it asks; nor of one with
    /// several GPUs, for which all of them decide together: see [`may_be_renewed`](Self::may_be_renewed).
    fn early_renewal_ns(&self, turn: &Turn) -> Option<u64> {
        if self.gangs.contains(&turn.tenant) {
            return None;
        }
        self.renewable_ns(turn)
    }

    /// The same of any.
    fn renewable_ns(&self, turn: &Turn) -> Option<u64> {
        let place = self.queue.get(turn.tenant).filter(|place| self.may_renew_early(turn, place))?;
        let depth_ns = self.depth_ns(turn.tenant);
        let length_ns = turn.until_ns.saturating_sub(turn.start_ns);
        match turn.announced_ns {
            Some(end_ns) => (end_ns <= self.now_ns.saturating_add(depth_ns + length_ns)).then_some(self.now_ns),
            None => self.unasked_ns(turn).filter(|_| place.account.charged_ns() > turn.charged_before_ns),
        }
    }

    fn may_renew_early(&self, turn: &Turn, place: &Place) -> bool {
        let is_rivalled = turn.contested_ns.is_some();
        let owes = self.queue.lag_ns(place).saturating_add_unsigned(self.parameters.least_slice_ns) < 0;
        // Who makes up for what it missed keeps its slice from others: none of those begins before the one before it has ended.
        !is_rivalled && !owes && !place.is_behind && place.share.limit_permille.is_none()
    }

    /// When a slice is renewed that nobody wants to cut short and whose tenant has not asked, if it may be.
    fn unasked_ns(&self, turn: &Turn) -> Option<u64> {
        let place = self.queue.get(turn.tenant).filter(|place| self.may_renew_early(turn, place))?;
        let may_be_unasked = place.share.class != Class::Latency && !self.gangs.contains(&turn.tenant);
        if turn.announced_ns.is_some() || !may_be_unasked {
            return None;
        }
        let length_ns = turn.until_ns.saturating_sub(turn.start_ns);
        let ahead_ns = self.depth_ns(turn.tenant).saturating_add(self.handoff.lead_ns()).min(length_ns / 2);
        Some(turn.until_ns.saturating_sub(ahead_ns))
    }

    /// When to listen to who runs, if nothing happens before: what it has measured by then says whether its slice is renewed
    /// unasked.
    pub(super) fn listen_ns(&self, turn: &Turn) -> Option<u64> {
        self.unasked_ns(turn).filter(|at_ns| *at_ns > self.now_ns)
    }

    /// Whether the slice of the gang that runs here may be renewed as soon as it asks, as far as this GPU is concerned.
    pub(super) fn may_be_renewed(&self) -> bool {
        self.turn.is_some_and(|turn| self.renewable_ns(&turn).is_some_and(|at_ns| at_ns <= self.now_ns))
    }

    /// Opens the gate of whoever is next, if it is time to. Whether anything may be different after that.
    pub(super) fn decide(&mut self, commands: &mut Vec<Command>) -> bool {
        let Some(turn) = self.turn else {
            return self.open_next(self.now_ns, commands);
        };
        let is_time = self.decision_ns(&turn).is_some_and(|at_ns| at_ns <= self.now_ns);
        if is_time {
            self.decide_after(turn, commands);
        }
        is_time
    }

    /// The same where the time has come to decide whether a slice is renewed.
    fn decide_after(&mut self, turn: Turn, commands: &mut Vec<Command>) {
        let now_ns = self.now_ns;
        if self.early_renewal_ns(&turn).is_some_and(|at| at <= now_ns) {
            let start_ns = turn.announced_ns.unwrap_or(turn.until_ns).max(now_ns);
            return self.open(turn.tenant, start_ns, commands);
        }
        let limit_ns = turn.until_ns.saturating_add(self.parameters.drain_limit_ns);
        if now_ns >= limit_ns && turn.announced_ns.is_none_or(|end_ns| end_ns > limit_ns) {
            self.book_silence(&turn, limit_ns);
        }
        if self.gangs.contains(&turn.tenant) {
            self.gang_is_due = true;
            return;
        }
        let is_usual = self.usual_decision_ns(&turn).is_some_and(|at_ns| at_ns <= now_ns);
        if !is_usual && self.choose().is_none() {
            // Whoever wants the device of the one that leaves is above its ceiling.
            return;
        }
        if self.prefers_holder() {
            self.renew(commands);
        } else {
            self.hand_over(commands);
        }
    }

    /// Whether the one that runs would be chosen again.
    pub(super) fn prefers_holder(&mut self) -> bool {
        let Some(turn) = self.turn else { return false };
        self.expect_the_rest(&turn);
        self.choose() == Some(turn.tenant)
    }

    /// Gives the one that runs another slice, which begins when its work so far ends.
    pub(super) fn renew(&mut self, commands: &mut Vec<Command>) {
        let Some(turn) = self.turn else { return };
        let (own_start_ns, _) = turn.next_start_ns(self.now_ns, self.handoff.lead_ns());
        self.open(turn.tenant, own_start_ns, commands);
    }

    /// Takes the slice from the one that runs. It is likely to want on, and says so when it stands at its gate, unless
    /// it has said so already.
    pub(super) fn interrupt(&mut self, commands: &mut Vec<Command>) {
        let Some(turn) = self.turn else { return };
        self.end_turn_of(turn.tenant, commands);
        if turn.announced_ns.is_none() {
            self.queue.rest(turn.tenant, self.now_ns.saturating_add(self.parameters.drain_limit_ns));
        }
    }

    /// Ends the turn of the one that runs and opens the next gate.
    pub(super) fn hand_over(&mut self, commands: &mut Vec<Command>) {
        let Some(turn) = self.turn else { return };
        let (_, other_start_ns) = turn.next_start_ns(self.now_ns, self.handoff.lead_ns());
        self.end_turn_of(turn.tenant, commands);
        if turn.announced_ns.is_none() {
            self.queue.rest(turn.tenant, self.now_ns.saturating_add(self.parameters.linger_ns));
        }
        self.open_next(other_start_ns, commands);
    }

    /// What the tenant has launched and nobody has measured yet counts when it is compared with the others.
    fn expect_the_rest(&mut self, turn: &Turn) {
        self.queue.expect(turn.tenant, turn.end_ns().unwrap_or(self.now_ns).max(self.now_ns));
    }

    /// A tenant that did not drain in time has used the device while others waited, as far as can be known now. What
    /// the scheduler itself was late is not its fault.
    fn book_silence(&mut self, turn: &Turn, limit_ns: u64) {
        let since_ns = turn.contested_ns.unwrap_or(limit_ns);
        let silent_ns = i64::try_from(limit_ns.saturating_sub(since_ns)).unwrap_or(i64::MAX);
        let now_ns = self.now_ns;
        self.queue.book(turn.tenant, |place, clock| {
            let measured_ns = place.account.charged_ns() - turn.charged_before_ns;
            place.account.hold(clock, now_ns, (silent_ns - measured_ns.max(0)).max(0));
            place.unmeasured.measured(limit_ns);
        });
        // With that its pauses are booked as well.
        if let Some(turn) = self.turn.as_mut() {
            turn.competition = Competition::default();
        }
    }

    /// Pauses between a tenant's kernels in which it kept the device from others are its own: what shares are of is time, or
    /// one that works little and often would have a slice for each of theirs and be charged for next to nothing. What turns
    /// out to have been work after all is not charged twice. What it takes to get to the device is nobody's.
    fn book_pauses(&mut self, turn: &Turn) {
        let end_ns = turn.held_until_ns(self.now_ns);
        self.queue.book(turn.tenant, |place, clock| {
            let pending_from_ns = place.unmeasured.begin_ns().min(end_ns);
            if place.excused.end_ns() <= pending_from_ns {
                // Later work has been reported since.
                place.forfeit(clock);
            }
            let (paused_ns, pending_ns) = turn.competition.pauses_ns(pending_from_ns, end_ns);
            place.excused.add(pending_ns, pending_from_ns.max(turn.start_ns), end_ns);
            if paused_ns > 0 {
                place.account.hold(clock, pending_from_ns, paused_ns.cast_signed());
            }
        });
    }

    /// The tenant has nothing outstanding: what it has not reported by now was no work.
    pub(super) fn nothing_is_left(&mut self, tenant: TenantId) {
        self.queue.book(tenant, |place, clock| {
            place.unmeasured.end();
            place.account.keep_held();
            place.forfeit(clock);
        });
    }

    /// Who is next; those that turn out to be above their ceilings are put aside.
    pub(super) fn choose(&mut self) -> Option<TenantId> {
        self.find_next().0
    }

    /// The same, and whether anything is different after that: where nothing is, and nothing happens, it is found once more.
    pub(super) fn find_next(&mut self) -> (Option<TenantId>, bool) {
        let mut has_changed = false;
        loop {
            let (next, has_limited) = self.queue.choose();
            has_changed |= has_limited;
            let Some(tenant) = next else { return (None, has_changed) };
            self.queue.block(tenant, self.now_ns);
            if self.queue.is_ready(tenant) {
                return (next, has_changed);
            }
            has_changed = true;
        }
    }

    /// Whether anything is different after that.
    fn open_next(&mut self, start_ns: u64, commands: &mut Vec<Command>) -> bool {
        let (next, has_changed) = self.find_next();
        if let Some(tenant) = next {
            self.open(tenant, start_ns, commands);
        }
        has_changed || next.is_some()
    }

    /// Gives or renews a slice that begins, on the device, at `start_ns`.
    fn open(&mut self, tenant: TenantId, start_ns: u64, commands: &mut Vec<Command>) {
        if let Some(turn) = self.turn.filter(|turn| turn.tenant == tenant) {
            self.book_pauses(&turn);
        }
        let Some(until_ns) = self.begin_turn(tenant, start_ns) else { return };
        commands.push(self.open_until(tenant, until_ns));
    }

    fn open_until(&self, tenant: TenantId, until_ns: u64) -> Command {
        Command::Open { tenant, until_ns, depth_ns: self.depth_ns(tenant), burst_ns: self.burst_ns(tenant) }
    }

    /// How the gate of a tenant that has just fallen idle may be left open, so that its next launch need not wait for it: for
    /// [`Parameters::left_open_ns`](super::Parameters) at most, while nobody runs or wants to. Whoever leaves it open closes it
    /// before another one's opens, and passes on that the tenant works again. None of a tenant with a ceiling, whose slices end where
    /// that says.
    #[must_use]
    pub fn left_open(&self, tenant: TenantId) -> Option<Command> {
        let place = self.queue.get(tenant)?;
        let is_free = self.turn.is_none() && !self.queue.anybody_ready();
        let is_bound = place.paused || place.share.limit_permille.is_some();
        (is_free && !is_bound)
            .then(|| self.open_until(tenant, self.now_ns.saturating_add(self.parameters.left_open_ns)))
    }

    /// Who runs, if its bursts are long.
    pub(super) fn long_runner(&self) -> Option<TenantId> {
        self.running().filter(|tenant| self.has_long_bursts(*tenant))
    }

    /// Who runs was the only one at work until now, or without a ceiling: it is measured as often as others from now on, and may
    /// not work as far ahead.
    pub(super) fn end_long_turn(&mut self, commands: &mut Vec<Command>) {
        let latest_ns = self.now_ns.saturating_add(self.slice_ns());
        self.shared_from_ns = self.now_ns;
        let Some(turn) = self.turn.as_mut() else { return };
        turn.cut(latest_ns, 0);
        let (tenant, until_ns) = (turn.tenant, turn.until_ns.max(self.now_ns));
        // Who has come may have shortened its slice already.
        commands.pop_if(|command| matches!(command, Command::Open { tenant: its, .. } if *its == tenant));
        commands.push(self.open_until(tenant, until_ns));
    }

    /// The end of the slice that begins at `start_ns`.
    pub(super) fn begin_turn(&mut self, tenant: TenantId, start_ns: u64) -> Option<u64> {
        let now_ns = self.now_ns;
        let place = self.queue.get(tenant)?;
        let (_, in_slack) = self.queue.eligibility(tenant);
        let until_ns = start_ns.saturating_add(self.length_ns(place));
        let charged_before_ns = place.account.charged_ns();
        let makes_up = place.is_behind;
        // Its slack is used up: a tenant that wants more than its share must not come back every millisecond.
        let slack_spent = place.share.class == Class::Latency && (!in_slack || self.is_spent(place));
        let (error_ns, priority) = (self.slice_ns(), place.share.priority);
        self.queue.note(tenant, |place| {
            place.silence.begin(now_ns);
            place.unmeasured.open(now_ns, error_ns);
            place.slack_spent = slack_spent;
            place.habits.begin_turn();
        });
        self.queue.serve(tenant);
        let contested_ns = self.queue.anybody_ready().then_some(now_ns);
        let is_competed_for = self.queue.anybody_ready_from(priority);
        // What it takes to come to the device is nobody's pause.
        let arrival_ns = self.handoff.lead_ns().saturating_add(self.parameters.exchange_ns);
        let mut competition = Competition::of_slice(start_ns.saturating_add(arrival_ns));
        if is_competed_for {
            competition.begin(now_ns);
        }
        let since_ns = self.turn.filter(|turn| turn.tenant == tenant).map_or(now_ns, |turn| turn.since_ns);
        let turn = Turn {
            tenant,
            number: self.slices,
            since_ns,
            start_ns,
            until_ns,
            announced_ns: None,
            leaves_ns: None,
            contested_ns,
            is_competed_for,
            competition,
            charged_before_ns,
            in_slack,
            makes_up,
        };
        self.turn = Some(turn);
        self.slices += 1;
        self.listen_to(tenant);
        Some(until_ns)
    }

    /// How long a slice that is given now is: what the tenant asks for, or [`Parameters::alone_ns`](super::Parameters).
    /// Never that for one whose slices are bounded by something else: a limit, a debt, or how far a latency tenant may run
    /// ahead. Of a gang the shortest of all its GPUs' counts.
    fn length_ns(&self, place: &Place) -> u64 {
        let request_ns = self.queue.request_ns(place);
        match (self.is_unbound(place), self.queue.active_count(), self.queue.count()) {
            (true, _, 1) => request_ns.max(self.parameters.sole_ns),
            (true, 1, _) => request_ns.max(self.parameters.alone_ns),
            _ => request_ns,
        }
    }

    fn is_spent(&self, place: &Place) -> bool {
        let slack_ns = i64::try_from(self.queue.slack_ns(place)).unwrap_or(i64::MAX);
        let least_ns = i64::try_from(self.parameters.least_slice_ns).unwrap_or(i64::MAX);
        self.queue.lag_ns(place).saturating_add(slack_ns) <= least_ns
    }

    /// How much unfinished work a tenant may have on the device.
    pub(super) fn depth_ns(&self, tenant: TenantId) -> u64 {
        let Some(place) = self.queue.get(tenant) else { return self.parameters.depth_ns };
        if place.habits.is_cautious(self.now_ns) {
            return 0;
        }
        if self.is_sole(tenant) {
            // A whole burst is on the device while the end of the one before it is waited for, because how long it is shows
            // only then.
            return self.burst_ns(tenant).max(self.parameters.depth_ns);
        }
        let is_awaited = self.queue.latency_is_about(self.now_ns) || self.queue.others_return(tenant, place);
        match place.share.class.is_batch() && is_awaited {
            true => self.parameters.latency_depth_ns,
            false => self.parameters.depth_ns,
        }
    }

    /// How much of its work a tenant should measure at a time.
    pub(super) fn burst_ns(&self, tenant: TenantId) -> u64 {
        let Parameters { burst_ns, sole_burst_ns, quiet_burst_ns, bursts_had, .. } = self.parameters;
        let most_ns = if self.is_sole(tenant) {
            sole_burst_ns
        } else if self.is_quiet(tenant) {
            quiet_burst_ns
        } else {
            return burst_ns;
        };
        let had_ns = self.charged_ns(tenant).unwrap_or(0);
        (had_ns / bursts_had.max(1)).clamp(burst_ns, most_ns.max(burst_ns))
    }

    /// Whether nobody else has joined, and nothing else bounds its slices: what it does in one go delays nobody, and its long
    /// bursts fit into them.
    pub(super) fn is_sole(&self, tenant: TenantId) -> bool {
        self.queue.count() == 1 && self.queue.get(tenant).is_some_and(|place| self.is_unbound(place))
    }

    /// Whether others have joined and none of them has been at work for long, and nothing else bounds its slices: it is measured
    /// less often. Not beside the latency class: nothing more may stand before its requests, however
    /// seldom they come.
    pub(super) fn is_quiet(&self, tenant: TenantId) -> bool {
        let (queue, now_ns) = (&self.queue, self.now_ns);
        let Some(place) = queue.get(tenant).filter(|_| queue.count() > 1 && queue.latency_tenants.is_empty()) else {
            return false;
        };
        self.stands_alone(tenant) && self.is_unbound(place) && !place.habits.is_cautious(now_ns)
    }

    /// Whether nobody else has joined, or none of them has been at work for long: nothing of theirs stands before its work on the
    /// device.
    #[must_use]
    pub fn stands_alone(&self, tenant: TenantId) -> bool {
        let last_ns = self.at_work.last_beside(tenant);
        let is_over = last_ns.is_none_or(|last_ns| self.now_ns.saturating_sub(last_ns) >= self.parameters.quiet_ns);
        let is_active = |place: &Place| place.account.is_active();
        let others = self.queue.active_count() - usize::from(self.queue.get(tenant).is_some_and(is_active));
        self.queue.count() == 1 || is_over && others == 0
    }

    /// Whether its bursts are longer than those of one beside whom others work.
    pub(super) fn has_long_bursts(&self, tenant: TenantId) -> bool {
        self.is_sole(tenant) || self.is_quiet(tenant)
    }

    /// Whether a tenant has whole slices while nobody else is active. Not of a gang that makes up for what it missed, which keeps each of
    /// its slices to the end.
    fn is_unbound(&self, place: &Place) -> bool {
        place.share.class.is_batch()
            && !place.is_behind
            && place.share.limit_permille.is_none()
            && self.queue.request_ns(place) >= self.queue.full_slice_ns(place)
    }

    pub(super) fn end_turn_of(&mut self, tenant: TenantId, commands: &mut Vec<Command>) {
        if let Some(turn) = self.turn.take_if(|turn| turn.tenant == tenant) {
            self.at_work.note(tenant, self.now_ns);
            self.expect_the_rest(&turn);
            self.book_pauses(&turn);
            commands.push(Command::Close { tenant });
        }
    }
}
