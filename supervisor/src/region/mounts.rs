//! Where a region's tmpfs is mounted: by this process, or by the mounter that stays in the host's mount namespace when
//! this process has been given one of its own.

use super::host::{RegionError, failed};
use crate::procfs;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::{CStr, CString};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The mounter's socket, below the directory for running state.
pub const SOCKET: &str = "regions.sock";
/// What the mounter says when it has done what it was asked for.
pub const DONE: &str = "done";
/// Size of a region's tmpfs: what a tenant grows stops here.
const TMPFS_OPTIONS: &CStr = c"size=262144,nr_inodes=8,mode=0755";
/// The same in memory for good: who has a file of it mapped may have its pages swapped out (madvise(2), MADV_PAGEOUT), and the
/// gatekeeper, which reads them, would wait for the disk.
const UNSWAPPED_OPTIONS: &CStr = c"size=262144,nr_inodes=8,mode=0755,noswap";
/// Size of what an MPS server and its clients share: their pipes, logs and /dev/shm.
const SHARED_OPTIONS: &CStr = c"size=1073741824,nr_inodes=16384,mode=0755";
/// There where SELinux is enabled.
const SELINUX: &str = "/sys/fs/selinux/enforce";
/// What containers may open under the policies of Fedora and its relatives; files of a tmpfs they may not (container-selinux).
const LABEL: &str = ",context=\"system_u:object_r:container_file_t:s0\"";
/// How long the mounter may take for one mount.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest answer of the mounter, in bytes.
const ANSWER_BYTES: u64 = 512;

/// Who mounts and unmounts regions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mounts {
    /// This process: what it mounts is seen by the engines.
    Here,
    /// The mounter that listens at this path.
    Mounter(PathBuf),
}

impl Mounts {
    /// Whether mounts below `run_dir` leave this process's mount namespace, or the mounter has to make them.
    ///
    /// # Errors
    /// When they do not and there is no mounter either: no engine would see a region.
    pub fn of(run_dir: &Path) -> Result<Self, RegionError> {
        let receives = receives_only(run_dir).map_err(failed("cannot look up the mount of", run_dir))?;
        if !receives {
            return Ok(Self::Here);
        }
        let socket = run_dir.join(SOCKET);
        let unreachable = |cause: io::Error| {
            io::Error::other(format!(
                "{cause}; this process has a mount namespace of its own, in which no engine sees what it mounts: start \
                 gpool-regions.socket, or take the unit's directives away that give it one"
            ))
        };
        match UnixStream::connect(&socket) {
            Ok(_) => Ok(Self::Mounter(socket)),
            Err(cause) => Err(failed("cannot reach", &socket)(unreachable(cause))),
        }
    }

    /// Whether this process mounts itself.
    pub fn are_here(&self) -> bool {
        *self == Self::Here
    }

    /// Mounts an empty tmpfs for a region on `dir`, which is there.
    ///
    /// # Errors
    /// Names the directory and who refused.
    pub fn mount(&self, dir: &Path) -> Result<(), RegionError> {
        match self {
            Self::Here => mount_tmpfs(dir).map_err(failed("cannot mount a tmpfs on", dir)),
            Self::Mounter(socket) => {
                ask(socket, "mount", dir).map_err(failed("gpool-regions has mounted no tmpfs on", dir))?;
                let seen = is_mounted(dir).map_err(failed("cannot look at", dir))?;
                let unseen = || io::Error::other("mounts of the host do not reach this process");
                if seen { Ok(()) } else { Err(failed("cannot see the mount on", dir)(unseen())) }
            }
        }
    }

    /// Unmounts a region. One that was never mounted, or is gone, is as unmounted as can be.
    ///
    /// # Errors
    /// The mounter's words, or that it does not answer.
    pub fn unmount(&self, dir: &Path) -> io::Result<()> {
        match self {
            Self::Here => {
                let _ = rustix::mount::unmount(dir, UnmountFlags::DETACH);
                Ok(())
            }
            Self::Mounter(socket) => ask(socket, "unmount", dir),
        }
    }
}

