//! What leases have reserved of the quotas of their teams and users, and whether one more goes with these.

use super::book::{Book, Lease};
use super::budget::Account;
use super::entitlement::held_demand;
use super::over_quota::{Beyond, Over};
use super::record::Record;
use crate::device::Gpu;
use crate::ledger::{self, Spent};
use gpool_configuration::{Ceiling as Configured, Quota};
use gpool_policy::quota::{Amounts, Ceiling, check};
use gpool_protocol::{LeaseRequest, Mechanism};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Whose leases are counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// A team's.
    Team(String),
    /// Those that name no team.
    NoTeam,
    /// A user's.
    User(u32),
}

impl Holder {
    /// Those for whom a lease of this team and user counts: both quotas hold.
    pub fn both(team: Option<&str>, uid: u32) -> [Self; 2] {
        [team.map_or(Self::NoTeam, |team| Self::Team(team.to_owned())), Self::User(uid)]
    }

    /// Those that the configuration bounds by name.
    pub fn listed(quota: &Quota) -> impl Iterator<Item = Self> {
        let teams = quota.team.keys().cloned().map(Self::Team);
        let without = (*Self::NoTeam.table(quota).1 != Configured::default()).then_some(Self::NoTeam);
        teams.chain(without).chain(quota.user.keys().map(|uid| Self::User(uid.0)))
    }

    /// The table that bounds it, and what stands there.
    pub fn table<'a>(&self, quota: &'a Quota) -> (String, &'a Configured) {
        match self {
            Self::Team(team) => quota.of_team(Some(team)),
            Self::NoTeam => quota.of_team(None),
            Self::User(uid) => quota.of_user(*uid),
        }
    }

    /// The same, with what may be reserved at once.
    pub fn bound(&self, quota: &Quota) -> (String, Ceiling) {
        let (table, configured) = self.table(quota);
        (table, ceiling(configured))
    }

    /// What any one of its leases may reserve of that.
    pub fn bound_of_one(&self, quota: &Quota) -> Ceiling {
        let (_, configured) = self.table(quota);
        Ceiling {
            share_permille: configured.container_gpus.map(|gpus| gpus.permille),
            memory_bytes: configured.container_memory.map(|memory| memory.bytes),
            leases: None,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Team(team) => write!(f, "team {team}"),
            Self::NoTeam => f.write_str("containers without a team"),
            Self::User(uid) => write!(f, "user {uid}"),
        }
    }
}

/// A table of the configuration as `policy` has it.
fn ceiling(configured: &Configured) -> Ceiling {
    Ceiling {
        share_permille: configured.gpus.map(|gpus| gpus.permille),
        memory_bytes: configured.memory.map(|memory| memory.bytes),
        leases: configured.leases.map(u64::from),
    }
}

/// What one lease counts, and for whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally {
    holders: [Holder; 2],
    amounts: Amounts,
    /// Whether it has what is idle in place of the share that counts here, because a budget is spent.
    has_no_hours: bool,
    mechanism: Mechanism,
    gpus: u64,
    /// What it was before, and for whom, if it comes back to that: any one container of theirs may be that large again.
    was: Option<([Holder; 2], Amounts)>,
}

/// A lease, made or not, as far as quotas count it.
pub struct Counted<'a> {
    /// Its team.
    pub team: Option<&'a str>,
    /// Who starts it.
    pub uid: u32,
    /// How it has its share.
    pub mechanism: Mechanism,
    /// What nobody else can be promised of the time of each of its GPUs, or could not but for a budget that is spent.
    pub guaranteed_permille: u16,
    /// Whether one is.
    pub has_no_hours: bool,
    /// Its memory cap on each, 0 if it has none.
    pub cap_bytes: u64,
    /// How many they are.
    pub gpus: usize,
    /// The product name of the first one's board.
    pub product: &'a str,
    /// The profile, if that is a MIG instance.
    pub profile: Option<&'a str>,
}

impl Counted<'_> {
    /// An instance counts by its part of the board's compute slices, as in the ledger. Of whole GPUs and instances nobody else has
    /// anything, whatever the priority.
    pub fn tally(&self) -> Tally {
        let (slices, of_slices) = ledger::parts(self.product, self.profile);
        let permille: u64 = match self.mechanism {
            Mechanism::Exclusive | Mechanism::Mig => 1000,
            Mechanism::Slice | Mechanism::Mps | Mechanism::TimeSlice => self.guaranteed_permille.into(),
        };
        let gpus = self.gpus as u64;
        let amounts = Amounts {
            share_permille: permille * u64::from(slices) / u64::from(of_slices.max(1)) * gpus,
            memory_bytes: self.cap_bytes.saturating_mul(gpus),
            leases: 1,
        };
        let holders = Holder::both(self.team, self.uid);
        let was = None;
        Tally { holders, amounts, has_no_hours: self.has_no_hours, mechanism: self.mechanism, gpus, was }
    }
}

