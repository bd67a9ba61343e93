//! The outer process: lease, cgroup, PID namespace, the look at the mounts, and the wait.

use super::cgroup::Cgroup;
use super::description::{self, Person};
use super::order::Order;
use super::pipes::{self, Ends};
use super::plan::{Plan, nodes_and_mounts};
use super::signals::Signals;
use super::{SIGNALLED, inner, unprepared};
use crate::hook::bind_command;
use crate::leasing::{Applicant, lease_into};
use crate::spec::Described;
use crate::wrapper::{Installation, unusable_configuration};
use gpool_configuration::{Configuration, DEFAULT_PATH};
use gpool_protocol::{ErrorBody, ErrorCode, HostPid};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::File;
use std::io::BufReader;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// Runs the command. Returns its exit status.
///
/// # Errors
/// Nothing has been started then, and nothing is left.
pub fn run(order: &Order) -> Result<u8, ErrorBody> {
    if !nix::unistd::geteuid().is_root() {
        return Err(ErrorBody::new(
            ErrorCode::NotPermitted,
            "gpool run makes mounts and a cgroup, which only root may",
            "call it with sudo, with --user NAME for a command that shall not run as root",
        ));
    }
    let person = order.user.as_deref().map(Person::find).transpose()?;
    let configuration = gpool_configuration::load(&Installation::default().configuration);
    let configuration = configuration.map_err(unusable_configuration)?;
    let mut spec = description::describe(order, person.as_ref());
    let described = Described::read(&spec);
    description::check_asks(&described)?;
    let id = description::fresh_id();
    let applicant =
        Applicant { container_id: id.clone(), bundle: Path::new("/"), asked_for_parent: false, starts_once: true };
    let leased = lease_into(&mut spec, &described, &applicant, &configuration)?;
    let leased = leased.ok_or_else(description::nothing_asked)?;
    let outcome = Cgroup::make(&id.0).and_then(|cgroup| start(&spec, &configuration, person, &cgroup));
    // The supervisor sees the end by itself; told, it need not wait.
    leased.give_back();
    outcome
}

fn start(
    spec: &Value,
    configuration: &Configuration,
    person: Option<Person>,
    cgroup: &Cgroup,
) -> Result<u8, ErrorBody> {
    let plan = plan(spec, configuration, person)?;
    let signals = Signals::catch().map_err(|error| unprepared("signals cannot be waited for", error))?;
    let (orders, words) = (pipes::pipe(true)?, pipes::pipe(false)?);
    let mut child = spawn_in_namespace(&orders.inherited, &words.inherited)?;
    let (Ends { own: orders, .. }, Ends { own: words, .. }) = (orders, words);
    let (mut orders, mut words) = (File::from(orders), BufReader::new(File::from(words)));
    let ready = prepare(&plan, spec, cgroup, &child, (&mut orders, &mut words));
    if let Err(error) = ready {
        // Not ready: nothing of the command runs yet.
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    wait(&signals, &mut orders, Pid::from_raw(child.id().cast_signed()))
}

fn plan(spec: &Value, configuration: &Configuration, person: Option<Person>) -> Result<Plan, ErrorBody> {
    let (nodes, mut mounts) = nodes_and_mounts(spec)?;
    // Where the host has no folder there is nothing to cover, and its /tmp stays one with the command's.
    mounts.retain(|mount| mount.destination != Path::new(crate::edits::MPS_DIR) || mount.destination.exists());
    let strings = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let paths = &configuration.paths;
    let parent = |path: &Path| path.parent().unwrap_or(path).to_owned();
    Ok(Plan {
        nodes,
        mounts,
        guarded: vec![paths.shim_dir.clone(), parent(&paths.hook), parent(Path::new(DEFAULT_PATH))],
        run_dir: paths.run_dir.clone(),
        socket: configuration.socket.path.clone(),
        command: strings(&spec["process"]["args"]),
        env: strings(&spec["process"]["env"]).into_iter().chain(description::kept_from_the_request()).collect(),
        directory: PathBuf::from(spec["process"]["cwd"].as_str().unwrap_or("/")),
        person,
    })
}

/// Starts the inner half as the first process of a new PID namespace.
fn spawn_in_namespace(orders: &OwnedFd, words: &OwnedFd) -> Result<Child, ErrorBody> {
    let refused = |error: std::io::Error| unprepared("no PID namespace can be made", error);
    let own = File::open("/proc/self/ns/pid").map_err(refused)?;
    unshare(CloneFlags::CLONE_NEWPID).map_err(|error| refused(error.into()))?;
    let child = spawn(orders, words);
    // A process whose children go elsewhere can have no thread, and asking the supervisor takes one.
    setns(own, CloneFlags::CLONE_NEWPID).map_err(|error| refused(error.into()))?;
    child
}

fn spawn(orders: &OwnedFd, words: &OwnedFd) -> Result<Child, ErrorBody> {
    let own = std::env::current_exe().map_err(|error| unprepared("gpool-run does not find itself", error))?;
    let mut command = Command::new(own);
    command.arg(inner::VERB).arg(pipes::number(orders)).arg(pipes::number(words));
    command.spawn().map_err(|error| unprepared("the inner half of gpool-run does not start", error))
}

/// Everything up to the moment in which the command may start.
fn prepare(
    plan: &Plan,
    spec: &Value,
    cgroup: &Cgroup,
    child: &Child,
    (orders, words): (&mut File, &mut BufReader<File>),
) -> Result<(), ErrorBody> {
    // Before it has children: they are born where it is.
    cgroup.take(child.id())?;
    pipes::say(orders, plan)?;
    pipes::hear::<Result<(), ErrorBody>>(words)??;
    bind_command(spec, HostPid(child.id()))?;
    pipes::say(orders, &())?;
    // Silence means that it has ended already; its status says why.
    let _ = pipes::hear::<()>(words);
    Ok(())
}

fn wait(signals: &Signals, orders: &mut File, inner: Pid) -> Result<u8, ErrorBody> {
    let lost = |error| unprepared("the command can no longer be waited for", error);
    loop {
        match waitpid(inner, Some(WaitPidFlag::WNOHANG)).map_err(lost)? {
            WaitStatus::Exited(_, status) => return Ok(status as u8),
            WaitStatus::Signaled(_, signal, _) => return Ok(SIGNALLED + signal as u8),
            _ => {}
        }
        signals.wait(None, None).map_err(lost)?;
        while let Some(signal) = signals.next() {
            pipes::tell(orders, signal);
        }
    }
}
