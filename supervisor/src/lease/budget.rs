//! Budgets of teams and users: how far each is spent, and what becomes of leases when one is.
//!
//! Who runs when its budget is spent goes on as priority=burst does: it keeps its memory, and has of the GPU what nobody else wants.
//! It has its share again when the next period begins, or the budget is raised, and the share is free.

use super::book::Book;
use super::described::about;
use super::entitlement::held_demand;
use super::grant::Leases;
use super::quota::{Holder, Tally};
use super::record::Record;
use super::refusal::failed;
use crate::clock;
use crate::faults::Faults;
use crate::gatekeeper::Order;
use crate::ledger::{self, DAY_S, Spent};
use gpool_configuration::{Period, Quota};
use gpool_policy::budget::{Budget, Level};
use gpool_protocol::{BeyondBudget, ErrorBody, ErrorCode, EventKind, LeaseId, Mechanism, Priority, format_permille};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Who waits until it is known what budgets have spent looks as often as this.
const READING_PAUSE: Duration = Duration::from_millis(20);
/// 1970-01-01 was a Thursday.
const DAYS_SINCE_MONDAY: u64 = 3;

/// Somebody's budget at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    /// What it is, and what of it is spent; nothing while that is not known.
    pub budget: Budget,
    /// Whether it is.
    pub is_known: bool,
    /// What comes again and again.
    pub period: Period,
    /// When this one began, and when it ends, Unix seconds.
    pub span_unix_s: (u64, u64),
    /// What the time is, Unix seconds.
    pub now_unix_s: u64,
}

impl Account {
    /// That of `holder`, by what `spent` says, if it is known; none where its table has no budget.
    pub fn of(holder: &Holder, quota: &Quota, spent: Option<&Spent>, unix_s: u64) -> Option<Self> {
        let hours = holder.table(quota).1.gpu_hours?;
        let span_unix_s = span_of(hours.period, unix_s);
        // Thousandths of an hour in nanoseconds.
        let allowed_ns = hours.hour_permille.saturating_mul(3_600_000_000);
        let spent_ns = spent.map(|spent| spent.between(holder, span_unix_s));
        let budget = Budget { allowed_ns, spent_ns: spent_ns.unwrap_or(0) };
        Some(Self { budget, is_known: spent_ns.is_some(), period: hours.period, span_unix_s, now_unix_s: unix_s })
    }

    /// Whether nothing more is promised until the next period begins.
    pub fn is_spent(&self) -> bool {
        self.budget.level() == Level::Spent
    }

    /// Whether there will never be anything to spend.
    pub fn is_none(&self) -> bool {
        self.budget.allowed_ns == 0
    }
}

/// The day, week or month of UTC in which this moment lies: when it begins and when the next one does, Unix seconds.
pub fn span_of(period: Period, unix_s: u64) -> (u64, u64) {
    let day = unix_s / DAY_S;
    let days = |from: u64, to: u64| (from * DAY_S, to * DAY_S);
    match period {
        Period::Day => days(day, day + 1),
        Period::Week => {
            let monday = day.saturating_sub((day + DAYS_SINCE_MONDAY) % 7);
            days(monday, monday + 7)
        }
        Period::Month => {
            let date = ledger::moment(unix_s).to_zoned(TimeZone::UTC).date();
            let first = date.first_of_month();
            let next = date.last_of_month().tomorrow().unwrap_or(Date::MAX);
            let begins = |date: Date| {
                let at = date.to_zoned(TimeZone::UTC).map(|zoned| zoned.timestamp().as_second());
                at.ok().and_then(|second| u64::try_from(second).ok()).unwrap_or(0)
            };
            (begins(first), begins(next))
        }
    }
}

impl Leases {
    /// Whether what budgets have spent is still being read: the supervisor has just started. Where it cannot be read none is kept to.
    pub fn reads_hours(&self) -> bool {
        let configuration = self.configuration();
        let is_counted = configuration.ledger.is_kept() && configuration.quota.first_of_hours().is_some();
        is_counted && !self.ledger.has_looked()
    }

    /// Waits until that is read, until `deadline` at most.
    pub fn await_hours(&self, deadline: Instant) {
        while self.reads_hours() && Instant::now() < deadline {
            std::thread::sleep(READING_PAUSE);
        }
    }

