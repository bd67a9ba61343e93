//! Two simulated GPUs without an engine and without gpool: what their libraries show to a program, and what their
//! meters see of it. All figures are in the devices' own time and exact.

mod device;
mod driver;
mod programs;
mod tenants;
mod utilization;
mod variables;

use crate::failure::{Result, ensure};
use crate::host;
use crate::meter::MeterReader;
use crate::namespaces::Inside;
use gpool_device_model::Meter;
use std::path::Path;
use std::time::Duration;

const GPU: &str = "/run/gpool-simgpu";
const PATIENCE: Duration = Duration::from_secs(10);

/// Looks through both libraries and runs tenants.
pub fn run(_inside: &Inside) -> Result<()> {
    let (stage, gpus) = host::start_simulated_gpus_alone(2)?;
    let outcome = device::transfers_take_time_and_move_bytes()
        .and_then(|()| device::rows_and_blocks_move_their_bytes())
        .and_then(|()| device::graphs_do_their_work_at_each_launch())
        .and_then(|()| device::objects_belong_to_their_context())
        .and_then(|()| device::per_thread_variants_are_found())
        .and_then(|()| programs::are_linked_and_run_in_any_context())
        .and_then(|()| programs::host_memory_is_no_devices())
        .and_then(|()| variables::of_a_cubin_are_held_until_it_is_unloaded())
        .and_then(|()| variables::of_a_library_are_on_each_device_that_needs_them())
        .and_then(|()| utilization::of_this_process())
        .and_then(|()| tenants::run(&stage));
    gpus.stop(PATIENCE)?;
    outcome
}

/// What the device with this index has seen.
fn meter(index: u32) -> Result<Meter> {
    MeterReader::open_device(Path::new(GPU), index)?.read()
}

fn checked(call: &str, code: i32) -> Result<()> {
    expected(call, code, 0)
}

fn expected(call: &str, code: i32, wanted: i32) -> Result<()> {
    ensure(code == wanted, || format!("{call} answered {code} in place of {wanted}"))
}
