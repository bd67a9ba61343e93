//! What is new in the book since the ledger was written last, settled by GPU and laid into minutes.
//!
//! It is settled over spans of ten seconds, whoever asks or ends in between: what is written within a span is provisional, and
//! the next writing takes it back as far as it was wrong.

use crate::lease::{GpuStatement, Statement, kib_s};
use gpool_policy::ledger::{Held, Slot, settle, slots, spread, spread_entry};
use gpool_protocol::{GpuUuid, LeaseId, Mechanism};
use std::collections::{BTreeMap, BTreeSet};

/// Over so much time it is settled at once, or a little more.
pub const SPAN_NS: u64 = 10_000_000_000;
/// Slots of a minute and of an hour, in seconds.
pub const MINUTE_S: u64 = 60;
pub const HOUR_S: u64 = 3600;
/// What was not written for longer than this is laid into hours: there are too many minutes in it.
const LONG_NS: u64 = 600_000_000_000;

/// What the ledger knows from before this life of the supervisor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Before {
    /// When it was written last, Unix milliseconds. None of a new one.
    pub entered_unix_ms: Option<u64>,
    /// The same on CLOCK_MONOTONIC, if that was in this boot.
    pub entered_ns: Option<u64>,
    /// Leases that had not ended, with what had been charged on each GPU.
    pub open: BTreeMap<LeaseId, BTreeMap<GpuUuid, u64>>,
}

/// One moment of this host, by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// CLOCK_MONOTONIC, nanoseconds.
    pub now_ns: u64,
    /// Unix time, milliseconds.
    pub unix_ms: u64,
}

impl Moment {
    /// Up to when it can be entered now, where charges are known until `charged_until_ns`. Promises go no further than charges: who has
    /// just its share would have left some of it in one span, and had more in the next. A look at the charges that does not come is not
    /// waited for.
    pub fn of_charges(self, charged_until_ns: u64) -> Self {
        let now_ns = match charged_until_ns {
            0 => self.now_ns,
            until_ns => until_ns.clamp(self.now_ns.saturating_sub(SPAN_NS), self.now_ns),
        };
        Self { now_ns, unix_ms: self.unix_ms.saturating_sub((self.now_ns - now_ns) / 1_000_000) }
    }
}

/// The minute or hour that something lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct When {
    /// Where it begins.
    pub slot: Slot,
    /// How long it is.
    pub seconds: u64,
}

/// Which line something is in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineKey {
    /// The minute or hour.
    pub when: When,
    /// The lease.
    pub lease: LeaseId,
    /// The GPU.
    pub gpu: GpuUuid,
}

/// What is in a line: nanoseconds of GPU time, and memory times time in KiB seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Used of its own share.
    pub within_ns: i64,
    /// Used beyond its share.
    pub burst_ns: i64,
    /// Of that, while it was of a priority that is promised nothing.
    pub low_ns: i64,
    /// Of its share, had by others.
    pub lent_ns: i64,
    /// Of its share, had by nobody.
    pub idle_ns: i64,
    /// Of its share, where nobody can say what became of it: in a MIG instance.
    pub unmetered_ns: i64,
    /// Of its share, while no supervisor was there.
    pub unwatched_ns: i64,
    /// Memory caps.
    pub cap_kib_s: i64,
    /// Memory in use.
    pub used_kib_s: i64,
    /// Its part of what the GPU drew.
    pub energy_millijoules: i64,
}

impl Amounts {
    /// What is to be added to `other` to come to this.
    fn beyond(self, other: Self) -> Self {
        Self {
            within_ns: self.within_ns - other.within_ns,
            burst_ns: self.burst_ns - other.burst_ns,
            low_ns: self.low_ns - other.low_ns,
            lent_ns: self.lent_ns - other.lent_ns,
            idle_ns: self.idle_ns - other.idle_ns,
            unmetered_ns: self.unmetered_ns - other.unmetered_ns,
            unwatched_ns: self.unwatched_ns - other.unwatched_ns,
            cap_kib_s: self.cap_kib_s - other.cap_kib_s,
            used_kib_s: self.used_kib_s - other.used_kib_s,
            energy_millijoules: self.energy_millijoules - other.energy_millijoules,
        }
    }
}

/// What each GPU has drawn in this life of the supervisor, in millijoules, those included that are divided now.
pub type Energies = BTreeMap<GpuUuid, u64>;

/// What there was of a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolAmounts {
    /// Its time.
    pub ns: i64,
    /// What it drew.
    pub energy_millijoules: i64,
}

