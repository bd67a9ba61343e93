//! What most scenarios begin and end with.

use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::meter::usage_of;
use crate::namespaces::Inside;
use crate::tenant::Tenant;
use gpool_device_model::DeviceParameters;
use std::fs;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

/// Ends a scenario in which everybody came through the shims: the guard must have found nothing. See [`finish_found`].
pub(super) fn finish(host: Host, outcome: Result<()>) -> Result<()> {
    let is_there = host.supervisor_pid().is_some();
    let outcome = outcome.and_then(|()| if is_there { host.nothing_found_by_the_guard() } else { Ok(()) });
    finish_found(host, outcome)
}

/// Ends a scenario: logs when it failed, then a stop that must leave nothing.
pub(super) fn finish_found(host: Host, outcome: Result<()>) -> Result<()> {
    if outcome.is_err() {
        eprint!("{}", host.logs());
    }
    // Stopped in any case, so that a failure does not hide what it leaves.
    let left = host.stop();
    outcome?;
    let left = left?;
    ensure(left.is_empty(), || format!("left behind: {}", left.join(", ")))
}

/// Starts a container with a tenant for each name, share, memory and kernel length in microseconds.
pub(super) fn start_tenants(host: &Host, wanted: &[(&str, &str, &str, u64)]) -> Result<Vec<Container>> {
    let start = |(name, fraction, memory, kernel_us): &(&str, &str, &str, u64)| {
        let env = [("GPOOL_FRACTION", *fraction), ("GPOOL_MEMORY", *memory)];
        Tenant::greedy(*kernel_us).run(host, name, &env)
    };
    wanted.iter().map(start).collect()
}

/// Starts a host whose supervisor knows from the beginning what a context costs on the simulated GPU, and does not have to
/// learn it while an account is compared to the byte.
pub(super) fn start_knowing_contexts(inside: &Inside) -> Result<Host> {
    let mut host = Host::start_without_supervisor(inside, "")?;
    know_contexts()?;
    host.start_supervisor()?;
    Ok(host)
}

/// The same for a supervisor that is started later.
pub(super) fn know_contexts() -> Result<()> {
    let directory = Path::new("/etc/gpool/conf.d");
    let context_bytes = DeviceParameters::default().context_bytes;
    fs::create_dir_all(directory).context(directory.display())?;
    let file = directory.join("context.toml");
    fs::write(&file, format!("[driver]\ncontext_bytes = {context_bytes}\n")).context(file.display())
}

/// What the container's lease holds, in bytes, once the supervisor has learnt what a context costs and says what the
/// device does. A new lease begins with what was learnt.
pub(super) fn wait_until_account_agrees(host: &Host, container: &Container) -> Result<u64> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = host.lease_of(container)?.memory_used_bytes;
        let held = usage_of(&host.meter()?.read()?, &container.id).bytes_now;
        if said == held && said > 0 {
            return Ok(said);
        }
        let differ = || format!("{}: the supervisor says {said} bytes, the device {held}", container.name);
        ensure(Instant::now() < deadline, differ)?;
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Fails unless there is nothing where a program looks for an MPS daemon that is not named, and nothing can be put there.
pub(super) fn other_daemons_are_masked(host: &Host, container: &str) -> Result<()> {
    let look = "ls -A /tmp/nvidia-mps && ! touch /tmp/nvidia-mps/control 2> /dev/null";
    let seen = host.docker(&["exec", container, "sh", "-c", look])?;
    ensure(seen.status.success() && text(&seen.stdout).is_empty(), || {
        format!("{container}: /tmp/nvidia-mps has {:?}, {}", text(&seen.stdout), text(&seen.stderr))
    })
}

/// Waits until each container's kernels execute.
pub fn wait_until_running(host: &Host, containers: &[Container]) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(15);
    let reader = host.meter()?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let meter = reader.read()?;
        let Some(idle) = containers.iter().find(|container| usage_of(&meter, &container.id).kernels == 0) else {
            return Ok(());
        };
        if !idle.is_alive() || Instant::now() > deadline {
            let said = idle.log(&host.engine)?;
            return Err(Failure::new(format!("{} ran no kernel within {PATIENCE:?}; it said:\n{said}", idle.name)));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Fails unless a command ended with this status and said all of that.
pub(super) fn said(output: &Output, status: i32, parts: &[&str]) -> Result<()> {
    let all = format!("{}\n{}", text(&output.stdout), text(&output.stderr));
    let missing = parts.iter().find(|part| !all.contains(**part));
    ensure(output.status.code() == Some(status) && missing.is_none(), || {
        format!("status {:?} and not {status}, or without {missing:?}: {all}", output.status.code())
    })
}

/// Fails unless a container with this environment is refused with all of that.
pub(super) fn is_refused(host: &Host, env: &[(&str, &str)], parts: &[&str]) -> Result<()> {
    let output = host.try_run_container("refused", env, &[], &["true"])?;
    let said = text(&output.stderr);
    ensure(!output.status.success(), || format!("{env:?} was granted"))?;
    host.engine.docker_text(&["rm", "-f", "refused"])?;
    let missing = parts.iter().find(|part| !said.contains(**part));
    ensure(missing.is_none(), || format!("{env:?}: {said:?} lacks {missing:?}"))
}

/// Lays this over the configuration, in place of what was laid over it before.
pub(super) fn configure(configuration: &str) -> Result<()> {
    let directory = Path::new("/etc/gpool/conf.d");
    let file = directory.join("99-reload.toml");
    fs::create_dir_all(directory).context(directory.display())?;
    fs::write(&file, configuration).context(file.display())
}

/// Lets the supervisor take this over besides, without a restart.
pub(super) fn reload_with(host: &Host, configuration: &str) -> Result<()> {
    configure(configuration)?;
    succeeded("gpool config reload", host.gpool(&["config", "reload"])?).map(drop)
}

/// Looks until something holds.
pub(super) fn wait_for(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let deadline = Instant::now() + PATIENCE;
    while !holds()? {
        ensure(Instant::now() < deadline, || format!("waited in vain for {what}"))?;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// How many times the supervisor has begun to look at everything, which it does once a second.
pub(super) fn sampler_rounds(host: &Host) -> Result<u64> {
    const COUNT: &str = "gpool_thread_rounds_total{thread=\"sampler\"} ";
    let mut rounds = None;
    host.client().stream("/metrics", |line| {
        rounds = rounds.or_else(|| line.strip_prefix(COUNT)?.parse().ok());
        true
    })?;
    rounds.ok_or_else(|| Failure::new(format!("/metrics has no {COUNT}")))
}

/// The block of a page of the manual that begins so.
pub(super) fn block_of_a_page(page: &str, start: &str) -> Result<String> {
    let blocks = page.split("\n```").skip(1).step_by(2);
    let texts = blocks.filter_map(|block| block.split_once('\n').map(|(_, text)| text));
    let found = texts.into_iter().find(|text| text.starts_with(start));
    found.map(|text| format!("{text}\n")).ok_or_else(|| Failure::new(format!("the page has no block {start:?}")))
}
