//! A process that is taken off the device, and what becomes of its memory meanwhile.

use gpool_device_model::{Device, DeviceParameters, Ticket};

const GIB: u64 = 1 << 30;
const CONTEXT: u64 = 1 << 28;

/// With 8 GiB and contexts of 256 MiB.
fn device() -> Device {
    let parameters =
        DeviceParameters { memory_bytes: 8 * GIB, context_bytes: CONTEXT, ..DeviceParameters::standard(0) };
    Device::new(parameters, 0)
}

#[test]
fn what_a_suspended_process_held_is_free_and_comes_back_as_it_was() {
    let mut device = device();
    let other = device.create_context(0, 1, "other").unwrap();
    let first = device.create_context(0, 7, "own").unwrap();
    let second = device.create_context(0, 7, "own").unwrap();
    device.allocate(0, first, 3 * GIB).unwrap();
    device.allocate_physical(0, 7, "own", 2 * GIB).unwrap();
    let ticket = device.submit_kernel(0, first, 1_000);
    assert!(device.has_work(7) && !device.has_work(1));
    device.advance(10_000);
    assert!(!device.has_work(7));
    let before = (device.processes(), device.memory_used());
    assert!(device.suspend(10_000, 7));
    assert_eq!(device.processes(), [(1, CONTEXT)]);
    assert_eq!(device.memory_used(), CONTEXT);
    assert_eq!(device.meter().owners["own"].bytes_now, 0);
    assert!(!device.has_context(first));
    device.allocate(10_000, other, 7 * GIB).unwrap();
    device.free(20_000, other, 7 * GIB);
    assert_eq!(device.resume(20_000, 7), Ok(true));
    assert_eq!((device.processes(), device.memory_used()), before);
    assert_eq!(device.last_completed(first), ticket);
    assert_eq!(device.last_completed(second), Ticket(0));
    let next = device.submit_kernel(30_000, first, 1_000);
    device.advance(1_000_000);
    assert_eq!((next, device.last_completed(first)), (Ticket(ticket.0 + 1), next));
    // A context that is made now has a new id, and who is gone is known no more.
    assert!(device.create_context(1_000_000, 1, "other").unwrap() > second);
    assert_eq!(device.resume(1_000_000, 7), Ok(false));
}

#[test]
fn without_room_for_all_of_it_nothing_comes_back() {
    let mut device = device();
    let own = device.create_context(0, 7, "own").unwrap();
    device.allocate(0, own, 4 * GIB).unwrap();
    device.suspend(0, 7);
    let other = device.create_context(0, 1, "other").unwrap();
    device.allocate(0, other, 4 * GIB).unwrap();
    let refused = device.resume(0, 7).unwrap_err();
    assert_eq!((refused.requested_bytes, refused.free_bytes), (4 * GIB + CONTEXT, 4 * GIB - CONTEXT));
    assert_eq!(device.memory_used(), 4 * GIB + CONTEXT);
    device.free(0, other, 4 * GIB);
    assert_eq!(device.resume(0, 7), Ok(true));
}

#[test]
fn nothing_is_left_of_a_suspended_process_that_ends() {
    let mut device = device();
    let fresh = device.clone();
    device.create_context(0, 7, "own").unwrap();
    assert!(device.suspend(0, 7));
    device.reap_process(0, 7);
    assert_eq!(device.resume(0, 7), Ok(false));
    assert_eq!((device.memory_used(), device.processes()), (0, fresh.processes()));
    assert!(!device.suspend(0, 7), "a process that holds nothing has nothing to give back");
}

#[test]
fn shared_memory_is_told() {
    let mut device = device();
    device.allocate_physical(0, 7, "own", GIB).unwrap();
    let share = device.share(0, 7, GIB).unwrap();
    device.hold_share(0, share, 8, "other").unwrap();
    assert!(device.has_shares(7) && device.has_shares(8) && !device.has_shares(9));
    device.leave_share(0, share, 7);
    assert!(!device.has_shares(7) && device.has_shares(8));
}
