//! numba, cuda.bindings and cuda.core as people have them, in a leased container beside another tenant: each sees the slice,
//! is refused what is beyond it in its own words, gets its data back, and stands at the gate with its launches, which are
//! charged.

use super::{finish, know_contexts, sampler_rounds, wait_for, wait_until_account_agrees, wait_until_running};
use crate::downloads::Downloads;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host};
use crate::meter::usage_of;
use crate::namespaces::{Inside, another_run};
use crate::python::{CUDA, ask};
use crate::stage::Stage;
use crate::tenant::Tenant;
use gpool_simulated_hardware::DriverVersion;
use serde_json::Value;

/// The generation whose CUDA version the compilers are of.
const DRIVER: &str = "550.163.01";
const CAP_BYTES: u64 = 2 << 30;
/// More than the slice and less than what is free on the GPU.
const TOO_MUCH_BYTES: u64 = 3 << 30;
/// GPU time of all launches of a program.
const WORK_NS: u64 = 600_000_000;

/// A program, how often it is to launch its kernel, and how long that takes.
struct Client {
    name: &'static str,
    source: &'static str,
    launches: u64,
    kernel_ns: u64,
    /// What its own words for a refusal hold.
    refusal: &'static str,
}

const CLIENTS: [Client; 3] = [
    Client {
        name: "numba",
        source: include_str!("../../programs/numba_client.py"),
        launches: WORK_NS / NUMBA_KERNEL_NS,
        kernel_ns: NUMBA_KERNEL_NS,
        refusal: "CUDA_ERROR_OUT_OF_MEMORY",
    },
    Client {
        name: "cuda.bindings",
        source: include_str!("../../programs/bindings_client.py"),
        launches: WORK_NS / SPIN_NS,
        kernel_ns: SPIN_NS,
        refusal: "CUDA_ERROR_OUT_OF_MEMORY",
    },
    Client {
        name: "cuda.core",
        source: include_str!("../../programs/core_client.py"),
        launches: WORK_NS / SPIN_NS,
        kernel_ns: SPIN_NS,
        refusal: "CUDA_ERROR_OUT_OF_MEMORY",
    },
];
/// What the programs' kernels are told to take.
const SPIN_NS: u64 = 1_000_000;
/// By the simulated driver's formula: 2 us, and 10 us for each of the 26 times that 4096 blocks of 1024 threads fill 80
/// multiprocessors of 2048 threads.
const NUMBA_KERNEL_NS: u64 = 262_000;

/// Downloads the programs, then runs them in a run of its own, which has no network.
pub fn run() -> Result<()> {
    if let Err(failure) = CUDA.fetch(&downloads()?) {
        println!("skipped: {failure}");
        return Ok(());
    }
    let status = another_run().arg("cuda-programs-inside").status().context("the run of the programs")?;
    ensure(status.success(), || format!("the run of the programs ended with {status}"))
}

/// Runs each program in a leased container.
pub fn inside(inside: &Inside) -> Result<()> {
    let mut host = Host::start_without_supervisor(inside, "")?;
    let outcome = run_each(&mut host);
    finish(host, outcome)
}

fn run_each(host: &mut Host) -> Result<()> {
    let version = DriverVersion::parse(DRIVER).map_err(Failure::new)?;
    host.set_driver_version(&version)?;
    // Else the first leases learn it while the programs look at what is free.
    know_contexts()?;
    host.start_supervisor()?;
    let neighbour = Tenant { allocate_mib: Some(256), ..Tenant::greedy(800) };
    let neighbour = neighbour.run(host, "neighbour", &[("GPOOL_FRACTION", "0.4"), ("GPOOL_MEMORY", "4GiB")])?;
    wait_until_account_agrees(host, &neighbour)?;
    wait_until_running(host, &[neighbour])?;
    let mounts = CUDA.options(&downloads()?)?;
    let options: Vec<&str> = mounts.iter().map(String::as_str).collect();
    let request = [("GPOOL_FRACTION", "0.4"), ("GPOOL_MEMORY", "2GiB")];
    let container = host.run_container("client", &request, &options, &["sleep", "600"])?;
    for client in &CLIENTS {
        check(host, &container, client).context(client.name)?;
    }
    Ok(())
}

