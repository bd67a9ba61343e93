//! Device nodes, and who may see the device.

use crate::capabilities;
use crate::layout::{Layout, MAX_DEVICES};
use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mknodat, open};
use rustix::io::Errno;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The major number of NVIDIA's driver.
const MAJOR: u32 = 195;

/// Name, major and minor of what all devices share, as NVIDIA's driver has them. The major of nvidia-uvm is assigned
/// when it is loaded; this one is an example.
const SHARED: [(&str, u32, u32); 2] = [("nvidiactl", MAJOR, 255), ("nvidia-uvm", 510, 0)];

/// The directory of the capabilities of MIG.
const CAPABILITIES: &str = "nvidia-caps";

/// The nodes of a host with this many devices.
fn nodes(devices: u32) -> impl Iterator<Item = (String, u32, u32)> {
    let of_devices = (0..devices).map(|index| (format!("nvidia{index}"), MAJOR, index));
    of_devices.chain(SHARED.map(|(name, major, minor)| (name.to_owned(), major, minor)))
}

/// Makes the nodes of `devices` devices anew, and those of the capabilities of `divisible` ones among them. Needs
/// CAP_MKNOD.
pub(crate) fn create(layout: &Layout, devices: u32, divisible: &[u32]) -> io::Result<()> {
    remove(layout)?;
    fs::create_dir_all(layout.nodes())?;
    for (name, major, minor) in nodes(devices) {
        node(&layout.nodes().join(name), (major, minor), 0o666)?;
    }
    let directory = layout.nodes().join(CAPABILITIES);
    if !divisible.is_empty() {
        fs::create_dir_all(&directory)?;
    }
    for (name, minor) in capabilities::nodes(divisible) {
        // The first two, which are to divide GPUs and to look at all instances, are root's.
        node(&directory.join(name), (capabilities::MAJOR, minor), if minor < 3 { 0o400 } else { 0o444 })?;
    }
    Ok(())
}

fn node(path: &Path, (major, minor): (u32, u32), mode: u32) -> io::Result<()> {
    mknodat(CWD, path, FileType::CharacterDevice, Mode::from_raw_mode(mode), makedev(major, minor))?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Takes all nodes away again.
pub(crate) fn remove(layout: &Layout) -> io::Result<()> {
    for (name, _, _) in nodes(MAX_DEVICES) {
        gone(fs::remove_file(layout.nodes().join(name)))?;
    }
    gone(fs::remove_dir_all(layout.nodes().join(CAPABILITIES)))
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|cause| if cause.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(cause) })
}

/// Whether this process may use the device with this index: opening `/dev/nvidiaN` (or the node in the layout if
/// that does not exist) gives ENXIO. There is no driver behind the node, so this is the answer of a kernel whose
/// device cgroup allows the access; EPERM, EACCES and ENOENT say no.
pub fn is_visible(layout: &Layout, index: u32) -> bool {
    let name = format!("nvidia{index}");
    let probe = |path: &Path| open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).err();
    match probe(&Path::new("/dev").join(&name)) {
        Some(Errno::NOENT) => probe(&layout.nodes().join(&name)) == Some(Errno::NXIO),
        answer => answer == Some(Errno::NXIO),
    }
}
