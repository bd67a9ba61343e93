//! The device's state in a file, advanced by whoever asks.

use crate::clock::now_ns;
use crate::image::{Image, Version};
use crate::layout::Layout;
use gpool_device_model::{Device, DeviceParameters};
use std::fs::{self, OpenOptions, Permissions};
use std::os::fd::RawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The state of a simulated device cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {cause}")]
pub struct StoreError {
    /// The file or directory.
    pub path: PathBuf,
    /// What went wrong.
    pub cause: std::io::Error,
}

/// An update that took longer than this to compute is computed again: others have meanwhile seen the device without it.
const FRESH_NS: u64 = 1_000_000;
/// A process that is never quick enough is let through after as many attempts.
const FRESH_ATTEMPTS: u32 = 5;

/// One process's access to the device.
///
/// Processes never wait for each other: each computes a new state of its own and tries to publish it, again if
/// somebody else was faster. Threads of one process take turns by a mutex. A process must not use a store that it
/// inherited by fork, since the child would write to its parent's buffers.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    image: Image,
    known: Mutex<Known>,
}

/// What this process last saw in the file, so that it decodes only what others wrote since.
#[derive(Debug, Default)]
struct Known {
    seen: Option<(Version, Device)>,
    buffer: Vec<u8>,
}

impl Store {
    /// Makes a new device in `directory/state/device0`, in place of one that may be there. Everybody may use it.
    pub fn create(directory: impl AsRef<Path>, parameters: DeviceParameters) -> Result<Self, StoreError> {
        Self::create_device(directory, 0, parameters)
    }

    /// The same for the device with this index.
    pub fn create_device(
        directory: impl AsRef<Path>,
        index: u32,
        parameters: DeviceParameters,
    ) -> Result<Self, StoreError> {
        let layout = Layout::new(directory);
        Self::create_path(&layout, layout.device(index), parameters)
    }

    /// The same for a MIG instance of a device: which device, and which instance.
    pub fn create_instance(
        directory: impl AsRef<Path>,
        instance: (u32, u32),
        parameters: DeviceParameters,
    ) -> Result<Self, StoreError> {
        let layout = Layout::new(directory);
        Self::create_path(&layout, layout.instance(instance.0, instance.1), parameters)
    }

    fn create_path(layout: &Layout, path: PathBuf, parameters: DeviceParameters) -> Result<Self, StoreError> {
        let failed = |cause| StoreError { path: path.clone(), cause };
        fs::create_dir_all(layout.state()).map_err(failed)?;
        let unfinished = path.with_extension("new");
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o666).open(&unfinished);
        let file = file.map_err(failed)?;
        file.set_permissions(Permissions::from_mode(0o666)).map_err(failed)?;
        let content = postcard::to_stdvec(&Device::new(parameters, now_ns()));
        let content = content.map_err(|cause| failed(std::io::Error::other(cause)))?;
        Image::create(&file, &content).map_err(failed)?;
        fs::rename(&unfinished, &path).map_err(failed)?;
        Self::open_path(path)
    }

    /// Opens the first device, whose state is `directory/state/device0`.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_device(directory, 0)
    }

    /// Opens the device with this index.
    pub fn open_device(directory: impl AsRef<Path>, index: u32) -> Result<Self, StoreError> {
        Self::open_path(Layout::new(directory).device(index))
    }

    /// Opens a MIG instance of a device.
    pub fn open_instance(directory: impl AsRef<Path>, instance: (u32, u32)) -> Result<Self, StoreError> {
        Self::open_path(Layout::new(directory).instance(instance.0, instance.1))
    }

    fn open_path(path: PathBuf) -> Result<Self, StoreError> {
        match OpenOptions::new().read(true).write(true).open(&path).and_then(Image::open) {
            Ok(image) => Ok(Self { path, image, known: Mutex::default() }),
            Err(cause) => Err(StoreError { path, cause }),
        }
    }

    /// Advances the device to now, applies `change` to it and publishes it. `change` gets the time in nanoseconds. It
    /// is called again, on a fresh device, if another process was faster: all that it does must be to the device.
    pub fn update<R>(&self, mut change: impl FnMut(&mut Device, u64) -> R) -> Result<R, StoreError> {
        self.with(|known| {
            let mut attempts = 0;
            loop {
                let (version, mut device) = current(&self.image, known)?;
                device.advance(now_ns());
                let now_ns = now_ns();
                let result = change(&mut device, now_ns);
                let mut content = std::mem::take(&mut known.buffer);
                content.clear();
                known.buffer = postcard::to_extend(&device, content).map_err(std::io::Error::other)?;
                attempts += 1;
                if attempts < FRESH_ATTEMPTS && crate::now_ns() - now_ns > FRESH_NS {
                    continue;
                }
                if let Some(published) = self.image.replace(version, &known.buffer)? {
                    known.seen = Some((published, device));
                    return Ok(result);
                }
            }
        })
    }

    /// Advances the device to now and shows it, without a write: what happened is computed again by the next one
    /// who asks.
    pub fn read<R>(&self, look: impl FnOnce(&Device) -> R) -> Result<R, StoreError> {
        self.with(|known| {
            let (version, mut device) = current(&self.image, known)?;
            device.advance(now_ns());
            let result = look(&device);
            known.seen = Some((version, device));
            Ok(result)
        })
    }

    /// The device as it is now.
    pub fn snapshot(&self) -> Result<Device, StoreError> {
        self.read(Device::clone)
    }

    /// The descriptor of the state's file, for a child after fork to close.
    pub fn descriptor(&self) -> RawFd {
        self.image.descriptor()
    }

    /// Runs `work` with the other threads of this process kept out.
    fn with<R>(&self, work: impl FnOnce(&mut Known) -> std::io::Result<R>) -> Result<R, StoreError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut known).map_err(|cause| StoreError { path: self.path.clone(), cause })
    }
}

/// Takes the published version and its device out of what is known, or decodes them.
fn current(image: &Image, known: &mut Known) -> std::io::Result<(Version, Device)> {
    match known.seen.take() {
        Some((version, device)) if version == image.version() => Ok((version, device)),
        _ => {
            let version = image.read(&mut known.buffer)?;
            Ok((version, postcard::from_bytes(&known.buffer).map_err(std::io::Error::other)?))
        }
    }
}
