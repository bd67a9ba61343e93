//! `gpool explain ID`; `--request` is in [`request`].

mod lines;
pub mod request;
mod waiting;
mod without_shims;

use super::queue;
use super::usage::moment;
use crate::arguments::Format;
use crate::exit::Failure;
use crate::output;
use crate::table::format_duration;
use gpool_protocol::{
    BeyondBudget, Client, ErrorCode, GpuExplanation, LeaseExplanation, LeaseFault, Leaving, PromiseState, RunLeft,
    Standing, SuspensionStage, SuspensionView, WaitCause, WaitingView, format_bytes, format_permille, format_seconds,
    format_short_time, lease_path,
};
use lines::render_csv;
use waiting::{only_one, render_waiting};

/// Shows where a lease stands on each of its GPUs, why, and how exact its share is. Of a container that waits for room, which
/// has no lease yet, what it waits for.
pub fn run(client: &Client, id: &str, format: Format) -> Result<(), Failure> {
    let explanation: LeaseExplanation = match client.get(&(lease_path(id)? + "/explain")) {
        Ok(explanation) => explanation,
        Err(refusal) if refusal.code == ErrorCode::LeaseUnknown => {
            let waiting: Vec<WaitingView> = client.get("/v1/queue")?;
            let waiting = only_one(&waiting, id).ok_or(refusal)?;
            return match format {
                Format::Table | Format::Wide => output::print(&render_waiting(waiting)),
                Format::Json => output::print_json("waiting", waiting),
                Format::Csv => output::print(&queue::render_csv(std::slice::from_ref(waiting))),
            };
        }
        Err(refusal) => return Err(refusal.into()),
    };
    match format {
        Format::Table | Format::Wide => output::print(&render(&explanation)),
        Format::Json => output::print_json("explanation", &explanation),
        Format::Csv => output::print(&render_csv(&explanation)),
    }
}

fn render(explanation: &LeaseExplanation) -> String {
    let mut text = format!(
        "container {}, lease {}\n{}, class {}, priority {}\n",
        explanation.container_id.short(),
        explanation.lease_id,
        promise(explanation),
        explanation.class,
        explanation.priority,
    );
    if let Some(BeyondBudget { whose, until_unix_s, cause }) = &explanation.beyond_budget {
        text += &match (whose, until_unix_s) {
            (Some(whose), Some(until)) => format!(
                "over budget: that of {whose} is spent until {}, and it has what is idle in place of its share\n",
                moment(*until)
            ),
            (Some(whose), None) => {
                format!("over budget: {whose} has no GPU hours, and it has what is idle in place of its share\n")
            }
            (None, _) => match cause {
                Some(cause) => {
                    format!("over budget: a budget was spent, and its share is not its own yet: {cause}\n")
                }
                None => "over budget: there are GPU hours again, and it has its share in a moment\n".to_owned(),
            },
        };
    }
    if let Some(fault) = explanation.fault {
        let what = match fault {
            LeaseFault::ProgramFault => {
                "a program of it has lost its work on the GPU; gpool events says why, and it has to be started anew"
            }
            LeaseFault::GpuFailed => {
                "its GPU has failed, and its programs have lost it; gpool events says why; start the container anew"
            }
            LeaseFault::MpsServerDied | LeaseFault::MpsServerFault => {
                "its programs have lost the GPU; start the container anew"
            }
        };
        text += &format!("{}: {what}\n", fault.text());
    }
    text += &memory(explanation.memory_peak_bytes, explanation.memory_cap_bytes);
    text += &spilled(explanation.spilled_bytes, explanation.spill_bytes);
    text += &promised(explanation);
    if let Some(RunLeft { run_seconds, left_ns }) = explanation.run {
        let left = format_seconds(left_ns.div_ceil(1_000_000_000));
        text += &format!("run time: {}, and its GPUs are taken from it in {left}\n", format_seconds(run_seconds));
    }
    if let Some(Leaving { waits, reservation, left_ns, served_permille, served_as }) = &explanation.leaving {
        let for_whom = match (reservation, waits.as_ref().map_or("one", |waits| waits.short())) {
            (Some(name), _) => format!("reservation {name}, if that still needs the room then"),
            (None, waits) => format!("{waits}, which waits and has a higher priority, if that still waits then"),
        };
        text += &format!("leaving: its GPUs are taken from it in {} for {for_whom}\n", format_whole_seconds(*left_ns));
        if let (Some(share), Some(priority)) = (served_permille, served_as) {
            text += &format!("until then it is served with {} as {priority}\n", format_permille((*share).into()));
        }
    }
    if let Some(suspension) = &explanation.suspension {
        text += &format!("{}\n", suspended(suspension));
    }
    for gpu in &explanation.gpus {
        text += &format!("\n{}\n", gpu.gpu_uuid);
        if !explanation.mechanism.has_shims() {
            text += &without_shims::facts(explanation.mechanism, gpu);
            continue;
        }
        for (name, value) in facts(explanation, gpu) {
            text += &format!("  {:14}{value}\n", format!("{name}:"));
        }
        if gpu.gpu_uuid.0.starts_with("MIG-") {
            text +=
                "  reports:      not compared with the device, as NVML has no busy time of processes in an instance\n";
        }
    }
    text
}

