//! The simulated GPU without gpool: what plain containers see of it, and what its meter sees of them. The native
//! control of everything that is measured with gpool.

use super::{finish, wait_for, wait_until_running};
use crate::failure::{Result, ensure};
use crate::host::{Container, Host};
use crate::image;
use crate::meter::{now_ns, usage_of};
use crate::namespaces::Inside;
use crate::tenant::{Tenant, report};
use crate::trace::Recorder;
use std::time::Duration;

const GPU: &str = "/run/gpool-simgpu";

/// Runs two tenants side by side, compares their times with the whole, kills one.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start_without_supervisor(inside, "")?;
    let outcome = share_and_kill(&host);
    finish(host, outcome)
}

fn share_and_kill(host: &Host) -> Result<()> {
    let first = start(host, "first")?;
    let second = start(host, "second")?;
    wait_until_running(host, &[first.clone(), second.clone()])?;
    let recorder = Recorder::start(host.meter()?, Duration::from_millis(2));
    std::thread::sleep(Duration::from_secs(2));
    let killed = now_ns();
    first.kill_init()?;
    std::thread::sleep(Duration::from_secs(1));
    let trace = recorder.stop()?;
    let shares = [&first, &second].map(|container| trace.share(&container.id, killed - 2_000_000_000, killed));
    let is_fair = shares.iter().all(|share| (0.4..0.6).contains(share));
    ensure(is_fair, || format!("two equal tenants received {shares:?}"))?;
    let found = report(&second.log(&host.engine)?)?;
    ensure(found.cuda_total_bytes == 24 << 30, || format!("without gpool the GPU is not whole: {found:?}"))?;
    let held = |container: &Container| -> Result<u64> { Ok(usage_of(&host.meter()?.read()?, &container.id).bytes_now) };
    wait_for("the memory of the killed one", || Ok(held(&first)? == 0))?;
    ensure(held(&second)? > 0, || "the other one has lost its memory".to_owned())
}

/// Starts a tenant with 1 GiB in a plain container that is given the GPU by hand.
pub fn start(host: &Host, name: &str) -> Result<Container> {
    start_with(host, name, 1024)
}

/// The same with so much memory.
pub fn start_with(host: &Host, name: &str, mib: u64) -> Result<Container> {
    start_running(host, name, &Tenant { allocate_mib: Some(mib), ..Tenant::greedy(500) }, &[])
}

/// The same of any tenant, with further options of `gpool-tenant`.
pub fn start_running(host: &Host, name: &str, tenant: &Tenant, more: &[&str]) -> Result<Container> {
    let libraries = ["libcuda.so.1", "libnvidia-ml.so.1"]
        .map(|library| format!("{GPU}/lib/{library}:{}/{library}:ro", image::LIBRARIES));
    let devices = ["nvidia0", "nvidiactl", "nvidia-uvm"].map(|node| format!("{GPU}/dev/{node}:/dev/{node}:rw"));
    let state = format!("{GPU}/state:{GPU}/state");
    let mut options = vec!["run", "-d", "--runtime=runc", "--name", name, "-v", &state];
    options.extend(libraries.iter().flat_map(|mount| ["-v", mount]));
    options.extend(devices.iter().flat_map(|device| ["--device", device]));
    options.push(image::NAME);
    let command = tenant.command();
    options.extend(command.iter().map(String::as_str).chain(more.iter().copied()));
    host.engine.docker_text(&options)?;
    Container::inspect(&host.engine, name)
}