    /// Lets nobody have what cannot be taken back before it is known what his budgets have spent; `own` is what he has of it.
    ///
    /// # Errors
    /// As by a supervisor that is starting: who asks tries again by himself.
    pub fn check_hours_are_read(&self, own: Option<&Tally>, wanted: &Tally) -> Result<(), ErrorBody> {
        // In an emergency none holds.
        if !self.reads_hours() || self.overrides.of(wanted.holders()).is_some() {
            return Ok(());
        }
        unread(&self.configuration().quota, own, wanted).map_or(Ok(()), Err)
    }

    /// How far the budgets of those are spent for whom a lease of this team and user counts.
    pub fn accounts_of(&self, team: Option<&str>, uid: u32) -> Vec<(Holder, Account)> {
        let (configuration, spent) = (self.configuration(), self.ledger.spent());
        let unix_s = clock::unix_ms() / 1000;
        // In an emergency none holds.
        if self.overrides.of(&Holder::both(team, uid)).is_some() {
            return Vec::new();
        }
        let of = |holder: Holder| Some((Account::of(&holder, &configuration.quota, spent.as_deref(), unix_s)?, holder));
        Holder::both(team, uid).into_iter().filter_map(of).map(|(account, holder)| (holder, account)).collect()
    }

    /// Has leases whose budget is spent go on with what is idle, and gives others their share back, as far as it is free. What cannot be
    /// done now is tried again by the next look, and is a line of the log if the supervisor itself fails at it.
    pub fn keep_to_budgets(&self, faults: &mut Faults<LeaseId>) {
        let has_budgets = self.configuration().quota.first_of_hours().is_some();
        let is_candidate = |record: &Record| record.is_beyond_budget() || has_budgets && is_promised(record);
        let candidates: BTreeSet<LeaseId> = {
            let book = self.book();
            let all = book.leases.values().map(|lease| &lease.record);
            all.filter(|record| is_candidate(record)).map(|record| record.lease_id.clone()).collect()
        };
        for id in &candidates {
            let outcome = match self.keep_to_budget(id) {
                Err(refusal) if refusal.code != ErrorCode::SupervisorFailed => Ok(()),
                outcome => outcome.map_err(|error| error.message),
            };
            faults.note(id.clone(), &outcome);
        }
        faults.retain(|id| candidates.contains(id));
    }

    /// Why a lease has no promise of its share any more, or yet; none of one from which its GPUs were taken.
    pub fn beyond_budget(&self, book: &Book, record: &Record) -> Option<BeyondBudget> {
        if !record.is_beyond_budget() || record.revocation.is_some() {
            return None;
        }
        let accounts = self.accounts_of(record.team.as_deref(), record.owner_uid);
        let is_unknown = accounts.iter().any(|(_, account)| !account.is_known);
        // Of several, that which keeps it from its share for longest.
        let ends = |account: &Account| if account.is_none() { u64::MAX } else { account.span_unix_s.1 };
        let spent = accounts.into_iter().filter(|(_, account)| account.is_spent());
        let spent = spent.max_by_key(|(_, account)| ends(account));
        let cause = match spent {
            Some(_) => None,
            None if is_unknown => Some("the ledger could not be read yet".to_owned()),
            None => self.check_room(book, record, &record.with_its_promise()).err().map(|refusal| refusal.message),
        };
        let until_unix_s = spent.as_ref().filter(|(_, its)| !its.is_none()).map(|(_, its)| its.span_unix_s.1);
        Some(BeyondBudget { whose: spent.map(|(holder, _)| holder.to_string()), until_unix_s, cause })
    }

