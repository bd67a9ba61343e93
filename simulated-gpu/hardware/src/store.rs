//! The device's state in a file, advanced by whoever asks.

use crate::clock::now_ns;
use crate::image;
use crate::layout::Layout;
use gpool_device_model::{Device, DeviceParameters};
use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::{AsFd, AsRawFd, RawFd};
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

/// One process's access to the device.
///
/// Processes take turns by `flock` on their own open file descriptions, which the kernel releases when they die;
/// threads of one process additionally by a mutex. A process must not use a store that it inherited by fork, since
/// the child shares its parent's description.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    file: File,
    known: Mutex<Known>,
}

/// What this process last saw in the file, so that it decodes only what others wrote since.
#[derive(Debug, Default)]
struct Known {
    generation: u64,
    device: Option<Device>,
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
        let path = layout.device(index);
        let failed = |cause| StoreError { path: path.clone(), cause };
        fs::create_dir_all(layout.state()).map_err(failed)?;
        let unfinished = path.with_extension("new");
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o666).open(&unfinished);
        let file = file.map_err(failed)?;
        file.set_permissions(Permissions::from_mode(0o666)).map_err(failed)?;
        let content = postcard::to_stdvec(&Device::new(parameters, now_ns()));
        let content = content.map_err(|cause| failed(std::io::Error::other(cause)))?;
        image::write(&file, 1, &content).map_err(failed)?;
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

    fn open_path(path: PathBuf) -> Result<Self, StoreError> {
        let file = OpenOptions::new().read(true).write(true).open(&path).and_then(|file| {
            image::read_header(&file)?;
            Ok(file)
        });
        match file {
            Ok(file) => Ok(Self { path, file, known: Mutex::default() }),
            Err(cause) => Err(StoreError { path, cause }),
        }
    }

    /// Advances the device to now, applies `change` to it and writes it back. `change` gets the time in nanoseconds.
    pub fn update<R>(&self, change: impl FnOnce(&mut Device, u64) -> R) -> Result<R, StoreError> {
        self.locked(|known| {
            let now_ns = now_ns();
            let Known { generation, device: Some(device), buffer } = known else { return Err(undecodable()) };
            device.advance(now_ns);
            let result = change(device, now_ns);
            buffer.clear();
            let content = postcard::to_extend(device, std::mem::take(buffer)).map_err(std::io::Error::other)?;
            image::write(&self.file, *generation + 1, &content)?;
            *generation += 1;
            *buffer = content;
            Ok(result)
        })
    }

    /// Advances the device to now and shows it, without a write: what happened is computed again by the next one
    /// who asks.
    pub fn read<R>(&self, look: impl FnOnce(&Device) -> R) -> Result<R, StoreError> {
        self.locked(|known| {
            let device = known.device.as_mut().ok_or_else(undecodable)?;
            device.advance(now_ns());
            Ok(look(device))
        })
    }

    /// The device as it is now.
    pub fn snapshot(&self) -> Result<Device, StoreError> {
        self.read(Device::clone)
    }

    /// The descriptor whose lock this store takes, for a child after fork to close.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Runs `work` on the state as it is in the file, with everybody else kept out.
    fn locked<R>(&self, work: impl FnOnce(&mut Known) -> std::io::Result<R>) -> Result<R, StoreError> {
        let failed = |cause| StoreError { path: self.path.clone(), cause };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        retry_on_intr(|| flock(self.file.as_fd(), FlockOperation::LockExclusive))
            .map_err(|cause| failed(cause.into()))?;
        let result = refresh(&self.file, &mut known).and_then(|()| work(&mut known));
        if result.is_err() {
            known.device = None;
        }
        // Unlocking a lock that is held cannot fail, and closing the descriptor would release it as well.
        let _ = flock(self.file.as_fd(), FlockOperation::Unlock);
        result.map_err(failed)
    }
}

fn refresh(file: &File, known: &mut Known) -> std::io::Result<()> {
    let header = image::read_header(file)?;
    if known.device.is_some() && header.generation == known.generation {
        return Ok(());
    }
    known.device = None;
    image::read(file, header, &mut known.buffer)?;
    known.device = Some(postcard::from_bytes(&known.buffer).map_err(std::io::Error::other)?);
    known.generation = header.generation;
    Ok(())
}

fn undecodable() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, "the state of the simulated device is not decoded")
}
