//! Memory without an address: what cuMemCreate makes, and the mappings that show it.
//!
//! The table of handles is not locked over the driver's calls: what has to do with a multicast object waits until all
//! its devices have been added, an unmapping waits for the device, and a profiler's callback in there may call anything.
//! So a call is noted before and after, see `physical` of the logic. A forked child has no place and must not wait for a
//! lock that a thread of its parent may hold, so the place is asked for first.

use crate::accounts::{allocated_on, charge_device, gone, taken};
use crate::entry::{index, real};
use crate::{HANDLES, PROCESS};
use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::handles::{CAPACITY, Handles};
use gpool_interposer_logic::memory::Call;
use gpool_interposer_logic::names;
use gpool_interposer_logic::physical::{Identity, Mapping, PAGE_BYTES};
use gpool_interposer_logic::process::Place;

/// The index in the lease of the GPU at `location`; none for memory of the host.
pub fn gpu_at(place: &Place, location: CUmemLocation) -> Option<usize> {
    match location.kind {
        CU_MEM_LOCATION_TYPE_HOST | CU_MEM_LOCATION_TYPE_HOST_NUMA | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => None,
        _ => Some(PROCESS.gpu_of(place, Some(location.id))),
    }
}

/// Charged, unless it is memory of the host.
///
/// # Safety
/// As the driver's function of this name; so for all functions here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    size: usize,
    properties: *const CUmemAllocationProp,
    flags: c_ulonglong,
) -> CUresult {
    let Some(place) = PROCESS.touched_place() else { return CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: the entry point's type, the caller's arguments; so for all calls of `real` here.
    let create = || unsafe { real::<CuMemCreate>(index::cuMemCreate)(handle, size, properties, flags) };
    // SAFETY: null, or valid as the driver demands of its caller.
    let location = unsafe { properties.as_ref() }.map(|properties| properties.location);
    let Some(gpu) = location.and_then(|location| gpu_at(place, location)) else { return create() };
    let bytes = (size as u64).saturating_add(PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    let result = allocated_on(place, gpu, bytes, Call::MemCreate, create);
    if result == CUDA_SUCCESS {
        // SAFETY: the driver succeeded, so `handle` is valid and holds the handle.
        let handle = unsafe { *handle };
        HANDLES.lock().created(handle, gpu, bytes, &mut gone);
    }
    result
}

/// Takes the charge back with the last reference and the last mapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    let Some(place) = PROCESS.touched_place() else { return CUDA_ERROR_NOT_INITIALIZED };
    let _change = place.change();
    let memory = HANDLES.lock().releasing(handle);
    // SAFETY: see cuMemCreate.
    let result = unsafe { real::<CuMemRelease>(index::cuMemRelease)(handle) };
    if let Some(memory) = memory {
        HANDLES.lock().released(memory, result == CUDA_SUCCESS, &mut gone);
    }
    result
}

/// One more reference.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRetainAllocationHandle(
    handle: *mut CUmemGenericAllocationHandle,
    address: *mut c_void,
) -> CUresult {
    if PROCESS.touched_place().is_none() {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    let memory = HANDLES.lock().keep_at(address as u64);
    let retain = index::cuMemRetainAllocationHandle;
    // SAFETY: see cuMemCreate.
    let result = unsafe { real::<CuMemRetainAllocationHandle>(retain)(handle, address) };
    // SAFETY: the driver succeeded, so `handle` is valid and holds the handle.
    let retained = (result == CUDA_SUCCESS).then(|| unsafe { *handle });
    // What shows there is referred to as it has been counted. Another thread may have mapped something else meanwhile.
    if retained != memory.map(|memory| memory.handle) {
        let mut handles = HANDLES.lock();
        if let Some(memory) = memory {
            handles.kept(memory, &mut gone);
        }
        if let Some(handle) = retained {
            handles.retained(handle);
        }
    }
    result
}

/// What is exported stays charged to this process, as a piece that others of the lease can find.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemExportToShareableHandle(
    shareable: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: c_uint,
    flags: c_ulonglong,
) -> CUresult {
    let Some(place) = PROCESS.touched_place() else { return CUDA_ERROR_NOT_INITIALIZED };
    let memory = HANDLES.lock().keep(handle);
    let export = index::cuMemExportToShareableHandle;
    // SAFETY: see cuMemCreate.
    let result = unsafe { real::<CuMemExportToShareableHandle>(export)(shareable, handle, kind, flags) };
    if let Some(memory) = memory {
        let mut handles = HANDLES.lock();
        if result == CUDA_SUCCESS {
            place.note_inexact();
            // SAFETY: the driver succeeded, so `shareable` is valid and holds what this kind is.
            unsafe { exported(place, &mut handles, memory, shareable, kind) };
        }
        handles.bound(memory, result == CUDA_SUCCESS, &mut gone);
    }
    result
}

