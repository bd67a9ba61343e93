//! Containers that a command of `gpool run` makes by itself, without an OCI runtime and without root, as programs for clusters do: they are
//! under its share, and what is in them finds the lease's libraries in `/dev`. One that brings a driver's library of its own is found.

use super::{finish_found, wait_for};
use crate::failure::{Context, Result, ensure};
use crate::host::{Host, SIMULATED_GPU, text};
use crate::image;
use crate::meter::usage_of;
use crate::namespaces::{Inside, spawn_bound};
use gpool_protocol::EventKind;
use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

/// The root of these containers. A host's programs see it; nobody's user may read it.
const IMAGE: &str = "/run/gpool-nested";
/// Where the lease's libraries are for them.
const LIBRARIES: &str = "/dev/gpool/lib";
/// Where one has the driver's library as a program for clusters copies it into an image.
const COPIED: &str = "/opt/driver";

/// Each way to make one.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start_with(inside, 1, "")?;
    let outcome = lay_out(&host).and_then(|()| {
        for by in [bubblewrap, charliecloud] {
            is_under_the_share(&host, by)?;
        }
        its_own_library_is_found(&host)
    });
    finish_found(host, outcome)
}

fn lay_out(host: &Host) -> Result<()> {
    let root = Path::new(IMAGE);
    image::lay_out(&host.stage, root)?;
    // What the simulated driver needs beside its libraries, and what Charliecloud binds.
    let state = format!("{SIMULATED_GPU}/state");
    for place in [&state, "/home", COPIED] {
        let place = root.join(&place[1..]);
        fs::create_dir_all(&place).context(place.display())?;
    }
    let copied = root.join(&COPIED[1..]).join("libcuda.so.1");
    fs::copy(host.stage.simulated().join("libcuda.so.1"), &copied).context(copied.display()).map(drop)
}

/// The words by which bubblewrap makes one, in which libraries are looked for in `libraries`.
fn bubblewrap(libraries: &str) -> String {
    let state = format!("{SIMULATED_GPU}/state");
    format!(
        "bwrap --ro-bind {IMAGE} / --dev-bind /dev /dev --proc /proc --bind {state} {state} --unshare-pid --setenv LD_LIBRARY_PATH {libraries}"
    )
}

/// The same of Charliecloud.
fn charliecloud(libraries: &str) -> String {
    format!("env USER=nobody LD_LIBRARY_PATH={libraries} ch-run --bind {SIMULATED_GPU}/state {IMAGE} --")
}

fn words<'a>(share: &[&'a str], made: &'a str, command: &[&'a str]) -> Vec<&'a str> {
    let made = made.split(' ');
    ["run", "--user", "nobody"]
        .into_iter()
        .chain(share.iter().copied())
        .chain(["--"])
        .chain(made)
        .chain(command.iter().copied())
        .collect()
}

/// A program that takes all the memory that it is given has its cap, and no more.
fn is_under_the_share(host: &Host, by: fn(&str) -> String) -> Result<()> {
    // That of all such commands so far, together.
    let before = usage_of(&host.meter()?.read()?, "gpool-run-").bytes_peak;
    let (made, share) = (by(LIBRARIES), ["--fraction", "0.3", "--memory", "2GiB"]);
    let command = words(&share, &made, &["/bin/gpool-tenant", "--chunk-mib", "64", "--seconds", "1"]);
    let ran: Output = host.gpool(&command)?;
    let (told, said) = (text(&ran.stdout), text(&ran.stderr));
    ensure(ran.status.success() && told.contains("\"allocated\""), || format!("{made}: {}: {said}{told}", ran.status))?;
    let peak = usage_of(&host.meter()?.read()?, "gpool-run-").bytes_peak - before;
    ensure((1 << 30..=2_u64 << 30).contains(&peak), || format!("{made}: a cap of 2 GiB gave {peak} bytes"))?;
    let bypasses = host.events_of(EventKind::Bypass)?;
    ensure(bypasses.is_empty(), || format!("{made}: {bypasses:?}"))
}

fn its_own_library_is_found(host: &Host) -> Result<()> {
    let made = charliecloud(COPIED);
    let command = words(&["--fraction", "0.3"], &made, &["/bin/gpool-tenant", "--allocate-mib", "64"]);
    let mut past = host.command("gpool");
    past.args(&command).stdout(Stdio::null());
    let mut past = spawn_bound(&mut past).context("gpool run")?;
    let found = wait_for("one that brings the driver's own library to be found", || {
        let events = host.events_of(EventKind::Bypass)?;
        Ok(events.iter().any(|event| event.message.contains(COPIED)))
    });
    past.kill().and_then(|()| past.wait()).context("gpool run")?;
    found
}
