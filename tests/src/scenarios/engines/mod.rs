//! gpool under the engines as people run them.

pub mod cgroup_v2;
pub mod containerd;
pub mod crun;
pub mod current;
pub mod docker;
mod life;
pub mod mps;
pub mod placed;
pub mod podman;
pub mod pods;
pub mod refusals;
pub mod rootless;
pub mod toolkit;
pub mod user_namespaces;

use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, succeeded};
use crate::measure;
use crate::meter::now_ns;
use crate::trace::Recorder;
use gpool_protocol::{LeaseState, LeaseView};
use std::fs;
use std::process::Output;
use std::time::{Duration, Instant};

/// What is waited for comes within this.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long shares are measured: others run beside, and may cost a third of a second.
const WATCH: Duration = Duration::from_secs(8);
const CONFIGURATION: &str = "/etc/gpool/config.toml";

/// Runs an engine's command line with these arguments.
type Call<'a> = dyn Fn(&[&str]) -> Result<Output> + 'a;

/// An engine's command line, as far as docker and podman are the same.
struct Client<'a> {
    name: &'a str,
    call: Box<Call<'a>>,
}

impl<'a> Client<'a> {
    fn new(name: &'a str, call: impl Fn(&[&str]) -> Result<Output> + 'a) -> Self {
        Self { name, call: Box::new(call) }
    }

    fn docker(host: &'a Host) -> Self {
        Self::new("docker", |arguments| host.docker(arguments))
    }

    fn text(&self, arguments: &[&str]) -> Result<String> {
        succeeded(&format!("{} {}", self.name, arguments.join(" ")), (self.call)(arguments)?)
    }

    /// What the engine says of a call that must fail.
    fn refusal(&self, arguments: &[&str]) -> Result<String> {
        let output = (self.call)(arguments)?;
        let said = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        ensure(!output.status.success(), || format!("{} {} worked", self.name, arguments.join(" ")))?;
        Ok(said(&output.stderr) + &said(&output.stdout))
    }

    fn container(&self, name: &str) -> Result<Container> {
        let answer = self.text(&["inspect", "-f", "{{.Id}} {{.State.Pid}}", name])?;
        let parsed = answer.split_once(' ').and_then(|(id, pid)| Some((id.to_owned(), pid.trim().parse().ok()?)));
        let (id, init_pid) = parsed.ok_or_else(|| Failure::new(format!("inspect {name} answered {answer:?}")))?;
        Ok(Container { name: name.to_owned(), id, init_pid })
    }
}

/// Waits until the container's lease is bound to its init and launches.
pub(super) fn wait_for_lease(host: &Host, container: &Container) -> Result<LeaseView> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let lease = host.lease_of(container);
        match lease {
            Ok(lease) if lease.state == LeaseState::Active && lease.launches > 0 => {
                let bound = lease.init_pid.map(|pid| pid.0);
                let is_its = bound == Some(container.init_pid);
                ensure(is_its, || format!("{}: bound to {bound:?}, not to {}", container.name, container.init_pid))?;
                return Ok(lease);
            }
            other if Instant::now() > deadline => {
                return Err(Failure::new(format!("{} has no lease that launches: {other:?}", container.name)));
            }
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Waits until nothing is left of the container's lease but perhaps its place.
pub(super) fn wait_for_end(host: &Host, container: &Container) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let leases = host.leases()?;
        let its = leases.iter().find(|lease| lease.container_id.0 == container.id);
        match its {
            None => return Ok(()),
            Some(lease) if lease.state == LeaseState::Held => return Ok(()),
            Some(lease) if Instant::now() > deadline => {
                return Err(Failure::new(format!("the lease of {} is still {:?}", container.name, lease.state)));
            }
            Some(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Waits until no place is kept any more, so that whoever starts next finds all GPUs free.
pub(super) fn wait_for_room(host: &Host) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let leases = host.leases()?;
        if leases.is_empty() {
            return Ok(());
        }
        ensure(Instant::now() < deadline, || format!("leases are left: {leases:?}"))?;
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Holds the shares that these containers, all backlogged and nobody else, receive against their fractions.
fn check_shares(host: &Host, entitled: &[(&Container, f64)]) -> Result<()> {
    check_shares_of(host, 0, entitled)
}

/// The same of another GPU than the first.
fn check_shares_of(host: &Host, gpu: u32, entitled: &[(&Container, f64)]) -> Result<()> {
    let recorder = Recorder::start(host.meter_of(gpu)?, Duration::from_millis(5));
    std::thread::sleep(Duration::from_millis(500));
    let from = now_ns();
    std::thread::sleep(WATCH);
    let to = now_ns();
    let trace = recorder.stop()?;
    let asked: f64 = entitled.iter().map(|(_, share)| share).sum();
    let entitled: Vec<(&str, f64)> =
        entitled.iter().map(|(container, share)| (container.id.as_str(), share / asked)).collect();
    let error = measure::worst_proportion_error_points(&trace, &entitled, from, to);
    ensure(error <= 5.0, || format!("shares are off by {error:.2} points"))
}

/// Has what is mounted below `/run` reach the mount namespaces that engines make for themselves, as on a host with systemd.
fn share_run() -> Result<()> {
    use rustix::mount::{MountPropagationFlags, mount_change};
    mount_change("/run", MountPropagationFlags::SHARED | MountPropagationFlags::REC).context("a shared /run")
}

/// Adds lines to the configuration; `gpool-runtime` reads them at the next start of a container.
fn configure(more: &str) -> Result<()> {
    let text = fs::read_to_string(CONFIGURATION).context(CONFIGURATION)?;
    fs::write(CONFIGURATION, format!("{text}\n{more}\n")).context(CONFIGURATION)
}
