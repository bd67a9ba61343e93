//! nvidia-ml-py, gpustat and nvitop as people have them, in a leased container beside another tenant: each shows the
//! slice and its process, and nothing of the neighbour.

use super::{finish, wait_until_running};
use crate::downloads::Downloads;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Host, succeeded};
use crate::namespaces::{Inside, another_run};
use crate::stage::Stage;
use crate::tenant::Tenant;
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// What is installed together into one directory.
const PROGRAMS: [&str; 3] = ["nvidia-ml-py", "gpustat", "nvitop"];
/// Where the container sees this machine's Python, and libraries that Python's own need.
const PYTHON: &str = "/python";
const CAP_MIB: u64 = 4096;

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
    let fetched = downloads()?.fetch_python("monitoring-programs", &PROGRAMS).and_then(|()| python().map(drop));
    if let Err(failure) = fetched {
        println!("skipped: {failure}");
        return Ok(());
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
    let programs = downloads()?.unpacked_wheel("monitoring-programs");
    let programs = programs.ok_or_else(|| Failure::new("the programs are not here"))?;
    let mounts = [(python()?, PYTHON), (programs, "/programs"), ("/usr/lib/x86_64-linux-gnu".into(), "/libraries")];
    let mounts: Vec<String> = mounts.iter().map(|(from, to)| format!("-v{}:{to}:ro", from.display())).collect();
    let options: Vec<&str> = mounts.iter().map(String::as_str).collect();
    let request = |fraction, memory| [("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", memory)];
    let modest = Tenant { allocate_mib: Some(1024), ..Tenant::greedy(500) };
    let command = modest.command();
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let watched = host.run_container("watched", &request("0.3", "4GiB"), &options, &command)?;
    let neighbour = Tenant::greedy(800).run(host, "neighbour", &request("0.6", "8GiB"))?;
    wait_until_running(host, &[watched, neighbour])?;
    let mut busiest = 0;
    for _ in 0..5 {
        busiest = busiest.max(check_script(host)?);
    }
    ensure(busiest >= 70, || format!("a slice in full use shows {busiest} % at most"))?;
    check_gpustat(host)?;
    check_nvitop(host)
}

/// Runs Python in the container.
fn ask(host: &Host, arguments: &[&str]) -> Result<String> {
    let environment = [
        // First where gpool has put the driver: this machine may have one among its libraries.
        format!("LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu:{PYTHON}/lib:/libraries"),
        format!("PYTHONHOME={PYTHON}"),
        "PYTHONPATH=/programs".to_owned(),
        "PYTHONDONTWRITEBYTECODE=1".to_owned(),
        "TERM=xterm".to_owned(),
        "COLUMNS=100".to_owned(),
    ];
    let python = format!("{PYTHON}/bin/python3");
    let mut command = vec!["exec"];
    command.extend(environment.iter().flat_map(|setting| ["-e", setting]));
    command.extend(["watched", &python]);
    command.extend(arguments);
    host.engine.docker_text(&command)
}

/// The utilisation that it shows.
fn check_script(host: &Host) -> Result<u64> {
    let said = ask(host, &["-c", SCRIPT])?;
    let shown: Value = serde_json::from_str(&said).context(format!("nvidia-ml-py said {said}"))?;
    let only_own = |list: &Value| list.as_array().is_some_and(|pids| pids.iter().all(|pid| *pid == 1));
    let is_slice = shown["total"] == CAP_MIB << 20 && shown["pids"] == serde_json::json!([1]);
    ensure(is_slice && only_own(&shown["sampled"]), || format!("nvidia-ml-py shows {shown}"))?;
    Ok(shown["percent"].as_u64().unwrap_or(0))
}

fn check_gpustat(host: &Host) -> Result<()> {
    let said = ask(host, &["-m", "gpustat", "--json"])?;
    let shown: Value = serde_json::from_str(&said).context(format!("gpustat said {said}"))?;
    let device = &shown["gpus"][0];
    let processes = device["processes"].as_array().map_or(&[][..], Vec::as_slice);
    let is_slice = device["memory.total"] == CAP_MIB && processes.len() == 1 && processes[0]["pid"] == 1;
    ensure(is_slice, || format!("gpustat shows {said}"))
}

fn check_nvitop(host: &Host) -> Result<()> {
    let said = ask(host, &["-m", "nvitop", "--once", "--ascii"])?;
    let rows = said.lines().skip_while(|line| !line.contains("COMMAND")).filter(|line| line.contains("gpool-tenant"));
    let total = format!("/ {CAP_MIB}MiB");
    let is_slice = said.contains(&total) && rows.count() == 1 && !said.contains("ERROR");
    ensure(is_slice, || format!("nvitop shows\n{said}"))
}

/// Where this machine's Python is installed.
fn python() -> Result<PathBuf> {
    let script = "import sys; print(sys.base_prefix)";
    let asked = Command::new("python3").args(["-c", script]).output().context("python3")?;
    Ok(succeeded("python3", asked)?.into())
}

fn downloads() -> Result<Downloads> {
    Ok(Downloads::in_directory(Stage::of_this_program()?.downloads()))
}