/// What it was promised, and by what.
fn promise(explanation: &LeaseExplanation) -> String {
    if !explanation.mechanism.has_shims() {
        return without_shims::promise(explanation.mechanism, explanation.fraction_permille);
    }
    format!(
        "share {}, limit {}",
        format_permille(explanation.fraction_permille.into()),
        explanation.limit_permille.map_or_else(|| "none".to_owned(), |limit| format_permille(limit.into())),
    )
}

/// How long its requests take, and what follows from how long those of another one do.
fn promised(explanation: &LeaseExplanation) -> String {
    let mut text = String::new();
    if let Some(whose) = &explanation.held_for {
        text += &format!(
            "held back: it is kept from running for {}, whose requests take longer than is promised\n",
            whose.short()
        );
    }
    let promised = explanation.p99_ns.map(|ns| format!("; promised: {}", format_short_time(ns))).unwrap_or_default();
    let Some((its, p50_ns)) = explanation.requests.as_ref().and_then(|its| Some((its, its.p50_ns?))) else {
        let none = explanation.p99_ns.map(|_| format!("requests: none measured lately{promised}\n"));
        return text + &none.unwrap_or_default();
    };
    text += &format!("requests: {} lately, half of them within {}", its.count, format_duration(p50_ns));
    if let (Some(p99_ns), Some(alone_ns)) = (its.p99_ns, its.p99_alone_ns) {
        text += &format!(
            ", 99 of 100 within {}, with its GPUs to itself within {}",
            format_duration(p99_ns),
            format_duration(alone_ns)
        );
    }
    let state = its.promise.map_or("", |state| match state {
        PromiseState::Kept => ", kept",
        PromiseState::MissedItself => ", missed by its own work or its own limit",
        PromiseState::MissedShare => ", missed because it wants more than its share",
        PromiseState::MissedOthers => ", missed because of others",
    });
    text + &format!("{promised}{state}\n")
}

/// Where its memory is, and what it waits for.
fn suspended(suspension: &SuspensionView) -> String {
    let bytes = format_bytes(suspension.host_bytes);
    match suspension.stage {
        SuspensionStage::Suspending => "suspending: what it holds is being moved to the host's memory".to_owned(),
        SuspensionStage::Resuming => format!("resuming: it has room, and {bytes} are being brought back"),
        SuspensionStage::Suspended if suspension.is_wanted => {
            format!("suspended: {bytes} are in the host's memory; it wants to go on and asks for room (gpool queue ls)")
        }
        SuspensionStage::Suspended => format!(
            "suspended: {bytes} are in the host's memory, and others may have its room; it comes back when its programs want the GPU, or by \
             gpool resume"
        ),
    }
}

/// What it holds at most beside what it may hold; nothing of an older supervisor, or before anything is held.
fn memory(peak_bytes: u64, cap_bytes: u64) -> String {
    match (peak_bytes, cap_bytes) {
        (0, _) => String::new(),
        (_, 0) => format!("memory: it has held {} at most, and has no cap\n", format_bytes(peak_bytes)),
        _ => format!(
            "memory: it has held {} at most, of {} that it may hold\n",
            format_bytes(peak_bytes),
            format_bytes(cap_bytes)
        ),
    }
}

