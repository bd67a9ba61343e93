//! The outer process: lease, cgroup, PID namespace, the look at the mounts, and the wait.

use super::cgroup::Cgroup;
use super::description::{self, Person};
use super::interruption::{Outcome, Work};
use super::job::{self, Job};
use super::lock;
use super::order::Order;
use super::pipes::{self, Ends, Signalled};
use super::plan::{NESTED, Plan, for_nested_containers, nodes_and_mounts};
use super::signals::Signals;
use super::{End, inner, unprepared};
use crate::hook::bind_command;
use crate::leasing::{Applicant, Leased, lease_into};
use crate::spec::Described;
use crate::waiting::NotYet;
use crate::wrapper::{Installation, unusable_configuration};
use gpool_configuration::{Configuration, DEFAULT_PATH};
use gpool_protocol::{ErrorBody, ErrorCode, HostPid, format_seconds};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, raise};
use rustix::process::{Pid, WaitOptions, waitpid};
use serde_json::Value;
use std::ffi::OsString;
use std::fs::File;
use std::io::BufReader;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// What is there in leased containers and commands alone, the second in commands with a whole GPU as well.
const OF_A_SHARE: [&str; 2] = ["/dev/gpool/control", NESTED];
/// How long who interrupts it waits for a lease that is on its way, to give it back. The supervisor would see the end by
/// itself, two seconds later.
const ON_ITS_WAY: Duration = Duration::from_millis(500);

/// Runs the command, and ends as it does; before there is one, by the signal that comes.
///
/// # Errors
/// Nothing has been started then, and nothing is left.
pub fn run(order: &Order) -> Result<End, ErrorBody> {
    if is_within_a_share() {
        return Err(ErrorBody::new(
            ErrorCode::NotPermitted,
            "gpool run gives no share within a share, and this is a command or a container that has one",
            "start the program without it: it is under this share",
        ));
    }
    if !nix::unistd::geteuid().is_root() {
        return Err(ErrorBody::new(
            ErrorCode::NotPermitted,
            "gpool run makes mounts and a cgroup, which only root may",
            "call it with sudo, with --user NAME for a command that shall not run as root",
        ));
    }
    let digits = description::fresh_digits();
    let id = description::id_of(order.name.as_deref(), &digits)?;
    // Held until this process ends, whatever comes of the command.
    let _lock = order.lock.as_deref().map(lock::take).transpose()?;
    let person = order.user.as_deref().map(Person::find).transpose()?;
    let configuration = gpool_configuration::load(&Installation::default().configuration);
    let configuration = configuration.map_err(unusable_configuration)?;
    let spec = description::describe(order, person.as_ref(), &description::working_directory()?);
    description::check_asks(&Described::read(&spec), &configuration.default_request)?;
    // Before there is something that would be left: a lease, a cgroup, an inner half.
    let signals = Signals::catch().map_err(|error| unprepared("signals cannot be waited for", error))?;
    let settings = configuration.clone();
    let leasing = Work::begin(move || {
        let applicant = Applicant {
            container_id: id,
            bundle: Path::new("/"),
            asked_for_parent: false,
            starts_once: true,
            is_command: true,
            asks_for_gpus: true,
            maker: String::new(),
            on_waiting: tell_waiting,
        };
        lease(spec, &applicant, &settings)
    })?;
    let (leased, spec) = match leasing.unless_interrupted(&signals)? {
        Outcome::Done(leased) => leased?,
        Outcome::Interrupted(signal, leasing) => {
            if let Some(Ok((leased, _))) = leasing.within(ON_ITS_WAY) {
                leased.give_back();
            }
            return Ok(End::Signal(signal as i32));
        }
    };
    let outcome = Cgroup::make(&digits).and_then(|cgroup| start(&spec, &configuration, person, &cgroup, &signals));
    // The supervisor sees the end by itself; told, it need not wait.
    leased.give_back();
    outcome
}

/// Whether this is a command or a container with a share.
pub fn is_within_a_share() -> bool {
    OF_A_SHARE.iter().any(|place| Path::new(place).exists())
}

