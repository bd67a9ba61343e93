//! The part of the kernel driver that needs a process of its own: telling processes who they are, suspending them, and
//! giving back what the dead held.

use crate::checkpoint::{Devices, Progress, Requests};
use crate::driver_version::DriverVersion;
use crate::gate::Gate;
use crate::handshake::{self, Identity};
use crate::layout::{Layout, MAX_DEVICES};
use crate::site::Site;
use crate::store::{Store, StoreError};
use crate::{capabilities, limits, nodes, owner, pids};
use gpool_device_model::DeviceParameters;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// The server cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The device's state failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A call to the system failed.
    #[error("{doing}: {cause}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        cause: io::Error,
    },
}

/// A process that uses the device.
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// How far its suspension is.
    pub(crate) progress: Progress,
    death: OwnedFd,
    /// Kept open for as long as the process lives; nothing more is said on it. The process closes its end when it executes another
    /// program, as it closes a driver's files.
    stream: UnixStream,
}

/// What is simulated.
#[derive(Debug)]
pub struct Host<'a> {
    /// Its devices, by minor number.
    pub parameters: &'a [DeviceParameters],
    /// Where they sit.
    pub sites: &'a [Site],
    /// Its driver.
    pub driver_version: &'a DriverVersion,
    /// Whether that maps physical memory only as a whole, as a driver may.
    pub has_whole_maps: bool,
}

/// Says whether the driver maps physical memory only as a whole, for processes that start from now on.
///
/// # Errors
/// When it cannot be written.
pub fn note_whole_maps(layout: &Layout, has_whole_maps: bool) -> std::io::Result<()> {
    note(&layout.whole_maps(), has_whole_maps)
}

/// Says whether a device has fallen off its bus: NVML then answers for it with nothing but that. What runs on it is left
/// as it is.
///
/// # Errors
/// When it cannot be written.
pub fn note_lost(layout: &Layout, index: u32, is_lost: bool) -> std::io::Result<()> {
    note(&layout.lost(index), is_lost)
}

/// Says whether NVML hangs when it is asked of a device, as it may of one that is sick. What runs on it is left as it is.
///
/// # Errors
/// When it cannot be written.
pub fn note_hung(layout: &Layout, index: u32, is_hung: bool) -> std::io::Result<()> {
    note(&layout.hung(index), is_hung)
}

/// Says which compute mode NVML has for a device: a number of `nvmlComputeMode_t`. Whoever makes contexts is let in all the same.
///
/// # Errors
/// When it cannot be written.
pub fn note_compute_mode(layout: &Layout, index: u32, mode: u32) -> std::io::Result<()> {
    fs::write(layout.compute_mode(index), mode.to_string())
}

/// Has an Xid happen to a device, of which NVML tells. What runs on it is left as it is.
///
/// # Errors
/// When it cannot be written.
pub fn note_xid(layout: &Layout, index: u32, number: u64) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(layout.xids(index))?;
    file.write_all(format!("{number}\n").as_bytes())
}

fn note(path: &Path, is_so: bool) -> std::io::Result<()> {
    if is_so {
        return fs::write(path, "");
    }
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => Err(cause),
        _ => Ok(()),
    }
}

/// Makes the devices of `host` anew, with their state, socket and nodes below `layout`, calls `ready`,
/// and serves until `stop` is readable. Takes socket and nodes away at the end; the state stays.
pub fn serve(layout: &Layout, host: &Host<'_>, stop: BorrowedFd<'_>, ready: impl FnOnce()) -> Result<(), ServeError> {
    let failed = |doing| move |cause| ServeError::System { doing, cause };
    let stores = create(layout, host.parameters)?;
    host.driver_version.write(layout).map_err(failed("write the driver's version"))?;
    note_whole_maps(layout, host.has_whole_maps).map_err(failed("write what the driver maps"))?;
    for index in 0..stores.len() as u32 {
        note_lost(layout, index, false).map_err(failed("say that no device is lost"))?;
        note_hung(layout, index, false).map_err(failed("say that no device hangs"))?;
        note(&layout.xids(index), false).map_err(failed("say that nothing has happened to the devices"))?;
        note(&layout.health(index), false).map_err(failed("say that the devices are healthy"))?;
        note_compute_mode(layout, index, 0).map_err(failed("say which compute mode the devices have"))?;
    }
    for (index, site) in (0..).zip(host.sites) {
        site.note(layout, index).map_err(failed("say where the devices sit"))?;
    }
    fs::create_dir_all(layout.libraries()).map_err(failed("make the directory of the libraries"))?;
    let divisible: Vec<u32> =
        (0..).zip(host.parameters).filter(|(_, own)| own.mig_model().is_some()).map(|(index, _)| index).collect();
    nodes::create(layout, stores.len() as u32, &divisible).map_err(failed("make the device nodes"))?;
    capabilities::remove(layout).map_err(failed("remove the capabilities of earlier instances"))?;
    capabilities::write_table(layout, stores.len() as u32).map_err(failed("write the capabilities' numbers"))?;
    let listener = listen(&layout.socket()).map_err(failed("listen on the socket"))?;
    let curious = listen(&layout.pids_socket()).map_err(failed("listen on the socket for pids"))?;
    let suspending = listen(&layout.checkpoint_socket()).map_err(failed("listen on the socket for suspension"))?;
    let mut requests = Requests::new(suspending);
    ready();
    let result = attend(Devices { layout, stores: &stores }, [&listener, &curious], &mut requests, stop);
    for path in [layout.socket(), layout.pids_socket(), layout.checkpoint_socket()] {
        let _ = fs::remove_file(path);
    }
    nodes::remove(layout).map_err(failed("remove the device nodes"))?;
    result
}

