//! nvidia-ml-py, gpustat, nvitop and nvtop as people have them, in a leased container beside another tenant: each shows the
//! slice and its process, and nothing of the neighbour.

use super::{finish, wait_until_running};
use crate::downloads::{Downloads, Packages};
use crate::failure::{Context, Result, ensure};
use crate::host::Host;
use crate::namespaces::{Inside, another_run};
use crate::python::{MONITORING, ask};
use crate::stage::Stage;
use crate::tenant::Tenant;
use serde_json::Value;

/// The container that is looked at.
const WATCHED: &str = "watched";
const CAP_MIB: u64 = 4096;

/// nvtop and what it needs of its release, its own C library included.
const NVTOP: Packages = Packages {
    suite: "stable",
    component: "main",
    names: &[
        "nvtop",
        "libc6",
        "libcap2",
        "libgcc-s1",
        "libncursesw6",
        "libsystemd0",
        "libtinfo6",
        "libudev1",
        "ncurses-base",
    ],
};
/// Where the container sees it.
const NVTOP_ROOT: &str = "/nvtop";
/// Runs it for some refreshes on a screen of this size, and ends it as a person does who presses Ctrl-C.
const NVTOP_SCRIPT: &str = "\
stty rows 30 cols 120
libraries=/nvtop/usr/lib/x86_64-linux-gnu
timeout -s INT 3 $libraries/ld-linux-x86-64.so.2 --library-path $libraries:/usr/lib/x86_64-linux-gnu:/lib/x86_64-linux-gnu \
    /nvtop/usr/bin/nvtop --no-plot --no-color --delay 5
true
";

/// Asks NVML as scripts do.
const SCRIPT: &str = "\
import json, pynvml as nvml
nvml.nvmlInit()
device = nvml.nvmlDeviceGetHandleByIndex(0)
print(json.dumps({
    'total': nvml.nvmlDeviceGetMemoryInfo(device).total,
    'percent': nvml.nvmlDeviceGetUtilizationRates(device).gpu,
    'pids': [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(device)],
    'sampled': [sample.pid for sample in nvml.nvmlDeviceGetProcessUtilization(device, 0)],
}))
";

/// Downloads the programs, then looks through them in a run of its own, which has no network.
pub fn run() -> Result<()> {
    if let Err(failure) = MONITORING.fetch(&downloads()?) {
        println!("skipped: {failure}");
        return Ok(());
    }
    if let Err(failure) = downloads()?.fetch(&NVTOP) {
        println!("skipped in part: {failure}");
    }
    let status = another_run().arg("monitoring-programs-inside").status().context("the run that looks")?;
    ensure(status.success(), || format!("the run that looks ended with {status}"))
}

/// Runs each program in a leased container.
pub fn inside(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = look_through_each(&host);
    finish(host, outcome)
}

fn look_through_each(host: &Host) -> Result<()> {
    let mut mounts = MONITORING.options(&downloads()?)?;
    let nvtop = downloads()?.unpacked(&NVTOP);
    mounts.extend(nvtop.iter().map(|directory| format!("-v{}:{NVTOP_ROOT}:ro", directory.display())));
    let options: Vec<&str> = mounts.iter().map(String::as_str).collect();
    let request = |fraction, memory| [("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", memory)];
    let modest = Tenant { allocate_mib: Some(1024), ..Tenant::greedy(500) };
    let command = modest.command();
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let watched = host.run_container(WATCHED, &request("0.3", "4GiB"), &options, &command)?;
    let neighbour = Tenant::greedy(800).run(host, "neighbour", &request("0.6", "8GiB"))?;
    wait_until_running(host, &[watched, neighbour])?;
    let mut busiest = 0;
    for _ in 0..5 {
        busiest = busiest.max(check_script(host)?);
    }
    ensure(busiest >= 70, || format!("a slice in full use shows {busiest} % at most"))?;
    check_gpustat(host)?;
    check_nvitop(host)?;
    if nvtop.is_some() { check_nvtop(host) } else { Ok(()) }
}

