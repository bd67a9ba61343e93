//! Kernels that are executed, thread by thread, when they are launched: those of modules of PTX whose names begin with `exact_`.
//! All others take their time and compute nothing. Results are there when the launch comes back, which nobody can tell from
//! later, as with copies.

use crate::driver::{Driver, Outcome};
use crate::objects::{Objects, Place};
use gpool_driver_abi::cuda::*;
use gpool_simulated_hardware::{Health, Layout};
use gpool_simulated_ptx::{Fault, Hardware, Launch, Memory, Program};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

const PREFIX: &str = "exact_";
/// The bits that a bad word lacks.
const BAD_BITS: u64 = 1 << 17;

/// Those of a text, by their names.
pub(crate) type Programs = HashMap<String, Arc<Program>>;

/// Reads those of a text whose kernels have these names.
pub(crate) fn programs(text: &str, kernels: &[String]) -> Outcome<Programs> {
    let wanted = kernels.iter().filter(|name| name.starts_with(PREFIX));
    let program = |name: &String| {
        let read = Program::read(text, name).map_err(|_| CUDA_ERROR_INVALID_PTX)?;
        Ok((name.clone(), Arc::new(read)))
    };
    wanted.map(program).collect()
}

/// Executes one.
///
/// # Safety
/// `parameters` is an array with a pointer for each of its parameters, as cuLaunchKernel demands.
pub(crate) unsafe fn execute(
    driver: &Driver,
    objects: &Objects,
    place: Place,
    program: &Program,
    [blocks, threads]: [u32; 2],
    parameters: *mut *mut c_void,
) -> Outcome {
    if parameters.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let value = |(number, bytes): (usize, &usize)| {
        // SAFETY: the array has a pointer for each parameter, to as many bytes as it is wide.
        unsafe {
            let pointer = *parameters.add(number);
            if *bytes == 4 {
                pointer.cast::<u32>().read_unaligned().into()
            } else {
                pointer.cast::<u64>().read_unaligned()
            }
        }
    };
    let parameters = program.parameters().iter().enumerate().map(value).collect();
    let gpu = driver.gpu(place.device)?;
    // The first device of a host is on bus 1.
    let health = Health::read(&Layout::default(), gpu.parameters.pci_bus.saturating_sub(1));
    let hardware = Hardware { multiprocessors: gpu.parameters.multiprocessors, wrong: health.wrong_multiprocessor };
    let mut memory = DeviceMemory { objects, bad: health.bad_memory, range: (0, 0) };
    let launch = Launch { blocks, threads, parameters };
    program.run(&launch, hardware, &mut memory).map_err(|fault| match fault {
        Fault::Launch => CUDA_ERROR_INVALID_VALUE,
        Fault::Address(_) => CUDA_ERROR_ILLEGAL_ADDRESS,
        Fault::Divergence => CUDA_ERROR_NOT_SUPPORTED,
    })
}

/// Allocations of this process.
struct DeviceMemory<'a> {
    objects: &'a Objects,
    /// How far into each allocation a word lies that cannot hold all bits.
    bad: Option<u64>,
    /// The allocation that was used last: where it begins, and its bytes.
    range: (u64, u64),
}

impl DeviceMemory<'_> {
    fn find(&mut self, address: u64, bytes: usize) -> Option<()> {
        let holds = |(base, length): (u64, u64)| {
            address.checked_sub(base).is_some_and(|offset| offset < length && length - offset >= bytes as u64)
        };
        if !holds(self.range) {
            let (base, length) = self.objects.reachable(address)?;
            self.range = (base, length as u64);
        }
        holds(self.range).then_some(())
    }
}

impl Memory for DeviceMemory<'_> {
    fn load(&mut self, address: u64, bytes: usize) -> Option<u64> {
        self.find(address, bytes)?;
        // SAFETY: the bytes lie in a live allocation, which is readable as long as the objects are locked.
        unsafe {
            Some(match bytes {
                4 => (address as *const u32).read_unaligned().into(),
                _ => (address as *const u64).read_unaligned(),
            })
        }
    }

    fn store(&mut self, address: u64, bytes: usize, value: u64) -> Option<()> {
        self.find(address, bytes)?;
        let is_bad = bytes == 8 && self.bad == Some(address - self.range.0);
        let value = if is_bad { value & !BAD_BITS } else { value };
        // SAFETY: as above, and it is writable.
        unsafe {
            match bytes {
                4 => (address as *mut u32).write_unaligned(value as u32),
                _ => (address as *mut u64).write_unaligned(value),
            }
        }
        Some(())
    }
}
