//! The library's one instance: what cuInit makes and every other function needs.

use crate::instances::visible_gpus;
use crate::objects::{Objects, Place};
use gpool_device_model::{DeviceParameters, Ticket};
use gpool_driver_abi::cuda::*;
use gpool_simulated_hardware::mps::{JoinError, Session};
use gpool_simulated_hardware::{
    Connection, DriverVersion, Identity, Layout, MAX_DEVICES, Store, StoreError, Unmovable,
};
use std::cell::Cell;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

static VERSION: OnceLock<c_int> = OnceLock::new();
static DRIVER: OnceLock<Driver> = OnceLock::new();
static INITIALISING: Mutex<()> = Mutex::new(());
/// Set in a child of fork: nothing works there any more, as with NVIDIA's driver.
static FORKED: AtomicBool = AtomicBool::new(false);
/// What a child must close: the stores would keep its dead parent's locks, the last two its connections.
static INHERITED: [AtomicI32; MAX_DEVICES as usize + 2] = [const { AtomicI32::new(-1) }; MAX_DEVICES as usize + 2];

/// The version of the API that this library follows, which goes with the driver's: 1000 x major + 10 x minor.
pub(crate) fn version() -> c_int {
    *VERSION.get_or_init(|| DriverVersion::read(&Layout::default()).unwrap_or_default().cuda())
}

/// What a function gives: nothing, or the code to return.
pub(crate) type Outcome<T = ()> = Result<T, CUresult>;

/// A device that this process sees.
pub(crate) struct Gpu {
    pub(crate) store: Store,
    pub(crate) parameters: DeviceParameters,
}

pub(crate) struct Driver {
    /// By ordinal.
    gpus: Vec<Gpu>,
    connection: Connection,
    /// As the client of an MPS server.
    session: Option<Session>,
    objects: Mutex<Objects>,
}

impl Driver {
    /// This process's objects. Not to be held while sleeping.
    pub(crate) fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who this process is on the host.
    pub(crate) fn identity(&self) -> &Identity {
        self.connection.identity()
    }

    /// What counts one more piece of memory that cannot leave its device, while it is there.
    pub(crate) fn unmovable(&self) -> Unmovable {
        Unmovable::new(self.connection.gate())
    }

    /// The MPS server that this process is a client of, if it is one.
    pub(crate) fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    /// How many devices this process sees.
    pub(crate) fn gpu_count(&self) -> usize {
        self.gpus.len()
    }

    /// The device with this ordinal.
    pub(crate) fn gpu(&self, ordinal: CUdevice) -> Outcome<&Gpu> {
        usize::try_from(ordinal).ok().and_then(|index| self.gpus.get(index)).ok_or(CUDA_ERROR_INVALID_DEVICE)
    }

    /// The state of the device that a context is on.
    pub(crate) fn store(&self, place: Place) -> Outcome<&Store> {
        self.gpu(place.device).map(|gpu| &gpu.store)
    }

    /// The newest complete ticket of a context.
    pub(crate) fn last_completed(&self, place: Place) -> Outcome<Ticket> {
        self.store(place)?.read(|device| device.last_completed(place.id)).map_err(lost)
    }

    fn open() -> Outcome<Self> {
        let layout = Layout::default();
        let gpus = visible_gpus(&layout)?;
        if gpus.is_empty() {
            return Err(CUDA_ERROR_NO_DEVICE);
        }
        let connection = Connection::open(&layout).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
        let session = Session::open().map_err(|error| match error {
            JoinError::ConnectionFailed => CUDA_ERROR_MPS_CONNECTION_FAILED,
            JoinError::NotReady => CUDA_ERROR_MPS_SERVER_NOT_READY,
        })?;
        if session.is_some() {
            connection.gate().bar();
        }
        let connections = [Some(connection.descriptor()), session.as_ref().map(Session::descriptor)];
        let descriptors = gpus.iter().map(|gpu| gpu.store.descriptor()).chain(connections.into_iter().flatten());
        for (place, descriptor) in INHERITED.iter().zip(descriptors) {
            place.store(descriptor, Ordering::Relaxed);
        }
        // SAFETY: the handler is a function of this library and does only what is safe between fork and exec.
        if unsafe { libc::pthread_atfork(None, None, Some(abandon)) } != 0 {
            return Err(CUDA_ERROR_OPERATING_SYSTEM);
        }
        Ok(Self { gpus, connection, session, objects: Mutex::default() })
    }
}

/// Runs in a child after fork.
extern "C" fn abandon() {
    FORKED.store(true, Ordering::Relaxed);
    for descriptor in &INHERITED {
        // SAFETY: the descriptors belong to the library's instance, which nobody uses any more in this process.
        unsafe { libc::close(descriptor.swap(-1, Ordering::Relaxed)) };
    }
}

/// The instance, or the code that says why there is none.
pub(crate) fn driver() -> Outcome<&'static Driver> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(CUDA_ERROR_NOT_INITIALIZED);
    }
    DRIVER.get().ok_or(CUDA_ERROR_NOT_INITIALIZED)
}

thread_local! {
    /// Whether this thread is in a call already: some functions call others.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Turns what `work` gives into the code that a C function returns. Waits while this process is locked, so that a locked one
/// is in no such function.
pub(crate) fn code(work: impl FnOnce() -> Outcome) -> CUresult {
    match driver() {
        Ok(driver) if !IS_INSIDE.get() => {
            let _inside = driver.connection.gate().enter();
            IS_INSIDE.set(true);
            let code = code_at_once(work);
            IS_INSIDE.set(false);
            code
        }
        Ok(_) | Err(_) => code_at_once(work),
    }
}

/// The same for what neither launches, nor makes or frees anything, nor asks a GPU: it does not wait.
pub(crate) fn code_at_once(work: impl FnOnce() -> Outcome) -> CUresult {
    work().err().unwrap_or(CUDA_SUCCESS)
}

/// The state of the device cannot be used.
pub(crate) fn lost(_: StoreError) -> CUresult {
    CUDA_ERROR_OPERATING_SYSTEM
}

/// Writes to a place that the caller named.
///
/// # Safety
///
/// `place` is NULL or valid for a write.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Outcome {
    if place.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not NULL, so valid as the caller promises.
    unsafe { place.write(value) };
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> CUresult {
    code_at_once(|| {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if FORKED.load(Ordering::Relaxed) {
            return Err(CUDA_ERROR_NOT_INITIALIZED);
        }
        let _turn = INITIALISING.lock().unwrap_or_else(PoisonError::into_inner);
        if DRIVER.get().is_none() {
            let opened = Driver::open()?;
            DRIVER.get_or_init(|| opened);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> CUresult {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code_at_once(|| unsafe { put(version, self::version()) })
}
