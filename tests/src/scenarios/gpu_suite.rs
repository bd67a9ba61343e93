//! The suite for a real GPU, dry: its stages on the simulated one. That tests the suite; what it measures there counts for
//! nothing.

use super::finish_found;
use crate::c_program;
use crate::cgroups;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Host, succeeded};
use crate::namespaces::Inside;
use crate::stage::Stage;
use gpool_simulated_hardware::DriverVersion;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// The driver that is played.
const DRIVER: &str = "615.71.05";
/// Where the suite lies.
const SUITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/gpu");
const RESULTS: &str = "/run/gpool-gpu-suite";

/// What the stages of a part may take together, in seconds: of the 540 of a run gpool's start may need 30, the first import of
/// PyTorch 90, and 25 are kept for the end.
const MOST_PLANNED_S: u32 = 395;
/// What is run one after the other, each part on a machine of its own, if need be.
const PARTS: [&str; 3] = ["1", "2", "3"];
/// What is free below a cap once all pieces were refused: what the configuration assumes a context to cost above the 256 MiB
/// that it does here, until that is known, the least piece, and what an allocator takes at once.
const MOST_FREE_BYTES: i64 = 320 << 20;

/// The last piece of what the driver takes for managed memory, charged in full.
const MANAGED_PIECE_BYTES: i64 = 128 << 20;

/// What the suite says of what the program makes up: of each work that costs too much, nothing, or what nobody can tell there,
/// and of their means; and where streams that run beside each other are held back.
const VERDICTS: [&str; 10] = [
    "cost.train missed",
    "cost.matmul kept",
    "cost.decode undecided",
    "cost.mean missed",
    "cost.mean_busy missed",
    "cost.mean is left out: nothing of lost",
    "cost.mean_busy is left out: nothing of lost",
    "streams.measured kept",
    "streams.held_back missed",
    "streams.one_by_one not judged",
];

/// The stages that judge no share, for every change.
pub fn run(inside: &Inside) -> Result<()> {
    each_part_fits()?;
    ceilings_are_told_by_whole_slices()?;
    what_is_missed_is_told()?;
    cgroups::only_version_2()?;
    dry(inside, "environment,memory,graphs,checkpoint,caps,spill,streams,power,told,answers", |figures| {
        for name in ["caps.rounded_up", "caps.told", "caps.past.shown"] {
            same(figures, name, &0.into())?;
        }
        // All but a piece.
        let above = figures["caps.past.over_cap"]["value"].as_i64();
        ensure(above.is_some_and(|bytes| (-(64 << 20)..=0).contains(&bytes)), || {
            format!("past the shim it is {above:?}")
        })?;
        for name in ["spill.told", "spill.wrong", "spill.suspended.wrong", "spill.with_context"] {
            same(figures, name, &0.into())?;
        }
        same(figures, "spill.on_host", &32.into())?;
        let above = figures["spill.over_cap"]["value"].as_i64();
        ensure(above.is_some_and(|bytes| bytes <= 0), || {
            format!("with spill the device held {above:?} above the cap")
        })?;
        same(figures, "answers.passed", &4.into())?;
        same(figures, "answers.failed", &0.into())?;
        for name in ["checkpoint.shared", "checkpoint.gpool"] {
            same(figures, name, &"works".into())?;
        }
        same(figures, "checkpoint.gpool.wrong", &0.into())?;
        same(figures, "told.health", &"ok".into())?;
        same(figures, "told.driver_names_idle", &0.into())?;
        for (name, least, most) in [
            ("told.idle_seconds", 2, 5),
            ("told.busy_idle_seconds", 0, 1),
            ("told.driver_names_busy", 1, 1000),
            // A GiB and a context.
            ("told.peak", 1 << 30, 2 << 30),
        ] {
            let value = figures[name]["value"].as_i64();
            ensure(value.is_some_and(|value| (least..=most).contains(&value)), || {
                format!("{name} is {value:?}, not {least} to {most}")
            })?;
        }
        // All but the half of what it draws with nobody on it, which is promised to nobody.
        let energy = figures["told.energy"]["value"].as_f64();
        ensure(energy.is_some_and(|part| (0.6..=1.1).contains(&part)), || format!("told.energy is {energy:?}"))?;
        for (name, least, most) in [("told.baseline_busy", 0.7, 1.2), ("told.baseline_of_lease", 0.0, 0.1)] {
            let value = figures[name]["value"].as_f64();
            ensure(value.is_some_and(|value| (least..=most).contains(&value)), || format!("{name} is {value:?}"))?;
        }
        // The simulated device has one queue for all streams.
        for (name, least, most) in [
            ("streams.native.10ms", 1.7, 2.5),
            ("streams.10ms", 0.8, 1.25),
            ("streams.10ms.beside", 0.8, 1.25),
            ("streams.10ms.in_turn", 0.8, 1.25),
            ("streams.10ms.limited", 0.9, 3.0),
        ] {
            let value = figures[name]["value"].as_f64();
            ensure(value.is_some_and(|value| (least..=most).contains(&value)), || format!("{name} is {value:?}"))?;
        }
        for name in ["nodes_in_order", "uploads_told_at_once", "kept_by_the_stream"] {
            same(figures, &format!("graphs.{name}"), &1.into())?;
        }
        same(figures, "environment.driver", &"same".into())?;
        same(figures, "environment.container", &"same".into())?;
        same(figures, "environment.exports_missing", &0.into())?;
        same(figures, "environment.nvml_exports_missing", &0.into())?;
        same(figures, "environment.lookups_missing", &0.into())?;
        for allocator in [
            "cuMemAlloc",
            "cuMemAllocManaged",
            "cuMemAllocPitch",
            "cuMemCreate",
            "cuMemAllocAsync",
            "cuMemAllocFromPoolAsync",
            "cuGraphAddMemAllocNode",
            "cuArrayCreate",
        ] {
            // Of 4 GiB, less a context.
            same(figures, &format!("memory.{allocator}.pieces"), &3.into())?;
            let name = format!("memory.{allocator}.over_cap");
            let over = figures[&name]["value"].as_i64();
            ensure(over.is_some_and(|bytes| (-MOST_FREE_BYTES..=0).contains(&bytes)), || {
                format!("{name} is {over:?}, not {} to 0", -MOST_FREE_BYTES)
            })?;
        }
        // What the driver may take for managed memory beside what is asked for, which the simulated one does not.
        let over =
            |allocator: &str| figures[format!("memory.{allocator}.over_cap")]["value"].as_i64().unwrap_or(i64::MAX);
        let (managed, plain) = (over("cuMemAllocManaged"), over("cuMemAlloc"));
        ensure((plain - managed - MANAGED_PIECE_BYTES).abs() <= 4 << 20, || {
            format!("managed memory ends {managed} bytes above the cap and plain one {plain}, not a piece apart")
        })?;
        // The stand-in knows one allocator, by which the worker has a small buffer already.
        same(figures, "memory.cuMemAlloc.hami_pieces", &3.into())?;
        let above = figures["memory.cuMemCreate.hami_over_cap"]["value"].as_u64();
        ensure(above > Some(1 << 30), || {
            format!("beside a cap that one allocator ignores {above:?} bytes were above it")
        })
    })
}

