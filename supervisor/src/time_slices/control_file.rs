//! A process's open `/dev/nvidiactl`, borrowed. The driver compares the file with the one on which a client was made, and
//! neither process nor user: through the same open file the supervisor may do what its owner may.
//!
//! **What is borrowed is given back at once.** The driver frees a client when its file's last descriptor is closed, so
//! one that is kept here keeps the memory of a process that has ended.

use crate::procfs::WatchedProcess;
use gpool_driver_abi::resource_manager::{
    Allocate, CLASS_CLIENT, CONTROL_MINOR, Control, ESCAPE_ALLOCATE, ESCAPE_CONTROL, FIRST_CLIENT, GET_HANDLE_INFO,
    GET_TIME_SLICE, HANDLE_CLASS, HANDLE_PARENT, HandleInfo, IOCTL_MAGIC, MAJOR, OK, SET_TIME_SLICE, TimeSlice,
};
use rustix::fs::{AtFlags, CWD, FileType, OFlags, StatxFlags, fstat, major, minor, statx};
use rustix::ioctl::{Updater, ioctl, opcode};
use rustix::process::{ForeignRawFd, PidfdGetfdFlags, pidfd_getfd};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// What can be asked of an open control file; tests have another one.
pub trait ResourceManager {
    /// Class of an object, if there is one of that handle.
    fn class(&self, client: u32, object: u32) -> Option<u32>;
    /// Handle of what an object belongs to.
    fn parent(&self, client: u32, object: u32) -> Option<u32>;
    /// The time slice that was last set for a channel group, microseconds.
    ///
    /// # Errors
    /// The driver's refusal.
    fn time_slice_us(&self, client: u32, group: u32) -> io::Result<u64>;
    /// Sets it.
    ///
    /// # Errors
    /// The driver's refusal.
    fn set_time_slice_us(&self, client: u32, group: u32, us: u64) -> io::Result<()>;
}

/// How many of them are borrowed of one process; libcuda and NVML have some.
const BORROWED: usize = 64;

/// An open `/dev/nvidiactl`.
#[derive(Debug)]
pub struct ControlFile(OwnedFd);

impl ControlFile {
    /// Descriptors of control files that a process has, at most a few more than are ever borrowed. Nothing is opened and no
    /// file's server is asked.
    ///
    /// # Errors
    /// When its descriptors cannot be read: it has ended, or the right to look into it is missing.
    pub fn numbers_of(process: &WatchedProcess) -> io::Result<BTreeSet<ForeignRawFd>> {
        let entries = fs::read_dir(format!("/proc/{}/fd", process.name.pid))?.flatten();
        let numbered = entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())));
        let is_node = |path: &Path| {
            // Sockets, pipes and the like have no path.
            let is_file = fs::read_link(path).is_ok_and(|target| target.is_absolute());
            let status = is_file.then(|| statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE));
            status.and_then(Result::ok).is_some_and(|status| {
                FileType::from_raw_mode(status.stx_mode.into()) == FileType::CharacterDevice
                    && (status.stx_rdev_major, status.stx_rdev_minor) == (MAJOR, CONTROL_MINOR)
            })
        };
        let nodes = numbered.filter(|(_, path)| is_node(path)).map(|(number, _)| number);
        Ok(nodes.take(BORROWED + 1).collect())
    }

    /// Borrows them; none if there are more than are borrowed, which no honest process has.
    ///
    /// # Errors
    /// The right to look into the process is missing, or it has more of them.
    pub fn borrow(process: &WatchedProcess, numbers: &BTreeSet<ForeignRawFd>) -> io::Result<Vec<Self>> {
        if numbers.len() > BORROWED {
            return Err(io::Error::other("a process has too many open control files of the driver"));
        }
        let mut found = Vec::new();
        for &number in numbers {
            // What counts is what the descriptor turns out to be once it is ours.
            match pidfd_getfd(&process.pidfd, number, PidfdGetfdFlags::empty()) {
                Ok(file) if is_control_node(&fstat(&file).ok()) => found.push(Self(file)),
                Ok(_) | Err(rustix::io::Errno::BADF) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }

    /// One of our own.
    ///
    /// # Errors
    /// The node cannot be opened.
    pub fn open(device_dir: &Path) -> io::Result<Self> {
        let node = device_dir.join("nvidiactl");
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(&node, flags, rustix::fs::Mode::empty())?))
    }

    /// Makes a client, which goes with the file: clients of the whole host are numbered one after the other, so this says up
    /// to where others can be.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn newest_client(&self) -> io::Result<u32> {
        let mut made = Allocate {
            root: 0,
            parent: 0,
            object: 0,
            class: CLASS_CLIENT,
            parameters: 0,
            parameters_bytes: 0,
            status: 0,
        };
        // SAFETY: the driver reads and writes an `Allocate` for this number, and no parameters of this class.
        unsafe {
            ioctl(
                self.0.as_fd(),
                Updater::<{ opcode::read_write::<Allocate>(IOCTL_MAGIC, ESCAPE_ALLOCATE) }, _>::new(&mut made),
            )?;
        }
        match made.status {
            OK if made.object >= FIRST_CLIENT => Ok(made.object),
            status => Err(refused("a client", status)),
        }
    }

    fn control<T>(&self, client: u32, object: u32, command: u32, parameters: &mut T) -> io::Result<()> {
        let mut call = Control {
            client,
            object,
            command,
            flags: 0,
            parameters: std::ptr::from_mut(parameters) as u64,
            parameters_bytes: size_of::<T>() as u32,
            status: 0,
        };
        // SAFETY: the driver reads and writes a `Control` for this number, and of its parameters, which live through the
        // call, as many bytes as it is told.
        unsafe {
            ioctl(
                self.0.as_fd(),
                Updater::<{ opcode::read_write::<Control>(IOCTL_MAGIC, ESCAPE_CONTROL) }, _>::new(&mut call),
            )?;
        }
        if call.status == OK { Ok(()) } else { Err(refused("a call", call.status)) }
    }

    fn info(&self, client: u32, object: u32, index: u32) -> Option<u32> {
        let mut info = HandleInfo { object, index, answer: 0 };
        self.control(client, client, GET_HANDLE_INFO, &mut info).ok()?;
        u32::try_from(info.answer).ok()
    }
}