/// Makes a piece of the lease of `memory`, and gives its name to what it has been exported as.
///
/// # Safety
/// `shareable` holds what `kind` says.
#[cold]
#[inline(never)]
unsafe fn exported(
    place: &Place,
    handles: &mut Handles<CAPACITY>,
    memory: Identity,
    shareable: *const c_void,
    kind: c_uint,
) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    // How large it is does not show before it is mapped, if it was imported and nobody knew it.
    let Some(held) = handles.of(memory).filter(|held| !held.is_imported) else { return };
    match kind {
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => {
            let serial = LAST.fetch_add(1, Ordering::Relaxed);
            let mut unique = [0; 24];
            for (to, word) in
                unique.chunks_mut(8).zip([place.registration.number, place.registration.slot as u64, serial])
            {
                to.copy_from_slice(&word.to_le_bytes());
            }
            PROCESS.share(place, held, names::of_bytes(&unique));
            if let Some((name, _)) = held.piece().and_then(|piece| PROCESS.piece(place, piece)) {
                // SAFETY: the caller's promise. Without a name for it each who imports it is charged.
                names::give(unsafe { shareable.cast::<c_int>().read_unaligned() }, name);
            }
        }
        CU_MEM_HANDLE_TYPE_FABRIC => {
            // SAFETY: the caller's promise.
            PROCESS.share(place, held, names::of_bytes(unsafe { &*shareable.cast::<[u8; 64]>() }))
        }
        _ => {}
    }
}

/// The name of what `kind` says that `shareable` is.
///
/// # Safety
/// That is true, as the driver demands of its caller.
unsafe fn name_of(shareable: *const c_void, kind: c_uint) -> Option<u64> {
    match kind {
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => names::of_descriptor(shareable as usize as c_int),
        CU_MEM_HANDLE_TYPE_FABRIC => {
            // SAFETY: the caller's promise.
            unsafe { shareable.cast::<[u8; 64]>().as_ref() }.map(|bytes| names::of_bytes(bytes))
        }
        _ => None,
    }
}

/// Charged with the piece of the lease that it is, before it is there. What nobody knows as one is charged by its size, as
/// far as that shows before it is mapped, and again by whoever made it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut CUmemGenericAllocationHandle,
    shareable: *mut c_void,
    kind: c_uint,
) -> CUresult {
    let Some(place) = PROCESS.touched_place() else { return CUDA_ERROR_NOT_INITIALIZED };
    let _change = place.change();
    // SAFETY: the caller's promise to the driver.
    let piece = match taken(place, unsafe { name_of(shareable, kind) }, Call::MemImport) {
        Ok(piece) => piece,
        Err(refused) => return refused,
    };
    let import = index::cuMemImportFromShareableHandle;
    // SAFETY: see cuMemCreate.
    let result = unsafe { real::<CuMemImportFromShareableHandle>(import)(handle, shareable, kind) };
    if result == CUDA_SUCCESS {
        // SAFETY: the driver succeeded, so `handle` is valid and holds the handle.
        let handle = unsafe { *handle };
        if let Err(refused) = imported(place, handle, piece) {
            // SAFETY: as above.
            unsafe { cuMemRelease(handle) };
            return refused;
        }
    } else if let Some(piece) = piece {
        PROCESS.leave_piece(place, piece);
    }
    result
}