fn check(host: &Host, container: &Container, client: &Client) -> Result<()> {
    let meter = host.meter()?;
    let (before, lease_before) = (usage_of(&meter.read()?, &container.id), host.lease_of(container)?);
    let arguments = ["-c", client.source, &client.launches.to_string(), &TOO_MUCH_BYTES.to_string()];
    let said = ask(&host.engine, &container.id, &arguments)?;
    let seen: Value = serde_json::from_str(&said).context(format!("it said {said}"))?;
    let bytes = |name: &str| seen[name].as_u64().unwrap_or(u64::MAX);
    let is_slice = bytes("total") == CAP_BYTES && bytes("free") < CAP_BYTES;
    ensure(is_slice && seen["data_came_back"] == true, || format!("of {CAP_BYTES} bytes it sees {said}"))?;
    let taken = bytes("free").saturating_sub(bytes("free_with_data"));
    ensure(taken >= bytes("bytes"), || format!("its data is not in the account: {said}"))?;
    // One of them captures a graph that allocates.
    let is_charged = seen["graph_is_charged"].as_bool().unwrap_or(client.name != "cuda.bindings");
    ensure(is_charged, || format!("what its graph holds is not in the account: {said}"))?;
    let refusal = seen["refused"].as_str().unwrap_or_default();
    ensure(refusal.contains(client.refusal), || format!("beyond the slice it is told {refusal}"))?;
    let after = usage_of(&meter.read()?, &container.id);
    let (kernels, busy_ns) = (after.kernels - before.kernels, after.busy_ns - before.busy_ns);
    let work_ns = client.launches * client.kernel_ns;
    // Nothing else that the clients do takes the multiprocessors' time: copies are with the host.
    ensure(kernels == client.launches && busy_ns == work_ns, || {
        format!("of {} launches and {work_ns} ns the device saw {kernels} and {busy_ns}", client.launches)
    })?;
    ensure(after.bytes_peak <= CAP_BYTES, || format!("it held {} bytes", after.bytes_peak))?;
    let charged = charged_at_last(host, container, lease_before.charged_gpu_ns, work_ns)?;
    let waited_ns = host.lease_of(container)?.gate_wait_ns - lease_before.gate_wait_ns;
    // The neighbour always wants the GPU, and a slice is 20 ms at most.
    ensure(waited_ns >= work_ns / 10, || format!("it stood at the gate for {waited_ns} ns"))?;
    println!("{}: {kernels} launches, {busy_ns} ns of GPU time, {charged} ns charged", client.name);
    Ok(())
}

/// What is charged for that work, once it is in the book: that is noted once a second. Where bursts of two tenants overlap,
/// as they do at hand-offs on a busy machine, each pays for a part of both; wall time would be more than twice the work.
fn charged_at_last(host: &Host, container: &Container, before: u64, work_ns: u64) -> Result<u64> {
    wait_for("the end of its process", || Ok(host.lease_of(container)?.processes == 0))?;
    // One round may have begun before that.
    let rounds = sampler_rounds(host)?;
    wait_for("its charges to be noted", || Ok(sampler_rounds(host)? >= rounds + 2))?;
    let charged = host.lease_of(container)?.charged_gpu_ns - before;
    let is_paid = (work_ns / 10 * 7..=work_ns / 10 * 14).contains(&charged);
    ensure(is_paid, || format!("of {work_ns} ns of work {charged} are charged")).map(|()| charged)
}

fn downloads() -> Result<Downloads> {
    Ok(Downloads::in_directory(Stage::of_this_program()?.downloads()))
}
