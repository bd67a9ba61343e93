//! Where the parts of the simulated hardware lie.

use std::path::{Path, PathBuf};

/// The directory that the simulated libraries look in.
pub const DEFAULT_DIRECTORY: &str = "/run/gpool-simgpu";

/// No host has more devices.
pub const MAX_DEVICES: u32 = 16;

/// The paths below one directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The layout below `root`.
    pub fn new(root: impl AsRef<Path>) -> Self {
        Self { root: root.as_ref().to_owned() }
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What containers need besides libraries and nodes: the devices' state and the server's socket.
    pub fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// The state of the device with this index, which is also its minor number.
    pub fn device(&self, index: u32) -> PathBuf {
        self.root.join(format!("state/device{index}"))
    }

    /// How many devices there are: those with a state, counted from the first.
    pub fn device_count(&self) -> u32 {
        (0..MAX_DEVICES).take_while(|index| self.device(*index).exists()).count() as u32
    }

    /// The state of a MIG instance of a device.
    pub fn instance(&self, index: u32, gpu_instance: u32) -> PathBuf {
        self.root.join(format!("state/device{index}-gi{gpu_instance}"))
    }

    /// The MIG instances that have a state, by device and number.
    pub fn instances(&self) -> Vec<(u32, u32)> {
        let numbers = |name: std::ffi::OsString| {
            let (index, instance) = name.to_str()?.strip_prefix("device")?.split_once("-gi")?;
            Some((index.parse().ok()?, instance.parse().ok()?))
        };
        let names = std::fs::read_dir(self.state()).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let mut found: Vec<(u32, u32)> = names.filter_map(numbers).collect();
        found.sort_unstable();
        found
    }

    /// Which capability of MIG has which minor number: `/proc/driver/nvidia-caps/mig-minors`.
    pub fn mig_minors(&self) -> PathBuf {
        self.root.join("proc/nvidia-caps/mig-minors")
    }

    /// The capabilities that there are: `/proc/driver/nvidia/capabilities`.
    pub fn capabilities(&self) -> PathBuf {
        self.root.join("proc/nvidia/capabilities")
    }

    /// Where the server listens.
    pub fn socket(&self) -> PathBuf {
        self.root.join("state/socket")
    }

    /// Where processes ask what others are called in their own PID namespace.
    pub fn pids_socket(&self) -> PathBuf {
        self.root.join("state/pids")
    }

    /// Where processes are suspended and resumed.
    pub fn checkpoint_socket(&self) -> PathBuf {
        self.root.join("state/checkpoint")
    }

    /// The driver's version, as a line of text.
    pub fn driver_version(&self) -> PathBuf {
        self.root.join("state/driver-version")
    }

    /// There if the driver maps physical memory only as a whole.
    pub fn whole_maps(&self) -> PathBuf {
        self.root.join("state/whole-maps")
    }

    /// There if the device with this index has fallen off its bus.
    pub fn lost(&self, index: u32) -> PathBuf {
        self.root.join(format!("state/device{index}-lost"))
    }

    /// There while NVML does not come back from a question to the device with this index.
    pub fn hung(&self, index: u32) -> PathBuf {
        self.root.join(format!("state/device{index}-hung"))
    }

    /// The Xids that have happened to the device with this index, a number a line.
    pub fn xids(&self, index: u32) -> PathBuf {
        self.root.join(format!("state/device{index}-xids"))
    }

    /// What the device with this index says of its health; not there if nobody has said.
    pub fn health(&self, index: u32) -> PathBuf {
        self.root.join(format!("state/device{index}-health"))
    }

    /// The compute mode of the device with this index, a number of NVML's; not there if that is the default.
    pub fn compute_mode(&self, index: u32) -> PathBuf {
        self.root.join(format!("state/device{index}-compute-mode"))
    }

    /// Where the device with this index sits; not there if nobody has said.
    pub fn site(&self, index: u32) -> PathBuf {
        self.root.join(format!("state/device{index}-site"))
    }

    /// Where whoever installs puts the simulated libraries.
    pub fn libraries(&self) -> PathBuf {
        self.root.join("lib")
    }

    /// The device nodes.
    pub fn nodes(&self) -> PathBuf {
        self.root.join("dev")
    }
}

impl Default for Layout {
    fn default() -> Self {
        Self::new(DEFAULT_DIRECTORY)
    }
}
