//! `gpool-run --exec NAME [--user USER] -- COMMAND [ARGUMENT ...]`: one more command under the lease of one that runs.
//!
//! The outer half finds the init of that one by its lease, starts the inner half in its PID namespace, puts it into its cgroups,
//! looks whether it is where the share holds, and waits. The inner half, the entrant, enters the mounts, gives up what could undo them,
//! starts the command and is its parent. Where any of this fails, nothing of the command has been started.

mod entrant;
mod environment;
mod order;
mod running;

use self::entrant::Entry;
use self::order::Order;
use self::running::Running;
use super::description::Person;
use super::interruption::{Outcome, Work};
use super::job::Job;
use super::outer::{self, Pipes};
use super::pipes::{self, Ends, Signalled};
use super::signals::Signals;
use super::{End, unprepared};
use crate::wrapper::{Installation, unusable_configuration};
use gpool_protocol::{
    Client, ContainerId, ErrorBody, ErrorCode, LeaseState, LeaseView, RUN_CGROUP, WaitingView, lease_path,
    maker_of_run_cgroup,
};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::Signal;
use rustix::process::{Pid, WaitOptions, waitpid};
use std::ffi::OsString;
use std::fs::File;
use std::io::BufReader;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Instant;

pub use entrant::{VERB as ENTRANT, run as enter};

/// The word by which the program knows what it is called for.
pub const VERB: &str = "--exec";

/// Starts the command beside the one that runs, and ends as it does.
///
/// # Errors
/// Nothing has been started then.
pub fn run(words: &[OsString], forget_children: fn()) -> Result<End, ErrorBody> {
    let order = Order::read(words)?;
    if outer::is_within_a_share() {
        return Err(ErrorBody::new(
            ErrorCode::NotPermitted,
            "gpool exec enters no share from within one, and this is a command or a container that has one",
            "call it on the host itself",
        ));
    }
    if !nix::unistd::geteuid().is_root() {
        return Err(ErrorBody::new(
            ErrorCode::NotPermitted,
            "gpool exec enters a command's namespaces and cgroup, which only root may",
            "call it with sudo; what it starts runs as the user of that command, or as --user says",
        ));
    }
    let configuration = gpool_configuration::load(&Installation::default().configuration);
    let configuration = configuration.map_err(unusable_configuration)?;
    let lease = lease_of(&Client::new(&configuration.socket.path), &order.of)?;
    let digits = digits_of(&lease)?;
    let other = order.user.as_deref().map(Person::find).transpose()?;
    let running = Running::find(&lease, digits)?;
    let environment = environment::of(running.environment()?, running.user()?.uid, other.as_ref());
    let entry = Entry {
        command: order.command,
        directory: std::env::current_dir().ok().filter(|directory| directory.to_str().is_some()),
        // Root without a user stays what it is, as under gpool run.
        person: other.or(Some(running.user()?).filter(|its| its.uid != 0)),
    };
    let signals = Signals::catch().map_err(|error| unprepared("signals cannot be waited for", error))?;
    start(running, entry, environment, &signals, forget_children)
}

/// The lease that is meant.
fn lease_of(client: &Client, name: &str) -> Result<LeaseView, ErrorBody> {
    let refusal = match client.get::<LeaseView>(&lease_path(name)?) {
        Ok(lease) => return Ok(lease),
        Err(refusal) => refusal,
    };
    let waiting = || client.get::<Vec<WaitingView>>("/v1/queue").unwrap_or_default();
    if refusal.code == ErrorCode::LeaseUnknown && waiting().iter().any(|one| one.container_id.0.starts_with(name)) {
        return Err(ErrorBody::new(
            ErrorCode::LeaseConflict,
            format!("gpool exec enters what runs, and {name} waits for room"),
            "gpool queue ls shows for what; gpool wait --for grant waits along",
        ));
    }
    Err(refusal)
}

