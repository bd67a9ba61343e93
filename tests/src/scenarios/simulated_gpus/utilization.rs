//! What NVML shows of two devices and of the processes on them.

use super::driver::Driver;
use super::{checked, expected, meter};
use crate::failure::{Failure, Result, ensure};
use crate::library::Library;
use gpool_device_model::SAMPLE_PERIOD_NS;
use gpool_driver_abi::nvml::*;
use gpool_simulated_hardware::{now_ns, wall_clock_offset_ns};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

const KERNELS: u64 = 7;
const KERNEL_NS: u64 = 100_000_000;

struct Nvml {
    utilization: NvmlDeviceGetProcessUtilization,
    device: nvmlDevice_t,
}

impl Nvml {
    /// The second device, found by its place on the bus.
    fn second() -> Result<Self> {
        let library = Library::open(c"/run/gpool-simgpu/lib/libnvidia-ml.so.1")?;
        let init: NvmlInitV2 = library.function(c"nvmlInit_v2")?;
        let count: NvmlDeviceGetCountV2 = library.function(c"nvmlDeviceGetCount_v2")?;
        let by_bus: NvmlDeviceGetHandleByPciBusIdV2 = library.function(c"nvmlDeviceGetHandleByPciBusId_v2")?;
        let index: NvmlDeviceGetIndex = library.function(c"nvmlDeviceGetIndex")?;
        let (mut devices, mut device, mut found) = (0, null_mut(), 0);
        // SAFETY: all results go to live locals, and the address ends with a zero.
        unsafe {
            checked("nvmlInit_v2", init())?;
            checked("nvmlDeviceGetCount_v2", count(&mut devices))?;
            checked("nvmlDeviceGetHandleByPciBusId_v2", by_bus(c"00000000:02:00.0".as_ptr(), &mut device))?;
            checked("nvmlDeviceGetIndex", index(device, &mut found))?;
        }
        ensure((devices, found) == (2, 1), || format!("of {devices} devices the one on bus 2 is {found}"))?;
        Ok(Self { utilization: library.function(c"nvmlDeviceGetProcessUtilization")?, device })
    }

    /// The samples after this time, none if there are none.
    fn samples(&self, after_us: u64) -> Result<Vec<nvmlProcessUtilizationSample_t>> {
        let mut count = 0;
        // SAFETY: the number goes to a live local, and there is no array.
        let code = unsafe { (self.utilization)(self.device, null_mut(), &mut count, after_us) };
        if code == NVML_ERROR_NOT_FOUND {
            return Ok(Vec::new());
        }
        expected("nvmlDeviceGetProcessUtilization without an array", code, NVML_ERROR_INSUFFICIENT_SIZE)?;
        let mut samples = vec![nvmlProcessUtilizationSample_t::default(); count as usize];
        // SAFETY: the array has as many elements as `count` says.
        let code = unsafe { (self.utilization)(self.device, samples.as_mut_ptr(), &mut count, after_us) };
        checked("nvmlDeviceGetProcessUtilization", code)?;
        samples.truncate(count as usize);
        Ok(samples)
    }
}

/// Kernels of a known length, of which means over the time that is asked about show the sum.
pub(super) fn of_this_process() -> Result<()> {
    let (driver, nvml) = (Driver::start()?, Nvml::second()?);
    let context = driver.context(1)?;
    let kernel = driver.kernel()?;
    let own = std::process::id();
    // So that what was done before is not in the same period.
    std::thread::sleep(Duration::from_nanos(SAMPLE_PERIOD_NS));
    let busy_ns = || Ok::<_, Failure>(meter(1)?.processes.get(&own).map_or(0, |usage| usage.busy_ns));
    let (busy_before_ns, begun_us) = (busy_ns()?, unix_us());
    for _ in 0..KERNELS {
        checked("cuLaunchKernel", driver.launch(kernel, null_mut(), KERNEL_NS))?;
    }
    driver.wait()?;
    let metered_ns = busy_ns()? - busy_before_ns;
    ensure(metered_ns == KERNELS * KERNEL_NS, || format!("{metered_ns} ns were metered"))?;
    // A sample is there when its period is over.
    let deadline = Instant::now() + Duration::from_secs(2);
    let entry = loop {
        let samples = nvml.samples(begun_us)?;
        let [entry] = samples[..] else {
            ensure(samples.is_empty() && Instant::now() < deadline, || format!("{own} has {samples:?}"))?;
            continue;
        };
        let over_ns = entry.timeStamp.saturating_sub(begun_us) * 1000;
        let shown_ns = over_ns / 100 * u64::from(entry.smUtil);
        // What began within a period is of all of it, and means are in whole percent.
        if shown_ns.abs_diff(metered_ns) <= SAMPLE_PERIOD_NS / 4 + over_ns / 100 {
            break entry;
        }
        ensure(Instant::now() < deadline, || format!("of {metered_ns} ns NVML shows {entry:?} since {begun_us}"))?;
        std::thread::sleep(Duration::from_millis(20));
    };
    ensure(entry.pid == own, || format!("{own}: {entry:?}"))?;
    let again = nvml.samples(entry.timeStamp)?;
    ensure(again.is_empty() || again[0].timeStamp > entry.timeStamp, || format!("told again: {again:?}"))?;
    driver.destroy(context)
}

fn unix_us() -> u64 {
    (now_ns() + wall_clock_offset_ns()) / 1000
}
