//! Memory that several processes hold: exported as a descriptor, by an opaque handle, or as memory of another API.
//!
//! The device keeps it until the last process lets go. A descriptor by itself keeps nothing here, unlike on a real
//! device: memory that nobody has imported goes with its maker. What is opened shows no bytes of the other process.

use crate::driver::{Driver, Outcome, code, driver, lost, put};
use crate::memory::{map, unmap};
use crate::objects::{Allocation, External, Physical, Shared};
use gpool_device_model::ShareId;
use gpool_driver_abi::cuda::*;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::FileExt;

/// Bytes of a GPU's name, "GPU-" and a UUID.
const UUID_BYTES: usize = 40;

/// What a descriptor or handle says: the piece, how large it is, and on which GPU.
#[derive(Clone, Copy)]
pub(crate) struct Ticket(pub(crate) [u8; 64]);

impl Ticket {
    pub(crate) fn new(driver: &Driver, share: Shared, bytes: u64) -> Outcome<Self> {
        let mut content = [0; 64];
        content[..8].copy_from_slice(&share.id.0.to_le_bytes());
        content[8..16].copy_from_slice(&bytes.to_le_bytes());
        let uuid = driver.gpu(share.device)?.parameters.uuid.as_bytes();
        content[16..16 + UUID_BYTES].copy_from_slice(uuid.get(..UUID_BYTES).ok_or(CUDA_ERROR_NOT_SUPPORTED)?);
        Ok(Self(content))
    }