    /// Takes the promise of its share from a lease whose budget is spent, or gives it back to one that has hours.
    ///
    /// # Errors
    /// Its share is not free, or beyond another quota; or the lease cannot be written down.
    fn keep_to_budget(&self, id: &LeaseId) -> Result<(), ErrorBody> {
        let mut book = self.book();
        let Some(old) = book.leases.get(id).map(|lease| lease.record.clone()) else { return Ok(()) };
        let accounts = self.accounts_of(old.team.as_deref(), old.owner_uid);
        let spent = accounts.iter().find(|(_, account)| account.is_spent());
        let (short, share) = (old.container_id.short(), format_permille(old.fraction_permille.into()));
        let (new, message) = match spent {
            Some((holder, account)) if is_promised(&old) => {
                let new = Record { priority: Priority::Burst, has_no_hours: true, ..old.clone() };
                let until = match account.is_none() {
                    true => String::new(),
                    false => format!(" until {}", ledger::moment(account.span_unix_s.1)),
                };
                let why = format!("the budget of {holder} is spent{until}");
                (new, format!("{short} has what is idle in place of {share}, as with priority=burst: {why}"))
            }
            // Nobody comes back by what is not known, nor to what was taken from it.
            None if old.is_beyond_budget()
                && old.revocation.is_none()
                && accounts.iter().all(|(_, account)| account.is_known) =>
            {
                self.check_room(&book, &old, &old.with_its_promise())?;
                let is_lifted = self.overrides.of(&Holder::both(old.team.as_deref(), old.owner_uid)).is_some();
                let why = if is_lifted {
                    "in an emergency no budget holds"
                } else {
                    "its team and its user have GPU hours left"
                };
                let message = format!("{short} has {share} again: {why}");
                (old.with_its_promise(), message)
            }
            _ => return Ok(()),
        };
        new.write(&self.configuration().paths.run_dir)
            .map_err(|cause| failed("the lease cannot be written down, and is as it was", cause))?;
        let Some(lease) = book.leases.get_mut(id) else { return Ok(()) };
        lease.meter.run(clock::now_ns(), &old);
        lease.record = new;
        self.gatekeeper.order(Order::Change { tenant: lease.tenant, share: lease.share(&self.configuration()) });
        self.events.note(EventKind::LeaseUpdated, about(&old, None), message);
        Ok(())
    }
}

/// The refusal of one that would have for good what a budget bounds of which nothing is known yet; none of one that would not.
fn unread(quota: &Quota, own: Option<&Tally>, wanted: &Tally) -> Option<ErrorBody> {
    let holder = wanted.holders().iter().find(|holder| holder.table(quota).1.gpu_hours.is_some())?;
    let table = holder.table(quota).0;
    wanted.promises_for_good(own).then(|| {
        ErrorBody::new(
            ErrorCode::SupervisorAbsent,
            format!(
                "the supervisor has just started, and what {holder} has spent of [{table}] gpu_hours is still being read; what is asked \
                 for could not be taken back"
            ),
            "try again in a moment, add wait to the request, or ask for mode=slice, which begins at once",
        )
    })
}

/// Whether a lease is promised a share that can be taken back while it runs. What the hardware keeps, whole GPUs, instances, parts
/// of an MPS server and time slices, is its own until it ends.
fn is_promised(record: &Record) -> bool {
    record.mechanism == Mechanism::Slice
        && record.revocation.is_none()
        && record.priority == Priority::Guaranteed
        && held_demand(record).guaranteed_permille() > 0
}

#[cfg(test)]
mod tests {
    use super::super::record::sample;
    use super::super::taken::{RevocationRecord, Taking};
    use super::*;

    /// Seconds of Unix time.
    fn at(text: &str) -> u64 {
        text.parse::<jiff::Timestamp>().unwrap().as_second().cast_unsigned()
    }

