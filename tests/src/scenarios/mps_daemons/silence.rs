//! A daemon that lives and does not answer.

use super::ends::signal;
use super::{ASKS, remove, wait_for};
use crate::failure::{Result, ensure};
use crate::host::{Container, Host, text};
use crate::scenarios::mps_groups::process_of;
use crate::tenant::Tenant;
use gpool_protocol::{EventKind, LeaseFault};
use rustix::process::Signal;

/// Root of a container cannot take the daemon's pipes away. When the daemon is silent all the same it is ended, its leases
/// say so, what their programs do from then on is past their server, and the next container has another daemon. The next
/// supervisor knows all that.
pub fn of_a_daemon_ends_its_group(host: &mut Host) -> Result<()> {
    let tenant = Tenant { allocate_mib: Some(64), ..Tenant::greedy(1000) };
    // Its container outlives its program.
    let command = format!("{}; sleep 1000", tenant.command().join(" "));
    let eight = host.run_container("eight", &ASKS, &[], &["sh", "-c", &command])?;
    pipes_stay(host, &eight)?;
    wait_for("its program at work", || Ok(eight.log(&host.engine)?.contains("progress")))?;
    wait_for("its server", || Ok(process_of("vision", "server").is_ok()))?;
    let (daemon, started) = (process_of("vision", "daemon")?, host.events_of(EventKind::MpsStarted)?.len());
    signal(daemon, Signal::STOP)?;
    wait_for("the mark of the lease", || Ok(host.lease_of(&eight)?.fault == Some(LeaseFault::MpsServerDied)))?;
    let told = host.events_of(EventKind::MpsServerDied)?;
    let sentence = format!("daemon (process {daemon}) did not answer any more");
    ensure(told.len() == 1 && told[0].message.contains(&sentence), || format!("it is told as {told:#?}"))?;
    let listed = text(&host.gpool(&["ps"])?.stdout);
    ensure(listed.contains("mps-server-died"), || format!("gpool ps says {listed}"))?;
    wait_for("its program's end", || Ok(eight.log(&host.engine)?.contains("\"code\":80")))?;
    let bypasses = host.events_of(EventKind::Bypass)?;
    ensure(bypasses.is_empty(), || format!("clients of the silent daemon are told as {bypasses:#?}"))?;
    host.engine.docker_text(&["exec", "-d", "eight", "gpool-tenant", "--kernel-us", "1000", "--allocate-mib", "64"])?;
    wait_for("a bypass", || Ok(host.lease_of(&eight)?.enforcement == "bypassed"))?;
    let nine = tenant.run(host, "nine", &ASKS)?;
    wait_for("its program at work", || Ok(nine.log(&host.engine)?.contains("progress")))?;
    let is_another = host.events_of(EventKind::MpsStarted)?.len() == started + 1;
    ensure(is_another, || "a container has joined a daemon that has ended".to_owned())?;
    ensure(host.lease_of(&nine)?.fault.is_none(), || "the new lease has the old one's fault".to_owned())?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    wait_for("a bypass", || Ok(host.lease_of(&eight)?.enforcement == "bypassed"))?;
    let lease = host.lease_of(&nine)?;
    ensure(lease.fault.is_none() && lease.enforcement == "co-operative", || format!("the other one is {lease:?}"))?;
    remove(host, &["eight", "nine"])
}

/// In the daemon's folder nothing can be removed, replaced or made.
fn pipes_stay(host: &Host, container: &Container) -> Result<()> {
    let folder = "/dev/gpool/mps/pipe";
    for command in
        [format!("rm {folder}/control"), format!("mv {folder}/control {folder}/c"), format!("touch {folder}/x")]
    {
        let output = host.docker(&["exec", &container.name, "sh", "-c", &command])?;
        let said = text(&output.stderr);
        ensure(said.contains("Read-only file system"), || format!("{command} says {said:?}"))?;
    }
    Ok(())
}
