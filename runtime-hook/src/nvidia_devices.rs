//! Which device nodes of this host are NVIDIA's, whatever they are called in a container.

use nix::sys::stat::{major, minor};
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What the paths of the driver's own nodes begin with: `nvidia0`, `nvidiactl`, `nvidia-caps/nvidia-cap21`,
/// `nvidia-caps-imex-channels/channel0`.
const OWN_PATHS: &str = "/dev/nvidia";
/// What the driver calls its major numbers in /proc/devices, and itself on the bus.
const DRIVER: &str = "nvidia";

/// NVIDIA's character devices.
#[derive(Debug)]
pub struct NvidiaDevices {
    majors: BTreeSet<i64>,
    /// A folder for each device, named by its numbers.
    devices: PathBuf,
}

impl NvidiaDevices {
    /// Those of this host.
    pub fn of_host() -> Self {
        let list = std::fs::read_to_string("/proc/devices").unwrap_or_default();
        Self { majors: majors(&list), devices: "/sys/dev/char".into() }
    }

    /// Whether a node of these numbers is one, or could be one where a rule leaves the minor number open. Nodes of the display
    /// driver (`/dev/dri`) share their major number with other vendors', and each says on whose device it is.
    pub fn has(&self, major: i64, minor: Option<i64>) -> bool {
        if self.majors.contains(&major) {
            return true;
        }
        let is_its = |folder: &Path| {
            let driver = std::fs::read_link(folder.join("device/driver"));
            driver.is_ok_and(|link| link.file_name().is_some_and(|name| name == DRIVER))
        };
        if let Some(minor) = minor {
            return is_its(&self.devices.join(format!("{major}:{minor}")));
        }
        let all = std::fs::read_dir(&self.devices).into_iter().flatten().flatten();
        let begins = format!("{major}:");
        all.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(&begins) && is_its(&entry.path()))
    }

    /// Whether a node is one by its path or its numbers.
    pub fn has_node(&self, path: &Value, major: Option<i64>, minor: Option<i64>) -> bool {
        path.as_str().is_some_and(|path| path.starts_with(OWN_PATHS))
            || major.is_some_and(|major| minor.is_some() && self.has(major, minor))
    }

    /// Whether a mount in config.json brings one, as where nodes cannot be made.
    pub fn is_mounted_by(&self, mount: &Value) -> bool {
        let Some(source) = mount["source"].as_str() else { return false };
        let Ok(found) = std::fs::metadata(source) else { return false };
        let (major, minor) = (major(found.rdev()), minor(found.rdev()));
        let numbers = (i64::try_from(major).ok(), i64::try_from(minor).ok());
        found.file_type().is_char_device()
            && (self.has_node(&mount["source"], numbers.0, numbers.1)
                || self.has_node(&mount["destination"], None, None))
    }
}

/// The major numbers of the driver's in /proc/devices, whose first part is of character devices.
fn majors(list: &str) -> BTreeSet<i64> {
    let characters = list.lines().take_while(|line| !line.starts_with("Block"));
    let driver = characters.filter_map(|line| line.trim().split_once(' ')).filter(|(_, name)| name.starts_with(DRIVER));
    driver.filter_map(|(number, _)| number.parse().ok()).collect()
}

#[cfg(test)]
impl NvidiaDevices {
    /// A host on which the driver has these major numbers, and where `devices` stands for /sys/dev/char.
    pub fn for_test(majors: &[i64], devices: &Path) -> Self {
        Self { majors: majors.iter().copied().collect(), devices: devices.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_device_is_told_by_its_number_its_path_or_its_driver() {
        let list = "Character devices:\n  1 mem\n195 nvidia\n226 drm\n236 nvidia-caps-imex-channels\n\n\
                    Block devices:\n259 nvidia-of-blocks\n";
        assert_eq!(majors(list), [195, 236].into());
        let dir = tempfile::tempdir().unwrap();
        for (numbers, driver) in [("226:0", "i915"), ("226:128", "nvidia"), ("29:0", "amdgpu")] {
            std::fs::create_dir_all(dir.path().join(numbers).join("device")).unwrap();
            let link = format!("../../../bus/pci/drivers/{driver}");
            symlink(link, dir.path().join(numbers).join("device/driver")).unwrap();
        }
        let devices = NvidiaDevices { majors: majors(list), devices: dir.path().to_owned() };
        for (major, minor, is_its) in [
            (195, Some(3), true),
            (236, None, true),
            (226, Some(128), true),
            (226, Some(0), false),
            (226, None, true),
            (29, None, false),
            (1, Some(3), false),
        ] {
            assert_eq!(devices.has(major, minor), is_its, "{major}:{minor:?}");
        }
        assert!(devices.has_node(&json!("/dev/nvidia-caps/nvidia-cap21"), Some(507), Some(21)));
        assert!(!devices.has_node(&json!("/dev/dri/card0"), Some(226), Some(0)));
        let mount = |source: &str, destination: &str| json!({"source": source, "destination": destination});
        assert!(devices.is_mounted_by(&mount("/dev/null", "/dev/nvidia7")));
        assert!(!devices.is_mounted_by(&mount("/dev/null", "/dev/nothing")));
        assert!(!devices.is_mounted_by(&mount("/", "/dev/nvidia7")), "no device");
    }
}