    #[test]
    fn a_period_begins_and_ends_at_midnight_of_utc() {
        for (period, moment, begins, ends) in [
            (Period::Day, "2026-11-27T20:00:00Z", "2026-11-27T00:00:00Z", "2026-11-28T00:00:00Z"),
            (Period::Day, "2026-11-27T00:00:00Z", "2026-11-27T00:00:00Z", "2026-11-28T00:00:00Z"),
            // A Friday, a Monday, a Sunday.
            (Period::Week, "2026-11-27T20:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"),
            (Period::Week, "2026-11-23T00:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"),
            (Period::Week, "2026-11-29T23:59:59Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"),
            (Period::Month, "2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            (Period::Month, "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
            (Period::Month, "2026-12-01T00:00:00Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ] {
            assert_eq!(span_of(period, at(moment)), (at(begins), at(ends)), "{period:?} {moment}");
        }
        for period in Period::ALL {
            let (begins, ends) = span_of(period, 0);
            assert!(begins == 0 && ends > 0, "{period:?}: a clock that was never set");
        }
    }

    #[test]
    fn a_budget_counts_from_the_beginning_of_its_period() {
        let text = "[quota.default_team]\ngpu_hours = \"0.5/month\"\n[quota.team.free]\n";
        let quota = gpool_configuration::parse(std::path::Path::new("config.toml"), text).unwrap().quota;
        let team = |name: &str| Holder::Team(name.into());
        let spent = Spent::of(&Holder::both(Some("vision"), 0), at("2026-11-30T23:00:00Z"), 1_800_000_000_000);
        let of = |holder: &Holder, moment| Account::of(holder, &quota, Some(&spent), at(moment));
        let november = of(&team("vision"), "2026-11-30T23:59:59Z").unwrap();
        assert_eq!(november.budget, Budget { allowed_ns: 1_800_000_000_000, spent_ns: 1_800_000_000_000 });
        let december = of(&team("vision"), "2026-12-01T00:00:00Z").unwrap();
        assert!(november.is_spent() && !december.is_spent() && december.budget.spent_ns == 0);
        assert_eq!(of(&team("speech"), "2026-11-30T23:59:59Z").unwrap().budget.spent_ns, 0, "each has its own");
        assert!(of(&team("free"), "2026-11-30T23:59:59Z").is_none(), "its own table says nothing of it");
        assert!(of(&Holder::User(0), "2026-11-30T23:59:59Z").is_none());
        let october = of(&team("vision"), "2026-10-02T00:00:00Z").unwrap();
        assert_eq!(october.budget.spent_ns, 0, "a clock that is behind counts nothing of what comes after it");
        let unknown = Account::of(&team("vision"), &quota, None, at("2026-11-30T23:59:59Z")).unwrap();
        assert!(!unknown.is_known && !unknown.is_spent() && november.is_known);
    }

    #[test]
    fn nobody_has_for_good_what_a_budget_bounds_before_that_is_read() {
        let text = "[quota.team.vision]\ngpu_hours = \"10/month\"\n[quota.user.7]\ngpu_hours = \"10/month\"\n";
        let quota = gpool_configuration::parse(std::path::Path::new("config.toml"), text).unwrap().quota;
        let vision = || Record { team: Some("vision".into()), ..sample() };
        let of = |record: &Record| unread(&quota, None, &Tally::of(record, &[])).map(|refusal| refusal.to_string());
        for mechanism in [Mechanism::Exclusive, Mechanism::Mig, Mechanism::Mps, Mechanism::TimeSlice] {
            let wanted = Record { mechanism, ..vision() };
            let refused = of(&wanted).unwrap();
            assert!(refused.contains("team vision has spent of [quota.team.vision] gpu_hours"), "{refused}");
            assert!(refused.ends_with("[GPOOL-E001]"), "who asks tries again by himself: {refused}");
            assert_eq!(of(&Record { team: None, ..wanted.clone() }), None, "no budget bounds it");
            assert!(of(&Record { team: None, owner_uid: 7, ..wanted.clone() }).unwrap().contains("user 7"));
            let own = Tally::of(&wanted, &[]);
            assert_eq!(unread(&quota, Some(&own), &own), None, "who comes back has what it had");
        }
        assert_eq!(of(&vision()), None, "a share on slices is taken back when it is known");
        let unbound = Record { mechanism: Mechanism::TimeSlice, fraction_permille: 0, ..vision() };
        assert_eq!(of(&unbound), None, "of what the driver divides it is promised nothing");
    }

    #[test]
    fn only_a_share_that_the_gate_keeps_can_be_taken_back() {
        let of = |change: &dyn Fn(&mut Record)| {
            let mut record = sample();
            change(&mut record);
            is_promised(&record)
        };
        assert!(of(&|_| {}));
        assert!(!of(&|its| its.priority = Priority::Scavenger));
        for mechanism in [Mechanism::Mps, Mechanism::Exclusive, Mechanism::Mig, Mechanism::TimeSlice] {
            assert!(!of(&|its| its.mechanism = mechanism), "{mechanism}");
        }
        assert!(!of(&|its| {
            its.revocation = Some(RevocationRecord {
                devices: [(195, 0)].into(),
                is_denied: true,
                is_settled: false,
                by: Taking::Asked,
            });
        }));
    }
}