/// The utilisation that it shows.
fn check_script(host: &Host) -> Result<u64> {
    let said = ask(&host.engine, WATCHED, &["-c", SCRIPT])?;
    let shown: Value = serde_json::from_str(&said).context(format!("nvidia-ml-py said {said}"))?;
    let only_own = |list: &Value| list.as_array().is_some_and(|pids| pids.iter().all(|pid| *pid == 1));
    let is_slice = shown["total"] == CAP_MIB << 20 && shown["pids"] == serde_json::json!([1]);
    ensure(is_slice && only_own(&shown["sampled"]), || format!("nvidia-ml-py shows {shown}"))?;
    Ok(shown["percent"].as_u64().unwrap_or(0))
}

fn check_gpustat(host: &Host) -> Result<()> {
    let said = ask(&host.engine, WATCHED, &["-m", "gpustat", "--json"])?;
    let shown: Value = serde_json::from_str(&said).context(format!("gpustat said {said}"))?;
    let device = &shown["gpus"][0];
    let processes = device["processes"].as_array().map_or(&[][..], Vec::as_slice);
    let is_slice = device["memory.total"] == CAP_MIB && processes.len() == 1 && processes[0]["pid"] == 1;
    ensure(is_slice, || format!("gpustat shows {said}"))
}

fn check_nvitop(host: &Host) -> Result<()> {
    let said = ask(&host.engine, WATCHED, &["-m", "nvitop", "--once", "--ascii"])?;
    let rows = said.lines().skip_while(|line| !line.contains("COMMAND")).filter(|line| line.contains("gpool-tenant"));
    let total = format!("/ {CAP_MIB}MiB");
    let is_slice = said.contains(&total) && rows.count() == 1 && !said.contains("ERROR");
    ensure(is_slice, || format!("nvitop shows\n{said}"))
}

/// On its first screen, of which later ones only change parts.
fn check_nvtop(host: &Host) -> Result<()> {
    let terminfo = format!("TERMINFO={NVTOP_ROOT}/usr/share/terminfo");
    let terminal = ["exec", "-t", "-e", "TERM=xterm", "-e", &terminfo, "-e", "HOME=/tmp", WATCHED];
    let said = host.engine.docker_text(&[&terminal[..], &["sh", "-c", NVTOP_SCRIPT]].concat())?;
    let text = without_escapes(&said);
    let screen = text.split("F10").next().unwrap_or_default();
    let words: Vec<&str> = screen.split_whitespace().collect();
    let has_memory = screen.contains(&format!("/{}.000Gi]", CAP_MIB >> 10));
    // `1 root 0 Compute 29% 1280MiB 31% ...`
    let pids: Vec<&str> =
        words.iter().enumerate().filter(|(_, word)| **word == "Compute").map(|(at, _)| words[at.max(3) - 3]).collect();
    ensure(has_memory && pids == ["1"] && screen.contains("gpool-tenant"), || format!("nvtop shows {text}"))
}

/// A terminal's control sequences (ECMA-48) replaced by spaces: they move the cursor.
fn without_escapes(text: &str) -> String {
    let mut plain = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\u{1b}' {
            plain.push(letter);
            continue;
        }
        plain.push(' ');
        match letters.next() {
            Some('[') => drop(letters.find(|letter| ('@'..='~').contains(letter))),
            // The choice of a character set has one letter more.
            Some('(' | ')') => drop(letters.next()),
            Some(_) | None => {}
        }
    }
    plain
}

fn downloads() -> Result<Downloads> {
    Ok(Downloads::in_directory(Stage::of_this_program()?.downloads()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_are_told_from_text() {
        assert_eq!(without_escapes("a\u{1b}[1;30rb\u{1b}(Bc\u{1b}=d\u{1b}[?25l"), "a b c d ");
    }
}