impl PoolAmounts {
    /// What is to be added to `other` to come to this.
    fn beyond(self, other: Self) -> Self {
        Self { ns: self.ns - other.ns, energy_millijoules: self.energy_millijoules - other.energy_millijoules }
    }
}

/// What is written at once, to be added to what is there.
#[derive(Debug, Default)]
pub struct Batch<'a> {
    /// What leases had.
    pub lines: Vec<(LineKey, Amounts)>,
    /// What there was of each GPU.
    pub pool: Vec<(When, GpuUuid, PoolAmounts)>,
    /// The leases, with what has been charged on each GPU until now.
    pub leases: Vec<&'a Statement>,
    /// Leases whose ends nobody has seen, because no supervisor was there.
    pub lost: Vec<LeaseId>,
}

/// What lies in the span that is not over: all of it, however often it was written.
#[derive(Debug, Clone, Default)]
struct Sheet {
    lines: BTreeMap<LineKey, Amounts>,
    pool: BTreeMap<(When, GpuUuid), PoolAmounts>,
}

/// What had been entered of a lease when the span began.
#[derive(Debug, Clone, Default)]
struct Known {
    begun_ns: u64,
    until_ns: u64,
    reserved_ns: u64,
    cap_kib_s: u64,
    charged_ns: BTreeMap<GpuUuid, u64>,
    used_bytes: BTreeMap<GpuUuid, u64>,
    energy_millijoules: BTreeMap<GpuUuid, u64>,
}

/// What has been entered so far.
#[derive(Debug, Clone, Default)]
pub struct Balance {
    before: Before,
    /// When the first try was made to write it in this life, CLOCK_MONOTONIC.
    begun_ns: u64,
    /// When the span began that is not over; none before the first.
    span_ns: Option<u64>,
    /// Up to when each GPU's time had been entered then.
    gpus: BTreeMap<GpuUuid, u64>,
    /// What each had drawn by then.
    drawn: Energies,
    known: BTreeMap<LeaseId, Known>,
    /// What is written of the span by now.
    written: Sheet,
}

impl Balance {
    /// One that goes on from what is written down, in a life in which it was tried to write it for the first time then.
    pub fn new(before: Before, begun_ns: u64) -> Self {
        Self { before, begun_ns, ..Self::default() }
    }

    /// Whether anything was entered in this life.
    pub fn has_begun(&self) -> bool {
        self.span_ns.is_some()
    }

    /// The file is another one, in which nothing is written of the span.
    pub fn is_in_another_file(&mut self) {
        self.written = Sheet::default();
    }

    /// When the span is over, CLOCK_MONOTONIC.
    pub fn closes_ns(&self) -> u64 {
        self.span_ns.map_or(0, |begun_ns| begun_ns.saturating_add(SPAN_NS))
    }

    /// What is new at `moment`, where `present` are the GPUs that are there and `all` the leases: those that run or are
    /// stranded, and those that have ended since the span began. What becomes of the balance when that is written.
    pub fn next<'a>(
        &self,
        moment: Moment,
        (present, drawn): (&[GpuUuid], &Energies),
        all: &[&'a Statement],
    ) -> (Batch<'a>, Self) {
        let mut on: BTreeMap<&GpuUuid, Vec<(&Statement, Draft)>> = BTreeMap::new();
        for gpu in self.gpus.keys().chain(present) {
            on.entry(gpu).or_default();
        }
        let mut known = BTreeMap::new();
        for statement in all {
            let (drafts, its) = self.drafts(statement);
            drafts.into_iter().for_each(|(gpu, draft)| on.entry(gpu).or_default().push((statement, draft)));
            if statement.end.is_none() {
                known.insert(statement.facts.lease_id.clone(), its);
            }
        }
        let mut sheet = Sheet::default();
        for (gpu, drafts) in &on {
            // It is counted anew in each life.
            let of = |drawn: &Energies| drawn.get(*gpu).copied().unwrap_or(0);
            let new = of(drawn).saturating_sub(of(&self.drawn));
            sheet.settle(moment, gpu, (moment.now_ns - self.since(gpu, moment), new), drafts);
        }
        let there: BTreeSet<&LeaseId> = all.iter().map(|statement| &statement.facts.lease_id).collect();
        let lost = self.before.open.keys().filter(|id| !there.contains(id)).cloned().collect();
        let batch = Batch { lost, leases: all.to_vec(), ..sheet.beyond(&self.written) };
        let is_over = moment.now_ns >= self.closes_ns();
        let next = match is_over {
            true => Self {
                span_ns: Some(moment.now_ns),
                gpus: present.iter().map(|gpu| (gpu.clone(), moment.now_ns)).collect(),
                drawn: drawn.clone(),
                known,
                begun_ns: self.begun_ns,
                ..Self::default()
            },
            // A GPU that has come since is there from now on.
            false => {
                let mut next = Self { written: sheet, ..self.clone() };
                for gpu in present {
                    next.gpus.entry(gpu.clone()).or_insert(moment.now_ns);
                }
                next
            }
        };
        (batch, next)
    }