/// All stages: some minutes. What limits no compute is found out, and nothing of its shares is measured.
pub fn run_all(inside: &Inside) -> Result<()> {
    dry(inside, "environment,cost,shares,lending,latency,memory,many,checkpoint,unequal,power", |figures| {
        for (name, least, most) in [
            ("share.30_60_10.error", 0.0, 5.0),
            ("share.10_90.error", 0.0, 5.0),
            // The driver alone gives each a third.
            ("share.native.error", 15.0, 40.0),
            ("limit.graph_050", 0.4, 0.6),
            ("limit.heavy_sync_030", 0.2, 0.4),
            ("lend.idle", 0.8, 1.1),
            ("share.10_90.ratio", 7.0, 11.0),
            ("share.pausing", 0.7, 1.6),
            ("limit.least_delivered", 0.8, 1.0),
            ("latency.long.p50_alone", 20.0, 100.0),
            ("latency.told.p50", 0.4, 1.3),
            ("unequal.matmul_decode.50_50.matmul", 0.7, 1.3),
            ("unequal.matmul_decode.20_80.sum", 0.8, 1.2),
        ] {
            let value = figures[name]["value"].as_f64().unwrap_or(f64::NAN);
            ensure((least..=most).contains(&value), || format!("{name} is {value}, not {least} to {most}"))?;
        }
        ensure(figures["share.native.pausing"]["value"].as_f64().is_some(), || {
            "no control of share.pausing".to_owned()
        })?;
        for name in ["share.hami.error", "cost.spin_300us.hami_limited"] {
            same(figures, name, &Value::Null)?;
        }
        for name in [
            "cost.spin_300us.hami",
            "cost.spin_300us.early",
            "cost.mean_busy",
            "cost.call.launch",
            "cost.call.event",
            "cost.block.50us.event",
            "reclaim.native.p95",
            "unequal.decode_train.20_80.charged",
        ] {
            ensure(figures[name]["value"].is_number(), || format!("{name} was not measured"))?;
        }
        Ok(())
    })
}

/// Every stage of a part is reached.
fn each_part_fits() -> Result<()> {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-m", "suite.main", "--list"]).current_dir(SUITE).env("PYTHONDONTWRITEBYTECODE", "1");
    let said = succeeded("the list of stages", command.output().context("python3")?)?;
    for part in PARTS {
        let planned: u32 = said.lines().filter_map(|line| planned_seconds(line, part)).sum();
        ensure((1..=MOST_PLANNED_S).contains(&planned), || {
            format!("the stages of part {part} are planned for {planned} s, not 1 to {MOST_PLANNED_S}: {said}")
        })?;
    }
    Ok(())
}

