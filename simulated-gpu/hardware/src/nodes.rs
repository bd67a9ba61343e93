//! Device nodes, and who may see the device.

use crate::layout::Layout;
use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mknodat, open};
use rustix::io::Errno;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Name, major and minor as NVIDIA's driver has them. The major of nvidia-uvm is assigned when it is loaded; this
/// one is an example.
const NODES: [(&str, u32, u32); 3] = [("nvidia0", 195, 0), ("nvidiactl", 195, 255), ("nvidia-uvm", 510, 0)];

/// Makes the nodes anew. Needs CAP_MKNOD.
pub(crate) fn create(layout: &Layout) -> io::Result<()> {
    let directory = layout.nodes();
    fs::create_dir_all(&directory)?;
    remove(layout)?;
    for (name, major, minor) in NODES {
        let path = directory.join(name);
        mknodat(CWD, &path, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(major, minor))?;
        fs::set_permissions(&path, Permissions::from_mode(0o666))?;
    }
    Ok(())
}

/// Takes the nodes away again.
pub(crate) fn remove(layout: &Layout) -> io::Result<()> {
    for (name, _, _) in NODES {
        match fs::remove_file(layout.nodes().join(name)) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
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