/// The digits with which the id of a command of `gpool run` ends, if that is what has the lease, and runs.
fn digits_of(lease: &LeaseView) -> Result<&str, ErrorBody> {
    let conflict = |what: String, remedy: &str| Err(ErrorBody::new(ErrorCode::LeaseConflict, what, remedy));
    let id = lease.container_id.short();
    let Some(digits) = digits_in(&lease.container_id) else {
        return conflict(
            format!("{id} is a container of an engine, and gpool exec enters commands of gpool run"),
            "have the engine start a command in it, which has its share: docker exec, podman exec, kubectl exec or crictl exec",
        );
    };
    if let Some(suspension) = &lease.suspension {
        return conflict(
            format!("{id} is {}: nothing begins in it until it is back on its GPUs", suspension.stage.text()),
            "gpool resume --timeout 5m brings it back and waits for that",
        );
    }
    match lease.state {
        LeaseState::Active => Ok(digits),
        LeaseState::Pending => conflict(format!("{id} has not started yet"), "call it again in a moment"),
        LeaseState::Ending | LeaseState::Held => conflict(format!("{id} has ended"), "gpool ps lists those that run"),
        LeaseState::Revoked => conflict(
            format!("{id} runs without its GPUs, which were taken from it"),
            "gpool events says why; gpool run starts a command with a share of its own",
        ),
        LeaseState::Stranded => conflict(
            format!("{id} is not under this supervisor, which could not take it over"),
            "gpool explain says why; start the command anew",
        ),
    }
}

fn digits_in(id: &ContainerId) -> Option<&str> {
    let (_, digits) = id.0.rsplit_once('-')?;
    maker_of_run_cgroup(&format!("{RUN_CGROUP}{digits}")).map(|_| digits)
}

fn start(
    running: Running,
    entry: Entry,
    environment: Vec<(OsString, OsString)>,
    signals: &Signals,
    forget_children: fn(),
) -> Result<End, ErrorBody> {
    let (orders, words) = (pipes::pipe(true)?, pipes::pipe(false)?);
    let mut child = spawn(&running, &orders.inherited, &words.inherited, &entry.command, environment)?;
    let (Ends { own: orders, .. }, Ends { own: words, .. }) = (orders, words);
    let pipes = (File::from(orders), BufReader::new(File::from(words)));
    let pid = child.id();
    // Before it does or starts anything: it waits for its orders.
    let preparing = running.join(pid).and_then(|()| Work::begin(move || prepare(running, &entry, pid, pipes)));
    let prepared = preparing.and_then(|preparing| preparing.unless_interrupted(signals));
    let why_not = match prepared {
        Ok(Outcome::Done(Ok((pipes, running)))) => {
            let (orders, words) = outer::begin(pipes)?;
            // What has ended and is not collected, because this process is stopped, would hold up the end of the command beside.
            forget_children();
            let inner = Pid::from_child(&child);
            return outer::attend(orders, words, signals, |words, job| Ok(ended(words, job, inner, &running)));
        }
        Ok(Outcome::Done(Err(error))) | Err(error) => Err(error),
        Ok(Outcome::Interrupted(signal, _)) => Ok(End::Signal(signal as i32)),
    };
    // Nothing of the command runs yet. It is not waited for: what is frozen meanwhile ends later.
    let _ = child.kill();
    why_not
}

/// Starts the entrant in the PID namespace, and nothing else: only children of this process go there.
fn spawn(
    running: &Running,
    orders: &OwnedFd,
    words: &OwnedFd,
    named: &[String],
    environment: Vec<(OsString, OsString)>,
) -> Result<Child, ErrorBody> {
    let refused = |error: std::io::Error| unprepared("the command's PID namespace cannot be entered", error);
    let own = File::open("/proc/self/ns/pid").map_err(refused)?;
    let program = std::env::current_exe().map_err(|error| unprepared("gpool-run does not find itself", error))?;
    let (theirs, mounts) = (running.namespace("pid")?, running.namespace("mnt")?);
    pipes::hand_down(&mounts)?;
    let mut command = Command::new(program);
    command.arg0(entrant::NAME.to_string_lossy().as_ref()).arg(ENTRANT);
    // The words of the command stand behind its own: who signals processes by them means both or neither.
    command.args([pipes::number(orders), pipes::number(words), pipes::number(&mounts)]).args(named);
    command.env_clear().envs(environment);
    setns(theirs, CloneFlags::CLONE_NEWPID).map_err(|error| refused(error.into()))?;
    let child = command.spawn();
    // A process whose children go elsewhere can have no thread.
    setns(own, CloneFlags::CLONE_NEWPID).map_err(|error| refused(error.into()))?;
    child.map_err(|error| unprepared("the inner half of gpool exec does not start", error))
}