/// Makes the devices, and takes away what an earlier run with more of them has left.
fn create(layout: &Layout, parameters: &[DeviceParameters]) -> Result<Vec<Store>, ServeError> {
    let devices = (parameters.len() as u32..MAX_DEVICES).map(|index| layout.device(index));
    let instances = layout.instances().into_iter().map(|(index, instance)| layout.instance(index, instance));
    for path in devices.chain(instances) {
        match fs::remove_file(path) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                return Err(ServeError::System { doing: "remove the state of earlier devices", cause });
            }
            Ok(()) | Err(_) => {}
        }
    }
    let make = |(index, parameters): (u32, &DeviceParameters)| {
        Store::create_device(layout.root(), index, parameters.clone()).map_err(ServeError::from)
    };
    (0..).zip(parameters).map(make).collect()
}

pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o666))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Answers processes that use the devices, at `listener`, those that ask who does, at `curious`, and `requests`.
pub(crate) fn attend(
    devices: Devices<'_>,
    [listener, curious]: [&UnixListener; 2],
    requests: &mut Requests,
    stop: BorrowedFd<'_>,
) -> Result<(), ServeError> {
    let mut processes: Vec<Process> = Vec::new();
    loop {
        let mut waits = vec![PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        waits.extend([listener, curious].map(|listener| PollFd::new(listener, PollFlags::IN)));
        waits.extend(processes.iter().map(|process| PollFd::new(&process.death, PollFlags::IN)));
        waits.extend(processes.iter().map(|process| PollFd::new(&process.stream, PollFlags::RDHUP)));
        waits.extend(requests.waits());
        match poll(&mut waits, requests.patience().as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(cause) => return Err(ServeError::System { doing: "wait for processes", cause: cause.into() }),
        }
        let happened: Vec<bool> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
        let (happened, asked) = happened.split_at(3 + 2 * processes.len());
        let (dead, left) = happened[3..].split_at(processes.len());
        let gone: Vec<bool> = dead.iter().zip(left).map(|(dead, left)| *dead || *left).collect();
        if gone.contains(&true) {
            let all = || processes.iter().zip(&gone);
            // One that has hung up may be connected twice.
            let stays = |pid: u32| all().any(|(other, gone)| other.pid == pid && !gone);
            let ended: Vec<u32> =
                all().filter(|(process, gone)| **gone && !stays(process.pid)).map(|(process, _)| process.pid).collect();
            devices.each(|store| {
                store.update(|device, now_ns| ended.iter().for_each(|pid| device.reap_process(now_ns, *pid)))?;
                limits::forget_removed(store)
            })?;
            let mut gone = gone.iter();
            processes.retain(|_| gone.next() != Some(&true));
        }
        requests.attend(asked, &mut processes, devices);
        if happened[0] {
            return Ok(());
        }
        if happened[1]
            && let Ok((stream, _)) = listener.accept()
        {
            // A process that cannot be identified gets no answer, and no device.
            processes.extend(welcome(stream).ok());
        }
        if happened[2]
            && let Ok((stream, _)) = curious.accept()
        {
            // One that does not read all of it is told no more.
            let _ = pids::send(&stream, processes.iter().map(|process| process.pid));
        }
    }
}

/// Tells a process who it is. Never blocks: the answer fits into the empty socket.
fn welcome(stream: UnixStream) -> io::Result<Process> {
    stream.set_nonblocking(true)?;
    let peer: Pid = socket_peercred(&stream)?.pid;
    let death = pidfd_open(peer, PidfdFlags::empty())?;
    // A peer that has hung up already may be dead, and its pid another's by now.
    let mut state = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::RDHUP)];
    poll(&mut state, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    if !state[0].revents().is_empty() {
        return Err(io::ErrorKind::NotConnected.into());
    }
    let pid = peer.as_raw_pid().unsigned_abs();
    let identity = Identity { host_pid: pid, owner: owner::of_process(pid)? };
    let (gate, file) = Gate::create()?;
    handshake::send(&stream, &identity, &file)?;
    Ok(Process { pid, progress: Progress::new(gate), death, stream })
}
