//! What single situations lead to.

use gpool_device_model::{Device, DeviceParameters, Ticket};

const MS: u64 = 1_000_000;

/// With time slices of 2 ms, which are easily added.
fn device() -> Device {
    Device::new(DeviceParameters { time_slice_ns: 2 * MS, ..DeviceParameters::standard(0) }, 0)
}

#[test]
fn two_backlogged_contexts_get_half_each() {
    let mut device = device();
    let a = device.create_context(0, 1, "a").unwrap();
    let b = device.create_context(0, 2, "b").unwrap();
    for _ in 0..1000 {
        device.submit_kernel(0, a, 5 * MS);
        device.submit_kernel(0, b, 3 * MS);
    }
    device.advance(2000 * MS);
    let meter = device.meter();
    let (a, b) = (meter.owners["a"].busy_ns, meter.owners["b"].busy_ns);
    assert!(a.abs_diff(b) <= 2 * MS, "{a} and {b}");
    assert_eq!(a + b, meter.busy_ns);
    assert_eq!(meter.idle_ns(), 0);
    assert_eq!(meter.busy_ns + meter.switch_ns, 2000 * MS);
}

#[test]
fn a_preempted_kernel_goes_on_with_its_remainder() {
    let mut device = device();
    let a = device.create_context(0, 1, "a").unwrap();
    let b = device.create_context(0, 2, "b").unwrap();
    let long = device.submit_kernel(0, a, 3 * MS);
    let short = device.submit_kernel(0, b, MS);
    // a for 2 ms, a switch, b for 1 ms, a switch, a for 1 ms
    assert_eq!(device.projected_completion(b, short), Some(3 * MS + 50_000));
    assert_eq!(device.projected_completion(a, long), Some(4 * MS + 100_000));
    device.advance(4 * MS + 99_999);
    assert_eq!((device.last_completed(a), device.last_completed(b)), (Ticket(0), short));
    device.advance(4 * MS + 100_000);
    assert_eq!(device.last_completed(a), long);
    assert_eq!(device.meter().owners["a"].kernels, 1);
}

#[test]
fn a_marker_takes_no_time_but_needs_its_context_on_the_gpu() {
    let mut device = device();
    let a = device.create_context(0, 1, "a").unwrap();
    let b = device.create_context(0, 2, "b").unwrap();
    let at_once = device.submit_marker(10, a);
    assert_eq!(device.take_marker_times(a), [(at_once, 10)]);
    let after_switch = device.submit_marker(20, b);
    assert_eq!(device.last_completed(b), Ticket(0));
    device.advance(MS);
    assert_eq!(device.take_marker_times(b), [(after_switch, 50_020)]);
    device.submit_kernel(MS, b, 100);
    let behind = device.submit_marker(MS, b);
    device.advance(2 * MS);
    assert_eq!(device.take_marker_times(b), [(behind, MS + 100)]);
    assert!(device.take_marker_times(b).is_empty());
}

#[test]
fn a_dead_process_leaves_nothing_and_its_kernel_stops() {
    let mut device = device();
    let a = device.create_context(0, 1, "a").unwrap();
    let b = device.create_context(0, 2, "b").unwrap();
    device.allocate(0, a, 1 << 30).unwrap();
    device.submit_kernel(0, a, 1000 * MS);
    device.submit_kernel(0, b, MS);
    device.reap_process(MS, 1);
    assert_eq!(device.memory_used(), 256 << 20);
    assert_eq!(device.processes(), [(2, 256 << 20)]);
    device.advance(10 * MS);
    let meter = device.meter();
    assert_eq!((meter.owners["a"].busy_ns, meter.owners["b"].busy_ns), (MS, MS));
    assert_eq!((meter.owners["a"].bytes_now, meter.owners["a"].bytes_peak), (0, (1 << 30) + (256 << 20)));
    assert_eq!(device.submit_kernel(10 * MS, a, 1), Ticket(0));
    assert_eq!(device.projected_completion(a, Ticket(1)), None);
}

#[test]
fn memory_is_refused_when_it_is_gone() {
    let mut device = device();
    let a = device.create_context(0, 1, "a").unwrap();
    let free = device.memory_free();
    assert_eq!(device.allocate(0, a, free + 1).unwrap_err().free_bytes, free);
    device.allocate(0, a, free).unwrap();
    assert!(device.create_context(0, 2, "b").is_err());
    device.free(0, a, free);
    assert_eq!(device.memory_free(), free);
    device.free(0, a, u64::MAX);
    assert_eq!(device.memory_used(), 256 << 20);
}