/// Everything up to the moment in which the command may start.
fn prepare(
    running: Running,
    entry: &Entry,
    entrant: u32,
    (mut orders, mut words): Pipes,
) -> Result<(Pipes, Running), ErrorBody> {
    pipes::say(&mut orders, entry)?;
    pipes::hear::<Result<(), ErrorBody>>(&mut words)??;
    running.check_holds(entrant)?;
    Ok(((orders, words), running))
}

/// How the command has ended, if the entrant has, which tells of it before.
fn ended(words: &mut Signalled, job: &mut Job, entrant: Pid, running: &Running) -> Option<End> {
    if words.as_fd().is_some() {
        // Unlike an init it can be stopped together with the command, and then tells nothing.
        let seen = waitpid(Some(entrant), WaitOptions::NOHANG | WaitOptions::UNTRACED).ok().flatten();
        let stopped = seen.and_then(|(_, status)| status.stopping_signal());
        job.told(stopped.into_iter().collect(), Instant::now());
        return None;
    }
    if let Some(end) = job.ended.map(End::Signal).or(job.status.map(End::Status)) {
        return Some(end);
    }
    // It was ended itself; the kernel keeps by what only if that was before there was a command.
    let kept = waitpid(Some(entrant), WaitOptions::empty()).ok().flatten();
    if running.has_ended() {
        eprintln!("gpool exec: the command of gpool run has ended, and everything under its share with it");
    }
    let by = kept.and_then(|(_, ended)| ended.terminating_signal()).unwrap_or(Signal::SIGKILL as i32);
    let status = kept.and_then(|(_, ended)| ended.exit_status());
    Some(status.map_or(End::Signal(by), |status| End::Status(status as u8)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::assert_presentable;
    use serde_json::{Value, json};

    fn lease(id: &str, state: &str, suspension: Value) -> LeaseView {
        serde_json::from_value(json!({
            "lease_id": "01J", "container_id": id, "state": state, "gpu_uuid": "GPU-1", "fraction_permille": 300,
            "received_permille": 0, "charged_gpu_ns": 0, "memory_cap_bytes": 1, "memory_used_bytes": 0,
            "allocations_refused": 0, "gate_wait_ns": 0, "launches": 0, "processes": 0, "init_pid": 7, "cgroup": null,
            "enforcement": "co-operative", "owner_uid": 0, "created_unix_ms": 1, "suspension": suspension,
        }))
        .unwrap()
    }

    #[test]
    fn a_command_of_gpool_run_is_known_by_its_id() {
        for id in ["run-4711aaaaaaaaaaaa", "train-7-4711aaaaaaaaaaaa"] {
            assert_eq!(digits_of(&lease(id, "active", Value::Null)).unwrap(), "4711aaaaaaaaaaaa", "{id}");
        }
        for id in [&"3f9a".repeat(16), "web", "web-1", "run-aaaaaaaaaaaa", "k8s_POD.web-1_x"] {
            let error = digits_of(&lease(id, "active", Value::Null)).unwrap_err();
            assert_presentable(&error);
            assert!(error.message.contains("is a container"), "{error}");
            for engine in ["docker exec", "podman exec", "kubectl exec", "crictl exec"] {
                assert!(error.remedy.contains(engine), "{error}");
            }
        }
    }

    #[test]
    fn what_is_not_active_says_so() {
        let refused = |state: &str, suspension| {
            let error = digits_of(&lease("run-4711aaaaaaaaaaaa", state, suspension)).unwrap_err();
            assert_presentable(&error);
            error.message
        };
        for (state, says) in [
            ("pending", "has not started"),
            ("revoked", "without its GPUs"),
            ("ending", "has ended"),
            ("held", "has ended"),
            ("stranded", "not under this supervisor"),
        ] {
            let said = refused(state, Value::Null);
            assert!(said.contains(says), "{state}: {said}");
        }
        for stage in ["suspending", "suspended", "resuming"] {
            let suspension = json!({"stage": stage, "since_unix_ms": 1, "host_bytes": 0, "is_wanted": false});
            let said = refused("active", suspension);
            assert!(said.contains(&format!("is {stage}")), "{said}");
        }
    }
}
