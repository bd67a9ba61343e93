//! What leases have reserved of the quotas of their teams and users, and whether one more goes with these.

use super::book::{Book, Lease};
use super::entitlement::held_demand;
use super::over_quota::Over;
use super::record::Record;
use crate::device::Gpu;
use crate::ledger;
use gpool_configuration::{Ceiling as Configured, Quota};
use gpool_policy::quota::{Amounts, Ceiling, check};
use gpool_protocol::Mechanism;
use std::collections::BTreeMap;
use std::fmt;

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

    /// The table that bounds it, and what that allows.
    pub fn bound(&self, quota: &Quota) -> (String, Ceiling) {
        let (table, configured) = match self {
            Self::Team(team) => quota.of_team(Some(team)),
            Self::NoTeam => quota.of_team(None),
            Self::User(uid) => quota.of_user(*uid),
        };
        (table, ceiling(configured))
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
pub struct Reservation {
    holders: [Holder; 2],
    amounts: Amounts,
    mechanism: Mechanism,
    gpus: u64,
}

/// A lease, made or not, as far as quotas count it.
pub struct Counted<'a> {
    /// Its team.
    pub team: Option<&'a str>,
    /// Who starts it.
    pub uid: u32,
    /// How it has its share.
    pub mechanism: Mechanism,
    /// What nobody else can be promised of the time of each of its GPUs.
    pub guaranteed_permille: u16,
    /// Its memory cap on each.
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
    /// anything, whatever the priority, and in the driver's time slices there is no cap.
    pub fn reservation(&self) -> Reservation {
        let (slices, of_slices) = ledger::parts(self.product, self.profile);
        let permille: u64 = match self.mechanism {
            Mechanism::Exclusive | Mechanism::Mig => 1000,
            Mechanism::Slice | Mechanism::Mps | Mechanism::TimeSlice => self.guaranteed_permille.into(),
        };
        let cap_bytes = if self.mechanism == Mechanism::TimeSlice { 0 } else { self.cap_bytes };
        let gpus = self.gpus as u64;
        let amounts = Amounts {
            share_permille: permille * u64::from(slices) / u64::from(of_slices.max(1)) * gpus,
            memory_bytes: cap_bytes.saturating_mul(gpus),
            leases: 1,
        };
        Reservation { holders: Holder::both(self.team, self.uid), amounts, mechanism: self.mechanism, gpus }
    }
}

impl Reservation {
    /// That of a lease or a kept place. Of a lease whose GPUs were taken from it nothing is left.
    pub fn of(record: &Record, gpus: &[Gpu]) -> Self {
        if record.has_no_share() {
            return Self {
                holders: Holder::both(record.team.as_deref(), record.owner_uid),
                amounts: Amounts::default(),
                mechanism: record.mechanism,
                gpus: record.gpus().len() as u64,
            };
        }
        let counted = Counted {
            team: record.team.as_deref(),
            uid: record.owner_uid,
            mechanism: record.mechanism,
            guaranteed_permille: held_demand(record).guaranteed_permille(),
            cap_bytes: record.memory_cap_bytes,
            gpus: record.gpus().len(),
            product: gpus.iter().find(|gpu| gpu.uuid == record.gpu_uuid).map_or("", |gpu| gpu.name.as_str()),
            profile: record.mig_profile.as_deref(),
        };
        counted.reservation()
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

    fn for_whom(&self, holder: &Holder) -> Amounts {
        if self.holders.contains(holder) { self.amounts } else { Amounts::default() }
    }
}

/// What has been reserved, by whom.
#[derive(Debug, Clone, Default)]
pub struct Standing(BTreeMap<Holder, Amounts>);

impl Standing {
    /// What the book says: leases, kept places, and leases that are not taken over yet.
    pub fn of(book: &Book, gpus: &[Gpu]) -> Self {
        let stranded = book.stranded.iter().filter(|record| !book.leases.contains_key(&record.lease_id));
        let leases = book.leases.values().map(|lease| Reservation::of_lease(lease, gpus));
        let others = book.held.iter().map(|held| &held.record).chain(stranded);
        let mut standing = Self::default();
        for Reservation { holders, amounts, .. } in leases.chain(others.map(|record| Reservation::of(record, gpus))) {
            for holder in holders {
                let held = standing.0.entry(holder).or_default();
                *held = held.plus(amounts);
            }
        }
        standing
    }

