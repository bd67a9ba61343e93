//! `gpool gpu`: the GPUs of this host, and which of them take leases.

mod dcgm;
mod drain;
mod evict;
mod test;

use crate::arguments::{Format, GpuVerb};
use crate::exit::Failure;
use crate::output::{self, Column, borderless, csv, figure, text, to_value};
use crate::table::short_gpu;
use gpool_protocol::{
    Client, DrainedGpu, GpuTest, GpuTestView, GpuUuid, GpuView, HealthFinding, Mechanism, ReservationView, SilentGpu,
    format_bytes, format_permille, format_seconds, health_words,
};

const COLUMNS: [Column; 9] = [
    figure("INDEX"),
    text("UUID"),
    text("NAME"),
    text("DRIVER"),
    figure("SHARE LEASED"),
    figure("MEMORY LEASED / TOTAL"),
    figure("MEMORY USED"),
    figure("LEASES"),
    text("STATE"),
];

/// With when it was tested last, and what its own figures and tests show.
const WIDE: [Column; 11] = {
    let [index, uuid, name, driver, share, memory, used, leases, state] = COLUMNS;
    [index, uuid, name, driver, share, memory, used, leases, state, text("TESTED"), text("HEALTH")]
};

/// Runs a verb of `gpool gpu`.
pub fn run(client: &Client, verb: &GpuVerb) -> Result<(), Failure> {
    match verb {
        GpuVerb::Ls { format } => list(client, *format),
        GpuVerb::Drain { gpus, reason, wait, evict } => drain::drain(client, gpus, reason, (*wait, *evict)),
        GpuVerb::Test(options) => test::test(client, options),
        GpuVerb::Undrain { gpus, fault } => drain::undrain(client, gpus, *fault),
    }
}

fn list(client: &Client, format: Format) -> Result<(), Failure> {
    let gpus: Vec<GpuView> = client.get("/v1/gpus")?;
    // An older supervisor does not know these questions.
    let silent: Vec<SilentGpu> = client.get("/v1/gpus/silent").unwrap_or_default();
    let drained: Vec<DrainedGpu> = client.get("/v1/gpus/drained").unwrap_or_default();
    let tests: Vec<GpuTestView> = client.get("/v1/gpus/tests").unwrap_or_default();
    let reserved: Vec<ReservationView> = client.get("/v1/reservations").unwrap_or_default();
    let below = || {
        render_silent(&silent)
            + &render_drained(&drained)
            + &render_closed(&gpus)
            + &render_unhealthy(&gpus)
            + &render_reserved(&gpus, &reserved)
            + &render_outside(&gpus)
    };
    match format {
        Format::Table => output::print(&(render(&gpus, &drained) + &below())),
        Format::Wide => output::print(&(render_wide(&gpus, &drained, &tests, now_unix_ms()) + &below())),
        Format::Json => output::print_json_of([
            ("gpus", to_value(&gpus)),
            ("silent", to_value(&silent)),
            ("drained", to_value(&drained)),
            ("tests", to_value(&tests)),
        ]),
        Format::Csv => output::print(&render_csv(&gpus, &drained, &tests)),
    }
}

/// `GPU 0 (GPU-5ca1ab1e)`, or the UUID of one that is not there.
pub fn called(index: Option<u32>, uuid: &GpuUuid) -> String {
    match index {
        Some(index) => format!("GPU {index} ({})", short_gpu(&uuid.0)),
        None => format!("{uuid}, which is not there,"),
    }
}

/// Whether it takes leases: `draining` while some are left on it or, of a divided one, on its instances.
fn state(gpu: &GpuView, drained: &[DrainedGpu]) -> &'static str {
    let leases = drained.iter().find(|its| its.uuid == gpu.uuid).map_or(gpu.leases, |its| its.leases);
    match (gpu.silent, &gpu.drained, leases) {
        (true, ..) => "silent",
        (false, None, _) if gpu.closed_for.is_some() => "closed",
        (false, None, _) => "ready",
        (false, Some(_), 0) => "drained",
        (false, Some(_), _) => "draining",
    }
}