impl Tally {
    /// That of a lease or a kept place. Of a lease whose GPUs were taken from it nothing is left.
    pub fn of(record: &Record, gpus: &[Gpu]) -> Self {
        if record.has_no_share() {
            return Self {
                holders: Holder::both(record.team.as_deref(), record.owner_uid),
                amounts: Amounts::default(),
                has_no_hours: false,
                mechanism: record.mechanism,
                gpus: record.gpus().len() as u64,
                was: None,
            };
        }
        let counted = Counted {
            team: record.team.as_deref(),
            uid: record.owner_uid,
            mechanism: record.mechanism,
            // A team without hours has not given back what its quota of GPUs allows it.
            guaranteed_permille: held_demand(&record.with_its_promise()).guaranteed_permille(),
            has_no_hours: record.is_beyond_budget(),
            cap_bytes: record.cap_bytes(),
            gpus: record.gpus().len(),
            product: gpus.iter().find(|gpu| gpu.uuid == record.gpu_uuid).map_or("", |gpu| gpu.name.as_str()),
            profile: record.mig_profile.as_deref(),
        };
        counted.tally()
    }

    /// That of a lease in the book. What it holds beyond a cap that was lowered is still its own: whoever lowers one that is full
    /// has not given anything back.
    pub fn of_lease(lease: &Lease, gpus: &[Gpu]) -> Self {
        let mut its = Self::of(&lease.record, gpus);
        let lowered_bytes = lease.record.highest_cap_bytes.unwrap_or(0).saturating_sub(lease.record.memory_cap_bytes);
        if its.amounts.memory_bytes > 0 {
            let beyond = lease.accounts.iter().map(|account| account.excess_bytes().min(lowered_bytes));
            its.amounts.memory_bytes = beyond.fold(its.amounts.memory_bytes, u64::saturating_add);
        }
        its
    }

    /// The same of `asked`, which may come back to what it had: to a kept place, or from the host's memory.
    pub fn coming_back(self, (asked, uid): (&LeaseRequest, u32), (gpus, book): (&[Gpu], &Book)) -> Self {
        let is_its = |record: &&Record| record.container_id == asked.container_id && record.owner_uid == uid;
        let out = book.leases.values().map(|lease| &lease.record).find(|record| record.is_out() && is_its(record));
        let kept = || book.held.iter().map(|held| &held.record).find(|record| record.is_started_anew_by(asked, uid));
        let whole = out.or_else(kept).map(|record| Record { suspension: None, ..record.with_its_promise() });
        let was = whole.map(|record| Self::of(&record, gpus)).map(|its| (its.holders, its.amounts));
        Self { was, ..self }
    }

    /// What it counts.
    pub fn amounts(&self) -> Amounts {
        self.amounts
    }

    /// For whom it counts.
    pub fn holders(&self) -> &[Holder; 2] {
        &self.holders
    }

    /// Whether it promises more than `own` does of what cannot be taken back while it runs, as the share of one on slices can.
    pub fn promises_for_good(&self, own: Option<&Self>) -> bool {
        let had_permille = own.filter(|own| !own.has_no_hours).map_or(0, |own| own.amounts.share_permille);
        let is_for_good = self.mechanism != Mechanism::Slice && !self.has_no_hours;
        is_for_good && self.amounts.share_permille > had_permille
    }

    fn for_whom(&self, holder: &Holder) -> Amounts {
        if self.holders.contains(holder) { self.amounts } else { Amounts::default() }
    }
}

/// What ended containers of somebody keep for a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    pub amounts: Amounts,
    /// Until when the last of them does.
    pub until: Instant,
}

impl Kept {
    fn add(entry: Entry<'_, Holder, Self>, amounts: Amounts, until: Instant) {
        let its = entry.or_insert(Self { amounts: Amounts::default(), until });
        (its.amounts, its.until) = (its.amounts.plus(amounts), its.until.max(until));
    }
}

/// What has been reserved, by whom.
#[derive(Debug, Clone, Default)]
pub struct Standing {
    held: BTreeMap<Holder, Amounts>,
    /// What of that are places that are kept for containers that have ended.
    kept: BTreeMap<Holder, Kept>,
    /// What was reserved before, if that is known, and until when.
    spent: Option<Arc<Spent>>,
    unix_s: u64,
}

