//! A tenant that writes garbage over its report, again and again, harms no neighbour, and one that wipes out what it has
//! measured is found by what the device says and pays with a debt.

use super::{finish, start_tenants, wait_until_running};
use crate::failure::{Result, ensure};
use crate::host::Host;
use crate::meter::now_ns;
use crate::namespaces::Inside;
use crate::trace::Recorder;
use gpool_protocol::{Event, EventKind};
use std::time::Duration;

/// First random bytes, then zeros in the place of the measured bursts.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = lie(&host);
    finish(host, outcome)
}

fn lie(host: &Host) -> Result<()> {
    let containers = start_tenants(host, &[("vandal", "0.5", "2GiB", 500), ("neighbour", "0.5", "2GiB", 700)])?;
    wait_until_running(host, &containers)?;
    let supervisor = host.supervisor_pid();
    let recorder = Recorder::start(host.meter()?, Duration::from_millis(5));
    // Of each slot everything but the number under which the process is known.
    let garbage = "for i in $(seq 150); do \
        dd if=/dev/urandom of=/dev/gpool/report bs=1 seek=64 count=1900 conv=notrunc 2>/dev/null; sleep 0.02; done";
    let from_ns = now_ns();
    host.engine.docker_text(&["exec", "vandal", "sh", "-c", garbage])?;
    let to_ns = now_ns();
    // Zeros in place of count and sum: what was measured is as if it had never been.
    let erase = ["exec", "-d", "vandal", "gpool-tenant", "--erase", "/dev/gpool/report:128:1088"];
    host.engine.docker_text(&erase)?;
    let found = wait_for(host, EventKind::UnderReported, Duration::from_secs(40))?;
    let trace = recorder.stop()?;
    let share = trace.share(&containers[1].id, from_ns, to_ns);
    ensure(share >= 0.3, || format!("beside a tenant that writes garbage the neighbour got {share:.3} of the GPU"))?;
    let after = host.supervisor_pid() == supervisor && containers[1].is_alive();
    ensure(after, || "the supervisor or the neighbour ended".to_owned())?;
    ensure(found, || "a tenant that reports nothing of what it runs was not found in 40 s".to_owned())
}

/// Whether an event of this kind comes in time.
fn wait_for(host: &Host, kind: EventKind, patience: Duration) -> Result<bool> {
    let deadline = std::time::Instant::now() + patience;
    while std::time::Instant::now() < deadline {
        let mut found = false;
        host.client().stream("/v1/events?after=0", |line| {
            found |= serde_json::from_str::<Event>(line).is_ok_and(|event| event.kind == kind);
            !found
        })?;
        if found {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(250));
    }
    Ok(false)
}