impl ResourceManager for ControlFile {
    fn class(&self, client: u32, object: u32) -> Option<u32> {
        self.info(client, object, HANDLE_CLASS)
    }

    fn parent(&self, client: u32, object: u32) -> Option<u32> {
        self.info(client, object, HANDLE_PARENT)
    }

    fn time_slice_us(&self, client: u32, group: u32) -> io::Result<u64> {
        let mut slice = TimeSlice::default();
        self.control(client, group, GET_TIME_SLICE, &mut slice)?;
        Ok(slice.us)
    }

    fn set_time_slice_us(&self, client: u32, group: u32, us: u64) -> io::Result<()> {
        self.control(client, group, SET_TIME_SLICE, &mut TimeSlice { us })
    }
}

fn is_control_node(status: &Option<rustix::fs::Stat>) -> bool {
    status.as_ref().is_some_and(|status| {
        FileType::from_raw_mode(status.st_mode) == FileType::CharacterDevice
            && (major(status.st_rdev), minor(status.st_rdev)) == (MAJOR, CONTROL_MINOR)
    })
}

fn refused(what: &str, status: u32) -> io::Error {
    io::Error::other(format!("the driver refuses {what} with status {status:#x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::HostPid;

    #[test]
    fn the_numbers_are_those_of_the_drivers_header() {
        assert_eq!(opcode::read_write::<Control>(IOCTL_MAGIC, ESCAPE_CONTROL), 0xc020_462a);
        assert_eq!(opcode::read_write::<Allocate>(IOCTL_MAGIC, ESCAPE_ALLOCATE), 0xc020_462b);
    }

    #[test]
    fn only_the_drivers_node_is_borrowed() {
        let null = fs::File::open("/dev/null").unwrap();
        let here = WatchedProcess::open(HostPid(std::process::id())).unwrap();
        assert!(ControlFile::numbers_of(&here).unwrap().is_empty(), "{null:?} is a device, and another one");
        assert!(ControlFile::borrow(&here, &BTreeSet::from([0, 1, 9999])).unwrap().is_empty());
        assert!(ControlFile::borrow(&here, &(0..100).collect()).is_err());
        assert!(ControlFile::open(Path::new("/nowhere")).is_err());
    }
}
