//! The lives of daemons: longer than the supervisor's, as long as their leases'.

use super::{Team, asks, busy_ns, wait_for, wait_for_work};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, MPS_CONTROL, SIMULATED_GPU, text};
use crate::tenant::Tenant;
use gpool_protocol::EventKind;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

/// What a program gets whose server has ended it alone: CUDA_ERROR_MPS_CLIENT_TERMINATED.
const CLIENT_TERMINATED: &str = "\"code\":810";
/// Where the supervisor keeps what it knows of them.
const GROUPS: &str = "/run/gpool/mps";

/// What is written down of the daemons' groups, by team.
pub fn groups() -> Result<BTreeMap<String, Value>> {
    let mut groups = BTreeMap::new();
    for entry in fs::read_dir(GROUPS).context(GROUPS)?.flatten() {
        let path = entry.path().join("group.json");
        // One that is being taken away at this moment has none any more.
        let Ok(text) = fs::read(&path) else { continue };
        let record: Value = serde_json::from_slice(&text).context(path.display())?;
        groups.insert(record["domain"]["team"].as_str().unwrap_or_default().to_owned(), record);
    }
    Ok(groups)
}

/// The process that a group's record names as `daemon` or `server`.
pub fn process_of(team: &str, which: &str) -> Result<u32> {
    let found = groups()?.get(team).and_then(|group| group[which]["pid"].as_u64());
    let pid = found.and_then(|pid| u32::try_from(pid).ok());
    pid.ok_or_else(|| Failure::new(format!("no {which} of {team} is written down: {:?}", groups())))
}

/// Killed and started anew, the supervisor finds daemons and containers as they were, and uses them.
pub fn outlive_the_supervisor(host: &mut Host, team: &Team) -> Result<()> {
    let known = groups()?;
    host.kill_supervisor()?;
    let before = busy_ns(host, team.gpu, &team.first)?;
    host.start_supervisor()?;
    wait_for("its containers at work", || Ok(busy_ns(host, team.gpu, &team.first)? > before))?;
    let found = groups()?;
    ensure(known == found, || format!("daemons before a restart {known:?}, and after {found:?}"))?;
    let late = Tenant { allocate_mib: Some(64), ..Tenant::greedy(1000) };
    let late = late.run(host, "late", &asks("vision", "0.1", "1GiB"))?;
    ensure(wait_for_work(host, &late)? == team.gpu, || "a third of the team is on another GPU".to_owned())?;
    ensure(host.events_of(EventKind::MpsStarted)?.is_empty(), || "another daemon was started".to_owned())?;
    ensure(host.events_of(EventKind::MpsServerDied)?.is_empty(), || "a server is said to have died".to_owned())
}

/// What a team's daemon says to commands, by the driver's own program.
pub fn said_to(host: &Host, team: &str, commands: &str) -> Result<String> {
    let id = groups()?.get(team).and_then(|group| group["id"].as_str().map(str::to_owned)).unwrap_or_default();
    let mut command = host.command_named(Path::new(SIMULATED_GPU).join("bin").join(MPS_CONTROL));
    command.env("CUDA_MPS_PIPE_DIRECTORY", format!("{GROUPS}/{id}/shared/pipe"));
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context(MPS_CONTROL)?;
    let mut input = process.stdin.take().ok_or_else(|| Failure::new("no pipe"))?;
    writeln!(input, "{commands}").context(MPS_CONTROL)?;
    drop(input);
    Ok(text(&process.wait_with_output().context(MPS_CONTROL)?.stdout))
}

/// The daemon knows its clients and gives what the supervisor told it; one client is ended alone.
pub fn say_what_they_know(host: &Host, team: &Team) -> Result<()> {
    let (daemon, server) = (process_of("vision", "daemon")?, process_of("vision", "server")?);
    let about = format!("get_server_list\nget_server_status {server}\nget_active_thread_percentage {server}");
    let seen = said_to(host, "vision", &about)?;
    ensure(seen == format!("{server}\nACTIVE\n60.0"), || format!("the daemon {daemon} says {seen:?}"))?;
    let limit = said_to(host, "vision", &format!("get_device_pinned_mem_limit {server} 0"))?;
    ensure(limit == "6144M", || format!("the server gives {limit}"))?;
    let clients = said_to(host, "vision", &format!("get_client_list {server}"))?;
    let first = team.first.init_pid.to_string();
    ensure(clients.lines().any(|pid| pid == first), || format!("{clients:?} lacks {first}"))?;
    let late = Container::inspect(&host.engine, "late")?;
    let busy = said_to(host, "vision", &format!("shutdown_server {server}"))?;
    ensure(busy.contains("has clients"), || format!("a server with clients was asked to end, and says {busy}"))?;
    said_to(host, "vision", &format!("terminate_client {server} {}", late.init_pid))?;
    wait_for("the end of one client", || Ok(late.log(&host.engine)?.contains(CLIENT_TERMINATED)))?;
    let before = busy_ns(host, team.gpu, &team.first)?;
    wait_for("the others at work", || Ok(busy_ns(host, team.gpu, &team.first)? > before))
}

/// Nothing of a daemon is left when nobody has a lease under it.
pub fn end_with_the_last(host: &Host) -> Result<()> {
    host.engine.docker_text(&["rm", "-f", "other"])?;
    wait_for("the end of a team's daemon", || Ok(!groups()?.contains_key("speech")))?;
    ensure(groups()?.contains_key("vision"), || "the other team's daemon has ended, too".to_owned())?;
    host.engine.docker_text(&["rm", "-f", "new", "newer", "newest"])?;
    wait_for("the end of the last daemon", || Ok(groups()?.is_empty()))?;
    let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
    ensure(!mounts.contains(GROUPS), || format!("mounts are left: {mounts}"))?;
    let listed = host.command_named("ps").args(["-A", "-o", "args"]).output().context("ps")?;
    let listed = text(&listed.stdout);
    ensure(!listed.contains(MPS_CONTROL), || format!("processes are left: {listed}"))
}