    /// Since when a GPU's time is not entered: of one that was not there before, from now on.
    fn since(&self, gpu: &GpuUuid, moment: Moment) -> u64 {
        let first_ns = (!self.has_begun()).then(|| self.before.entered_ns.unwrap_or(self.begun_ns));
        self.gpus.get(gpu).copied().or(first_ns).unwrap_or(moment.now_ns).min(moment.now_ns)
    }

    /// What is new of a lease on each of its GPUs, and what is known of it then.
    fn drafts<'a>(&self, statement: &'a Statement) -> (Vec<(&'a GpuUuid, Draft)>, Known) {
        let known = self.known.get(&statement.facts.lease_id).cloned();
        let known = known.unwrap_or_else(|| self.first_known(statement));
        // Sums that began anew leave out the time from what was entered last until they did.
        let (base, gap_ns) = match known.begun_ns == statement.begun_ns {
            true => ((known.reserved_ns, known.cap_kib_s), 0),
            false => ((0, 0), statement.begun_ns.saturating_sub(known.until_ns)),
        };
        let gap_reserved_ns = statement.facts.reserved_for(gap_ns);
        let reserved_ns = statement.reserved_ns.saturating_sub(base.0).saturating_add(gap_reserved_ns);
        let cap_kib_s = statement.cap_kib_s.saturating_sub(base.1).saturating_add(statement.facts.cap_for(gap_ns));
        let elapsed_ns = statement.until_ns.saturating_sub(known.until_ns);
        let is_unmetered = statement.facts.mechanism == Mechanism::Mig;
        let draft = |gpu: &'a GpuStatement| {
            let charged_ns = known.charged_ns.get(&gpu.uuid).copied().unwrap_or(gpu.charged_ns);
            let used_bytes = match statement.end {
                None => gpu.used_bytes,
                Some(_) => known.used_bytes.get(&gpu.uuid).copied().unwrap_or(0),
            };
            let used_ns = if is_unmetered { reserved_ns } else { gpu.charged_ns.saturating_sub(charged_ns) };
            let draft = Draft {
                held: Held { reserved_ns, used_ns },
                is_unmetered,
                unwatched_ns: gap_reserved_ns,
                cap_kib_s,
                used_kib_s: kib_s(used_bytes, elapsed_ns),
                // It is counted anew in each life.
                energy_millijoules: gpu
                    .energy_millijoules
                    .saturating_sub(known.energy_millijoules.get(&gpu.uuid).copied().unwrap_or(0)),
            };
            (&gpu.uuid, draft)
        };
        let by_gpu =
            |part: fn(&GpuStatement) -> u64| statement.gpus.iter().map(|gpu| (gpu.uuid.clone(), part(gpu))).collect();
        let its = Known {
            begun_ns: statement.begun_ns,
            until_ns: statement.until_ns,
            reserved_ns: statement.reserved_ns,
            cap_kib_s: statement.cap_kib_s,
            charged_ns: by_gpu(|gpu| gpu.charged_ns),
            used_bytes: by_gpu(|gpu| gpu.used_bytes),
            energy_millijoules: by_gpu(|gpu| gpu.energy_millijoules),
        };
        (statement.gpus.iter().map(draft).collect(), its)
    }

    /// What counts as entered of a lease that is seen for the first time in this life: of one that was granted in it nothing,
    /// of an older one what was written down. Where there was no ledger before, an older one counts from now on.
    fn first_known(&self, statement: &Statement) -> Known {
        let nothing = || statement.gpus.iter().map(|gpu| (gpu.uuid.clone(), 0)).collect::<BTreeMap<_, _>>();
        let begun_ns = statement.begun_ns;
        let new = |charged_ns| Known { begun_ns, until_ns: begun_ns, charged_ns, ..Known::default() };
        if !statement.is_taken_over {
            return new(nothing());
        }
        let Some(entered_unix_ms) = self.before.entered_unix_ms else { return new(BTreeMap::new()) };
        // It began at no moment of these sums: there is a gap before them.
        let with_gap =
            |until_ns: u64, charged_ns| Known { begun_ns: u64::MAX, until_ns, charged_ns, ..Known::default() };
        let entered_ns = self.before.entered_ns.unwrap_or(begun_ns);
        match self.before.open.get(&statement.facts.lease_id) {
            Some(charged_ns) => with_gap(entered_ns, charged_ns.clone()),
            // Granted after the ledger was written last.
            None => {
                let later_ms = statement.facts.created_unix_ms.saturating_sub(entered_unix_ms);
                with_gap(entered_ns.saturating_add(later_ms.saturating_mul(1_000_000)), nothing())
            }
        }
    }
}

