//! A tenant that forks, floods its bell and the socket, removes and cuts what is mounted to it, and asks for what is not
//! its own. The neighbour keeps its share, the supervisor its size.

use super::super::{start_tenants, wait_until_running};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Host, text};
use crate::image;
use crate::meter::now_ns;
use crate::trace::Recorder;
use std::fs;
use std::time::Duration;

/// How long everything goes on at once.
const FLOOD: Duration = Duration::from_secs(6);
/// What the supervisor may grow by.
const GROWTH_KIB: u64 = 64 << 10;
/// Against the flood, by the tenant's own limits on processor time: the machine has other users.
const VANDAL: [&str; 8] = [
    "-v",
    "/run/gpool-stage/bin/gpool:/bin/gpool:ro",
    "-v",
    "/run/gpool/gpool.sock:/gpool.sock:ro",
    "--cpus",
    "0.5",
    "--pids-limit",
    "2000",
];

/// Floods, and looks at the others.
pub fn harms_nobody(host: &Host) -> Result<()> {
    let mut containers = start_tenants(host, &[("neighbour", "0.5", "2GiB", 700)])?;
    let env = [("GPOOL_FRACTION", "0.4"), ("GPOOL_MEMORY", "2GiB")];
    containers.push(host.run_container(
        "vandal",
        &env,
        &VANDAL,
        &["gpool-tenant", "--kernel-us", "500", "--allocate-mib", "64"],
    )?);
    wait_until_running(host, &containers)?;
    may_change_nothing(host, &containers[0].id)?;
    let before = supervisor_kib(host)?;
    let supervisor = host.supervisor_pid();
    let recorder = Recorder::start(host.meter()?, Duration::from_millis(5));
    let children = "for i in $(seq 1000); do sleep 30 & done; wait";
    let bell = "while :; do dd if=/dev/urandom of=/dev/gpool/bell bs=4096 count=64 2>/dev/null; done";
    // Registrations that nobody holds, in every slot.
    let slots = "while :; do dd if=/dev/urandom of=/dev/gpool/report bs=2048 count=64 conv=notrunc 2>/dev/null; done";
    let socket = "for i in $(seq 100); do gpool --socket /gpool.sock events --follow > /dev/null 2>&1 & done; wait";
    for attack in [children, bell, slots, socket] {
        host.engine.docker_text(&["exec", "-d", "vandal", "sh", "-c", attack])?;
    }
    let from_ns = now_ns();
    std::thread::sleep(FLOOD);
    let to_ns = now_ns();
    // The host's own root is served meanwhile, and so is a new container.
    host.leases()?;
    let late =
        host.run_container("late", &[("GPOOL_FRACTION", "0.05"), ("GPOOL_MEMORY", "1GiB")], &[], &["sleep", "100"]);
    let trace = recorder.stop()?;
    late?;
    let share = trace.share(&containers[0].id, from_ns, to_ns);
    ensure(share >= 0.3, || format!("beside the flood the neighbour got {share:.3} of the GPU"))?;
    let after = supervisor_kib(host)?;
    println!("    neighbour {share:.3} of the GPU, supervisor {before} KiB before and {after} KiB after");
    ensure(after <= before + GROWTH_KIB, || format!("the supervisor grew from {before} to {after} KiB"))?;
    remove_and_cut(host)?;
    many_allocations(host)?;
    ensure(host.supervisor_pid() == supervisor && containers[0].is_alive(), || {
        "the supervisor or the neighbour ended".to_owned()
    })
}

/// Root of a container asks for another's share.
fn may_change_nothing(host: &Host, neighbour: &str) -> Result<()> {
    for request in [&["update", neighbour, "--fraction", "0.1"][..], &["pause", neighbour], &["pause", "vandal"]] {
        let mut arguments = vec!["exec", "vandal", "gpool", "--socket", "/gpool.sock"];
        // A container is asked for by its id; this one's own is its host name.
        let own = host.engine.docker_text(&["inspect", "-f", "{{.Id}}", "vandal"])?;
        arguments.extend(request.iter().map(|word| if *word == "vandal" { own.as_str() } else { word }));
        let said = text(&host.docker(&arguments)?.stderr);
        ensure(said.contains("GPOOL-E401"), || format!("{request:?} in a container: {said}"))?;
    }
    Ok(())
}

/// What is mounted to it cannot be removed, and what it cuts is its own loss.
fn remove_and_cut(host: &Host) -> Result<()> {
    for file in ["control", "report", "bell"] {
        let path = format!("/dev/gpool/{file}");
        let removed = host.docker(&["exec", "vandal", "rm", "-f", &path])?;
        ensure(!removed.status.success(), || format!("{path} could be removed"))?;
    }
    let written = host.docker(&["exec", "vandal", "sh", "-c", "echo x > /dev/gpool/control"])?;
    ensure(!written.status.success(), || "the control page could be written".to_owned())?;
    host.engine.docker_text(&["exec", "vandal", "chmod", "0", "/dev/gpool/report", "/dev/gpool/bell"])?;
    // Last: its own program ends by SIGBUS when it looks there again, and the container with it.
    host.engine.docker_text(&["exec", "vandal", "truncate", "-s", "0", "/dev/gpool/report"]).map(drop)
}

/// Ten thousand live allocations are the tenant's own affair.
fn many_allocations(host: &Host) -> Result<()> {
    let before = supervisor_kib(host)?;
    let hoard = ["gpool-tenant", "--kernel-us", "500", "--chunk-mib", "1", "--allocate-mib", "10000"];
    let env = [("GPOOL_FRACTION", "0.03"), ("GPOOL_MEMORY", "11GiB")];
    let hoarder = host.run_container("hoarder", &env, &[], &hoard)?;
    wait_until_running(host, std::slice::from_ref(&hoarder))?;
    let after = supervisor_kib(host)?;
    ensure(after <= before + GROWTH_KIB, || format!("the supervisor grew from {before} to {after} KiB"))
}

/// The supervisor's resident memory.
fn supervisor_kib(host: &Host) -> Result<u64> {
    let pid = host.supervisor_pid().ok_or_else(|| Failure::new("no supervisor runs"))?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("the supervisor's status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.ok_or_else(|| Failure::new(format!("no VmRSS for {}", image::NAME)))
}
