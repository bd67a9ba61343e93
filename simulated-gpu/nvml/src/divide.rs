//! Dividing GPUs: profiles, GPU instances, compute instances. Only root may change anything.

use crate::library::{Outcome, code, look, put, put_text, stores};
use crate::target::{Instance, compute_instance, gpu_instance, handle, mig, minor};
use gpool_driver_abi::nvml::*;
use gpool_simulated_hardware::model::{MigModel, MigProfile, MigRefusal};
use gpool_simulated_hardware::{Board, DivideError, Layout};
use std::ffi::c_uint;

fn model(minor: u32) -> Outcome<&'static MigModel> {
    look(minor, |device| device.parameters().mig_model())?.ok_or(NVML_ERROR_NOT_SUPPORTED)
}

fn profile(minor: u32, id: u32) -> Outcome<&'static MigProfile> {
    model(minor)?.profile(id).ok_or(NVML_ERROR_INVALID_ARGUMENT)
}

/// Lets root divide a board.
fn divide<T>(minor: u32, work: impl FnOnce(&Board<'_>) -> Result<T, DivideError>) -> Outcome<T> {
    // SAFETY: asks who this process is, and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Err(NVML_ERROR_NO_PERMISSION);
    }
    let (stores, layout) = (stores()?, Layout::default());
    let store = stores.get(minor as usize).ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
    work(&Board { layout: &layout, minor, store }).map_err(|error| match error {
        DivideError::Refused(MigRefusal::NotSupported) => NVML_ERROR_NOT_SUPPORTED,
        DivideError::Refused(MigRefusal::Invalid) => NVML_ERROR_INVALID_ARGUMENT,
        DivideError::Refused(MigRefusal::NoRoom) => NVML_ERROR_INSUFFICIENT_RESOURCES,
        DivideError::Refused(MigRefusal::InUse) => NVML_ERROR_IN_USE,
        DivideError::Failed(_) => NVML_ERROR_UNKNOWN,
    })
}

/// Who uses the GPU keeps MIG from being turned on or off until it is gone and this is called again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceSetMigMode(
    device: nvmlDevice_t,
    mode: c_uint,
    activation: *mut nvmlReturn_t,
) -> nvmlReturn_t {
    code(|| {
        if mode > 1 {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        let is_done = divide(minor(device)?, |board| board.set_mode(mode == 1))?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(activation, if is_done { NVML_SUCCESS } else { NVML_ERROR_IN_USE }) }
    })
}

