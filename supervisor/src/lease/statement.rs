//! What the book says of each lease at one moment, for the ledger.

use super::account::GpuAccount;
use super::book::{Book, Lease};
use super::ending::Ending;
use super::meter::promised_permille;
use super::read_ahead::{ReadAhead, Said};
use super::record::Record;
use crate::region::Report;
use gpool_protocol::{GpuUuid, LeaseId, Mechanism, Priority};

/// What a lease is. Its promise, class and priority as they are now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Its id.
    pub lease_id: LeaseId,
    /// Its container's.
    pub container_id: String,
    /// Namespace and name of its pod, of a container in one; where its engine does not say them, its sandbox and its name there.
    pub pod: Option<String>,
    /// Who pays.
    pub team: Option<String>,
    /// For which project.
    pub project: Option<String>,
    /// On whose bill.
    pub cost_center: Option<String>,
    /// Who started it.
    pub uid: u32,
    /// How it uses the GPU.
    pub class: &'static str,
    /// Before whom it is served.
    pub priority: &'static str,
    /// How it has its share.
    pub mechanism: Mechanism,
    /// The profile of its MIG instance.
    pub mig_profile: Option<String>,
    /// When it was granted.
    pub created_unix_ms: u64,
    /// The share of each of its GPUs that nobody else can be promised.
    promised_permille: u16,
    /// The memory of each that nobody else can be promised.
    promised_bytes: u64,
    /// Its memory cap on each.
    pub cap_bytes: u64,
    /// Its share of each GPU.
    pub fraction_permille: u16,
    /// For how long it had waited, milliseconds; none where that was not written down.
    pub waited_ms: Option<u64>,
}

/// The namespace and the name of its pod; where its engine does not say them, the id of its sandbox and its own name in that.
fn pod_of(record: &Record) -> Option<String> {
    let named = record.pod.as_ref().map(|its| format!("{}/{}", its.namespace, its.pod));
    named.or_else(|| record.in_pod.as_ref().map(|its| format!("{}/{}", its.sandbox_id, its.container_name)))
}

impl Facts {
    fn of(record: &Record) -> Self {
        Self {
            lease_id: record.lease_id.clone(),
            container_id: record.container_id.0.clone(),
            pod: pod_of(record),
            team: record.team.clone(),
            project: record.project.clone(),
            cost_center: record.cost_center.clone(),
            uid: record.owner_uid,
            class: record.class.text(),
            priority: record.priority.text(),
            mechanism: record.mechanism,
            mig_profile: record.mig_profile.clone(),
            created_unix_ms: record.created_unix_ms,
            promised_permille: promised_permille(record),
            promised_bytes: record.promised_bytes(),
            cap_bytes: record.memory_cap_bytes,
            fraction_permille: record.fraction_permille,
            waited_ms: record.waited_ms,
        }
    }

    /// Whether its priority is one that is promised a share.
    pub fn has_promise(&self) -> bool {
        self.priority == Priority::Guaranteed.text()
    }

    /// GPU time that is promised of each of its GPUs for `elapsed_ns`.
    pub fn reserved_for(&self, elapsed_ns: u64) -> u64 {
        let permille_ns = u128::from(elapsed_ns) * u128::from(self.promised_permille);
        u64::try_from(permille_ns / 1000).unwrap_or(u64::MAX)
    }

    /// Cap times `elapsed_ns`, KiB seconds.
    pub fn cap_for(&self, elapsed_ns: u64) -> u64 {
        kib_s(self.promised_bytes, elapsed_ns)
    }
}

/// Memory times time, KiB seconds.
pub fn kib_s(bytes: u64, elapsed_ns: u64) -> u64 {
    let byte_ns = u128::from(elapsed_ns) * u128::from(bytes);
    u64::try_from(byte_ns / (1024 * 1_000_000_000)).unwrap_or(u64::MAX)
}

/// One lease at one moment. Its sums only grow while `begun_ns` is the same.
#[derive(Debug, Clone)]
pub struct Statement {
    /// What it is.
    pub facts: Facts,
    /// From when on its sums count, CLOCK_MONOTONIC.
    pub begun_ns: u64,
    /// Up to when.
    pub until_ns: u64,
    /// Whether it had begun before that, under an earlier supervisor.
    pub is_taken_over: bool,
    /// GPU time promised of each of its GPUs since then.
    pub reserved_ns: u64,
    /// Memory caps times time on each since then, KiB seconds.
    pub cap_kib_s: u64,
    /// The most memory that it has held on one GPU since it was granted, bytes.
    pub peak_bytes: u64,
    /// In the order of its GPUs.
    pub gpus: Vec<GpuStatement>,
    /// Its end, if it is over.
    pub end: Option<End>,
}

/// The end of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// When, Unix milliseconds. What nobody has seen end was there then, for the last time that is known.
    pub unix_ms: u64,
    /// How.
    pub how: Ending,
}

impl End {
    /// Whether somebody has seen it then.
    pub fn is_seen(&self) -> bool {
        self.how != Ending::Unseen
    }
}

