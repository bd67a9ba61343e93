//! The rows of `auto`.

use super::ask::words;
use super::host::{Host, Pool};
use super::{Ask, Fact, Isolation, Mechanism, Phase, Trust, Workload};

words!(
    /// A row's name. `A12` is what follows when no row serves, `Asked` a mechanism that the request itself names.
    RowId {
        /// Nothing can be served.
        A0 = "A0",
        /// Virtual GPUs.
        A1 = "A1",
        /// Work that fills GPUs.
        A2 = "A2",
        /// Neighbours that must be kept apart.
        A3 = "A3",
        /// Containers that limits in software do not bind.
        A4 = "A4",
        /// Answers within milliseconds.
        A5 = "A5",
        /// Small kernels of one team.
        A6 = "A6",
        /// Answers.
        A7 = "A7",
        /// A share.
        A8 = "A8",
        /// An instance for each team.
        A9 = "A9",
        /// More memory than there is.
        A10 = "A10",
        /// A pool that its administrator gave to the driver.
        A11 = "A11",
        /// Not now.
        A12 = "A12",
        /// The request's own mode.
        Asked = "asked",
    }
);

/// One row.
#[derive(Debug)]
pub struct Row {
    /// Its name.
    pub id: RowId,
    /// When it matches, for people.
    pub when: &'static str,
    /// What it gives, the first one that the host can serve.
    pub offers: &'static [Mechanism],
    /// Whether those whom it is about get nothing weaker from a later row when it cannot be served.
    pub is_binding: bool,
    /// What else is to be known.
    pub note: &'static str,
    matches: fn(&Ask, &Host) -> Result<(), String>,
}

impl Row {
    /// Whether the row is about this request on this host; if not, why not.
    pub(super) fn matches(&self, ask: &Ask, host: &Host) -> Result<(), String> {
        (self.matches)(ask, host)
    }
}

/// Promises of at most this many milliseconds are kept by hardware alone.
const HARDWARE_P99_MS: u32 = 10;
/// Shares from here on are whole GPUs with a rest that nobody can use, in permille.
pub(crate) const NEARLY_WHOLE_PERMILLE: u16 = 900;
/// Who keeps a GPU as busy as this gains nothing from neighbours, in permille.
pub(crate) const BUSY_PERMILLE: u16 = 800;
/// Kernels shorter than this, in microseconds, do not fill a GPU.
const SMALL_BURST_US: u64 = 1000;
/// Fewer alike are not worth a server of their own.
const MPS_REPLICAS: u16 = 3;

fn when(holds: bool, why_not: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why_not()) }
}