fn spilled(spilled_bytes: u64, spill_bytes: u64) -> String {
    match (spilled_bytes, spill_bytes) {
        (0, 0) => String::new(),
        (0, most) => format!("spill: nothing lies in the host's memory, where {} may\n", format_bytes(most)),
        (bytes, most) => format!(
            "spill: {} lie in the host's memory, where {} may, and the GPU reaches them over its bus: that takes kernels longer\n",
            format_bytes(bytes),
            format_bytes(most)
        ),
    }
}

fn facts(explanation: &LeaseExplanation, gpu: &GpuExplanation) -> [(&'static str, String); 5] {
    // What keeps the gate of one that is suspended or held back closed is told above.
    let state = match (&explanation.suspension, &gpu.standing) {
        (Some(suspension), Standing::Paused | Standing::Idle) => suspension.stage.text().to_owned(),
        (None, Standing::Paused) if explanation.held_for.is_some() => "held back".to_owned(),
        (_, its) => standing(its),
    };
    [
        ("state", state),
        ("lag", lag(gpu.lag_ns)),
        ("charged", format_duration(gpu.charged_gpu_ns)),
        (
            "weight",
            format!(
                "{}; the active leases of its priority have {} together",
                format_permille(explanation.fraction_permille.into()),
                format_permille(gpu.weight_sum_permille)
            ),
        ),
        ("share error", share_error(explanation, gpu)),
    ]
}

/// How far its share may be off; of one that comes behind others nothing is promised.
fn share_error(explanation: &LeaseExplanation, gpu: &GpuExplanation) -> String {
    let bounds = lines::bounds(explanation, gpu).iter();
    let bounds: Vec<String> = bounds
        .map(|bound| format!("{} over {}", points(bound.bound_ppm), format_whole_seconds(bound.window_ns)))
        .collect();
    if bounds.is_empty() {
        return "none: those of higher priorities come first".to_owned();
    }
    format!(
        "at most {} while it always has work (its turns take up to {}, anybody's up to {})",
        bounds.join(", "),
        format_duration(gpu.turn_bound_ns),
        format_duration(gpu.longest_turn_ns)
    )
}

fn standing(standing: &Standing) -> String {
    match standing {
        Standing::Idle => "idle: it wants nothing".to_owned(),
        Standing::Paused => "paused: gpool resume lets it go on".to_owned(),
        Standing::Running { left_ns } => format!("running, {} of its turn left", format_duration(*left_ns)),
        Standing::Waiting { waited_ns, behind, cause } => {
            let whom = behind.as_ref().map_or_else(String::new, |container| format!(" behind {}", container.short()));
            format!("waiting for {}{whom}: {}", format_duration(*waited_ns), why(*cause))
        }
    }
}

fn why(cause: WaitCause) -> String {
    match cause {
        WaitCause::Turn => "it is another's turn".to_owned(),
        WaitCause::Debt => "it has had more than its share, and the others come first until that is made up".to_owned(),
        WaitCause::Ceiling { left_ns } => {
            format!("it is at its limit, for {} more", format_duration(left_ns))
        }
        WaitCause::Priority => "a container of a higher priority has work".to_owned(),
        WaitCause::Gang => "another of its GPUs is not free yet, and it runs on all of them or none".to_owned(),
    }
}

fn lag(lag_ns: i64) -> String {
    match lag_ns {
        0 => "nothing owed".to_owned(),
        1.. => format!("{} of GPU time are owed to it", format_duration(lag_ns.unsigned_abs())),
        _ => format!("it owes {} of GPU time", format_duration(lag_ns.unsigned_abs())),
    }
}

/// Hundredths of a GPU with two decimals, rounded up: a bound must not look better than it is.
fn points(ppm: u64) -> String {
    let hundredths = ppm.div_ceil(100);
    format!("{}.{:02} points", hundredths / 100, hundredths % 100)
}

fn format_whole_seconds(ns: u64) -> String {
    format!("{} s", ns / 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::{Class, ContainerId, GpuUuid, LeaseId, Mechanism, Priority, RequestFigures, ShareErrorBound};

    pub fn explanation() -> LeaseExplanation {
        let bound = |seconds: u64, bound_ppm| ShareErrorBound { window_ns: seconds * 1_000_000_000, bound_ppm };
        LeaseExplanation {
            lease_id: LeaseId("01J".into()),
            container_id: ContainerId("3f9a".repeat(16)),
            mechanism: Default::default(),
            fraction_permille: 300,
            limit_permille: Some(500),
            class: Class::Batch,
            priority: Priority::Guaranteed,
            beyond_budget: None,
            fault: None,
            p99_ns: None,
            requests: None,
            held_for: None,
            memory_cap_bytes: 4 << 30,
            memory_peak_bytes: 3 << 29,
            spill_bytes: 8 << 30,
            spilled_bytes: 1 << 30,
            run: Some(RunLeft { run_seconds: 7200, left_ns: 89_000_000_001 }),
            leaving: Some(Leaving {
                waits: Some(ContainerId("77aa".repeat(16))),
                reservation: None,
                left_ns: 25_000_000_000,
                served_permille: Some(100),
                served_as: Some(Priority::Guaranteed),
            }),
            suspension: None,
            gpus: vec![GpuExplanation {
                gpu_uuid: GpuUuid("GPU-5ca1ab1e-0000-4000-8000-000000000000".into()),
                standing: Standing::Waiting {
                    waited_ns: 3_100_000,
                    behind: Some(ContainerId("b7c1".repeat(16))),
                    cause: WaitCause::Ceiling { left_ns: 2_000_000 },
                },
                lag_ns: -1_500_000,
                charged_gpu_ns: 3_100_000_000,
                weight_sum_permille: 900,
                turn_bound_ns: 13_000_000,
                longest_turn_ns: 13_000_000,
                share_error: vec![bound(1, 26_000), bound(10, 2_600), bound(60, 434)],
            }],
        }
    }

    #[test]
    fn one_that_is_suspended_is_not_told_to_be_paused() {
        let of = |stage, is_wanted| {
            let suspension = SuspensionView { stage, since_unix_ms: 0, host_bytes: 3 << 30, is_wanted };
            let mut its = LeaseExplanation { suspension: Some(suspension), ..explanation() };
            its.gpus[0].standing = Standing::Paused;
            render(&its)
        };
        let out = of(SuspensionStage::Suspended, false);
        assert!(out.contains("\nsuspended: 3GiB are in the host's memory, and others may have its room"), "{out}");
        assert!(out.contains("  state:        suspended\n") && !out.contains("paused"), "{out}");
        assert!(of(SuspensionStage::Suspended, true).contains("asks for room (gpool queue ls)"));
        assert!(of(SuspensionStage::Resuming, true).contains("\nresuming: it has room, and 3GiB"));
    }

    #[test]
    fn requests_are_told_with_what_was_promised_and_who_is_held_back_for_whom() {
        let figures = RequestFigures {
            all: 900,
            all_late: 30,
            count: 640,
            p50_ns: Some(4_500_000),
            p99_ns: Some(24_100_000),
            p99_alone_ns: Some(9_000_000),
            late: 12,
            promise: Some(PromiseState::MissedOthers),
        };
        let of = |p99_ns, requests| render(&LeaseExplanation { p99_ns, requests, ..explanation() });
        let want = "\nrequests: 640 lately, half of them within 4.5ms, 99 of 100 within 24.1ms, with its GPUs to itself within 9.0ms; \
                    promised: 20ms, missed because of others\n";
        let told = of(Some(20_000_000), Some(figures));
        assert!(told.contains(want), "{told}");
        let few = RequestFigures { count: 3, p99_ns: None, p99_alone_ns: None, promise: None, ..figures };
        assert!(of(None, Some(few)).contains("\nrequests: 3 lately, half of them within 4.5ms\n"));
        assert!(of(Some(20_000_000), None).contains("\nrequests: none measured lately; promised: 20ms\n"));
        let mut held = LeaseExplanation { held_for: Some(ContainerId("77aa".repeat(16))), ..explanation() };
        held.gpus[0].standing = Standing::Paused;
        let told = render(&held);
        assert!(
            told.contains("\nheld back: it is kept from running for 77aa77aa77aa") && !told.contains("gpool resume"),
            "{told}"
        );
    }

    #[test]
    fn an_explanation_reads_like_one() {
        let want = "\
container 3f9a3f9a3f9a, lease 01J
share 30 %, limit 50 %, class batch, priority guaranteed
memory: it has held 1.5GiB at most, of 4GiB that it may hold
spill: 1GiB lie in the host's memory, where 8GiB may, and the GPU reaches them over its bus: that takes kernels longer
run time: 2h, and its GPUs are taken from it in 1m30s
leaving: its GPUs are taken from it in 25 s for 77aa77aa77aa, which waits and has a higher priority, if that still waits then
until then it is served with 10 % as guaranteed

GPU-5ca1ab1e-0000-4000-8000-000000000000
  state:        waiting for 3.1ms behind b7c1b7c1b7c1: it is at its limit, for 2.0ms more
  lag:          it owes 1.5ms of GPU time
  charged:      3.1s
  weight:       30 %; the active leases of its priority have 90 % together
  share error:  at most 2.60 points over 1 s, 0.26 points over 10 s, 0.05 points over 60 s while it always has work \
(its turns take up to 13.0ms, anybody's up to 13.0ms)
";
        assert_eq!(render(&explanation()), want);
        let mut reserved = explanation();
        reserved.leaving.as_mut().unwrap().reservation = Some("serving".into());
        assert!(render(&reserved).contains("in 25 s for reservation serving, if that still needs the room then\n"));
        let mut beyond = explanation();
        beyond.beyond_budget =
            Some(BeyondBudget { whose: Some("team vision".into()), until_unix_s: Some(86_400), cause: None });
        assert!(render(&beyond).contains("that of team vision is spent until 1970-01-02T00:00:00Z"));
        let promises_nothing = "share error:  none: those of higher priorities come first\n";
        assert!(render(&beyond).contains(promises_nothing), "{}", render(&beyond));
        let behind = LeaseExplanation { priority: Priority::Burst, ..explanation() };
        assert!(render(&behind).contains(promises_nothing), "whatever an older supervisor says");
        beyond.beyond_budget =
            Some(BeyondBudget { whose: None, until_unix_s: None, cause: Some("GPU-1 has 10 % free".into()) });
        assert!(render(&beyond).contains("and its share is not its own yet: GPU-1 has 10 % free"));
        let mut inside = explanation();
        inside.gpus[0].gpu_uuid = GpuUuid("MIG-1".into());
        assert!(render(&inside).contains("reports:      not compared"));
    }

    #[test]
    fn of_who_has_no_shims_nothing_is_told_that_nobody_knows() {
        let of = |mechanism, fraction_permille, memory_cap_bytes| {
            render(&LeaseExplanation { mechanism, fraction_permille, memory_cap_bytes, ..explanation() })
        };
        let turns = of(Mechanism::TimeSlice, 0, 0);
        assert!(turns.contains("\nmechanism timeslice, no share, class batch, priority guaranteed\n"), "{turns}");
        assert!(turns.contains("at most, and has no cap\n") && turns.contains("  charged:      3.1s\n"), "{turns}");
        for absent in ["weight", "share error", "share 0", "lag:", "behind"] {
            assert!(!turns.contains(absent), "{absent} in {turns}");
        }
        let instance = of(Mechanism::Mig, 250, 4 << 30);
        assert!(instance.contains("\nmechanism mig, share 25 %, class") && !instance.contains("charged"), "{instance}");
    }

    #[test]
    fn every_standing_says_what_it_means() {
        assert!(standing(&Standing::Paused).contains("gpool resume"));
        assert!(standing(&Standing::Running { left_ns: 5_000_000 }).contains("5.0ms"));
        let waiting = |cause| standing(&Standing::Waiting { waited_ns: 1, behind: None, cause });
        for (cause, part) in [
            (WaitCause::Turn, "another's turn"),
            (WaitCause::Debt, "more than its share"),
            (WaitCause::Priority, "higher priority"),
            (WaitCause::Gang, "all of them or none"),
        ] {
            assert!(waiting(cause).contains(part), "{}", waiting(cause));
        }
        assert_eq!((lag(0).as_str(), points(1)), ("nothing owed", "0.01 points".to_owned()));
    }
}