/// Tells a person why nothing happens yet.
fn tell_waiting(why: NotYet<'_>) {
    let answer = match why {
        NotYet::NoRoom(answer) => answer,
        NotYet::NoAnswer(error) => {
            return eprintln!("gpool: {}; it is asked again for a minute at most", error.message);
        }
    };
    let (waiting, id) = (&answer.waiting, answer.waiting.container_id.short());
    let longest = format_seconds(waiting.request.wait_seconds.unwrap_or(0));
    eprintln!("gpool: {id} waits for room, at place {}, for {longest} at most: {}", waiting.place, waiting.cause);
}

fn lease(
    mut spec: Value,
    applicant: &Applicant<'_>,
    configuration: &Configuration,
) -> Result<(Leased, Value), ErrorBody> {
    let described = Described::read(&spec);
    let leased = lease_into(&mut spec, &described, applicant, configuration)?;
    Ok((leased.ok_or_else(description::nothing_asked)?, spec))
}

/// The pipes to and from the inner half.
pub type Pipes = (File, BufReader<File>);

fn start(
    spec: &Value,
    configuration: &Configuration,
    person: Option<Person>,
    cgroup: &Cgroup,
    signals: &Signals,
) -> Result<End, ErrorBody> {
    let plan = plan(spec, configuration, person)?;
    let (orders, words) = (pipes::pipe(true)?, pipes::pipe(false)?);
    let mut child = spawn_in_namespace(&orders.inherited, &words.inherited, &plan.command, environment(spec))?;
    let (Ends { own: orders, .. }, Ends { own: words, .. }) = (orders, words);
    let pipes = (File::from(orders), BufReader::new(File::from(words)));
    let pid = child.id();
    let spec = spec.clone();
    // Before it has children: they are born where it is.
    let preparing = cgroup.take(pid).and_then(|()| Work::begin(move || prepare(&plan, &spec, pid, pipes)));
    let prepared = preparing.and_then(|preparing| preparing.unless_interrupted(signals));
    let why_not = match prepared {
        Ok(Outcome::Done(Ok(pipes))) => {
            let inner = Pid::from_child(&child);
            let (orders, words) = begin(pipes)?;
            return attend(orders, words, signals, |words, job| ended(inner, words, job));
        }
        Ok(Outcome::Done(Err(error))) | Err(error) => Err(error),
        Ok(Outcome::Interrupted(signal, _)) => Ok(End::Signal(signal as i32)),
    };
    // Nothing of the command runs yet.
    let _ = child.kill();
    let _ = child.wait();
    why_not
}

fn plan(spec: &Value, configuration: &Configuration, person: Option<Person>) -> Result<Plan, ErrorBody> {
    let (nodes, mut mounts) = nodes_and_mounts(spec)?;
    // Where the host has no folder there is nothing to cover, and its /tmp stays one with the command's. Everybody may make a file or a
    // link of that name there, in which nobody can have a daemon.
    let is_folder = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_dir());
    mounts.retain(|mount| mount.destination != Path::new(crate::edits::MPS_DIR) || is_folder(&mount.destination));
    let nested = for_nested_containers(&mounts);
    mounts.extend(nested);
    let paths = &configuration.paths;
    let parent = |path: &Path| path.parent().unwrap_or(path).to_owned();
    Ok(Plan {
        nodes,
        mounts,
        guarded: vec![paths.shim_dir.clone(), parent(&paths.hook), parent(Path::new(DEFAULT_PATH))],
        run_dir: paths.run_dir.clone(),
        socket: configuration.socket.path.clone(),
        command: strings(&spec["process"]["args"]).map(str::to_owned).collect(),
        directory: PathBuf::from(spec["process"]["cwd"].as_str().unwrap_or("/")),
        person,
    })
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// The command's environment, as the inner half is given it and hands it down. There `gpool exec` finds it, since that half never writes
/// over it, as programs may.
fn environment(spec: &Value) -> Vec<(OsString, OsString)> {
    let described = strings(&spec["process"]["env"]).map(str::to_owned);
    let text = described.chain(description::kept_from_the_request());
    let pair = |entry: String| entry.split_once('=').map(|(name, value)| (name.into(), value.into()));
    description::env_without_text().chain(text.filter_map(pair)).collect()
}