/// Mounts an empty tmpfs for a region.
pub fn mount_tmpfs(dir: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let labels = Path::new(SELINUX).exists();
    let mount = |options: &CStr| rustix::mount::mount("gpool", dir, "tmpfs", flags, options);
    Ok(unswapped(&IS_UNKNOWN, |options| with_label(options, labels, mount))?)
}

/// The kernel does not know that a tmpfs may stay in memory: it says so in its log each time that it is asked.
static IS_UNKNOWN: AtomicBool = AtomicBool::new(false);

/// Mounts a region's tmpfs whose pages stay in memory, where the kernel can have it so and that is not known to be unknown to it.
fn unswapped(is_unknown: &AtomicBool, mount: impl Fn(&CStr) -> Result<(), Errno>) -> Result<(), Errno> {
    if is_unknown.load(Ordering::Relaxed) {
        return mount(TMPFS_OPTIONS);
    }
    match mount(UNSWAPPED_OPTIONS) {
        // Linux before 6.4 does not. What fails without it as well says nothing of that.
        Err(Errno::INVAL) => mount(TMPFS_OPTIONS).inspect(|()| is_unknown.store(true, Ordering::Relaxed)),
        other => other,
    }
}

/// Mounts with `options` and, where there are labels, the one of containers' files.
fn with_label<E>(options: &CStr, labels: bool, mount: impl Fn(&CStr) -> Result<(), E>) -> Result<(), E> {
    let labelled = labels.then(|| CString::new([options.to_bytes(), LABEL.as_bytes()].concat()).ok()).flatten();
    match labelled {
        // A policy that does not know the label refuses it; then it is its own affair who may open what.
        Some(labelled) => mount(&labelled).or_else(|_| mount(options)),
        None => mount(options),
    }
}

/// Mounts an empty tmpfs for an MPS server and its clients.
pub fn mount_shared(dir: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let labels = Path::new(SELINUX).exists();
    let mount = |flags| {
        let mount = |options: &CStr| rustix::mount::mount("gpool-mps", dir, "tmpfs", flags, options);
        with_label(SHARED_OPTIONS, labels, mount)
    };
    // Containers write here and the host's root works here: a symbolic link of theirs must lead to no place of the host's.
    match mount(flags | MountFlags::NOSYMFOLLOW) {
        // Linux before 5.10 does not know that.
        Err(Errno::INVAL) => Ok(mount(flags)?),
        other => Ok(other?),
    }
}