impl Standing {
    /// What the book says: leases, kept places, and leases that are not taken over yet.
    pub fn of(book: &Book, gpus: &[Gpu]) -> Self {
        let stranded = book.stranded.iter().filter(|record| !book.leases.contains_key(&record.lease_id));
        let leases = book.leases.values().map(|lease| Tally::of_lease(lease, gpus));
        let others = book.held.iter().map(|held| &held.record).chain(stranded);
        let mut standing = Self::default();
        for held in &book.held {
            let its = Tally::of(&held.record, gpus);
            its.holders.into_iter().for_each(|holder| Kept::add(standing.kept.entry(holder), its.amounts, held.until));
        }
        for Tally { holders, amounts, .. } in leases.chain(others.map(|record| Tally::of(record, gpus))) {
            for holder in holders {
                let held = standing.held.entry(holder).or_default();
                *held = held.plus(amounts);
            }
        }
        standing
    }

    /// With what was reserved until `unix_s`, for budgets. Without it nothing was.
    pub fn with_spent(self, spent: Option<Arc<Spent>>, unix_s: u64) -> Self {
        Self { spent, unix_s, ..self }
    }

    /// With the same budgets, and nothing reserved.
    pub fn emptied(&self) -> Self {
        Self { held: BTreeMap::new(), kept: BTreeMap::new(), ..self.clone() }
    }

    /// Whether a budget is spent of those for whom a lease of this team and user counts.
    pub fn has_no_hours(&self, team: Option<&str>, uid: u32, quota: &Quota) -> bool {
        let is_spent = |holder: &Holder| self.account(holder, quota).is_some_and(|account| account.is_spent());
        Holder::both(team, uid).iter().any(is_spent)
    }

    /// How far somebody's budget is spent, if there is one.
    pub fn account(&self, holder: &Holder, quota: &Quota) -> Option<Account> {
        Account::of(holder, quota, self.spent.as_deref(), self.unix_s)
    }

    /// What these have reserved together.
    pub fn held(&self, holder: &Holder) -> Amounts {
        self.held.get(holder).copied().unwrap_or_default()
    }

    /// Everybody who has reserved anything.
    pub fn holders(&self) -> impl Iterator<Item = &Holder> {
        self.held.iter().filter(|(_, held)| **held != Amounts::default()).map(|(holder, _)| holder)
    }

    /// As if a lease that is in it had ended.
    pub fn take_out(&mut self, reserved: &Tally) {
        for holder in &reserved.holders {
            let held = self.held.entry(holder.clone()).or_default();
            *held = held.minus(reserved.amounts);
        }
    }

    /// Whether `wanted` goes with the quotas, beside what is reserved and what those `ahead` are about to have. `own` is what it
    /// had in the book itself: the lease that is to change, or the place that is kept for it.
    ///
    /// # Errors
    /// Whose quota does not let it in, and why.
    pub fn check(&self, quota: &Quota, own: Option<&Tally>, wanted: &Tally, ahead: &[Tally]) -> Result<(), Over> {
        for holder in &wanted.holders {
            let had = own.map(|own| own.for_whom(holder)).unwrap_or_default();
            let others = self.held(holder).minus(had);
            let held = ahead.iter().fold(others, |sum, its| sum.plus(its.for_whom(holder)));
            let (table, ceiling) = holder.bound(quota);
            let is_change = had.leases > 0;
            let without = |kept: &&Kept| check(&ceiling, held.minus(kept.amounts), had, wanted.amounts).is_ok();
            let kept = || self.kept.get(holder).filter(|_| !is_change).filter(without).map(|kept| Box::new(*kept));
            let over = |beyond| Over {
                holder: holder.clone(),
                table,
                beyond,
                kept: kept(),
                is_change,
                mechanism: wanted.mechanism,
                gpus: wanted.gpus,
            };
            let was = wanted.was.as_ref().filter(|(holders, _)| holders.contains(holder)).map_or(had, |(_, was)| *was);
            if let Err(excess) = check(&holder.bound_of_one(quota), Amounts::default(), was, wanted.amounts) {
                return Err(over(Beyond::OfOne(excess)));
            }
            if let Err(excess) = check(&ceiling, held, had, wanted.amounts) {
                return Err(over(Beyond::Reserved(excess)));
            }
            // Who has no hours is promised nothing, and nobody is promised more without them.
            let had_promise = own.filter(|own| !own.has_no_hours).map_or(0, |own| own.for_whom(holder).share_permille);
            let grows = !wanted.has_no_hours && wanted.amounts.share_permille > had_promise;
            if let Some(account) = self.account(holder, quota).filter(|account| grows && account.is_spent()) {
                return Err(over(Beyond::Spent(account)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