fn info(minor: u32, number: c_uint) -> Outcome<(&'static MigProfile, u32)> {
    if number >= NVML_GPU_INSTANCE_PROFILE_COUNT {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    let model = model(minor)?;
    let found = model.profiles.iter().find(|profile| profile.number == number).ok_or(NVML_ERROR_NOT_SUPPORTED)?;
    Ok((found, model.multiprocessors * u32::from(found.compute_slices)))
}

/// Answers with MIG off, too. Engines for copies and video are not simulated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceProfileInfo(
    device: nvmlDevice_t,
    number: c_uint,
    place: *mut nvmlGpuInstanceProfileInfo_t,
) -> nvmlReturn_t {
    code(|| {
        let (profile, multiprocessors) = info(minor(device)?, number)?;
        let found = nvmlGpuInstanceProfileInfo_t {
            id: profile.id,
            sliceCount: profile.compute_slices.into(),
            instanceCount: profile.most.into(),
            multiprocessorCount: multiprocessors,
            memorySizeMB: profile.memory_mib.into(),
            ..nvmlGpuInstanceProfileInfo_t::default()
        };
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(place, found) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceProfileInfoV(
    device: nvmlDevice_t,
    number: c_uint,
    place: *mut nvmlGpuInstanceProfileInfo_v2_t,
) -> nvmlReturn_t {
    code(|| {
        let minor = minor(device)?;
        if place.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: not NULL, and valid as the API demands of its caller.
        if unsafe { (*place).version } != NVML_GPU_INSTANCE_PROFILE_INFO_V2 {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let (profile, multiprocessors) = info(minor, number)?;
        let mut found = nvmlGpuInstanceProfileInfo_v2_t {
            version: NVML_GPU_INSTANCE_PROFILE_INFO_V2,
            id: profile.id,
            isP2pSupported: 0,
            sliceCount: profile.compute_slices.into(),
            instanceCount: profile.most.into(),
            multiprocessorCount: multiprocessors,
            copyEngineCount: 0,
            decoderCount: 0,
            encoderCount: 0,
            jpegCount: 0,
            ofaCount: 0,
            memorySizeMB: profile.memory_mib.into(),
            name: [0; 96],
        };
        // SAFETY: the array is as long as is said, and `place` is valid as above.
        unsafe {
            put_text(found.name.as_mut_ptr(), 96, &format!("MIG {}", profile.name))?;
            put(place, found)
        }
    })
}

/// All placements of the profile, whether something lies there or not. Answers with MIG off, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    device: nvmlDevice_t,
    profile_id: c_uint,
    list: *mut nvmlGpuInstancePlacement_t,
    count: *mut c_uint,
) -> nvmlReturn_t {
    code(|| {
        let profile = profile(minor(device)?, profile_id)?;
        let size = profile.memory_slices.into();
        let all = profile.starts.iter().map(|start| nvmlGpuInstancePlacement_t { start: (*start).into(), size });
        // SAFETY: the same contract.
        unsafe { fill(list, count, all.collect()) }
    })
}

/// Fills the caller's array; without one, says how many there are.
///
/// # Safety
///
/// `count` is NULL or valid, and `list` is NULL or valid for `*count` elements.
unsafe fn fill<T>(list: *mut T, count: *mut c_uint, found: Vec<T>) -> Outcome {
    if count.is_null() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: not NULL, and so valid as this function's caller promises.
    let room = unsafe { count.replace(found.len() as c_uint) };
    if list.is_null() {
        return Ok(());
    }
    if (room as usize) < found.len() {
        return Err(NVML_ERROR_INSUFFICIENT_SIZE);
    }
    for (index, one) in found.into_iter().enumerate() {
        // SAFETY: `list` is not NULL and `index` is below the number of elements that the caller gave.
        unsafe { list.add(index).write(one) };
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceRemainingCapacity(
    device: nvmlDevice_t,
    profile_id: c_uint,
    count: *mut c_uint,
) -> nvmlReturn_t {
    code(|| {
        let minor = minor(device)?;
        let (mig, model, profile) = (mig(minor)?, model(minor)?, profile(minor, profile_id)?);
        let mut left = mig.clone();
        let made = (0..profile.most).take_while(|_| left.create(model, profile.id, None).is_ok()).count();
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(count, made as c_uint) }
    })
}

/// # Safety
///
/// `place` is NULL or valid for a write.
unsafe fn create(device: nvmlDevice_t, id: u32, start: Option<u32>, place: *mut nvmlGpuInstance_t) -> Outcome {
    let minor = minor(device)?;
    let start = start.map(u8::try_from).transpose().map_err(|_| NVML_ERROR_INVALID_ARGUMENT)?;
    if place.is_null() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    let id = divide(minor, |board| board.create(id, start))?;
    // SAFETY: as this function's caller promises.
    unsafe { put(place, Instance { minor, id }.gpu_instance()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceCreateGpuInstance(
    device: nvmlDevice_t,
    profile_id: c_uint,
    place: *mut nvmlGpuInstance_t,
) -> nvmlReturn_t {
    // SAFETY: the same contract.
    code(|| unsafe { create(device, profile_id, None, place) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceCreateGpuInstanceWithPlacement(
    device: nvmlDevice_t,
    profile_id: c_uint,
    placement: *const nvmlGpuInstancePlacement_t,
    place: *mut nvmlGpuInstance_t,
) -> nvmlReturn_t {
    code(|| {
        // SAFETY: NULL or valid, as the API demands of its caller.
        let wanted = unsafe { placement.as_ref() }.ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
        if wanted.size != c_uint::from(profile(minor(device)?, profile_id)?.memory_slices) {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: the same contract.
        unsafe { create(device, profile_id, Some(wanted.start), place) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceDestroy(instance: nvmlGpuInstance_t) -> nvmlReturn_t {
    code(|| {
        let found = gpu_instance(instance)?;
        divide(found.minor, |board| board.destroy(found.id))
    })
}

/// Those of one profile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstances(
    device: nvmlDevice_t,
    profile_id: c_uint,
    list: *mut nvmlGpuInstance_t,
    count: *mut c_uint,
) -> nvmlReturn_t {
    code(|| {
        let minor = minor(device)?;
        profile(minor, profile_id)?;
        let mig = mig(minor)?;
        let its = mig.instances.iter().filter(|one| one.profile_id == profile_id);
        let all = its.map(|one| Instance { minor, id: one.id }.gpu_instance()).collect();
        // SAFETY: the same contract.
        unsafe { fill(list, count, all) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceById(
    device: nvmlDevice_t,
    id: c_uint,
    place: *mut nvmlGpuInstance_t,
) -> nvmlReturn_t {
    code(|| {
        let minor = minor(device)?;
        mig(minor)?.instance(id).ok_or(NVML_ERROR_NOT_FOUND)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(place, Instance { minor, id }.gpu_instance()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceGetInfo(
    instance: nvmlGpuInstance_t,
    place: *mut nvmlGpuInstanceInfo_t,
) -> nvmlReturn_t {
    code(|| {
        let found = gpu_instance(instance)?;
        let mig = mig(found.minor)?;
        let own = mig.instance(found.id).ok_or(NVML_ERROR_NOT_FOUND)?;
        let size = profile(found.minor, own.profile_id)?.memory_slices.into();
        let info = nvmlGpuInstanceInfo_t {
            device: handle(found.minor),
            id: found.id,
            profileId: own.profile_id,
            placement: nvmlGpuInstancePlacement_t { start: own.start.into(), size },
        };
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(place, info) }
    })
}

/// NVML_COMPUTE_INSTANCE_PROFILE_* of so many slices, which is the id as well.
fn compute_profile(slices: u8) -> c_uint {
    match slices {
        7 => 4,
        slices => c_uint::from(slices) - 1,
    }
}

/// The one profile that there is here: all of the GPU instance.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
    instance: nvmlGpuInstance_t,
    number: c_uint,
    engine: c_uint,
    place: *mut nvmlComputeInstanceProfileInfo_t,
) -> nvmlReturn_t {
    code(|| {
        let found = gpu_instance(instance)?;
        if number >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT || engine != NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        let slices = slices_of(found)?;
        if number != compute_profile(slices) {
            return Err(NVML_ERROR_NOT_SUPPORTED);
        }
        let info = nvmlComputeInstanceProfileInfo_t {
            id: number,
            sliceCount: slices.into(),
            instanceCount: 1,
            multiprocessorCount: model(found.minor)?.multiprocessors * u32::from(slices),
            ..nvmlComputeInstanceProfileInfo_t::default()
        };
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(place, info) }
    })
}

fn slices_of(instance: Instance) -> Outcome<u8> {
    let id = mig(instance.minor)?.instance(instance.id).map(|one| one.profile_id).ok_or(NVML_ERROR_NOT_FOUND)?;
    Ok(profile(instance.minor, id)?.compute_slices)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceCreateComputeInstance(
    instance: nvmlGpuInstance_t,
    profile_id: c_uint,
    place: *mut nvmlComputeInstance_t,
) -> nvmlReturn_t {
    code(|| {
        let found = gpu_instance(instance)?;
        if place.is_null() || profile_id != compute_profile(slices_of(found)?) {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        divide(found.minor, |board| board.create_compute(found.id))?;
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(place, found.compute_instance()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceGetComputeInstances(
    instance: nvmlGpuInstance_t,
    profile_id: c_uint,
    list: *mut nvmlComputeInstance_t,
    count: *mut c_uint,
) -> nvmlReturn_t {
    code(|| {
        let found = gpu_instance(instance)?;
        let is_it = profile_id == compute_profile(slices_of(found)?);
        let has = mig(found.minor)?.instance(found.id).is_some_and(|one| one.has_compute);
        let all = if is_it && has { vec![found.compute_instance()] } else { Vec::new() };
        // SAFETY: the same contract.
        unsafe { fill(list, count, all) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlComputeInstanceGetInfo_v2(
    instance: nvmlComputeInstance_t,
    place: *mut nvmlComputeInstanceInfo_t,
) -> nvmlReturn_t {
    code(|| {
        let found = compute_instance(instance)?;
        let slices = slices_of(found)?;
        let info = nvmlComputeInstanceInfo_t {
            device: handle(found.minor),
            gpuInstance: found.gpu_instance(),
            id: 0,
            profileId: compute_profile(slices),
            placement: nvmlGpuInstancePlacement_t { start: 0, size: slices.into() },
        };
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(place, info) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlComputeInstanceDestroy(instance: nvmlComputeInstance_t) -> nvmlReturn_t {
    code(|| {
        let found = compute_instance(instance)?;
        divide(found.minor, |board| board.destroy_compute(found.id))
    })
}
