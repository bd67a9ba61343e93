//! Starting and stopping a control daemon so that it is nobody's child: where systemd runs this service, in a unit of its
//! own; elsewhere detached, in a session and a cgroup of its own.

use super::control::PROGRAM;
use super::group::{Group, GroupRecord, folder_of};
use crate::device::DriverFiles;
use crate::service_manager;
use gpool_configuration::Configuration;
use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The template of which each daemon is an instance.
const UNIT: &str = "gpool-mps@";
/// The daemon's `/dev/shm`, which has to be its clients', too.
const SHARED_MEMORY: &str = "/dev/shm";
/// Where cgroups are that a process of root's own can make: version 2, alone or beside version 1.
const HIERARCHIES: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// How long systemd may take for a daemon's unit; it stops one by force after 5 s.
const UNIT_PATIENCE: Duration = Duration::from_secs(6);
/// How long the processes of a cgroup may take to end that were killed.
const EMPTY_PATIENCE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(10);

/// Whether daemons are started by this process itself, which needs the right to change users: a daemon starts its server
/// as the user of its clients.
pub fn starts_detached() -> bool {
    // As sd_booted(3) has it; INVOCATION_ID is systemd's mark of its own services.
    !Path::new("/run/systemd/system").is_dir() || std::env::var_os("INVOCATION_ID").is_none()
}

/// Starts the daemon of the group `id`, whose folders are there. The child is to be waited for.
///
/// # Errors
/// Whoever was to start it did not.
pub fn start(configuration: &Path, run_dir: &Path, id: &str) -> io::Result<Option<Child>> {
    if starts_detached() {
        let log = File::create(folder_of(run_dir, id, "log").join("start.log"))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg("--config").arg(configuration).args(["--mps-daemon", id]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        return command.spawn().map(Some);
    }
    systemctl("start", id).map(|()| None)
}

/// Sees to it that nothing of a daemon that was told to quit, or has ended, is left.
pub fn clear_away(group: &mut Group) {
    for process in [&group.daemon, &group.server].into_iter().flatten() {
        process.kill();
    }
    if let Some(child) = &mut group.child {
        // One that never answered is known by nothing else.
        let _ = child.kill();
        let _ = child.wait();
    }
    if !starts_detached() {
        // An instance that has ended may be marked as failed.
        for verb in ["stop", "reset-failed"] {
            let _ = systemctl(verb, &group.record.id);
        }
    }
    // Whoever is left in it belongs to the daemon.
    kill_all(&group.record.id);
    for cgroup in own_cgroups(&group.record.id) {
        let deadline = Instant::now() + EMPTY_PATIENCE;
        while fs::remove_dir(&cgroup).is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
            && Instant::now() < deadline
        {
            std::thread::sleep(POLL);
        }
    }
}

/// Ends all processes of the daemon's cgroup. Where systemd runs it, they end with its unit.
pub fn kill_all(id: &str) {
    for cgroup in own_cgroups(id) {
        // Before Linux 5.14 there is no such file.
        let _ = fs::write(cgroup.join("cgroup.kill"), "1");
    }
}

fn systemctl(verb: &str, id: &str) -> io::Result<()> {
    service_manager::systemctl(verb, &format!("{UNIT}{id}.service"), UNIT_PATIENCE)
}

/// Makes this process, which does nothing else, the daemon of the group `id`. Returns only if it cannot.
#[must_use]
pub fn become_daemon(configuration: &Configuration, id: &str) -> io::Error {
    prepare(configuration, id).map_or_else(|error| error, |mut command| command.exec())
}

fn prepare(configuration: &Configuration, id: &str) -> io::Result<Command> {
    let run_dir = &configuration.paths.run_dir;
    let record = GroupRecord::read(run_dir, id)?;
    let program = DriverFiles::program(&configuration.driver.program_dirs, PROGRAM);
    let program = program.ok_or_else(|| io::Error::other(format!("{PROGRAM} is in none of driver.program_dirs")))?;
    if starts_detached() {
        // It has a session already if nobody else is in its group of processes.
        let _ = rustix::process::setsid();
        leave_cgroup(id);
    }
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    mount_bind(folder_of(run_dir, id, "shm"), SHARED_MEMORY)?;
    let uuids: Vec<&str> = record.gpus.iter().map(|gpu| gpu.0.as_str()).collect();
    let mut command = Command::new(program);
    command.arg("-f").env("CUDA_VISIBLE_DEVICES", uuids.join(","));
    command.env("CUDA_MPS_PIPE_DIRECTORY", folder_of(run_dir, id, "pipe"));
    command.env("CUDA_MPS_LOG_DIRECTORY", folder_of(run_dir, id, "log"));
    Ok(command)
}

fn own_cgroups(id: &str) -> Vec<PathBuf> {
    let unified = HIERARCHIES.map(Path::new).into_iter().filter(|root| root.join("cgroup.controllers").exists());
    unified.map(|root| root.join(format!("gpool-mps-{id}"))).collect()
}

/// Whoever ends all processes of the supervisor's cgroup does not end this one. Where cgroups cannot be made it stays.
fn leave_cgroup(id: &str) {
    for cgroup in own_cgroups(id) {
        let made = fs::create_dir(&cgroup).and_then(|()| fs::write(cgroup.join("cgroup.procs"), "0"));
        if let Err(error) = made {
            log!("no cgroup for the MPS daemon {id} ({error}); it stays in the supervisor's");
        }
    }
}
