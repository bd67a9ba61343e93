//! The families of figures: their names, kinds, labels and meanings. The page of the manual is made of them.

/// Nanoseconds in a second of GPU time.
pub const GPU_NS_PER_SECOND: f64 = 1e9;

/// Whether a figure only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It goes up and down.
    Gauge,
    /// It grows, and begins anew with the supervisor or with the lease.
    Counter,
}

impl Kind {
    /// As Prometheus calls it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
        }
    }
}

/// One family, as it is explained.
#[derive(Debug, Clone, Copy)]
pub struct Description {
    /// With the unit, as Prometheus wants it.
    pub name: &'static str,
    /// Whether it only grows.
    pub kind: Kind,
    /// The labels of each figure.
    pub labels: &'static [&'static str],
    /// One sentence without a full stop.
    pub help: &'static str,
}

macro_rules! families {
    ($($family:ident $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        /// A family of figures.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Family {
            $(#[doc = $help] $family,)*
        }

        /// All of them, in the order of the page.
        pub const FAMILIES: &[(Family, Description)] = &[$((
            Family::$family,
            Description { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help },
        ),)*];
    };
}

families! {
    BuildInfo Gauge "gpool_build_info" ["version"] "Always 1: the version of the supervisor";
    StartTime Gauge "gpool_supervisor_start_time_seconds" [] "When the supervisor started, in seconds since 1970";
    OwnProcessors Counter "gpool_supervisor_cpu_seconds_total" [] "Time of processors that the supervisor itself has used";
    OwnMemory Gauge "gpool_supervisor_resident_memory_bytes" [] "The host's memory that it has";
    OwnDescriptors Gauge "gpool_supervisor_open_fds" [] "Descriptors that it has open";
    Leases Gauge "gpool_leases" ["state"] "Leases and kept places by state";
    HandoffMedian Gauge "gpool_handoff_p50_seconds" []
        "From a gate's opening to the first launch behind it: the middle one of the last 5 to 10 s; absent when there was none";
    HandoffLate Gauge "gpool_handoff_p99_seconds" [] "The same at the 99th percentile";
    Slice Gauge "gpool_slice_seconds" [] "The slice that follows from the hand-off, the longest of all GPUs";
    GateMoves Counter "gpool_gate_moves_total" ["to"] "Decisions to open or renew (open) and to close (close) a gate, all leases together";
    Refusals Counter "gpool_requests_refused_total" ["code"] "Requests for a lease that the supervisor refused, by error code";
    QueueWaiting Gauge "gpool_queue_waiting" [] "Containers that wait for room";
    QueueOldest Gauge "gpool_queue_oldest_wait_seconds" [] "How long the one has waited that came first; 0 with nobody waiting";
    QueueLeft Counter "gpool_queue_left_total" ["how"]
        "Waits for room that have ended: with a lease (granted), when their time was over or something else was refused (refused), by gpool queue cancel (cancelled), or because nobody asked any more (gone)";
    QueueWaited Counter "gpool_queue_wait_seconds_total" ["how"] "How long those waits were, all together";
    Deadlines Counter "gpool_deadlines_total" ["outcome"] "Requests that wait and have a deadline: room was planned for it in time (planned), or is not any more (at_risk)";
    QueueBackfilled Counter "gpool_queue_backfilled_total" [] "Leases granted in room that is kept for another container, which cannot begin before their run times are over";
    IdleActions Counter "gpool_idle_actions_total" ["action"]
        "What was done about containers that make no use of their GPUs: told, revoked, not_revoked, suspended, not_suspended";
    Preemptions Counter "gpool_preemptions_total" ["outcome"]
        "What came of containers that had to make room for one of a higher priority: the notice (told), its end because the room was not needed any more (withdrawn), that they ended within the grace (left), and after it that they were suspended (suspended), or that their GPUs were taken (revoked) or could not be (not_revoked)";
    Suspensions Counter "gpool_suspensions_total" ["outcome"]
        "What came of containers that were to be moved to the host's memory: that they were (suspended) or could not be (not_suspended), and that they have come back (woken) or the driver has lost their programs (lost)";
    RunTimes Counter "gpool_run_times_total" ["outcome"]
        "What was done about containers whose run time is over: the notice before (told), and that their GPUs were taken (revoked) or could not be (not_revoked)";
    QuotaHeldGpus Gauge "gpool_quota_held_gpus" ["of", "name"]
        "Guaranteed share that a team's or a user's leases and kept places have of all GPUs together: of is team, with the team as name, no-team, of all without one, or user, with its number";
    QuotaAllowedGpus Gauge "gpool_quota_allowed_gpus" ["of", "name"] "The most that it may be; absent where [quota] bounds none";
    QuotaHeldMemory Gauge "gpool_quota_held_bytes" ["of", "name"] "Their memory caps on all GPUs together";
    QuotaAllowedMemory Gauge "gpool_quota_allowed_bytes" ["of", "name"] "The most that it may be; absent where [quota] bounds none";
    QuotaHeldLeases Gauge "gpool_quota_held_leases" ["of", "name"] "How many they are";
    QuotaAllowedLeases Gauge "gpool_quota_allowed_leases" ["of", "name"] "The most that it may be; absent where [quota] bounds none";
    QuotaWaiting Gauge "gpool_quota_waiting" ["of", "name"] "Containers of theirs that wait in the queue, for whatever reason";
    QuotaBudget Gauge "gpool_quota_budget_gpu_seconds" ["of", "name", "period"]
        "What may be reserved in a day, week or month, in seconds of a GPU; absent where [quota] bounds none";
    QuotaSpent Gauge "gpool_quota_spent_gpu_seconds" ["of", "name", "period"]
        "What of it has been since that began: it falls to 0 when the next one does, and is absent while the ledger could not be read";
    QuotaHeldUp Gauge "gpool_quota_held_up" ["of", "name"] "Those of them that wait for a quota of their team or their user, and not for room on a GPU";
    Overflow Gauge "gpool_overflow" [] "1 while the host is short of room: somebody has waited for it for [overflow] after_seconds, and since then nobody for clear_seconds";
    OverflowGpus Gauge "gpool_overflow_wanted_gpus" []
        "What those who wait for room on GPUs would have of their time, in GPUs: not who waits for a quota of its own, for the host's memory, or for a moment that was planned for it";
    OverflowMemory Gauge "gpool_overflow_wanted_bytes" [] "And of their memory";
    Overrides Gauge "gpool_overrides" [] "Teams and users for whom no quota holds for a while, and who stand first in the queue";
    ReservationOpen Gauge "gpool_reservation_open" ["reservation"] "1 while it is the time of a [reservation]";
    ReservationGpus Gauge "gpool_reservation_gpus" ["reservation"]
        "Guaranteed share that it keeps of all its GPUs together, with what those have of it who may have it; 0 while nothing is kept";
    ReservationMemory Gauge "gpool_reservation_bytes" ["reservation"] "Memory that it keeps so";
    ReservationUsedGpus Gauge "gpool_reservation_used_gpus" ["reservation"] "What of that share those have who may have it";
    ReservationUsedMemory Gauge "gpool_reservation_used_bytes" ["reservation"] "What of that memory they have";
    ReservationMissingGpus Gauge "gpool_reservation_missing_gpus" ["reservation"]
        "What of that share others have still, with all of each GPU that is not there";
    ReservationMissingMemory Gauge "gpool_reservation_missing_bytes" ["reservation"] "What of that memory others have still";
    GuardActions Counter "gpool_guard_actions_total" ["action"]
        "What was done about containers found past the shims or above their cap: told, frozen, not_frozen, revoked, not_revoked, killed, not_killed";
    Events Counter "gpool_events_total" ["kind"] "Events by kind";
    Rounds Counter "gpool_thread_rounds_total" ["thread"] "Rounds begun by the threads that the watchdog counts";
    Complaints Counter "gpool_watchdog_complaints_total" [] "Looks of the watchdog after which systemd was not told that the work goes on";
    LogLinesLost Counter "gpool_log_lines_lost_total" [] "Lines of the log that were lost because nobody took those before them";
    ConfigurationUsable Gauge "gpool_configuration_usable" []
        "0 while the files of the configuration cannot be used, and what was taken over before is in force; 1 else";
    DriverReplaced Gauge "gpool_driver_replaced" []
        "1 while the driver's libraries are of another version than its kernel module, so that no container is started";
    LedgerWritten Gauge "gpool_ledger_written_timestamp_seconds" []
        "When the ledger was written last, in seconds since 1970, every ten seconds if all is well; while it was not since the supervisor started, when that was; absent where none is kept";
    TeamReserved Counter "gpool_team_reserved_seconds_total" ["team"]
        "GPU time that a team's leases were promised since the supervisor started, by what is written down every ten seconds, an instance by its part of a GPU; of leases without a team under an empty name, and of all beyond 256 teams under (others)";
    TeamUsed Counter "gpool_team_used_seconds_total" ["team"]
        "GPU time that they were charged, likewise";
    AuditWritten Counter "gpool_audit_events_total" [] "Events written down for good since the supervisor started";
    AuditLost Counter "gpool_audit_lost_total" [] "Events that could not be, because the disk was full for too long";
    AuditPending Gauge "gpool_audit_pending_events" [] "Events that wait to be written down: some milliseconds each, if all is well";
    AuditWrittenAt Gauge "gpool_audit_written_timestamp_seconds" []
        "When all events that there were had been written down last, in seconds since 1970, every minute if all is well; while they were not since the supervisor started, when that was";
    Gpus Gauge "gpool_gpus" ["state"]
        "GPUs of this host as NVML counts them, divided ones once: those that gpool serves (served), and those that it has left out since the supervisor started because NVML did not answer for them (left-out)";
    GpuInfo Gauge "gpool_gpu_info" ["gpu_uuid", "index", "name", "driver_version", "nvlink_island", "board_uuid", "mig_profile"]
        "Always 1: a GPU of this host, with its index as nvidia-smi has it; GPUs of one island reach each other over NVLink, and of one that reaches none it is empty. Of a MIG instance the index is its board's, and the last two say which board and which profile";
    GpuMemory Gauge "gpool_gpu_memory_capacity_bytes" ["gpu_uuid"] "Memory of the GPU that programs can have";
    GpuDrained Gauge "gpool_gpu_drained" ["gpu_uuid"] "1 while it takes no new leases because of gpool gpu drain; of an instance, its board";
    GpuSilent Gauge "gpool_gpu_silent" ["gpu_uuid"] "1 while NVML does not answer for it and it takes no new leases; one that did not answer at the start is in no figure";
    GpuXids Counter "gpool_gpu_xids_total" ["gpu_uuid", "xid"] "Xids that the driver has told of the GPU since the supervisor started, by number";
    GpuHealth Gauge "gpool_gpu_health" ["gpu_uuid", "kind"]
        "1 while the GPU's own figures show it: remap-failure, remap-pending, ecc-uncorrected, thermal, pcie-replay, pcie-width, test-failed; 0 while they do not, absent of what NVML does not tell";
    GpuHealthAccepted Gauge "gpool_gpu_health_accepted" ["gpu_uuid", "kind"]
        "1 while that is found and was accepted: somebody has ended the draining of the GPU with it";
    GpuHealthEvents Counter "gpool_gpu_health_events_total" ["gpu_uuid", "kind"]
        "How often that was found or became more since the supervisor started";
    GpuTests Counter "gpool_gpu_tests_total" ["gpu_uuid", "outcome"]
        "Tests of the GPU that have ended since the supervisor started: passed, failed, not-run";
    GpuTestedAt Gauge "gpool_gpu_last_test_timestamp_seconds" ["gpu_uuid"]
        "When the last test of the GPU ended that passed or failed, Unix time; absent if there was none";
    GpuMemoryUsed Gauge "gpool_gpu_memory_used_bytes" ["gpu_uuid"] "Memory held by anybody, as NVML says, at most a second old; absent of one that is silent; of a divided GPU its instances tell";
    GpuMemoryOutside Gauge "gpool_gpu_memory_outside_bytes" ["gpu_uuid"] "What of that is within no lease's promise, beyond the headroom, and so cannot be leased: of processes without a lease, of leases above their caps, or of no process; absent where that is";
    GpuMemoryHeadroom Gauge "gpool_gpu_memory_headroom_bytes" ["gpu_uuid"] "Memory that is sold to nobody, [driver] headroom_bytes: it is not in gpool_gpu_memory_capacity_bytes";
    GpuMemoryLeased Gauge "gpool_gpu_memory_committed_bytes" ["gpu_uuid"] "Memory promised to leases and kept places";
    GpuShareLeased Gauge "gpool_gpu_share_committed_ratio" ["gpu_uuid"] "Share promised to guaranteed leases and kept places";
    GpuCharged Gauge "gpool_gpu_charged_ratio" ["gpu_uuid"]
        "Utilisation: GPU time charged to all leases, ended ones included, over about the last ten seconds, as a part of that time; absent of a divided GPU, and of an instance while a lease has it with mode=mig, as NVML has no figures of it";
    GpuTime Counter "gpool_gpu_used_seconds_total" ["gpu_uuid"]
        "GPU time charged to all leases since the supervisor started, those included that no look at the figures has met; absent as the one before";
    GpuEnergy Counter "gpool_gpu_energy_joules_total" ["gpu_uuid"]
        "What the GPU has drawn since the supervisor started; absent where it does not count that, and while it is divided";
    LeaseInfo Gauge "gpool_lease_info" ["container_id", "lease_id", "owner_uid", "class", "priority", "mechanism", "enforcement", "team", "project", "cost_center", "pod_namespace", "pod_name", "pod_container"]
        "Always 1: a lease or kept place; of a container in no pod the last three are empty";
    LeaseEntitled Gauge "gpool_lease_share_entitled_ratio" ["container_id", "lease_id", "gpu_uuid"]
        "Share that the lease is promised of the GPU: 0 of a priority below guaranteed, in time slices without a fraction and once its GPUs were taken from it";
    LeaseUsed Gauge "gpool_lease_share_used_ratio" ["container_id", "lease_id", "gpu_uuid"]
        "GPU time charged over about the last ten seconds, as a part of that time; above the promise when others leave time; absent with mode=mig, as NVML has no figures of it";
    LeaseLent Gauge "gpool_lease_share_lent_ratio" ["container_id", "lease_id", "gpu_uuid"]
        "What others had of its promise over the same time: what leases have beyond their shares is taken from what nobody was promised first, and the rest is lent by each according to what it left. Of slices and time slices with a promise alone";
    LeaseLimit Gauge "gpool_lease_share_limit_ratio" ["container_id", "lease_id"] "The most that it may have of each GPU; absent without a limit";
    LeaseGpuTime Counter "gpool_lease_used_seconds_total" ["container_id", "lease_id", "gpu_uuid"]
        "GPU time charged since the lease was made; absent with mode=mig, as NVML has no figures of it";
    LeaseEnergy Counter "gpool_lease_energy_joules_total" ["container_id", "lease_id", "gpu_uuid"]
        "The lease's part of what the GPU has drawn, since the supervisor started; 0 of a GPU that does not count it; absent with mode=mig";
    LeaseMemoryCap Gauge "gpool_lease_memory_cap_bytes" ["container_id", "lease_id"] "Memory cap on each GPU, contexts included";
    LeaseMemoryUsed Gauge "gpool_lease_memory_used_bytes" ["container_id", "lease_id", "gpu_uuid"] "Memory charged to the lease, contexts included";
    LeaseMemoryLimit Gauge "gpool_lease_memory_limit_bytes" ["container_id", "lease_id", "gpu_uuid"]
        "What the driver itself lets the container's processes have of the GPU; absent where it keeps no limit";
    LeaseSpillLimit Gauge "gpool_lease_spill_limit_bytes" ["container_id", "lease_id"]
        "How much of what it allocates beyond its cap may lie in the host's memory; absent where nothing may";
    LeaseSpilled Gauge "gpool_lease_spilled_bytes" ["container_id", "lease_id"] "What lies there; absent where nothing may";
    LeaseMemoryPeak Gauge "gpool_lease_memory_peak_bytes" ["container_id", "lease_id"]
        "The most memory that the lease has held on one GPU since it was made, contexts included";
    LeaseRefused Counter "gpool_lease_allocations_refused_total" ["container_id", "lease_id"] "Allocations refused because of the cap, or because the GPU itself had no memory left (event gpu-full); absent without shims, as all that they count";
    LeaseProgramFaults Counter "gpool_lease_program_faults_total" ["container_id", "lease_id"]
        "Processes that have lost their work on a GPU for good, by a fault of their own or of the GPU; absent without shims";
    LeaseUnknownVersions Counter "gpool_lease_unknown_versions_total" ["container_id", "lease_id"]
        "Look-ups refused because the shim does not know the version of a function; absent without shims";
    LeaseGateWait Counter "gpool_lease_gate_wait_seconds_total" ["container_id", "lease_id"] "Time that all threads together stood at a closed gate; absent without shims";
    LeaseLaunches Counter "gpool_lease_launches_total" ["container_id", "lease_id"] "Launches, counted when their burst ends; absent without shims";
    LeaseProcesses Gauge "gpool_lease_processes" ["container_id", "lease_id"] "Registered processes that are alive; absent without shims";
    LeaseIdle Gauge "gpool_lease_idle_seconds" ["container_id", "lease_id"]
        "For how long it has made no use of its GPUs, 0 or 1 while it does; absent where nobody knows, as with mode=mig and mps, and without a running container";
    LeaseLag Gauge "gpool_lease_lag_seconds" ["container_id", "lease_id", "gpu_uuid"]
        "GPU time that the scheduler owes the lease, or below 0 what it has had too much. Of slices alone";
    LeaseKernel Gauge "gpool_lease_kernel_seconds" ["container_id", "lease_id"]
        "How long one of its kernels or graphs takes, for which its neighbours wait, in the mean of a second: the longest of the last ten to twenty in which it was at work; absent where that is not known";
    LeaseRequests Counter "gpool_lease_requests_total" ["container_id", "lease_id"] "Requests of class latency that were measured";
    LeaseRequestsLate Counter "gpool_lease_requests_late_total" ["container_id", "lease_id"]
        "Those of them that took longer than the p99 that is promised; absent where nobody counts";
    LeaseRequestMiddle Gauge "gpool_lease_request_p50_seconds" ["container_id", "lease_id"] "How long the middle one of recent requests took";
    LeaseRequestLate Gauge "gpool_lease_request_p99_seconds" ["container_id", "lease_id"]
        "How long 99 of 100 recent requests took at most; absent of fewer than 100";
    LeaseRequestAlone Gauge "gpool_lease_request_p99_alone_seconds" ["container_id", "lease_id"]
        "The same if the container had its GPUs to itself";
    LeasePromise Gauge "gpool_lease_p99_promised_seconds" ["container_id", "lease_id"] "How long that is to be at most; absent without a promise";
    LeasePromiseMissed Gauge "gpool_lease_p99_missed" ["container_id", "lease_id", "cause"]
        "1 while it is longer, by whose doing that is: itself, share (it wants more than that) or others; absent where nobody knows";
    LeaseHeldBack Gauge "gpool_lease_held_back" ["container_id", "lease_id"]
        "1 while the gate is kept closed for the sake of a container whose requests take longer than is promised";
    LeasePaused Gauge "gpool_lease_paused" ["container_id", "lease_id"] "1 while the gate is kept closed by gpool pause";
    LeaseSuspended Gauge "gpool_lease_suspended" ["container_id", "lease_id"] "1 while it is in the host's memory, or on its way there or back";
    LeaseHostMemory Gauge "gpool_lease_host_memory_bytes" ["container_id", "lease_id"] "What of its GPU memory is in the host's";
}

impl Family {
    /// What there is to say of it.
    pub fn description(self) -> &'static Description {
        // The list has each family once, in the order of the enum.
        &FAMILIES[self as usize].1
    }
}

