//! MPS daemons that start late, do not start, or fall silent, and who else notices.

mod ends;
mod faults;
mod silence;
mod starts;
mod users;

use super::{finish_found, sampler_rounds, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, MPS_CONTROL, SIMULATED_GPU};
use crate::namespaces::Inside;
use gpool_protocol::{LeaseState, LeaseView, Mechanism};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The environment may ask for it here: Debian's docker has no annotations.
const CONFIGURATION: &str =
    "[policy]\nmps = true\n[policy.env]\nallow = [\"fraction\", \"memory\", \"mode\", \"team\", \"gpus\"]\n";

/// Daemons that are held up, that fail and that are given up.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 2, CONFIGURATION)?;
    let outcome = scenes(&mut host);
    finish_found(host, outcome)
}

fn scenes(host: &mut Host) -> Result<()> {
    let program = Unreliable::in_place()?;
    starts::keep_nobody_else_waiting(host, &program)?;
    starts::that_fail_leave_nothing(host, &program)?;
    starts::of_nobody_are_undone(host, &program)?;
    users::of_one_container_are_served_in_turn(host)?;
    ends::of_a_daemon_make_no_strangers(host)?;
    ends::of_a_daemon_follow_an_eviction(host, &program)?;
    faults::keep_others_out_until_all_have_ended(host)?;
    silence::of_a_daemon_ends_its_group(host)
}

/// What a container under MPS asks for.
const ASKS: [(&str, &str); 4] =
    [("GPOOL_MODE", "mps"), ("GPOOL_TEAM", "vision"), ("GPOOL_FRACTION", "0.4"), ("GPOOL_MEMORY", "4GiB")];

/// The driver's control program, which starts late or not at all when it is told so.
struct Unreliable {
    held: PathBuf,
    failing: PathBuf,
    /// What it is told goes in here, while the file is there.
    heard: PathBuf,
}

impl Unreliable {
    /// Puts it where the driver's is.
    fn in_place() -> Result<Self> {
        let path = Path::new(SIMULATED_GPU).join("bin").join(MPS_CONTROL);
        let real = Path::new(SIMULATED_GPU).join(MPS_CONTROL);
        fs::copy(&path, &real).context(real.display())?;
        let its = |name: &str| Path::new(SIMULATED_GPU).join(name);
        let program = Self { held: its("mps-held"), failing: its("mps-failing"), heard: its("mps-heard") };
        // -f makes it the daemon; without it commands are told to one.
        let script = format!(
            "#!/bin/sh\nwhile [ \"$1\" = -f ] && [ -e {} ]; do sleep 0.02; done\n\
             if [ -e {} ]; then echo no such luck >&2; exit 1; fi\n\
             if [ \"$1\" != -f ] && [ -e {heard} ]; then tee -a {heard} | {real} \"$@\"; exit; fi\nexec {real} \"$@\"\n",
            program.held.display(),
            program.failing.display(),
            heard = program.heard.display(),
            real = real.display(),
        );
        let new = its("mps-new");
        fs::write(&new, script).context(new.display())?;
        fs::set_permissions(&new, Permissions::from_mode(0o755)).context(new.display())?;
        fs::rename(&new, &path).context(path.display())?;
        Ok(program)
    }
}

/// A daemon that starts now waits until [`release`].
fn hold(flag: &Path) -> Result<()> {
    fs::write(flag, "").context(flag.display())
}

fn release(flag: &Path) -> Result<()> {
    fs::remove_file(flag).context(flag.display())
}

fn mps_leases(host: &Host) -> Result<Vec<LeaseView>> {
    let mut leases = host.leases()?;
    leases.retain(|lease| lease.mechanism == Mechanism::Mps && lease.state != LeaseState::Held);
    Ok(leases)
}

/// Removes containers, and waits until nothing of their daemons and of their places is left.
fn remove(host: &Host, names: &[&str]) -> Result<()> {
    if !names.is_empty() {
        host.engine.docker_text(&[&["rm", "-f"], names].concat())?;
    }
    wait_for("their places given up", || Ok(host.leases()?.is_empty()))?;
    wait_for("the end of the daemon", || Ok(fs::read_dir("/run/gpool/mps").context("/run/gpool/mps")?.next().is_none()))
}

/// The container that `docker run` has started in a thread.
fn started(host: &Host, name: &str, thread: std::thread::Result<Result<std::process::Output>>) -> Result<Container> {
    let output = thread.map_err(|_| Failure::new("a thread has panicked"))??;
    ensure(output.status.success(), || format!("docker run {name}: {}", crate::host::text(&output.stderr)))?;
    Container::inspect(&host.engine, name)
}
