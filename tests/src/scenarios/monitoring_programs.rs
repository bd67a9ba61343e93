//! nvidia-ml-py, gpustat and nvitop as people have them, in a leased container beside another tenant: each shows the
//! slice and its process, and nothing of the neighbour.

use super::{finish, wait_until_running};
use crate::downloads::Downloads;
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
    let mounts = MONITORING.options(&downloads()?)?;
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
    check_nvitop(host)
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

fn downloads() -> Result<Downloads> {
    Ok(Downloads::in_directory(Stage::of_this_program()?.downloads()))
}
