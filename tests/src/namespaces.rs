//! Runs the current program again in namespaces of its own: mounts, network, processes. The kernel takes everything
//! down with the outermost process, so a SIGKILL at any point leaves no process and no mount.

use crate::cgroups;
use crate::failure::{Context, Failure, Result};
use crate::janitor::Janitor;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Set inside: which part this process plays there.
const ROLE: &str = "GPOOL_TEST_ROLE";
/// Set inside: the run's cgroup parent.
const CGROUP_PARENT: &str = "GPOOL_TEST_CGROUP_PARENT";
/// Debian's programs, also where a person has others in front of them.
pub const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The inside of the namespaces, set up and private.
#[derive(Debug)]
pub struct Inside {
    /// Name of the directory, at the top of every cgroup hierarchy, below which this run's containers go.
    pub cgroup_parent: String,
}

/// How a run in namespaces ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself.
    With(ExitStatus),
    /// It was still running at its time limit.
    TimedOut,
}

impl Ended {
    /// Whether it ended by itself and well.
    pub fn is_success(self) -> bool {
        matches!(self, Ended::With(status) if status.success())
    }

    /// The exit code for the caller's own process.
    pub fn exit_code(self) -> ExitCode {
        match self {
            Ended::With(status) => ExitCode::from(status.code().unwrap_or(128 + status.signal().unwrap_or(0)) as u8),
            Ended::TimedOut => ExitCode::from(124),
        }
    }
}

/// Runs this program again with `arguments` in namespaces of its own, at most for `limit`, with `errors` as what it says its
/// errors on.
///
/// There, [`serve_if_inside`] takes over.
///
/// # Errors
/// Without root, or when `unshare` is missing.
pub fn run(arguments: &[String], limit: Duration, errors: Stdio) -> Result<Ended> {
    // Whoever started this and is gone cannot look at the result any more, and `make` killed alone would leave it.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).context("prctl")?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("containers with namespaces of their own need root; run this as root"));
    }
    cgroups::sweep_dead_runs();
    // The main thread has the process's id, and another thread one that no process has.
    let parent = cgroups::parent_name(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
    let janitor = Janitor::start(&parent)?;
    let mut command = Command::new("/usr/bin/unshare");
    command.args(["--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["--propagation", "private"]).arg(std::env::current_exe().context("this program's path")?);
    command.args(arguments).env(ROLE, "init").env(CGROUP_PARENT, &parent).env("PATH", PATH).stderr(errors);
    let mut process = spawn_bound(&mut command).context("unshare cannot be started")?;
    // What is left of the command here must not keep the errors' end open.
    drop(command);
    let ended = wait_until(&mut process, Instant::now() + limit);
    if ended == Ended::TimedOut {
        // Its death takes the namespaces' first process along, and that one all others.
        let _ = process.kill();
        cgroups::thaw(&parent);
        let _ = process.wait();
    }
    janitor.finish();
    match cgroups::directories(&parent).first() {
        None => Ok(ended),
        Some(left) => Err(Failure::new(format!("left behind: {}", left.display()))),
    }
}

/// Runs this program again with `arguments` where this one is, at most for `limit`, with `errors` as what it says its errors
/// on. The runs that it starts die with it.
///
/// # Errors
/// When it cannot be started.
pub fn run_outside(arguments: &[&str], limit: Duration, errors: Stdio) -> Result<Ended> {
    let mut process =
        spawn_bound(another_run().args(arguments).stderr(errors)).context("the scenario cannot be started")?;
    let ended = wait_until(&mut process, Instant::now() + limit);
    if ended == Ended::TimedOut {
        process.kill().context("the scenario cannot be killed")?;
        process.wait().context("the scenario")?;
    }
    Ok(ended)
}

/// This program again, for a run within a run: it must not take itself for a part of this one.
pub fn another_run() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.env_remove(ROLE).env_remove(CGROUP_PARENT);
    command
}

/// Starts a child that dies with this thread, whatever kills it. The thread must live as long as the child.
pub fn spawn_bound(command: &mut Command) -> std::io::Result<Child> {
    let parent = rustix::process::getpid();
    // SAFETY: prctl and getppid are async-signal-safe and the closure touches no memory but its own copy of a pid.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            // The parent may have died before the line above.
            if rustix::process::getppid() == Some(parent) {
                Ok(())
            } else {
                Err(std::io::ErrorKind::Interrupted.into())
            }
        });
    }
    command.spawn()
}

fn wait_until(process: &mut Child, deadline: Instant) -> Ended {
    loop {
        match process.try_wait() {
            Ok(Some(status)) => return Ended::With(status),
            _ if Instant::now() >= deadline => return Ended::TimedOut,
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Runs `body` if this process is inside the namespaces of a [`run`]; none outside.
///
/// The first process there only reaps: containers' orphans are its children, and `body` must be able to wait for its own.
pub fn serve_if_inside(body: impl FnOnce(&Inside) -> Result<ExitCode>) -> Option<ExitCode> {
    let role = std::env::var(ROLE).ok()?;
    let served = match role.as_str() {
        "init" => set_up().and_then(|()| reap_until_body_ends()),
        _ => body(&Inside { cgroup_parent: std::env::var(CGROUP_PARENT).unwrap_or_default() }),
    };
    Some(served.unwrap_or_else(|failure| {
        eprintln!("{failure}");
        ExitCode::FAILURE
    }))
}

fn set_up() -> Result<()> {
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().context("ip cannot be started")?;
    if !up.success() {
        return Err(Failure::new("the loopback device cannot be set up"));
    }
    // A host's containerd and docker have their sockets here, and dockerd would use them.
    mount("tmpfs", "/run", "tmpfs", "mode=755").context("a private /run")?;
    for directory in ["/run/etc/upper", "/run/etc/work", "/run/lock"] {
        fs::create_dir_all(directory).context(directory)?;
    }
    let layers = "lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work";
    if mount("overlay", "/etc", "overlay", layers).is_err() {
        private_copy_of_etc()?;
    }
    Ok(())
}

/// Where the root is an overlay already, another one on it may be refused.
fn private_copy_of_etc() -> Result<()> {
    let copied = Command::new("cp").args(["-a", "/etc/.", "/run/etc/upper"]).status().context("cp")?;
    if !copied.success() {
        return Err(Failure::new("/etc cannot be copied"));
    }
    rustix::mount::mount_bind("/run/etc/upper", "/etc").context("a private /etc")
}

fn mount(source: &str, target: &str, kind: &str, options: &str) -> Result<()> {
    let options = std::ffi::CString::new(options).context("mount options")?;
    rustix::mount::mount(source, target, kind, rustix::mount::MountFlags::empty(), &*options)
        .context(format!("mount {target}"))
}

fn reap_until_body_ends() -> Result<ExitCode> {
    let mut command = Command::new(Path::new("/proc/self/exe"));
    command.args(std::env::args_os().skip(1)).env(ROLE, "body");
    let body = command.spawn().context("the body of the run cannot be started")?.id();
    loop {
        let mut status = 0;
        // SAFETY: `status` is a valid place for the result.
        let reaped = unsafe { libc::waitpid(-1, &mut status, 0) };
        if reaped == body as i32 {
            return Ok(Ended::With(ExitStatus::from_raw(status)).exit_code());
        }
        if reaped < 0 && std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return Err(std::io::Error::last_os_error().into());
        }
    }
}
