//! The capabilities of MIG: character devices of the driver nvidia-caps, one for each instance, that only those may open
//! who are to use it. Which one is whose stands in files like those of /proc/driver.
//!
//! Source: NVIDIA's MIG user guide, "/dev based nvidia-capabilities", and nv-caps.c of NVIDIA's open kernel modules. The
//! minor numbers are those that its table has had; nobody but this file may reckon them.

use crate::layout::{Layout, MAX_DEVICES};
use gpool_device_model::MigState;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::path::Path;

/// The major number, which the kernel gives when the driver is loaded; an example.
pub(crate) const MAJOR: u32 = 511;
/// Whoever may open this one sees all instances' figures on the GPU itself.
const MONITOR: u32 = 2;
/// The most GPU instances of a GPU, and compute instances of a GPU instance, in the table.
const GPU_INSTANCES: u32 = 15;
const COMPUTE_INSTANCES: u32 = 8;

/// The capability of a GPU instance, or of a compute instance of it.
fn minor(device: u32, gpu_instance: u32, compute_instance: Option<u32>) -> u32 {
    let per_instance = COMPUTE_INSTANCES + 1;
    let first = 3 + device * GPU_INSTANCES * per_instance + gpu_instance * per_instance;
    first + compute_instance.map_or(0, |compute| compute + 1)
}

/// Name and minor number of every capability node of these devices.
pub(crate) fn nodes(devices: &[u32]) -> impl Iterator<Item = (String, u32)> {
    let of_device = |device: &u32| minor(*device, 0, None)..minor(device + 1, 0, None);
    let minors = (1..=MONITOR).filter(|_| !devices.is_empty()).chain(devices.iter().flat_map(of_device));
    minors.map(|minor| (format!("nvidia-cap{minor}"), minor))
}

/// Writes which capability has which minor number.
pub(crate) fn write_table(layout: &Layout, devices: u32) -> io::Result<()> {
    let mut lines = vec!["config 1".to_owned(), format!("monitor {MONITOR}")];
    for device in 0..devices {
        for instance in 0..GPU_INSTANCES {
            lines.push(format!("gpu{device}/gi{instance}/access {}", minor(device, instance, None)));
            for compute in 0..COMPUTE_INSTANCES {
                let minor = minor(device, instance, Some(compute));
                lines.push(format!("gpu{device}/gi{instance}/ci{compute}/access {minor}"));
            }
        }
    }
    let path = layout.mig_minors();
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, lines.join("\n") + "\n")
}

/// Writes the files of the instances that a device has, and takes those of others away.
pub(crate) fn write_instances(layout: &Layout, device: u32, mig: &MigState) -> io::Result<()> {
    let directory = layout.capabilities().join(format!("gpu{device}/mig"));
    match fs::remove_dir_all(&directory) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
        Ok(()) | Err(_) => {}
    }
    for instance in &mig.instances {
        let own = directory.join(format!("gi{}", instance.id));
        write_access(&own, minor(device, instance.id, None))?;
        if instance.has_compute {
            write_access(&own.join("ci0"), minor(device, instance.id, Some(0)))?;
        }
    }
    Ok(())
}

fn write_access(directory: &Path, minor: u32) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::write(directory.join("access"), format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"))
}

/// Takes the files of all devices away.
pub(crate) fn remove(layout: &Layout) -> io::Result<()> {
    (0..MAX_DEVICES).try_for_each(|device| write_instances(layout, device, &MigState::default()))
}

/// Whether this process may open a capability's node. There is no driver behind it, so ENXIO is a yes, as of a device.
fn may_open(layout: &Layout, minor: u32) -> bool {
    let name = format!("nvidia-caps/nvidia-cap{minor}");
    let probe = |path: &Path| open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).err();
    match probe(&Path::new("/dev").join(&name)) {
        Some(Errno::NOENT) => probe(&layout.nodes().join(&name)) == Some(Errno::NXIO),
        answer => answer == Some(Errno::NXIO),
    }
}

/// Whether this process may use the compute instance 0 of a GPU instance: it may open both capabilities.
pub fn may_use_instance(layout: &Layout, device: u32, gpu_instance: u32) -> bool {
    may_open(layout, minor(device, gpu_instance, None)) && may_open(layout, minor(device, gpu_instance, Some(0)))
}

/// Whether this process may see what all instances do.
pub fn may_monitor_instances(layout: &Layout) -> bool {
    may_open(layout, MONITOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_device_model::{MIG_MODELS, MigState};

    #[test]
    fn the_table_and_the_files_name_the_nodes() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        write_table(&layout, 2).unwrap();
        let table = fs::read_to_string(layout.mig_minors()).unwrap();
        assert_eq!(table.lines().count(), 2 + 2 * 15 * 9);
        assert!(table.contains("\ngpu0/gi0/access 3\n") && table.contains("\ngpu1/gi2/ci0/access 157\n"), "{table}");
        let (mut mig, model) = (MigState::default(), &MIG_MODELS[0]);
        mig.set(true, false).unwrap();
        let id = mig.create(model, model.profiles[0].id, Some(1)).unwrap();
        mig.set_compute(id, true).unwrap();
        write_instances(&layout, 1, &mig).unwrap();
        let file = layout.capabilities().join(format!("gpu1/mig/gi{id}/ci0/access"));
        let access = fs::read_to_string(&file).unwrap();
        assert!(access.starts_with(&format!("DeviceFileMinor: {}\n", minor(1, id, Some(0)))), "{access}");
        let named: Vec<u32> = nodes(&[1]).map(|(_, minor)| minor).collect();
        assert_eq!((named.len(), named.contains(&minor(1, id, Some(0)))), (2 + 15 * 9, true));
        remove(&layout).unwrap();
        assert!(!file.exists());
        assert!(nodes(&[]).next().is_none());
    }
}