/// Starts the inner half as the first process of a new PID namespace.
fn spawn_in_namespace(
    orders: &OwnedFd,
    words: &OwnedFd,
    named: &[String],
    environment: Vec<(OsString, OsString)>,
) -> Result<Child, ErrorBody> {
    let refused = |error: std::io::Error| unprepared("no PID namespace can be made", error);
    let own = File::open("/proc/self/ns/pid").map_err(refused)?;
    unshare(CloneFlags::CLONE_NEWPID).map_err(|error| refused(error.into()))?;
    let child = spawn(orders, words, named, environment);
    // A process whose children go elsewhere can have no thread, and asking the supervisor takes one.
    setns(own, CloneFlags::CLONE_NEWPID).map_err(|error| refused(error.into()))?;
    child
}

/// The words of the command stand behind its own, and its name is another: who signals processes by name, as pkill does,
/// means both it and the command or neither.
fn spawn(
    orders: &OwnedFd,
    words: &OwnedFd,
    named: &[String],
    environment: Vec<(OsString, OsString)>,
) -> Result<Child, ErrorBody> {
    let own = std::env::current_exe().map_err(|error| unprepared("gpool-run does not find itself", error))?;
    let mut command = Command::new(own);
    command.arg0(inner::NAME.to_string_lossy().as_ref());
    command.arg(inner::VERB).arg(pipes::number(orders)).arg(pipes::number(words)).args(named);
    command.env_clear().envs(environment);
    command.spawn().map_err(|error| unprepared("the inner half of gpool-run does not start", error))
}

/// Everything up to the moment in which the command may start.
fn prepare(plan: &Plan, spec: &Value, inner: u32, (mut orders, mut words): Pipes) -> Result<Pipes, ErrorBody> {
    pipes::say(&mut orders, plan)?;
    pipes::hear::<Result<(), ErrorBody>>(&mut words)??;
    bind_command(spec, HostPid(inner))?;
    Ok((orders, words))
}

fn lost(error: impl Into<std::io::Error>) -> ErrorBody {
    unprepared("the command can no longer be waited for", error)
}

/// How the command has ended, if the inner half has.
fn ended(inner: Pid, words: &mut Signalled, job: &mut Job) -> Result<Option<End>, ErrorBody> {
    let Some((_, ended)) = waitpid(Some(inner), WaitOptions::NOHANG).map_err(lost)? else { return Ok(None) };
    if let Some(signal) = ended.terminating_signal() {
        return Ok(Some(End::Signal(signal)));
    }
    job.told(words.take(), Instant::now());
    Ok(Some(job.ended.map_or(End::Status(ended.exit_status().unwrap_or_default() as u8), End::Signal)))
}

/// Lets the command start. What tells it of signals, and what is told of it.
///
/// # Errors
/// None that a kernel has.
pub fn begin((mut orders, mut words): Pipes) -> Result<(File, Signalled), ErrorBody> {
    // Silence means that it has ended already; its status says why.
    let _ = pipes::say(&mut orders, &()).and_then(|()| pipes::hear::<()>(&mut words));
    Ok((orders, Signalled::new(words).map_err(lost)?))
}

/// Waits until the command has `ended`. Signals that come meanwhile are its own.
///
/// # Errors
/// The kernel gives no word of it.
pub fn attend(
    mut orders: File,
    mut words: Signalled,
    signals: &Signals,
    ended: impl Fn(&mut Signalled, &mut Job) -> Result<Option<End>, ErrorBody>,
) -> Result<End, ErrorBody> {
    let mut job = Job::default();
    job.told(words.take(), Instant::now());
    loop {
        if let Some(end) = ended(&mut words, &mut job)? {
            return Ok(end);
        }
        signals.wait(words.as_fd(), job.patience(Instant::now())).map_err(lost)?;
        job.told(words.take(), Instant::now());
        while let Some(signal) = signals.next() {
            job.had(signal);
            pipes::tell(&mut orders, signal as i32);
        }
        if job.is_to_stop(Instant::now()) && job::has_the_terminal() {
            // Nothing happens where nobody could continue it: the kernel stops no orphaned process group so.
            let _ = raise(Signal::SIGTSTP);
        }
    }
}