/// The page of the manual.
pub fn reference() -> String {
    let mut text = String::from(
        "# Metrics\n\n\
         `GET /metrics` on the supervisor's socket, and `gpool metrics`, give the figures of this moment in Prometheus' text\n\
         format (0.0.4). The supervisor listens on no network, so something on the host carries them on: the textfile\n\
         collector of the node exporter, for example, with `gpool metrics` in a timer, its output renamed into place; or any\n\
         proxy from TCP to the socket, whose mode lets everybody read. [The administrator's guide](../administration.md#metrics)\n\
         has both.\n\n\
         Shares are parts of one GPU, or of the MIG instance that `gpu_uuid` names, 0.3 for 30 %. `container_id` is the whole id, `gpu_uuid` that of DCGM's exporter, to join by. There are as many\n\
         figures as leases and kept places on this host times their GPUs; no label comes from what a container does, and\n\
         the team alone, in `team` and `name`, from what a person asks for. Figures of quotas are of whoever is listed, has leases or\n\
         waits. Counters of a lease end with it, those of the supervisor with the process.\n\
         A container that is started again has another lease. What a lease had in all is in its `lease-ended` event.\n\
         Those by `kind`, `action` and `code` begin with 0 for what is known to come up, so that `increase()` sees the first time.\n\n\
         | name | kind | labels | |\n|---|---|---|---|\n",
    );
    for (_, family) in FAMILIES {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let row = format!("| `{}` | {} | {} | {} |\n", family.name, family.kind.word(), labels.join(", "), family.help);
        text.push_str(&row);
    }
    text
}