/// A sentence for each GPU that is drained.
fn render_drained(drained: &[DrainedGpu]) -> String {
    drained.iter().map(|gpu| format!("{}; {} ends that\n", named_drained(gpu), gpu.drain.ended_by())).collect()
}

/// A sentence for each GPU that takes nobody in for the sake of who is there.
fn render_closed(gpus: &[GpuView]) -> String {
    let told = |gpu: &GpuView| {
        let whose = gpu.closed_for.as_ref()?.short();
        Some(format!(
            "{} takes no new leases while requests of {whose} take longer than is promised; gpool latency says how long\n",
            called(Some(gpu.index), &gpu.uuid)
        ))
    };
    gpus.iter().filter_map(told).collect()
}

/// Which GPU it is, and who said that it takes no new leases.
pub fn named_drained(gpu: &DrainedGpu) -> String {
    format!("{} takes no new leases: drained {}", called(gpu.index, &gpu.uuid), gpu.drain.cause())
}

/// A sentence for each GPU that does not answer.
fn render_silent(silent: &[SilentGpu]) -> String {
    let sentence = |gpu: &SilentGpu| format!("{}; {}\n", named(gpu), gpu.remedy);
    silent.iter().map(sentence).collect()
}

/// Which GPU it is, and why it takes no new leases.
pub fn named(gpu: &SilentGpu) -> String {
    match &gpu.uuid {
        Some(uuid) => format!("GPU {} ({}) takes no new leases: {}", gpu.index, short_gpu(&uuid.0), gpu.cause),
        None => format!("GPU {} is left out: {}", gpu.index, gpu.cause),
    }
}

/// Each thing that is wrong with a GPU by its own figures, in a sentence without what to do. What an instance shows is its board's,
/// and told of that alone.
pub fn unhealthy(gpu: &GpuView) -> impl Iterator<Item = (String, &HealthFinding)> {
    let is_board = !gpu.uuid.0.starts_with("MIG-");
    gpu.health.iter().flatten().filter(move |_| is_board).map(|finding| {
        let known = if finding.accepted { ", with which it was opened again" } else { "" };
        let gpu = called(Some(gpu.index), &gpu.uuid);
        (format!("{gpu} shows {}{known}: {}", finding.kind, finding.cause), finding)
    })
}

/// A sentence for each such thing, with what to do.
fn render_unhealthy(gpus: &[GpuView]) -> String {
    gpus.iter().flat_map(unhealthy).map(|(sentence, finding)| format!("{sentence}; {}\n", finding.remedy)).collect()
}

/// A sentence for each GPU of which something is kept for somebody: it looks free, and is not for others.
fn render_reserved(gpus: &[GpuView], reserved: &[ReservationView]) -> String {
    let sentence = |gpu: &GpuView| {
        let seats = || reserved.iter().flat_map(|its| its.seats.iter().map(move |seat| (&its.name, seat)));
        let kept = || seats().filter(|(_, seat)| seat.gpu_uuid == gpu.uuid);
        let share: u64 = kept().map(|(_, seat)| u64::from(seat.kept_share_permille)).sum();
        let memory: u64 = kept().map(|(_, seat)| seat.kept_memory_bytes).fold(0, u64::saturating_add);
        if (share, memory) == (0, 0) {
            return None;
        }
        let names: Vec<&str> = kept().map(|(name, _)| name.as_str()).collect();
        let (which, share) = (called(Some(gpu.index), &gpu.uuid), format_permille(share));
        Some(format!(
            "{share} and {} of {which} are kept for {}; gpool reservation ls says who that is\n",
            format_bytes(memory),
            names.join(", ")
        ))
    };
    gpus.iter().filter_map(sentence).collect()
}

/// A sentence for each GPU of which something is in use that no lease has, if it is as much as can be read.
fn render_outside(gpus: &[GpuView]) -> String {
    let has_some = |gpu: &&GpuView| gpu.memory_outside_bytes >> 20 > 0 && !gpu.silent && !gpu.divided;
    let sentence = |gpu: &GpuView| {
        let (bytes, which) = (format_bytes(gpu.memory_outside_bytes), called(Some(gpu.index), &gpu.uuid));
        format!(
            "{bytes} of {which} are in use outside all leases and cannot be leased; gpool ps --processes says by whom\n"
        )
    };
    gpus.iter().filter(has_some).map(sentence).collect()
}

