//! Which devices are linked, and which are near each other.

use crate::library::{Outcome, code, put};
use crate::target::minor;
use gpool_driver_abi::nvml::*;
use gpool_simulated_hardware::{Layout, Site};

/// Where two devices sit. A device and itself are no pair.
fn sites(one: nvmlDevice_t, other: nvmlDevice_t) -> Outcome<(Site, Site)> {
    let (one, other) = (minor(one)?, minor(other)?);
    if one == other {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    let layout = Layout::default();
    Ok((Site::read(&layout, one), Site::read(&layout, other)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetP2PStatus(
    one: nvmlDevice_t,
    other: nvmlDevice_t,
    index: nvmlGpuP2PCapsIndex_t,
    status: *mut nvmlGpuP2PStatus_t,
) -> nvmlReturn_t {
    code(|| {
        let (one, other) = sites(one, other)?;
        let can = match index {
            NVML_P2P_CAPS_INDEX_NVLINK => one.island.is_some() && one.island == other.island,
            0..NVML_P2P_CAPS_INDEX_UNKNOWN => true,
            _ => return Err(NVML_ERROR_INVALID_ARGUMENT),
        };
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(status, if can { NVML_P2P_STATUS_OK } else { NVML_P2P_STATUS_NOT_SUPPORTED }) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTopologyCommonAncestor(
    one: nvmlDevice_t,
    other: nvmlDevice_t,
    level: *mut nvmlGpuTopologyLevel_t,
) -> nvmlReturn_t {
    code(|| {
        let (one, other) = sites(one, other)?;
        let between = if one.processor == other.processor { NVML_TOPOLOGY_NODE } else { NVML_TOPOLOGY_SYSTEM };
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(level, between) }
    })
}