/// Unmounts it. Whoever has it mounted elsewhere, a container, keeps it.
pub fn unmount_shared(dir: &Path) {
    // One that is not mounted is as unmounted as can be.
    let _ = rustix::mount::unmount(dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
}

/// Whether something is mounted on `dir` itself.
pub fn is_mounted(dir: &Path) -> io::Result<bool> {
    let parent = dir.parent().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(fs::metadata(dir)?.dev() != fs::metadata(parent)?.dev())
}

/// Asks the mounter for `verb` and the lease whose region `dir` is.
fn ask(socket: &Path, verb: &str, dir: &Path) -> io::Result<()> {
    let lease = dir.parent().and_then(Path::file_name).ok_or(io::ErrorKind::InvalidInput)?;
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    (&stream).write_all(format!("{verb} {}\n", lease.to_string_lossy()).as_bytes())?;
    let mut answer = String::new();
    BufReader::new(&stream).take(ANSWER_BYTES).read_line(&mut answer)?;
    match answer.trim_end() {
        DONE => Ok(()),
        "" => Err(io::ErrorKind::UnexpectedEof.into()),
        cause => Err(io::Error::other(cause.to_owned())),
    }
}

/// Whether the mount that holds `dir` gets mounts from another namespace and gives none back.
fn receives_only(dir: &Path) -> io::Result<bool> {
    let dir = fs::File::open(dir)?;
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", dir.as_raw_fd()))?;
    let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(str::trim);
    let id = id.ok_or_else(|| io::Error::other("the kernel names no mount for it"))?;
    Ok(is_slave(&procfs::text("/proc/self/mountinfo")?, id))
}

/// Whether the mount `id` of a mountinfo (proc_pid_mountinfo(5)) has a master. Its optional fields stand between the
/// sixth and a lone dash.
fn is_slave(mountinfo: &str, id: &str) -> bool {
    let line = mountinfo.lines().find(|line| line.split(' ').next() == Some(id));
    let optional = line.into_iter().flat_map(|line| line.split(' ').skip(6)).take_while(|field| *field != "-");
    optional.into_iter().any(|field| field.starts_with("master:"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_mount_with_a_master_gives_nothing_back() {
        let mountinfo = "21 1 0:20 / / rw,relatime shared:1 - overlay overlay rw\n\
                         22 21 0:21 / /run rw,nosuid shared:9 master:2 - tmpfs master:3 rw\n\
                         23 21 0:22 / /tmp rw - tmpfs tmpfs rw\n";
        assert!(is_slave(mountinfo, "22"));
        for other in ["21", "23", "2", "99", ""] {
            assert!(!is_slave(mountinfo, other), "{other}");
        }
    }

    #[test]
    fn a_label_is_tried_where_there_are_labels_and_no_mount_fails_for_it() {
        let tried = |labels: bool, knows_it: bool| {
            let all = std::cell::RefCell::new(Vec::new());
            let outcome = with_label(c"size=1", labels, |options| {
                let is_labelled = options.to_bytes().ends_with(b":container_file_t:s0\"");
                all.borrow_mut().push(is_labelled);
                if is_labelled && !knows_it { Err(()) } else { Ok(()) }
            });
            assert_eq!(outcome, Ok(()));
            all.into_inner()
        };
        assert_eq!(
            (tried(false, true), tried(true, true), tried(true, false)),
            (vec![false], vec![true], vec![true, false])
        );
    }

    #[test]
    fn a_region_stays_in_memory_where_the_kernel_can_have_it_so() {
        let is_unknown = AtomicBool::new(false);
        let tried = |answers: [Result<(), Errno>; 2]| {
            let all = std::cell::RefCell::new(Vec::new());
            let outcome = unswapped(&is_unknown, |options| {
                all.borrow_mut().push(options.to_bytes().ends_with(b",noswap"));
                answers[all.borrow().len() - 1]
            });
            (outcome, all.into_inner())
        };
        assert_eq!(tried([Ok(()); 2]), (Ok(()), vec![true]));
        assert_eq!(tried([Err(Errno::PERM), Ok(())]), (Err(Errno::PERM), vec![true]), "it may mount nothing");
        assert_eq!(
            tried([Err(Errno::INVAL); 2]),
            (Err(Errno::INVAL), vec![true, false]),
            "nothing is wrong with that option"
        );
        assert_eq!(tried([Err(Errno::INVAL), Ok(())]), (Ok(()), vec![true, false]), "before 6.4");
        assert_eq!(tried([Ok(()); 2]), (Ok(()), vec![false]), "it is not asked again");
    }

    #[test]
    fn nothing_is_mounted_on_a_plain_directory() {
        let directory = tempfile::tempdir().unwrap();
        let region = directory.path().join("region");
        fs::create_dir(&region).unwrap();
        assert!(!is_mounted(&region).unwrap() && is_mounted(Path::new("/proc")).unwrap());
        assert!(is_mounted(&directory.path().join("none")).is_err());
    }

    #[test]
    fn the_mounter_is_told_the_lease_and_its_cause_is_handed_on() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join(SOCKET);
        let listener = UnixListener::bind(&socket).unwrap();
        let mounter = std::thread::spawn(move || {
            ["done\n", "no room\n", ""].map(|answer| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = String::new();
                BufReader::new(&stream).read_line(&mut asked).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
                asked
            })
        });
        let region = Path::new("/run/gpool/leases/01ABC/region");
        assert!(ask(&socket, "mount", region).is_ok());
        assert_eq!(ask(&socket, "unmount", region).unwrap_err().to_string(), "no room");
        assert!(ask(&socket, "mount", region).is_err(), "a mounter that dies has done nothing");
        assert_eq!(mounter.join().unwrap(), ["mount 01ABC\n", "unmount 01ABC\n", "mount 01ABC\n"]);
    }
}