/// The table, with short UUIDs.
fn render(gpus: &[GpuView], drained: &[DrainedGpu]) -> String {
    borderless(&COLUMNS, gpus.iter().map(|gpu| cells(gpu, drained, short_gpu(&gpu.uuid.0))))
}

/// The table with all columns.
fn render_wide(gpus: &[GpuView], drained: &[DrainedGpu], tests: &[GpuTestView], now_unix_ms: u64) -> String {
    let cells = |gpu: &GpuView| {
        let mut cells = cells(gpu, drained, &gpu.uuid.0);
        cells.push(tested(last_test(gpu, tests), now_unix_ms));
        cells.push(health_words(gpu.health.as_deref()));
        cells
    };
    borderless(&WIDE, gpus.iter().map(cells))
}

fn now_unix_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0)
}

fn last_test<'a>(gpu: &GpuView, tests: &'a [GpuTestView]) -> Option<&'a GpuTest> {
    tests.iter().find(|its| its.uuid == gpu.uuid)?.last.as_ref()
}

/// `passed 2d3h ago`; `-` of one that was not tested.
fn tested(last: Option<&GpuTest>, now_unix_ms: u64) -> String {
    last.map_or_else(
        || "-".to_owned(),
        |last| {
            format!("{} {} ago", last.outcome, format_seconds(now_unix_ms.saturating_sub(last.ended_unix_ms) / 1000))
        },
    )
}

/// What stands of a GPU below [`COLUMNS`].
fn cells(gpu: &GpuView, drained: &[DrainedGpu], uuid: &str) -> Vec<String> {
    vec![
        gpu.index.to_string(),
        uuid.to_owned(),
        gpu.name.clone(),
        gpu.driver_version.clone(),
        match gpu.divided {
            true => "divided".to_owned(),
            false => format_permille(gpu.fraction_leased_permille.into()),
        },
        format!("{} / {}", format_bytes(gpu.memory_leased_bytes), format_bytes(gpu.memory_total_bytes)),
        format_bytes(gpu.memory_used_bytes),
        match gpu.mechanism.filter(|mechanism| *mechanism != Mechanism::Slice) {
            Some(mechanism) => format!("{} ({mechanism})", gpu.leases),
            None => gpu.leases.to_string(),
        },
        state(gpu, drained).to_owned(),
    ]
}