    /// The GPU as this process numbers it.
    pub(crate) fn device(&self, driver: &Driver) -> Outcome<CUdevice> {
        let uuid = &self.0[16..16 + UUID_BYTES];
        let is_it = |device: &CUdevice| driver.gpu(*device).is_ok_and(|gpu| gpu.parameters.uuid.as_bytes() == uuid);
        (0..driver.gpu_count() as CUdevice).find(is_it).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// The piece as this process names it, of which it takes hold, and its bytes.
    pub(crate) fn redeem(&self, driver: &Driver) -> Outcome<(Shared, u64)> {
        let word = |at: usize| u64::from_le_bytes(self.0[at..at + 8].try_into().unwrap_or_default());
        let device = self.device(driver)?;
        let (id, identity) = (ShareId(word(0)), driver.identity());
        let held = driver
            .gpu(device)?
            .store
            .update(|device, now_ns| device.hold_share(now_ns, id, identity.host_pid, &identity.owner));
        let bytes = held.map_err(lost)?.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        Ok((Shared { device, id }, bytes))
    }

    pub(crate) fn of_descriptor(descriptor: c_int) -> Outcome<Self> {
        if descriptor < 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not negative; it is used here alone, and a closed one gives an error.
        let file = File::from(
            unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned().map_err(|_| CUDA_ERROR_INVALID_VALUE)?,
        );
        let mut content = [0; 64];
        file.read_exact_at(&mut content, 0).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        Ok(Self(content))
    }

    pub(crate) fn into_descriptor(self) -> Outcome<c_int> {
        // SAFETY: a terminated name.
        let descriptor = unsafe { libc::memfd_create(c"gpool-simulated-memory".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(CUDA_ERROR_OPERATING_SYSTEM);
        }
        // SAFETY: a new descriptor that nobody else has.
        let mut file = unsafe { File::from_raw_fd(descriptor) };
        file.write_all(&self.0).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
        debug_assert_eq!(file.as_raw_fd(), descriptor);
        Ok(file.into_raw_fd())
    }
}

/// This process lets go of a piece.
pub(crate) fn leave(driver: &Driver, share: Shared) -> Outcome {
    let process = driver.identity().host_pid;
    driver.gpu(share.device)?.store.update(|device, now_ns| device.leave_share(now_ns, share.id, process)).map_err(lost)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemExportToShareableHandle(
    shareable: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: c_uint,
    _flags: c_ulonglong,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        let mut objects = driver.objects();
        let found = objects.physical.get_mut(&(handle as usize)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || found.location.kind != CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let (device, bytes) = (found.location.id, found.bytes as u64);
        if found.share.is_none() {
            let process = driver.identity().host_pid;
            let shared = driver.gpu(device)?.store.update(|device, now_ns| device.share(now_ns, process, bytes));
            found.share = Some(Shared { device, id: shared.map_err(lost)?.ok_or(CUDA_ERROR_INVALID_VALUE)? });
        }
        let share = found.share.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: NULL or valid, as the API demands of its caller for this kind.
        unsafe { put(shareable.cast(), Ticket::new(driver, share, bytes)?.into_descriptor()?) }
    })
}

/// The descriptor is passed as the pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut CUmemGenericAllocationHandle,
    shareable: *mut c_void,
    kind: c_uint,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        if handle.is_null() || kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (share, bytes) = Ticket::of_descriptor(shareable as usize as c_int)?.redeem(driver)?;
        let mut objects = driver.objects();
        let name = objects.new_handle();
        let location = CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: share.device };
        let imported = Physical { bytes: bytes as usize, location, references: 1, mappings: 0, share: Some(share) };
        objects.physical.insert(name, imported);
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(handle, name as CUmemGenericAllocationHandle) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(
    properties: *mut CUmemAllocationProp,
    handle: CUmemGenericAllocationHandle,
) -> CUresult {
    code(|| {
        let objects = driver()?.objects();
        let found = objects.physical.get(&(handle as usize)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        let properties = unsafe { properties.as_mut() }.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        (properties.kind, properties.location) = (CU_MEM_ALLOCATION_TYPE_PINNED, found.location);
        Ok(())
    })
}

/// What cuMemAlloc made belongs to its context until it is named here, and from then on to whoever holds it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr) -> CUresult {
    code(|| {
        let driver = driver()?;
        let mut objects = driver.objects();
        let found = objects.allocations.get(&address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if found.pool.is_some() || found.is_view {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (bytes, shared) = (found.bytes as u64, found.share);
        let share = match shared {
            Some(share) => share,
            None => {
                let place = objects.contexts.get(&found.context).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)?.place;
                let identity = driver.identity();
                let moved = driver.store(place)?.update(|device, now_ns| {
                    device.free(now_ns, place.id, bytes);
                    device.allocate_physical(now_ns, identity.host_pid, &identity.owner, bytes).ok()?;
                    device.share(now_ns, identity.host_pid, bytes)
                });
                Shared { device: place.device, id: moved.map_err(lost)?.ok_or(CUDA_ERROR_OUT_OF_MEMORY)? }
            }
        };
        if let Some(found) = objects.allocations.get_mut(&address) {
            found.share = Some(share);
        }
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(handle, CUipcMemHandle { reserved: Ticket::new(driver, share, bytes)?.0 }) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenMemHandle_v2(
    address: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    _flags: c_uint,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        if address.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let context = driver.objects().current()?.0;
        let (share, bytes) = Ticket(handle.reserved).redeem(driver)?;
        let bytes = bytes as usize;
        let shown = map(bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let opened = Allocation { bytes, context, pool: None, share: Some(share), is_view: false, _managed: None };
        driver.objects().allocations.insert(shown, opened);
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(address, shown) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuIpcCloseMemHandle(address: CUdeviceptr) -> CUresult {
    code(|| {
        let driver = driver()?;
        let mut objects = driver.objects();
        let share = objects.allocations.get(&address).and_then(|found| found.share).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if let Some(gone) = objects.allocations.remove(&address) {
            unmap(address, gone.bytes);
        }
        leave(driver, share)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuImportExternalMemory(
    memory: *mut CUexternalMemory,
    descriptor: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        let given = unsafe { descriptor.as_ref() }.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if memory.is_null() || given.kind != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (share, bytes) = Ticket::of_descriptor(given.handle[0] as c_int)?.redeem(driver)?;
        if given.size != bytes {
            leave(driver, share)?;
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut objects = driver.objects();
        let name = objects.new_handle();
        objects.externals.insert(name, External { bytes, share });
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(memory, name as CUexternalMemory) }
    })
}

/// What shows a part of it goes by cuMemFree and takes nothing of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuExternalMemoryGetMappedBuffer(
    address: *mut CUdeviceptr,
    memory: CUexternalMemory,
    part: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC,
) -> CUresult {
    code(|| {
        let mut objects = driver()?.objects();
        // SAFETY: NULL or valid, as the API demands of its caller.
        let part = unsafe { part.as_ref() }.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let found = objects.externals.get(&(memory as usize)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let is_inside = part.offset.checked_add(part.size).is_some_and(|end| end <= found.bytes);
        if !is_inside || part.size == 0 || address.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let context = objects.current()?.0;
        let bytes = part.size as usize;
        let shown = map(bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        objects
            .allocations
            .insert(shown, Allocation { bytes, context, pool: None, share: None, is_view: true, _managed: None });
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(address, shown) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDestroyExternalMemory(memory: CUexternalMemory) -> CUresult {
    code(|| {
        let driver = driver()?;
        let gone = driver.objects().externals.remove(&(memory as usize)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        leave(driver, gone.share)
    })
}