    /// What these have reserved together.
    pub fn held(&self, holder: &Holder) -> Amounts {
        self.0.get(holder).copied().unwrap_or_default()
    }

    /// Everybody who has reserved anything.
    pub fn holders(&self) -> impl Iterator<Item = &Holder> {
        self.0.iter().filter(|(_, held)| **held != Amounts::default()).map(|(holder, _)| holder)
    }

    /// As if a lease that is in it had ended.
    pub fn take_out(&mut self, reserved: &Reservation) {
        for holder in &reserved.holders {
            let held = self.0.entry(holder.clone()).or_default();
            *held = held.minus(reserved.amounts);
        }
    }

    /// Whether `wanted` goes with the quotas, beside what is reserved and what those `ahead` are about to have. `own` is what it
    /// had in the book itself: the lease that is to change, or the place that is kept for it.
    ///
    /// # Errors
    /// Whose quota does not let it in, and why.
    pub fn check(
        &self,
        quota: &Quota,
        own: Option<&Reservation>,
        wanted: &Reservation,
        ahead: &[Reservation],
    ) -> Result<(), Over> {
        for holder in &wanted.holders {
            let had = own.map(|own| own.for_whom(holder)).unwrap_or_default();
            let others = self.held(holder).minus(had);
            let held = ahead.iter().fold(others, |sum, its| sum.plus(its.for_whom(holder)));
            let (table, ceiling) = holder.bound(quota);
            check(&ceiling, held, had, wanted.amounts).map_err(|excess| Over {
                holder: holder.clone(),
                table,
                excess,
                is_change: had.leases > 0,
                mechanism: wanted.mechanism,
                gpus: wanted.gpus,
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::book::Held;
    use super::super::record::{RevocationRecord, sample};
    use super::*;
    use gpool_protocol::{GpuUuid, LeaseId, Priority};
    use std::path::Path;
    use std::time::Instant;

    const GIB: u64 = 1 << 30;

    fn quota(text: &str) -> Quota {
        gpool_configuration::parse(Path::new("config.toml"), text).unwrap().quota
    }

    fn lease(id: &str, team: Option<&str>, permille: u16) -> Record {
        Record {
            lease_id: LeaseId(id.into()),
            team: team.map(str::to_owned),
            fraction_permille: permille,
            memory_cap_bytes: 4 * GIB,
            ..sample()
        }
    }

    fn counted(record: &Record, gpus: &[Gpu]) -> (u64, u64, u64) {
        let amounts = Reservation::of(record, gpus).amounts;
        (amounts.share_permille, amounts.memory_bytes / GIB, amounts.leases)
    }

    fn kept(record: Record) -> Held {
        Held { record, gpus: vec![0], until: Instant::now() }
    }

    #[test]
    fn a_lease_counts_what_nobody_else_can_be_promised() {
        let own = lease("01", None, 300);
        let of = |change: &dyn Fn(&mut Record)| {
            let mut record = own.clone();
            change(&mut record);
            counted(&record, &[])
        };
        assert_eq!(of(&|_| {}), (300, 4, 1));
        assert_eq!(of(&|its| its.gpu_uuids = vec![GpuUuid("a".into()), GpuUuid("b".into())]), (600, 8, 1));
        assert_eq!(of(&|its| its.priority = Priority::Burst), (0, 4, 1));
        assert_eq!(of(&|its| its.priority = Priority::Scavenger), (0, 4, 1));
        assert_eq!(of(&|its| its.mechanism = Mechanism::Mps), (300, 4, 1));
        assert_eq!(of(&|its| its.mechanism = Mechanism::TimeSlice), (300, 0, 1), "there is no cap");
        assert_eq!(of(&|its| its.mechanism = Mechanism::Exclusive), (1000, 4, 1));
        let whole = |its: &mut Record| (its.mechanism, its.priority) = (Mechanism::Exclusive, Priority::Burst);
        assert_eq!(of(&whole), (1000, 4, 1), "a whole GPU is nobody else's, whatever the priority");
        let taken = |its: &mut Record| {
            its.revocation = Some(RevocationRecord { devices: [(195, 0)].into(), is_denied: true, is_settled: false });
        };
        assert_eq!(of(&taken), (300, 4, 1), "something of it may be left there");
        let settled = |its: &mut Record| (taken(its), its.give_share_up()).1;
        assert_eq!(of(&settled), (0, 0, 0));
    }

    #[test]
    fn an_instance_counts_by_its_compute_slices() {
        let of = |profile: &str, mechanism, permille| {
            let record = Record { mig_profile: Some(profile.into()), mechanism, ..lease("01", None, permille) };
            counted(&record, &[]).0
        };
        assert_eq!(of("3g.40gb", Mechanism::Mig, 1000), 428);
        assert_eq!(of("7g.80gb", Mechanism::Mig, 1000), 1000);
        assert_eq!(of("3g.40gb", Mechanism::Slice, 500), 214, "half of an instance");
        assert!(7 * of("1g.10gb", Mechanism::Mig, 1000) <= 1000, "seven of them are a GPU and no more");
        let mut gpu = Gpu::sample(0);
        gpu.name = "NVIDIA A30".into();
        let mut record = Record { mig_profile: Some("1g.6gb".into()), ..lease("01", None, 1000) };
        (record.mechanism, record.gpu_uuid) = (Mechanism::Mig, gpu.uuid.clone());
        assert_eq!(counted(&record, &[gpu]).0, 250, "an A30 has four");
    }

    #[test]
    fn leases_count_for_their_team_and_their_user_wherever_they_stand() {
        let own = Record { owner_uid: 1000, ..lease("03", None, 100) };
        let book = Book {
            held: vec![kept(lease("01", Some("vision"), 300)), kept(own)],
            stranded: vec![lease("02", Some("vision"), 200), lease("04", Some("speech"), 50)],
            ..Book::default()
        };
        let standing = Standing::of(&book, &[]);
        let held = |holder: Holder| (standing.held(&holder).share_permille, standing.held(&holder).leases);
        assert_eq!(held(Holder::Team("vision".into())), (500, 2));
        assert_eq!(held(Holder::Team("speech".into())), (50, 1));
        assert_eq!((held(Holder::NoTeam), held(Holder::User(1000))), ((100, 1), (100, 1)));
        assert_eq!(held(Holder::User(0)), (550, 3));
        assert_eq!((held(Holder::Team("other".into())), standing.holders().count()), ((0, 0), 5));
    }

    #[test]
    fn the_file_and_requests_write_memory_the_same_way() {
        for size in
            ["4GiB", "4G", "4gb", "1536 MiB", "1048577B", "1t", "2K", "0GiB", "4.5GiB", "4XB", "-1GiB", "25%", "80", ""]
        {
            let parsed =
                gpool_configuration::parse(Path::new("config.toml"), &format!("quota.no_team.memory = {size:?}"));
            let read = parsed.ok().and_then(|read| Some(read.quota.no_team.memory?.bytes));
            assert_eq!(read, gpool_protocol::parse_bytes(size).ok(), "{size}");
        }
    }

    #[test]
    fn both_quotas_hold_and_what_others_ahead_will_have_counts_as_well() {
        let quota = quota("[quota.team.vision]\ngpus = \"0.8\"\n[quota.user.1000]\nleases = 2\n");
        let of = |id: &str, team: Option<&str>, uid, permille| {
            Reservation::of(&Record { owner_uid: uid, ..lease(id, team, permille) }, &[])
        };
        let book = Book { stranded: vec![lease("01", Some("vision"), 500)], ..Book::default() };
        let standing = Standing::of(&book, &[]);
        let check = |wanted: &Reservation, ahead: &[Reservation]| standing.check(&quota, None, wanted, ahead);
        assert_eq!(check(&of("02", Some("vision"), 0, 300), &[]), Ok(()));
        let over = check(&of("02", Some("vision"), 0, 301), &[]).unwrap_err();
        assert_eq!((over.table.as_str(), over.excess.held), ("quota.team.vision", 500));
        assert_eq!(check(&of("02", Some("speech"), 0, 900), &[]), Ok(()), "another team has none");
        let ahead = [of("03", Some("vision"), 0, 200), of("04", Some("speech"), 0, 900)];
        assert_eq!(check(&of("02", Some("vision"), 0, 100), &ahead), Ok(()));
        assert!(check(&of("02", Some("vision"), 0, 101), &ahead).is_err());
        let two = [of("05", None, 1000, 100), of("06", Some("speech"), 1000, 100)];
        assert_eq!(check(&of("07", Some("vision"), 1000, 100), &two[..1]), Ok(()));
        assert_eq!(check(&of("07", Some("vision"), 1000, 100), &two).unwrap_err().holder, Holder::User(1000));
    }

    #[test]
    fn who_comes_back_or_changes_keeps_what_it_has_under_a_lower_quota() {
        let low = quota("[quota.team.vision]\ngpus = \"0.1\"\nleases = 0\n[quota.no_team]\nleases = 0\n");
        let record = lease("01", Some("vision"), 300);
        let own = Reservation::of(&record, &[]);
        let book = Book { held: vec![kept(record.clone())], ..Book::default() };
        let standing = Standing::of(&book, &[]);
        let check = |new: &Record| standing.check(&low, Some(&own), &Reservation::of(new, &[]), &[]);
        assert_eq!(check(&record), Ok(()));
        assert_eq!(check(&lease("02", Some("vision"), 200)), Ok(()), "lower, and still above it");
        let over = check(&lease("02", Some("vision"), 301)).unwrap_err().worded();
        assert!(over.message.contains("0.301 is asked for") && over.remedy.contains("0.1 or less"), "{over}");
        let burst = Record { priority: Priority::Burst, ..record.clone() };
        let own = Reservation::of(&burst, &[]);
        let again = standing.check(&low, Some(&own), &Reservation::of(&record, &[]), &[]);
        assert!(again.is_err(), "what it did not reserve before is more");
        assert!(check(&lease("02", None, 300)).is_err(), "it had nothing of another team's");
    }

    #[test]
    fn a_refusal_names_who_what_and_what_to_do() {
        let quota = quota(
            "[quota.team.vision]\ngpus = \"2\"\nmemory = \"10GiB\"\n[quota.default_team]\nleases = 1\n[quota.no_team]\nleases = 0\n",
        );
        let said = |held: &[Record], wanted: &Record, own: Option<&Record>| {
            let book = Book { stranded: held.to_vec(), ..Book::default() };
            let own = own.map(|own| Reservation::of(own, &[]));
            let over = Standing::of(&book, &[]).check(&quota, own.as_ref(), &Reservation::of(wanted, &[]), &[]);
            over.unwrap_err().worded().to_string()
        };
        let two = |id: &str, permille| {
            let uuids = vec![GpuUuid("a".into()), GpuUuid("b".into())];
            Record { gpu_uuids: uuids, memory_cap_bytes: GIB, ..lease(id, Some("vision"), permille) }
        };
        assert_eq!(
            said(&[two("01", 750)], &two("02", 500), None),
            "gpool: [quota.team.vision] gpus allows team vision 2 GPUs of guaranteed share: 1.5 is reserved, and 1 is asked for; \
             ask for 0.5 or less in all, ask for priority=burst, which reserves no share and has what is idle, end a container \
             (gpool quota ls shows who has how much), or add wait, for example GPOOL_WAIT=10m [GPOOL-E206]"
        );
        let own = two("01", 750);
        let changed = said(&[own.clone(), two("02", 250)], &two("01", 1000), Some(&own));
        assert!(changed.contains("0.5 is reserved by others of its containers, and 2 is asked for"), "{changed}");
        assert!(changed.contains("ask for 1.5 or less in all") && !changed.contains("GPOOL_WAIT"), "{changed}");
        let three = lease("03", Some("vision"), 100);
        let memory = said(&[three.clone(), three.clone()], &three, None);
        assert!(
            memory.contains("memory allows team vision 10GiB of memory: 8GiB is reserved, and 4GiB is"),
            "{memory}"
        );
        assert!(memory.contains("ask for 2048MiB or less in all") && !memory.contains("burst"), "{memory}");
        let large = Record { memory_cap_bytes: 11 * GIB, ..three };
        let never = said(&[], &large, None);
        assert!(never.contains("10GiB of memory altogether, and 11GiB is asked for"), "{never}");
        assert!(never.contains("have the quota raised") && !never.contains("GPOOL_WAIT"), "{never}");
        let other = lease("04", Some("a.b"), 100);
        let number = said(std::slice::from_ref(&other), &other, None);
        assert!(number.contains("[quota.default_team] leases allows team a.b 1 container: 1 is reserved"), "{number}");
        let nameless = said(&[], &lease("05", None, 100), None);
        assert!(
            nameless.contains("[quota.no_team] leases allows no containers without a team; name a team"),
            "{nameless}"
        );
    }
}
