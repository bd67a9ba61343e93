//! Clients of an MPS server: how they share the device, and what they share besides.

use gpool_device_model::{ClientLimits, ClientRefusal, ContextId, Device, DeviceParameters, Loss};

const MS: u64 = 1_000_000;
/// Host pids of the servers.
const SERVER: u32 = 50;
const OTHER_SERVER: u32 = 60;

fn device() -> Device {
    let mut device = Device::new(DeviceParameters::standard(0), 0);
    device.start_server(0, SERVER, "/server").unwrap();
    device.start_server(0, OTHER_SERVER, "/server").unwrap();
    device
}

fn limits(percent: u32) -> ClientLimits {
    ClientLimits { percent, memory_bytes: None }
}

/// A client with so many kernels of 1 ms of the whole device.
fn busy(device: &mut Device, process: u32, owner: &str, percent: u32, kernels: u32) -> ContextId {
    let context = device.create_client(0, process, owner, SERVER, limits(percent)).unwrap();
    for _ in 0..kernels {
        device.submit_kernel(0, context, MS);
    }
    context
}

fn busy_ms(device: &Device, owner: &str) -> u64 {
    device.meter().owners[owner].busy_ns / MS
}

#[test]
fn clients_have_their_percentages_side_by_side_and_a_share_that_nobody_has_stays_unused() {
    let mut device = device();
    busy(&mut device, 1, "a", 30, 1000);
    busy(&mut device, 2, "b", 50, 1000);
    device.advance(1000 * MS);
    assert_eq!((busy_ms(&device, "a"), busy_ms(&device, "b")), (300, 500));
    assert_eq!(device.meter().owners["a"].kernels, 300);
    // Neither switches nor gaps: the device is busy all the time, once.
    assert_eq!((device.meter().busy_ns, device.meter().switch_ns), (1000 * MS, 0));
}

#[test]
fn percentages_above_the_whole_device_are_parts_of_it() {
    let mut device = device();
    busy(&mut device, 1, "a", 90, 1000);
    busy(&mut device, 2, "b", 30, 1000);
    device.advance(1200 * MS);
    assert_eq!((busy_ms(&device, "a"), busy_ms(&device, "b")), (900, 300));
}

#[test]
fn who_is_alone_has_no_more_than_its_percentage_and_two_have_theirs_when_one_falls_idle() {
    let mut device = device();
    let a = busy(&mut device, 1, "a", 80, 1000);
    busy(&mut device, 2, "b", 80, 10);
    // Each has half until b has had its 10 ms.
    assert_eq!(device.projected_completion(a, gpool_device_model::Ticket(10)), Some(20 * MS));
    device.advance(20 * MS);
    assert_eq!((busy_ms(&device, "a"), busy_ms(&device, "b")), (10, 10));
    device.advance(120 * MS);
    assert_eq!((busy_ms(&device, "a"), busy_ms(&device, "b")), (90, 10));
}

#[test]
fn a_server_has_turns_like_one_context_however_many_clients_it_has() {
    let mut device = device();
    for (process, owner) in [(1, "a"), (2, "b"), (3, "c")] {
        busy(&mut device, process, owner, 100, 1000);
    }
    let alone = device.create_context(0, 9, "alone").unwrap();
    for _ in 0..1000 {
        device.submit_kernel(0, alone, MS);
    }
    device.advance(600 * MS);
    let clients: u64 = ["a", "b", "c"].map(|owner| device.meter().owners[owner].busy_ns).iter().sum();
    let alone = device.meter().owners["alone"].busy_ns;
    assert!(clients.abs_diff(alone) <= 2 * MS, "{clients} and {alone}");
    assert!(busy_ms(&device, "a").abs_diff(busy_ms(&device, "c")) <= 1);
}

#[test]
fn a_client_holds_no_more_memory_than_its_limit_and_the_others_do_not_notice() {
    let mut device = device();
    let limited = ClientLimits { percent: 50, memory_bytes: Some(1 << 30) };
    let a = device.create_client(0, 1, "a", SERVER, limited).unwrap();
    let b = device.create_client(0, 2, "b", SERVER, limits(50)).unwrap();
    assert!(device.allocate(0, a, 512 << 20).is_ok());
    // The context itself counts: 256 MiB.
    assert_eq!(device.allocate(0, a, 512 << 20).unwrap_err().free_bytes, 256 << 20);
    assert!(device.allocate_physical(0, 1, "a", 512 << 20).is_err());
    assert!(device.allocate_physical(0, 1, "a", 256 << 20).is_ok() && device.allocate(0, b, 8 << 30).is_ok());
}

#[test]
fn a_fault_ends_all_clients_of_the_server_and_it_takes_nobody_in_until_they_have_gone() {
    let mut device = device();
    let (a, b) = (busy(&mut device, 1, "a", 50, 10), busy(&mut device, 2, "b", 50, 10));
    let other = device.create_client(0, 3, "c", OTHER_SERVER, limits(50)).unwrap();
    let alone = device.create_context(0, 4, "d").unwrap();
    device.fault_process(MS, 1);
    assert!(!device.has_context(a) && !device.has_context(b) && device.has_context(other) && device.has_context(alone));
    assert_eq!(
        (device.loss_of(a), device.loss_of(b), device.loss_of(other)),
        (Some(Loss::Fault), Some(Loss::Fault), None)
    );
    let again = |device: &mut Device| device.create_client(2 * MS, 5, "e", SERVER, limits(50));
    device.reap_process(2 * MS, 1);
    assert_eq!(again(&mut device), Err(ClientRefusal::Recovering));
    assert!(device.is_recovering(SERVER) && !device.is_recovering(OTHER_SERVER));
    device.reap_process(2 * MS, 2);
    assert!(again(&mut device).is_ok());
}

#[test]
fn the_end_of_a_server_ends_its_clients_and_nobody_else() {
    let mut device = device();
    let a = busy(&mut device, 1, "a", 50, 10);
    let other = device.create_client(0, 3, "c", OTHER_SERVER, limits(50)).unwrap();
    assert_eq!(device.clients_of(SERVER), [1].into());
    device.reap_process(MS, SERVER);
    assert!(!device.has_context(a) && device.has_context(other));
    assert_eq!(device.loss_of(a), Some(Loss::ServerGone));
    assert_eq!(device.create_client(MS, 1, "a", SERVER, limits(50)), Err(ClientRefusal::NoServer));
    device.reap_process(MS, OTHER_SERVER);
    device.reap_process(MS, 1);
    device.reap_process(MS, 3);
    assert_eq!(device.memory_used(), 0);
}

#[test]
fn one_client_can_be_ended_alone() {
    let mut device = device();
    let (a, b) = (busy(&mut device, 1, "a", 50, 10), busy(&mut device, 2, "b", 50, 10));
    device.terminate_client(MS, 1);
    assert!(!device.has_context(a) && device.has_context(b));
    assert_eq!(device.loss_of(a), Some(Loss::Terminated));
    assert!(device.create_client(MS, 7, "c", SERVER, limits(50)).is_ok());
}
