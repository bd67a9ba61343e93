//! The benchmarks: every figure that is promised, measured three times beside its native control.
//!
//! Figures on the simulated GPU say how gpool shares a device that takes turns as an NVIDIA GPU does; they are no
//! figures of a real one. Where absolute times are given they are those of this machine at this hour.
//!
//! Rooms: `figures` and `catalog` (names and promises), `sheet` and `table` (what was measured), `sharing` with `trio`,
//! `phases` and `lending` (three tenants), `entitlements`, `latency` and `containers` (other tenants), `calls` and
//! `call_cost` with `block_cost` (calls in a container), `starts` (processes in a container), `allocation` (on the stand), `gate` and
//! `null_driver` (the gate alone), `runtime`, `verbs`, `leases` and `bundle` (whole processes of the OCI runtime), `sizes`,
//! `kills` (the kill matrix), `decide` and `host_decide` (the scheduler).

mod allocation;
mod block_cost;
mod bundle;
pub mod call_cost;
mod calls;
mod catalog;
mod containers;
mod decide;
mod entitlements;
mod figures;
mod gate;
mod host_decide;
mod kills;
mod latency;
mod leases;
mod lending;
mod mig;
mod null_driver;
mod phases;
mod process_cost;
mod runtime;
mod sharing;
mod sheet;
mod sizes;
mod starts;
mod table;
mod trio;
mod verbs;

use crate::failure::{Failure, Result, ensure};
use crate::host::Host;
use crate::namespaces::{self, Inside};
use crate::{cgroups, janitor};
use gpool_protocol::GpuView;
use sheet::Sheet;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Rounds of everything.
const ROUNDS: usize = 3;
/// About twice as long as a healthy run.
const LIMIT: Duration = Duration::from_secs(15 * 60);
/// Ended containers keep their places for less.
const ROOM_PATIENCE: Duration = Duration::from_secs(15);

/// What is measured in one go.
struct Section {
    name: &'static str,
    measure: fn(&Host, &Inside, &mut Sheet) -> Result<()>,
}

/// In between stand those without containers: meanwhile the places of ended leases run out.
const SECTIONS: [Section; 12] = [
    Section { name: "sharing", measure: |host, _, sheet| sharing::measure(host, sheet) },
    Section { name: "entitled", measure: |host, _, sheet| entitlements::measure(host, sheet) },
    Section { name: "latency", measure: |host, _, sheet| latency::measure(host, sheet) },
    Section { name: "gate", measure: |_, _, sheet| gate::measure(sheet) },
    Section {
        name: "decide",
        measure: |_, _, sheet| decide::measure(sheet).and_then(|()| host_decide::measure(sheet)),
    },
    Section { name: "mig", measure: |_, _, sheet| mig::measure(sheet) },
    Section { name: "alloc", measure: |host, _, sheet| allocation::measure(host, sheet) },
    Section { name: "calls", measure: |host, _, sheet| calls::measure(host, sheet) },
    Section { name: "starts", measure: |host, _, sheet| starts::measure(host, sheet) },
    Section { name: "leases", measure: |host, inside, sheet| leases::measure(host, &inside.cgroup_parent, sheet) },
    Section { name: "runtime", measure: |host, inside, sheet| runtime::measure(host, &inside.cgroup_parent, sheet) },
    Section { name: "sizes", measure: |host, _, sheet| sizes::measure(host, sheet) },
];

/// `gpool-bench [SECTION]`: exit status 0 if everything could be measured, whatever the figures are.
///
/// With the name of a section only that one is measured and no file is written.
pub fn run() -> ExitCode {
    if let Some(code) = janitor::serve_if_asked() {
        return code;
    }
    let only = std::env::args().nth(1);
    if let Some(code) = namespaces::serve_if_inside(|inside| measure(inside, only.as_deref())) {
        return code;
    }
    println!("gpool bench: {ROUNDS} rounds on a simulated GPU, on cgroup version {}", cgroups::version());
    let is_whole = only.is_none();
    let arguments: Vec<String> = only.into_iter().collect();
    let ended = namespaces::run(&arguments, LIMIT, Stdio::inherit()).and_then(|ended| {
        if is_whole && ended.is_success() {
            kills::add_to(&results_path()?)?;
        }
        Ok(ended)
    });
    match ended {
        Ok(ended) => ended.exit_code(),
        Err(failure) => {
            eprintln!("gpool bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn measure(inside: &Inside, only: Option<&str>) -> Result<ExitCode> {
    let sections: Vec<&Section> =
        SECTIONS.iter().filter(|section| only.is_none_or(|only| only == section.name)).collect();
    ensure(!sections.is_empty(), || {
        let names = SECTIONS.map(|section| section.name).join(", ");
        format!("no section is called {}; there are {names}", only.unwrap_or_default())
    })?;
    let mut sheet = Sheet::default();
    let host = Host::start(inside)?;
    let failures = rounds(&host, inside, &sections, &mut sheet);
    if !failures.is_empty() {
        eprint!("{}", host.logs());
    }
    print!("\n{}", table::render(&sheet.lines()));
    failures.iter().for_each(|failure| eprintln!("not measured: {failure}"));
    let left = host.stop()?;
    left.iter().for_each(|thing| eprintln!("left behind: {thing}"));
    if only.is_none() {
        publish(&sheet)?;
    }
    Ok(if failures.is_empty() && left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes the results if they are whole: a file with a round less would not show it.
fn publish(sheet: &Sheet) -> Result<()> {
    let path = results_path()?;
    let missing = sheet.missing(ROUNDS);
    ensure(missing.is_empty(), || {
        format!("{} is left as it was; without all {ROUNDS} rounds: {}", path.display(), missing.join(", "))
    })?;
    sheet.write(&path)?;
    println!("written to {}", path.display());
    Ok(())
}

/// Everything, again and again. A section that fails is told, and the others go on.
fn rounds(host: &Host, inside: &Inside, sections: &[&Section], sheet: &mut Sheet) -> Vec<String> {
    let mut failures = Vec::new();
    for round in 1..=ROUNDS {
        for section in sections {
            let start = Instant::now();
            let measured = (section.measure)(host, inside, sheet);
            let verdict = if measured.is_ok() { "measured" } else { "FAILED" };
            println!("round {round} {:8} {verdict} in {:.1} s", section.name, start.elapsed().as_secs_f64());
            if let Err(failure) = measured {
                failures.push(format!("{} in round {round}: {failure}", section.name));
                // What a failed section leaves must not stand in the way of the next.
                failures.extend(host.engine.remove_all_containers().err().map(|failure| failure.to_string()));
            }
        }
    }
    failures
}

/// `target/bench/results.json`, beside the stage that this program is part of.
fn results_path() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(3).ok_or_else(|| Failure::new("this program lies in no stage"))?;
    Ok(Path::new(target).join("bench/results.json"))
}

/// Waits until so much of the GPU is free: an ended container's place is kept for a while.
fn wait_for_room(host: &Host, permille: u16) -> Result<()> {
    let deadline = Instant::now() + ROOM_PATIENCE;
    loop {
        let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
        let free = gpus.iter().map(|gpu| 1000_u16.saturating_sub(gpu.fraction_leased_permille)).max().unwrap_or(0);
        if free >= permille {
            return Ok(());
        }
        ensure(Instant::now() < deadline, || format!("{free} permille of the GPU are free, {permille} are needed"))?;
        std::thread::sleep(Duration::from_millis(20));
    }
}