/// A window that begins and ends anywhere holds one slice more or less, which is a tenth of what a ceiling of 10 % lets through in it.
fn ceilings_are_told_by_whole_slices() -> Result<()> {
    let said = said_by("rates of slices", include_str!("../../programs/suite_rates.py"))?;
    let found: Vec<f64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let is_right = matches!(found[..], [least, most, wrong] if least >= 0.99 && most <= 1.01 && wrong == 0.0);
    ensure(is_right, || {
        format!("of what is let through it tells, at least, at most, and of how many others wrongly: {said}")
    })
}

/// Also beside plain processes that differ; what is nearer to its aim than these are to each other is not decided.
fn what_is_missed_is_told() -> Result<()> {
    let said = said_by("verdicts", include_str!("../../programs/suite_verdicts.py"))?;
    let lines: Vec<&str> = said.lines().collect();
    ensure(lines == VERDICTS, || format!("of what it is to judge it says\n{said}"))
}

/// What a program prints that looks at a part of the suite.
fn said_by(what: &str, program: &str) -> Result<String> {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", program]).current_dir(SUITE).env("PYTHONDONTWRITEBYTECODE", "1");
    succeeded(what, command.output().context("python3")?)
}

/// Of one line of the list, `cost 100 s part 1 ...`, if the stage is of that part.
fn planned_seconds(line: &str, part: &str) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_of_it = words.get(3..5) == Some(["part", part].as_slice());
    words.get(1).filter(|_| is_of_it)?.parse().ok()
}

fn dry(inside: &Inside, stages: &str, judge: impl Fn(&Value) -> Result<()>) -> Result<()> {
    let mut host = Host::start_without_supervisor(inside, "[spill]\nmemory = \"4GiB\"\n")?;
    let outcome = start(&mut host).and_then(|()| run_suite(&host, stages)).and_then(|figures| judge(&figures));
    // Its plain tenants are processes without a lease, which the guard tells.
    finish_found(host, outcome)
}

/// As a driver that has the checkpoint calls.
fn start(host: &mut Host) -> Result<()> {
    host.set_driver_version(&DriverVersion::parse(DRIVER).map_err(Failure::new)?)?;
    host.start_supervisor()
}

fn run_suite(host: &Host, stages: &str) -> Result<Value> {
    let stand_in = Path::new(RESULTS).join("stand-in");
    c_program::compile(include_str!("../../programs/hami_stand_in.c"), &stand_in, "libvgpu.so", &["-shared", "-fPIC"])?;
    // Of this run's own /run. The environment of the tests is not the suite's: gpool has its keys there.
    let mut command = host.command_named("/usr/bin/python3");
    command.args(["-m", "suite.main", "--simulated", "--budget", "900", "--out", RESULTS, "--stages", stages]);
    command.arg("--hami").arg(&stand_in);
    // Whose shims its tenants should have.
    let shims = Stage::of_this_program()?.shims();
    command.arg("--bundle").arg(shims.parent().unwrap_or(Path::new("/")));
    command.current_dir(SUITE).env("PYTHONDONTWRITEBYTECODE", "1");
    let said = succeeded("the suite", command.output().context("python3")?)?;
    let text = std::fs::read(format!("{RESULTS}/gpu.json")).context("gpu.json")?;
    let results: Value = serde_json::from_slice(&text).context("gpu.json")?;
    // What the simulated driver does not have.
    let is_lacking = |stage: &str| stage == "power";
    let undone = stages.split(',').find(|stage| {
        let outcome = results["stages"][*stage]["outcome"].as_str().unwrap_or_default();
        outcome != "done" && !(is_lacking(stage) && outcome.starts_with("skipped: "))
    });
    match undone {
        None => page(host).map(|()| results["figures"].clone()),
        Some(stage) => Err(Failure::new(format!("the stage {stage} did not end well; it said\n{said}"))),
    }
}

/// The page for people is made of what was written.
fn page(host: &Host) -> Result<()> {
    let page = format!("{RESULTS}/page.md");
    let mut command = host.command_named("/usr/bin/python3");
    command.args(["-m", "suite.main", "--page", &format!("{RESULTS}/gpu.json"), &page]).current_dir(SUITE);
    succeeded("the page", command.env("PYTHONDONTWRITEBYTECODE", "1").output().context("python3")?)?;
    let text = std::fs::read_to_string(&page).context("the page")?;
    let rows = [
        "simulated GPU",
        "| memory.cuMemAlloc.pieces | 3 |",
        "| memory | done |",
        "## Builds",
        "## Seconds of suspending and resuming",
    ];
    match rows.iter().find(|row| !text.contains(**row)) {
        None => Ok(()),
        Some(row) => Err(Failure::new(format!("the page has no {row:?}: {text}"))),
    }
}

fn same(figures: &Value, name: &str, want: &Value) -> Result<()> {
    let value = &figures[name]["value"];
    ensure(value == want, || format!("{name} is {value} instead of {want}"))
}
