//! Programs that load the driver past the shim and end before the supervisor has looked twice: one after the other they are found, as the
//! kernel tells when they open the device, and what their class says follows. As brief ones that come through the shim are no finding. And
//! what the supervisor opens itself when it looks keeps nobody looking.

use super::{finish_found, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host};
use crate::namespaces::Inside;
use crate::tenant::Tenant;
use gpool_protocol::{Event, EventKind};
use std::fs;
use std::time::Duration;

/// Where the driver's own library is in a leased container.
const REAL: &str = "/dev/gpool/real/libcuda.so.1";
/// How long one of them is there at most, in seconds as `sleep` takes them, and how long there is none.
const LIFE: &str = "0.5";
const PAUSE: &str = "0.2";
/// How long an idle host is watched, and how often the sampler waits meanwhile at most: a few times a second.
const SOME: Duration = Duration::from_secs(3);
const MOST_WAITS: u64 = 100;
/// How often the honest ones have been started by the end, at least.
const STARTS: usize = 10;

/// Starts three containers of such programs.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start_with(inside, 1, "[class.train]\nbypass_action = \"kill\"\n")?;
    let outcome = find_them(&host);
    finish_found(host, outcome)
}

fn find_them(host: &Host) -> Result<()> {
    let log = host.supervisor_log();
    ensure(!log.contains("does not tell when a GPU's device is opened"), || log.clone())?;
    it_rests_beside_an_idle_container(host)?;
    let honest = one_after_the_other(host, "honest", "batch", "")?;
    let told = one_after_the_other(
        host,
        "told",
        "batch",
        "mkdir /tmp/past; ln -s $REAL /tmp/past/; export LD_LIBRARY_PATH=/tmp/past;",
    )?;
    let killed = one_after_the_other(
        host,
        "killed",
        "train",
        "mkdir /tmp/past; ln -s $REAL /tmp/past/; export LD_LIBRARY_PATH=/tmp/past;",
    )?;
    let about = |container: &Container| -> Result<Vec<Event>> {
        let is_its = |event: &Event| event.container_id.as_ref().is_some_and(|id| id.0 == container.id);
        Ok(host.events_of(EventKind::Bypass)?.into_iter().filter(is_its).collect())
    };
    wait_for(
        "both that go past the shim to be found",
        || Ok(!about(&told)?.is_empty() && !about(&killed)?.is_empty()),
    )?;
    for (container, consequence) in [(&told, "bypass_action = \"event\""), (&killed, "are killed")] {
        let event = about(container)?.remove(0);
        for part in ["uses a GPU past the shims in process", "(gpool-tenant)", REAL, "programs like this", consequence]
        {
            ensure(event.message.contains(part), || format!("of {} was said: {event:?}", container.name))?;
        }
    }
    wait_for("the end of the container of class train", || Ok(!killed.is_alive()))?;
    wait_for("it to be shown of the other one", || {
        Ok(gpool_cli::table::LeaseRow::from(&host.lease_of(&told)?).enforcement == "bypassed")
    })?;
    let starts = || -> Result<usize> { Ok(host.engine.docker_text(&["logs", &honest.id])?.matches("begun").count()) };
    wait_for("the honest ones to have been there as often", || Ok(starts()? >= STARTS))?;
    ensure(honest.is_alive() && told.is_alive(), || "one that is only to be told of has ended".to_owned())?;
    let said = about(&honest)?;
    ensure(said.is_empty(), || format!("of one that came through the shim was said: {said:?}"))
}

/// Each question to the simulated NVML opens the device.
fn it_rests_beside_an_idle_container(host: &Host) -> Result<()> {
    let idle = host.run_container("idle", &[("GPOOL_FRACTION", "0.1")], &[], &["sleep", "1000"])?;
    // After the looks that follow its start.
    std::thread::sleep(SOME);
    let before = waits_of_the_sampler(host)?;
    std::thread::sleep(SOME);
    let waits = waits_of_the_sampler(host)? - before;
    ensure(waits < MOST_WAITS, || format!("it has waited {waits} times in {SOME:?}"))?;
    host.engine.docker_text(&["rm", "--force", &idle.id]).map(drop)
}

/// How often the thread that asks NVML and looks for programs past the shims has waited for something.
fn waits_of_the_sampler(host: &Host) -> Result<u64> {
    let pid = host.supervisor_pid().ok_or_else(|| Failure::new("there is no supervisor"))?;
    let tasks = format!("/proc/{pid}/task");
    for task in fs::read_dir(&tasks).context(&tasks)?.flatten() {
        if fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "sampler\n") {
            let status = fs::read_to_string(task.path().join("status")).context(&tasks)?;
            let waits =
                status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok());
            return waits.ok_or_else(|| Failure::new(status));
        }
    }
    Err(Failure::new("the supervisor has no sampler"))
}

/// A container that starts a tenant again and again, and ends each soon.
fn one_after_the_other(host: &Host, name: &str, class: &str, before: &str) -> Result<Container> {
    let tenant = Tenant { allocate_mib: Some(64), ..Tenant::greedy(800) }.command().join(" ");
    let around = format!(
        "REAL={REAL}; {before} while :; do echo begun; {tenant} --launch-batch 10 >/dev/null 2>&1 & sleep {LIFE}; kill -9 $!; wait $!; sleep {PAUSE}; done"
    );
    let env = [("GPOOL_FRACTION", "0.2"), ("GPOOL_MEMORY", "1GiB"), ("GPOOL_CLASS", class)];
    host.run_container(name, &env, &[], &["sh", "-c", &around])
}