/// Remembers and charges what has been imported, unless it is memory of the host; or what to answer.
#[cold]
#[inline(never)]
fn imported(place: &Place, handle: CUmemGenericAllocationHandle, piece: Option<usize>) -> Result<(), CUresult> {
    if let Some((piece, (_, size))) = piece.and_then(|piece| Some((piece, PROCESS.piece(place, piece)?))) {
        place.note_inexact();
        if !HANDLES.lock().imported_piece(handle, piece, size, &mut gone) {
            PROCESS.leave_piece(place, piece);
        }
        return Ok(());
    }
    let Some(location) = location_of(handle) else { return Ok(()) };
    let Some(gpu) = gpu_at(place, location) else { return Ok(()) };
    HANDLES.lock().imported(handle, gpu, &mut gone);
    let bytes = size_of(handle, location.id);
    let Some(mapping) = HANDLES.lock().mapping(handle, bytes) else { return Ok(()) };
    let result = shown(place, mapping, bytes, Call::MemImport, &mut || CUDA_SUCCESS);
    HANDLES.lock().kept(mapping.memory, &mut gone);
    if result == CUDA_SUCCESS { Ok(()) } else { Err(result) }
}

/// Shows through `driver` how long memory is, up to its byte `end`: charged before, as far as it is not.
#[inline(never)]
fn shown(place: &Place, mapping: Mapping, end: u64, call: Call, driver: &mut dyn FnMut() -> CUresult) -> CUresult {
    let Mapping { memory, gpu, uncharged_bytes } = mapping;
    if uncharged_bytes == 0 {
        return driver();
    }
    let _change = place.change();
    place.note_inexact();
    if let Err(refused) = charge_device(place, gpu, uncharged_bytes, call) {
        return refused;
    }
    let result = driver();
    let unused_bytes = match result {
        CUDA_SUCCESS => HANDLES.lock().sized(memory, end, uncharged_bytes),
        _ => uncharged_bytes,
    };
    if unused_bytes > 0 {
        PROCESS.release_on_device(place, gpu, unused_bytes);
    }
    result
}

/// How large the imported memory `handle` is, on the device `device`: the longest range of addresses that it can be
/// shown at. 0 for a driver that shows it only as a whole, and then it is charged when that happens.
#[cold]
#[inline(never)]
fn size_of(handle: CUmemGenericAllocationHandle, device: CUdevice) -> u64 {
    let mut total = 0;
    // SAFETY: see cuMemCreate; there are places for the answers, and what is mapped is unmapped before anybody knows of it.
    unsafe {
        real::<CuDeviceTotalMemV2>(index::cuDeviceTotalMem_v2)(&mut total, device);
        let (mut fits, mut most, mut start) = (0, total / PAGE_BYTES as usize, 0);
        let range = most * PAGE_BYTES as usize;
        let reserve = index::cuMemAddressReserve;
        if real::<CuMemAddressReserve>(reserve)(&mut start, range, 0, 0, 0) != CUDA_SUCCESS {
            return 0;
        }
        while fits < most {
            let pages = fits + (most - fits).div_ceil(2);
            let bytes = pages * PAGE_BYTES as usize;
            if real::<CuMemMap>(index::cuMemMap)(start, bytes, 0, handle, 0) == CUDA_SUCCESS {
                real::<CuMemUnmap>(index::cuMemUnmap)(start, bytes);
                fits = pages;
            } else {
                most = pages - 1;
            }
        }
        real::<CuMemAddressFree>(index::cuMemAddressFree)(start, range);
        fits as u64 * PAGE_BYTES
    }
}

/// Where `handle` lies, if it is memory.
fn location_of(handle: CUmemGenericAllocationHandle) -> Option<CUmemLocation> {
    let ask = index::cuMemGetAllocationPropertiesFromHandle;
    let mut properties = MaybeUninit::<CUmemAllocationProp>::zeroed();
    // SAFETY: see cuMemCreate; there is a place for the answer, for which zero is as good as any other content.
    let (result, properties) = unsafe {
        let result = real::<CuMemGetAllocationPropertiesFromHandle>(ask)(properties.as_mut_ptr(), handle);
        (result, properties.assume_init())
    };
    // Memory has properties and a location; a multicast object, which holds no memory of its own, may have neither.
    (result == CUDA_SUCCESS && properties.location.kind != CU_MEM_LOCATION_TYPE_INVALID).then_some(properties.location)
}