/// The rows in the order in which they are looked at. The ones that are special cases of `A8` come before it.
pub static TABLE: [Row; 12] = [
    Row {
        id: RowId::A0,
        when: "every GPU is unhealthy, or the host is in maintenance",
        offers: &[],
        is_binding: true,
        note: "nothing is served",
        matches: |_, host| {
            let is_out = host.in_maintenance || host.gpus.iter().all(|gpu| !gpu.is_healthy);
            when(is_out, || "a GPU is healthy, and the host is not in maintenance".to_owned())
        },
    },
    Row {
        id: RowId::A1,
        when: "the GPUs are virtual ones (vGPU)",
        offers: &[Mechanism::Slices, Mechanism::Exclusive],
        is_binding: false,
        note: "the host below decides when a virtual GPU runs at all; its licence may slow it down",
        matches: |_, host| when(host.is_vgpu_guest, || "the GPUs are real ones".to_owned()),
    },
    Row {
        id: RowId::A2,
        when: "several GPUs, large training, a fraction of 0.9 or more, or a measured duty of 80 % or more",
        offers: &[Mechanism::Exclusive],
        is_binding: true,
        note: "sharing is of no use to work that fills its GPUs; several are given together or not at all",
        matches: |ask, _| {
            let is_full = ask.gpus > 1
                || ask.workload == Workload::TrainLarge
                || ask.fraction_permille >= NEARLY_WHOLE_PERMILLE
                || ask.duty_permille.is_some_and(|duty| duty >= BUSY_PERMILLE);
            when(is_full, || "it is a part of one GPU, and is not known to fill that".to_owned())
        },
    },
    Row {
        id: RowId::A3,
        when: "isolation by hardware or exclusive, or neighbours of another domain or under regulation",
        offers: &[Mechanism::Mig, Mechanism::Exclusive],
        is_binding: true,
        note: "never by limits in software",
        matches: |ask, _| {
            let is_strict = ask.isolation >= Isolation::Hardware || ask.trust >= Trust::DifferentDomain;
            when(is_strict, || format!("isolation={} and trust={} do not ask for hardware", ask.isolation, ask.trust))
        },
    },
    Row {
        id: RowId::A4,
        when: "privileged, sees the host's processes, can change what is preloaded, or reaches CUDA past the shims",
        offers: &[Mechanism::Mig, Mechanism::Exclusive],
        is_binding: true,
        note: "limits in software would not hold",
        matches: |ask, _| {
            when(ask.escapes_shims().is_some(), || "nothing is known that would escape the shims".to_owned())
        },
    },
    Row {
        id: RowId::A5,
        when: "online answers in production within 10 ms",
        offers: &[Mechanism::Mig, Mechanism::Exclusive],
        is_binding: true,
        note: "the layout must be there, or a window open",
        matches: |ask, host| {
            let is_production = ask.in_production || host.phase == Some(Phase::ProdInference);
            let is_tight = ask.p99_ms.is_some_and(|p99_ms| p99_ms <= HARDWARE_P99_MS);
            when(ask.workload == Workload::InferOnline && is_production && is_tight, || {
                "no promise of 10 ms or less is made in production".to_owned()
            })
        },
    },
    Row {
        id: RowId::A11,
        when: "the pool is given over to the driver's time slices, and no promise of time is made",
        offers: &[Mechanism::TimeSlice],
        is_binding: false,
        note: "no limits: metered by NVML alone, for development",
        matches: |ask, host| {
            when(host.pool == Pool::TimeSlice, || "the pool is not given over to them".to_owned())?;
            when(ask.p99_ms.is_none(), || "the driver's time slices keep no promise of time".to_owned())?;
            when(host.phase.is_none_or(|phase| phase == Phase::Dev), || "that is for development alone".to_owned())
        },
    },
    Row {
        id: RowId::A6,
        when: "online answers of one team, small kernels, three replicas or more, one fate accepted, not within 10 ms",
        offers: &[Mechanism::Mps],
        is_binding: false,
        note: "one server for the team: active threads of 1.2 times the fraction, a limit of pinned memory; the team is \
               the crash domain",
        matches: |ask, _| {
            when(ask.workload == Workload::InferOnline, || "it does not answer online".to_owned())?;
            when(ask.p99_ms.is_none_or(|p99_ms| p99_ms > HARDWARE_P99_MS), || "10 ms or less are promised".to_owned())?;
            when(ask.trust == Trust::SameTeam, || "the neighbours are not of the same team".to_owned())?;
            when(ask.isolation == Isolation::Shared, || format!("isolation={} forbids one fate", ask.isolation))?;
            when(ask.burst_us.is_some_and(|burst| burst < SMALL_BURST_US), || {
                "its kernels are not known to be shorter than 1 ms".to_owned()
            })?;
            when(ask.replicas >= MPS_REPLICAS, || format!("{} replicas are not three", ask.replicas))?;
            match mps_forbids(ask) {
                Some(fact) => Err(format!("{fact} does not go with MPS")),
                None => Ok(()),
            }
        },
    },
    Row {
        id: RowId::A7,
        when: "online answers, other cases of one organisation",
        offers: &[Mechanism::Slices],
        is_binding: true,
        note: "class latency; neighbours must have kernels of at most 20 ms, and the p99 is to be watched",
        matches: |ask, _| when(ask.workload == Workload::InferOnline, || "it does not answer online".to_owned()),
    },
    Row {
        id: RowId::A10,
        when: "the memory does not fit beside that of the others, and memory may go to the host",
        offers: &[Mechanism::Slices],
        is_binding: false,
        note: "long turns of 10 to 30 s, or they would only move memory",
        matches: |ask, host| {
            when(ask.is(Fact::Spill), || "the request does not let its memory go to the host".to_owned())?;
            when(host.has_spill, || "this host does not spill".to_owned())?;
            let fits = |gpu: &super::Gpu| gpu.memory_free_bytes >= ask.memory_on(gpu.memory_bytes);
            when(!host.gpus.iter().any(fits), || "the memory fits".to_owned())
        },
    },
    Row {
        id: RowId::A9,
        when: "a team's share where MIG instances are laid out, beside another team or where no GPU is whole",
        offers: &[Mechanism::SlicesInMig],
        is_binding: false,
        note: "an instance for each team, and slices inside it",
        matches: |ask, host| {
            let has_instances = host.gpus.iter().any(|gpu| gpu.mig.is_on && !gpu.mig.instances.is_empty());
            when(has_instances, || "no GPU is divided into instances".to_owned())?;
            let Some(team) = &ask.team else { return Err("the request names no team".to_owned()) };
            let is_alone = host.teams().iter().all(|other| other == team);
            let has_whole = host.gpus.iter().any(|gpu| gpu.is_healthy && !gpu.mig.is_on);
            when(!is_alone || !has_whole, || "no other team is there, and a GPU is whole".to_owned())
        },
    },
    Row {
        id: RowId::A8,
        when: "notebooks, development, tuning, batch answers, computing, and training of less than 0.9 of a GPU",
        offers: &[Mechanism::Slices],
        is_binding: false,
        note: "by weight, and with a ceiling if one is asked for",
        matches: |_, _| Ok(()),
    },
];

/// What is known of a request that no MPS server bears.
pub(super) fn mps_forbids(ask: &Ask) -> Option<Fact> {
    use Fact::{Checkpoint, Debugger, NeedsFaultIsolation, NeedsIpcIsolation};
    [Checkpoint, Debugger, NeedsIpcIsolation, NeedsFaultIsolation].into_iter().find(|fact| ask.is(*fact))
}