/// What a lease has had of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuStatement {
    /// The GPU or MIG instance.
    pub uuid: GpuUuid,
    /// All that was charged since the lease began, under earlier supervisors too.
    pub charged_ns: u64,
    /// Memory in use now.
    pub used_bytes: u64,
    /// Its part of what the GPU has drawn in this life of the supervisor.
    pub energy_millijoules: u64,
}

impl Statement {
    /// That of a lease in the book, whose charges are known until `until_ns`, where its processes have said this.
    pub fn of(lease: &mut Lease, until_ns: u64, said: Said) -> Self {
        let view = lease.view_with(said);
        // What is held beside what processes say of themselves would be forgotten with it.
        lease.note_peak(view.memory_used_bytes);
        lease.meter.note_entered();
        let used_bytes = view.gpus.iter().map(|gpu| gpu.memory_used_bytes).collect();
        Self::with(lease, until_ns, used_bytes, view.memory_peak_bytes)
    }

    /// That of a lease that is taken out of the book.
    pub fn of_ended(lease: &mut Lease, now_ns: u64, unix_ms: u64) -> Self {
        let end = Some(End { unix_ms, how: Ending::of(lease) });
        let peak_bytes = lease.peak_bytes(&lease.figures(&mut Report::new()), 0);
        Self { end, ..Self::with(lease, now_ns, Vec::new(), peak_bytes) }
    }

    fn with(lease: &mut Lease, until_ns: u64, used_bytes: Vec<u64>, peak_bytes: u64) -> Self {
        let Lease { meter, record, accounts, .. } = lease;
        meter.run(until_ns, record);
        let of_gpu = |(place, (uuid, account)): (usize, (&GpuUuid, &GpuAccount))| GpuStatement {
            uuid: uuid.clone(),
            charged_ns: account.charged_ns(),
            used_bytes: used_bytes.get(place).copied().unwrap_or(0),
            energy_millijoules: account.energy_millijoules(),
        };
        Self {
            facts: Facts::of(record),
            begun_ns: meter.begun_ns(),
            // Of one that has come since nothing counts yet.
            until_ns: until_ns.max(meter.begun_ns()),
            is_taken_over: meter.is_taken_over(),
            reserved_ns: meter.reserved_ns(),
            cap_kib_s: meter.cap_kib_s(),
            peak_bytes,
            gpus: record.gpus().iter().zip(accounts.iter()).enumerate().map(of_gpu).collect(),
            end: None,
        }
    }

    /// That of a lease which is only written down and whose container runs on.
    pub fn of_stranded(record: &Record, now_ns: u64) -> Self {
        Self::of_record(record, now_ns)
    }

    /// That of a lease whose end nobody has seen and which was there at `unix_ms`, as it stood when it was written down last.
    pub fn of_lost(record: &Record, unix_ms: u64) -> Self {
        let at_ns = record.standing.as_ref().map_or(0, |standing| standing.at_ns);
        Self { end: Some(End { unix_ms, how: Ending::Unseen }), ..Self::of_record(record, at_ns) }
    }

    fn of_record(record: &Record, at_ns: u64) -> Self {
        let standing = record.standing.as_ref();
        let charged_ns = |place: usize| standing.and_then(|its| its.gpus.get(place)).map_or(0, |gpu| gpu.charged_ns);
        let of_gpu = |(place, uuid): (usize, &GpuUuid)| GpuStatement {
            uuid: uuid.clone(),
            charged_ns: charged_ns(place),
            used_bytes: 0,
            energy_millijoules: 0,
        };
        Self {
            facts: Facts::of(record),
            begun_ns: at_ns,
            until_ns: at_ns,
            is_taken_over: true,
            reserved_ns: 0,
            cap_kib_s: 0,
            peak_bytes: record.written_peak(),
            gpus: record.gpus().iter().enumerate().map(of_gpu).collect(),
            end: None,
        }
    }
}

/// What the book says, of leases that run until `until_ns`: of each lease in it, whose processes have said what was read `ahead`, and of
/// those that are stranded; and of those that have ended since it was asked last, which it forgets.
pub fn statements(book: &mut Book, until_ns: u64, ahead: &ReadAhead) -> (Vec<Statement>, Vec<Statement>) {
    let ended = std::mem::take(&mut book.ended);
    // One that is just being taken over, or is found to have ended, is in two places for a moment.
    let is_settled = |record: &Record| {
        let id = &record.lease_id;
        book.leases.contains_key(id) || ended.iter().any(|statement| statement.facts.lease_id == *id)
    };
    let stranded = book.stranded.iter().filter(|record| !is_settled(record));
    let stranded: Vec<Statement> = stranded.map(|record| Statement::of_stranded(record, until_ns)).collect();
    let mut report = Report::new();
    let running = book.leases.values_mut().map(|lease| {
        let said = ahead.said(lease, &mut report);
        Statement::of(lease, until_ns, said)
    });
    (running.chain(stranded).collect(), ended)
}