/// One more mapping; charged where it shows how large imported memory is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemMap(
    address: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: c_ulonglong,
) -> CUresult {
    let Some(place) = PROCESS.touched_place() else { return CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: see cuMemCreate.
    let mut map = || unsafe { real::<CuMemMap>(index::cuMemMap)(address, size, offset, handle, flags) };
    let end = (size as u64).saturating_add(offset as u64);
    let mapping = HANDLES.lock().mapping(handle, end);
    let result = match mapping {
        Some(mapping) => shown(place, mapping, end, Call::MemMap, &mut map),
        // Of the host, or a multicast object.
        None => map(),
    };
    let memory = mapping.map(|mapping| mapping.memory);
    let mut handles = HANDLES.lock();
    if result == CUDA_SUCCESS {
        handles.mapped(address, size as u64, memory, &mut gone);
    } else if let Some(memory) = memory {
        handles.kept(memory, &mut gone);
    }
    result
}

/// Takes the charge back of what has neither a reference nor another mapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemUnmap(address: CUdeviceptr, size: usize) -> CUresult {
    let Some(place) = PROCESS.touched_place() else { return CUDA_ERROR_NOT_INITIALIZED };
    let _change = place.change();
    let range = HANDLES.lock().unmapping(address, size as u64);
    // SAFETY: see cuMemCreate.
    let result = unsafe { real::<CuMemUnmap>(index::cuMemUnmap)(address, size) };
    HANDLES.lock().unmapped(range, result == CUDA_SUCCESS, &mut gone);
    result
}

/// Notes that others may hold the memory at `address`.
pub fn shared_at(address: CUdeviceptr) {
    let mut handles = HANDLES.lock();
    if let Some(memory) = handles.keep_at(address) {
        handles.bound(memory, true, &mut gone);
    }
}

/// The driver has given to others what was `kept` for that, or has not.
#[inline(never)]
fn bound(kept: Option<Identity>, result: CUresult) -> CUresult {
    if let Some(memory) = kept {
        HANDLES.lock().bound(memory, result == CUDA_SUCCESS, &mut gone);
    }
    result
}

macro_rules! bindings {
    ($($(#[$export:meta])* $name:ident: $kind:ident [$($device:ident)?] ($memory:ident $($offset:ident)?) $keep:ident;)*)
    => {$(
        /// What a multicast object shows stays charged to this process: when it lets go is not seen. The driver may wait in
        /// here, and nobody else waits for that.
        $(#[$export])*
        pub unsafe extern "C" fn $name(
            multicast: CUmemGenericAllocationHandle, $($device: CUdevice,)? multicast_offset: usize, $memory: u64,
            $($offset: usize,)? size: usize, flags: c_ulonglong,
        ) -> CUresult {
            let Some(place) = PROCESS.touched_place() else { return CUDA_ERROR_NOT_INITIALIZED };
            let kept = HANDLES.lock().$keep($memory);
            let bind = index::$name;
            // SAFETY: see cuMemCreate.
            let result = unsafe {
                real::<$kind>(bind)(multicast, $($device,)? multicast_offset, $memory, $($offset,)? size, flags)
            };
            if result == CUDA_SUCCESS {
                place.note_inexact();
            }
            bound(kept, result)
        }
    )*};
}

bindings! {
    #[unsafe(no_mangle)]
    cuMulticastBindMem: CuMulticastBindMem [] (handle offset) keep;
    #[unsafe(no_mangle)]
    cuMulticastBindAddr: CuMulticastBindAddr [] (address) keep_at;
    // Newer than driver 580: reached through cuGetProcAddress only, not exported.
    cuMulticastBindMem_v2: CuMulticastBindMemV2 [device] (handle offset) keep;
    cuMulticastBindAddr_v2: CuMulticastBindAddrV2 [device] (address) keep_at;
}

/// Memory in parts of an array is not followed, so it is refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemMapArrayAsync(_parts: *mut c_void, _count: c_uint, _stream: CUstream) -> CUresult {
    CUDA_ERROR_NOT_SUPPORTED
}

/// See [`cuMemMapArrayAsync`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemMapArrayAsync_ptsz(_parts: *mut c_void, _count: c_uint, _stream: CUstream) -> CUresult {
    CUDA_ERROR_NOT_SUPPORTED
}