impl Sheet {
    /// Settles `wall_ns` of a GPU until `moment`, in which it drew so much.
    fn settle(&mut self, moment: Moment, gpu: &GpuUuid, (wall_ns, drawn): (u64, u64), drafts: &[(&Statement, Draft)]) {
        let seconds = if wall_ns > LONG_NS { HOUR_S } else { MINUTE_S };
        let slots = slots(moment.unix_ms.saturating_sub(wall_ns / 1_000_000), moment.unix_ms, seconds * 1000);
        let held: Vec<Held> = drafts.iter().map(|(_, draft)| draft.held).collect();
        for ((statement, draft), entry) in drafts.iter().zip(settle(wall_ns, &held)) {
            let parts = spread_entry(entry, &slots).into_iter().zip(spread(draft.unwatched_ns, &slots));
            let memory = spread(draft.cap_kib_s, &slots).into_iter().zip(spread(draft.used_kib_s, &slots));
            let energy = spread(draft.energy_millijoules, &slots);
            let all = parts.zip(memory).zip(energy);
            for ((((slot, entry), (_, unwatched_ns)), ((_, cap_kib_s), (_, used_kib_s))), (_, drawn)) in all {
                let (within_ns, unmetered_ns) =
                    if draft.is_unmetered { (0, entry.within_ns) } else { (entry.within_ns, 0) };
                let amounts = Amounts {
                    within_ns: signed(within_ns),
                    burst_ns: signed(entry.burst_ns),
                    low_ns: if statement.facts.has_promise() { 0 } else { signed(entry.burst_ns) },
                    lent_ns: signed(entry.lent_ns),
                    idle_ns: signed(entry.idle_ns),
                    unmetered_ns: signed(unmetered_ns),
                    unwatched_ns: signed(unwatched_ns),
                    cap_kib_s: signed(cap_kib_s),
                    used_kib_s: signed(used_kib_s),
                    energy_millijoules: signed(drawn),
                };
                let (lease, gpu) = (statement.facts.lease_id.clone(), gpu.clone());
                self.lines.insert(LineKey { when: When { slot, seconds }, lease, gpu }, amounts);
            }
        }
        if wall_ns > 0 || drawn > 0 {
            let parts = spread(wall_ns, &slots).into_iter().zip(spread(drawn, &slots));
            self.pool.extend(parts.map(|((slot, ns), (_, drawn))| {
                let amounts = PoolAmounts { ns: signed(ns), energy_millijoules: signed(drawn) };
                ((When { slot, seconds }, gpu.clone()), amounts)
            }));
        }
    }

    /// What is to be added to `written` to come to this.
    fn beyond<'a>(&self, written: &Self) -> Batch<'a> {
        let keys: BTreeSet<&LineKey> = self.lines.keys().chain(written.lines.keys()).collect();
        let of = |sheet: &Self, key: &LineKey| sheet.lines.get(key).copied().unwrap_or_default();
        let line = |key: &LineKey| (key.clone(), of(self, key).beyond(of(written, key)));
        let pools: BTreeSet<&(When, GpuUuid)> = self.pool.keys().chain(written.pool.keys()).collect();
        let of = |sheet: &Self, key: &(When, GpuUuid)| sheet.pool.get(key).copied().unwrap_or_default();
        let pool = |key: &(When, GpuUuid)| (key.0, key.1.clone(), of(self, key).beyond(of(written, key)));
        Batch {
            lines: keys.into_iter().map(line).filter(|(_, amounts)| *amounts != Amounts::default()).collect(),
            pool: pools.into_iter().map(pool).filter(|(.., amounts)| *amounts != PoolAmounts::default()).collect(),
            ..Batch::default()
        }
    }
}

/// Times of centuries fit.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// What is new of a lease on one GPU.
#[derive(Debug, Clone, Copy)]
struct Draft {
    held: Held,
    /// What became of what was promised nobody can say.
    is_unmetered: bool,
    unwatched_ns: u64,
    cap_kib_s: u64,
    used_kib_s: u64,
    energy_millijoules: u64,
}