fn render_csv(gpus: &[GpuView], drained: &[DrainedGpu], tests: &[GpuTestView]) -> String {
    const HEADER: [&str; 16] = [
        "index",
        "uuid",
        "name",
        "driver_version",
        "fraction_leased_permille",
        "memory_leased_bytes",
        "memory_total_bytes",
        "memory_used_bytes",
        "leases",
        "mechanism",
        "state",
        "health",
        "tested_unix_ms",
        "test_outcome",
        "memory_outside_bytes",
        "memory_headroom_bytes",
    ];
    let cells = |gpu: &GpuView| {
        vec![
            gpu.index.to_string(),
            gpu.uuid.to_string(),
            gpu.name.clone(),
            gpu.driver_version.clone(),
            gpu.fraction_leased_permille.to_string(),
            gpu.memory_leased_bytes.to_string(),
            gpu.memory_total_bytes.to_string(),
            gpu.memory_used_bytes.to_string(),
            gpu.leases.to_string(),
            gpu.mechanism.map(|mechanism| mechanism.to_string()).unwrap_or_default(),
            state(gpu, drained).to_owned(),
            health_words(gpu.health.as_deref()),
            last_test(gpu, tests).map(|last| last.ended_unix_ms.to_string()).unwrap_or_default(),
            last_test(gpu, tests).map(|last| last.outcome.to_string()).unwrap_or_default(),
            gpu.memory_outside_bytes.to_string(),
            gpu.memory_headroom_bytes.to_string(),
        ]
    };
    csv(&HEADER, gpus.iter().map(cells))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use gpool_protocol::{ContainerId, Drain};

    #[test]
    fn a_gpu_is_one_line() {
        let gpu = GpuView {
            health: Some(Vec::new()),
            uuid: GpuUuid("GPU-5ca1ab1e-0000-4000-8000-000000000000".into()),
            driver_version: "580.1".into(),
            memory_used_bytes: 12 << 30,
            memory_leased_bytes: 15 << 30,
            fraction_leased_permille: 1000,
            leases: 3,
            mechanism: Some(Mechanism::Slice),
            ..samples::gpu(0, "Simulated GPU", 24 << 30)
        };
        let want = "\
INDEX  UUID          NAME           DRIVER  SHARE LEASED  MEMORY LEASED / TOTAL  MEMORY USED  LEASES  STATE
    0  GPU-5ca1ab1e  Simulated GPU  580.1          100 %          15GiB / 24GiB        12GiB       3  ready
";
        assert_eq!(render(std::slice::from_ref(&gpu), &[]), want);
        let report = gpool_protocol::GpuTestReport { took_ms: 1, parts: Vec::new() };
        let last = GpuTest { ended_unix_ms: 1000, uid: 0, outcome: gpool_protocol::GpuTestOutcome::Failed, report };
        let test = GpuTestView {
            uuid: gpu.uuid.clone(),
            index: 0,
            last: Some(last),
            failures: 1,
            failed: vec!["memory".into()],
            under_way: false,
            in_the_way: None,
        };
        let wide = render_wide(std::slice::from_ref(&gpu), &[], std::slice::from_ref(&test), 86_401_000);
        assert!(wide.lines().nth(1).unwrap().ends_with("ready  failed 1d ago  ok"), "{wide}");
        let csv = render_csv(std::slice::from_ref(&gpu), &[], &[test]);
        assert!(csv.lines().nth(1).unwrap().ends_with(",ok,1000,failed,0,0"), "{csv}");
        let wide = render_wide(std::slice::from_ref(&gpu), &[], &[], 0);
        assert!(wide.contains("GPU-5ca1ab1e-0000-4000-8000-000000000000  Simulated GPU"), "{wide}");
        let ends: Vec<&str> = wide.lines().map(|line| line.rsplit("  ").next().unwrap_or_default()).collect();
        assert_eq!(ends, ["HEALTH", "ok"]);
        let mps = GpuView { mechanism: Some(Mechanism::Mps), ..gpu.clone() };
        assert!(render(&[mps], &[]).lines().nth(1).unwrap().ends_with("3 (mps)  ready"));
        assert_eq!(render_csv(std::slice::from_ref(&gpu), &[], &[]).lines().nth(1).unwrap().split(',').count(), 16);
        let drain = Drain { since_unix_ms: 1, uid: Some(7), reason: "new fans".into(), fault: None };
        let view = |leases| GpuView { drained: Some(drain.clone()), leases, ..gpu.clone() };
        let of_board = |leases| DrainedGpu { uuid: gpu.uuid.clone(), index: Some(0), drain: drain.clone(), leases };
        assert_eq!([state(&view(3), &[]), state(&view(0), &[])], ["draining", "drained"]);
        assert_eq!(state(&view(0), &[of_board(2)]), "draining", "its instances have leases");
        assert_eq!(state(&GpuView { silent: true, ..view(3) }, &[]), "silent");
        let closed = GpuView { closed_for: Some(ContainerId("3f9a".repeat(16))), ..gpu.clone() };
        assert_eq!(state(&closed, &[]), "closed");
        let told = render_closed(&[closed, gpu.clone()]);
        assert!(
            told.starts_with("GPU 0 (GPU-5ca1ab1e) takes no new leases while requests of 3f9a3f9a3f9a take"),
            "{told}"
        );
        let want =
            "GPU 0 (GPU-5ca1ab1e) takes no new leases: drained by user 7: new fans; gpool gpu undrain ends that\n";
        assert_eq!(render_drained(&[of_board(2)]), want);
        let gone = DrainedGpu { index: None, ..of_board(0) };
        assert!(
            render_drained(&[gone]).starts_with("GPU-5ca1ab1e-0000-4000-8000-000000000000, which is not there, takes")
        );
    }

    #[test]
    fn what_no_lease_has_is_told_below() {
        let gpu = samples::gpu(1, "a GPU", 24 << 30);
        let little = GpuView { memory_outside_bytes: (1 << 20) - 1, ..gpu.clone() };
        assert_eq!(render_outside(&[gpu.clone(), little]), "");
        let told = render_outside(&[GpuView { memory_outside_bytes: 3 << 30, ..gpu.clone() }]);
        assert!(told.starts_with("3GiB of GPU 1 (GPU-1) are in use outside all leases"), "{told}");
        assert_eq!(render_outside(&[GpuView { memory_outside_bytes: 3 << 30, silent: true, ..gpu }]), "");
    }

    #[test]
    fn what_is_kept_of_a_gpu_is_told_below() {
        let gpu: GpuView = serde_json::from_value(serde_json::json!({
            "index": 1, "uuid": "GPU-5ca1ab1e-0000", "name": "a GPU", "driver_version": "1", "memory_total_bytes": 1,
            "memory_used_bytes": 0, "memory_leased_bytes": 0, "fraction_leased_permille": 0, "leases": 0,
        }))
        .unwrap();
        let reserved = |name: &str, kept: u16| -> ReservationView {
            serde_json::from_value(serde_json::json!({"name": name, "gpus": 1, "share_permille": 500, "state": "open",
                "seats": [{"gpu_uuid": gpu.uuid, "share_permille": 500, "memory_bytes": 2_147_483_648u64,
                    "kept_share_permille": kept, "kept_memory_bytes": u64::from(kept) << 23,
                    "missing_share_permille": 0, "missing_memory_bytes": 0}]}))
            .unwrap()
        };
        let told = render_reserved(std::slice::from_ref(&gpu), &[reserved("serving", 256), reserved("vision", 128)]);
        let want = "38.4 % and 3GiB of GPU 1 (GPU-5ca1ab1e) are kept for serving, vision; gpool reservation ls says who that is\n";
        assert_eq!(told, want);
        assert!(render_reserved(std::slice::from_ref(&gpu), &[reserved("serving", 0)]).is_empty(), "all of it is had");
    }

    #[test]
    fn a_gpu_that_does_not_answer_is_named_with_what_to_do() {
        let gpu = |uuid: Option<&str>| SilentGpu {
            index: 1,
            uuid: uuid.map(|uuid| GpuUuid(uuid.into())),
            cause: "NVML does not answer a GPU by its index: lost".into(),
            remedy: "reset it".into(),
        };
        let want = "\
GPU 1 is left out: NVML does not answer a GPU by its index: lost; reset it
GPU 1 (GPU-5ca1ab1e) takes no new leases: NVML does not answer a GPU by its index: lost; reset it
";
        assert_eq!(render_silent(&[gpu(None), gpu(Some("GPU-5ca1ab1e-0000-4000-8000-000000000000"))]), want);
    }

    #[test]
    fn what_a_gpu_shows_is_told_once_and_not_of_its_instances() {
        let finding = HealthFinding {
            kind: "remap-pending".into(),
            since_unix_ms: 1,
            cause: "memory is to be replaced".into(),
            remedy: "reset it".into(),
            accepted: false,
        };
        let gpu: GpuView = serde_json::from_value(serde_json::json!({
            "index": 1, "uuid": "GPU-5ca1ab1e-0000", "name": "a GPU", "driver_version": "1", "memory_total_bytes": 1,
            "memory_used_bytes": 0, "memory_leased_bytes": 0, "fraction_leased_permille": 0, "leases": 0,
            "health": [finding],
        }))
        .unwrap();
        let instance = GpuView { uuid: GpuUuid("MIG-1".into()), ..gpu.clone() };
        let want = "GPU 1 (GPU-5ca1ab1e) shows remap-pending: memory is to be replaced; reset it\n";
        assert_eq!(render_unhealthy(&[gpu.clone(), instance]), want);
        let accepted = HealthFinding { accepted: true, ..finding };
        let known = GpuView { health: Some(vec![accepted]), ..gpu };
        assert!(render_unhealthy(&[known]).contains("shows remap-pending, with which it was opened again: memory"));
    }
}