#[test]
fn physical_memory_outlives_contexts_and_goes_with_its_process() {
    let mut device = device();
    let a = device.create_context(0, 1, "a").unwrap();
    device.allocate_physical(0, 1, "a", (1 << 30) - 1).unwrap();
    device.destroy_context(0, a);
    assert_eq!((device.memory_used(), device.processes()), (1 << 30, vec![(1, 1 << 30)]));
    let free = device.memory_free();
    assert_eq!(device.allocate_physical(0, 2, "b", free + 1).unwrap_err().free_bytes, free);
    device.free_physical(0, 1, 2 << 20);
    assert_eq!(device.meter().owners["a"].bytes_now, (1 << 30) - (2 << 20));
    device.reap_process(0, 1);
    assert_eq!((device.memory_used(), device.processes()), (0, vec![]));
    assert_eq!(device.meter().owners["a"].bytes_peak, (1 << 30) + (256 << 20));
}

#[test]
fn time_never_goes_back() {
    let mut device = device();
    let a = device.create_context(5 * MS, 1, "a").unwrap();
    device.submit_kernel(5 * MS, a, MS);
    device.advance(MS);
    assert_eq!(device.now_ns(), 5 * MS);
    assert_eq!(device.meter().busy_ns, 0);
}

#[test]
fn each_process_is_metered_and_sampled() {
    let mut device = device();
    let a = device.create_context(0, 1, "a").unwrap();
    let b = device.create_context(0, 2, "a").unwrap();
    device.submit_kernel(0, a, 150 * MS);
    device.submit_kernel(250 * MS, b, 50 * MS);
    device.advance(499 * MS);
    let busy = |device: &Device, process| device.meter().processes[&process].busy_ns;
    assert_eq!((busy(&device, 1), busy(&device, 2)), (150 * MS, 50 * MS));
    assert_eq!(device.meter().owners["a"].busy_ns, 200 * MS);
    let sampled = |device: &Device| -> Vec<(u32, u64, u32)> {
        let samples = device.meter().process_samples();
        samples.iter().map(|sample| (sample.process, sample.end_ns / MS, sample.percent)).collect()
    };
    assert_eq!(sampled(&device), [(1, 250, 60)]);
    device.advance(500 * MS);
    assert_eq!(sampled(&device), [(1, 250, 60), (2, 500, 20)]);
    device.reap_process(501 * MS, 1);
    assert_eq!(busy(&device, 1), 150 * MS);
    device.advance(10_300 * MS);
    assert_eq!(sampled(&device), [(2, 500, 20)]);
}

#[test]
fn between_two_changes_at_most_one_context_executes() {
    let mut device = device();
    let a = device.create_context(0, 1, "a").unwrap();
    let b = device.create_context(0, 2, "b").unwrap();
    assert_eq!(device.next_change_ns(), None);
    device.submit_kernel(0, a, 3 * MS);
    device.submit_kernel(0, b, MS);
    let had = |device: &Device, owner| device.meter().owners.get(owner).map_or(0, |usage| usage.busy_ns);
    let mut changes = Vec::new();
    while let Some(at_ns) = device.next_change_ns() {
        let before = (device.now_ns(), had(&device, "a"), had(&device, "b"));
        device.advance(at_ns);
        let (a_ns, b_ns) = (had(&device, "a") - before.1, had(&device, "b") - before.2);
        assert!(a_ns == 0 || b_ns == 0);
        assert!([0, at_ns - before.0].contains(&(a_ns + b_ns)));
        changes.push(at_ns);
    }
    // a for 2 ms, a switch, b for 1 ms, a switch, a for 1 ms
    assert_eq!(changes, [2 * MS, 2 * MS + 50_000, 3 * MS + 50_000, 3 * MS + 100_000, 4 * MS + 100_000]);
}

#[test]
fn shared_memory_is_there_until_the_last_lets_go() {
    let mut device = Device::new(DeviceParameters::default(), 0);
    device.allocate_physical(0, 1, "/a", 6 << 20).unwrap();
    assert!(device.share(0, 1, 8 << 20).is_none(), "it does not hold as much");
    let share = device.share(0, 1, 4 << 20).unwrap();
    assert_eq!((device.memory_used(), device.processes()), (6 << 20, vec![(1, 6 << 20)]));
    assert_eq!(device.hold_share(0, share, 2, "/b"), Some(4 << 20));
    assert_eq!(device.hold_share(0, share, 2, "/b"), Some(4 << 20));
    device.reap_process(0, 1);
    assert_eq!((device.memory_used(), device.processes()), (4 << 20, vec![(2, 4 << 20)]), "the other one holds it");
    assert_eq!(device.meter().owners["/a"].bytes_now, 0);
    assert_eq!(device.meter().owners["/b"].bytes_now, 4 << 20);
    device.leave_share(0, share, 2);
    assert_eq!(device.memory_used(), 4 << 20, "it took hold twice");
    device.leave_share(0, share, 2);
    assert_eq!((device.memory_used(), device.processes()), (0, vec![]));
    assert_eq!(device.hold_share(0, share, 3, "/c"), None);
}
