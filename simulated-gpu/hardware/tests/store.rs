//! The shared state under several processes and threads.

use gpool_device_model::{Device, DeviceParameters};
use gpool_simulated_hardware::{Layout, Store, now_ns};
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_store_sees_what_another_wrote() {
    let directory = tempfile::tempdir().unwrap();
    let one = Store::create(directory.path(), DeviceParameters::standard(0)).unwrap();
    let other = Store::open(directory.path()).unwrap();
    let context = one.update(|device, now_ns| device.create_context(now_ns, 7, "/a").unwrap()).unwrap();
    let ticket = other.update(|device, now_ns| device.submit_kernel(now_ns, context, 2_000_000)).unwrap();
    let due_ns = one.snapshot().unwrap().projected_completion(context, ticket).unwrap();
    while now_ns() < due_ns {
        std::thread::yield_now();
    }
    let device = one.snapshot().unwrap();
    assert_eq!(device.last_completed(context), ticket);
    assert_eq!(device.meter().owners["/a"].busy_ns, 2_000_000);
    let mode = std::fs::metadata(directory.path().join("state/device0")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666);
}

#[test]
fn no_update_is_lost_between_stores_and_threads() {
    let directory = tempfile::tempdir().unwrap();
    let first = Store::create(directory.path(), DeviceParameters::standard(0)).unwrap();
    let second = Store::open(directory.path()).unwrap();
    let context = first.update(|device, now_ns| device.create_context(now_ns, 7, "/a").unwrap()).unwrap();
    std::thread::scope(|scope| {
        for store in [&first, &second, &first, &second] {
            scope.spawn(|| {
                for _ in 0..250 {
                    store.update(|device, now_ns| device.submit_kernel(now_ns, context, 1 << 40)).unwrap();
                }
            });
        }
    });
    assert_eq!(first.snapshot().unwrap().queued(context), 1000);
}

#[test]
fn a_missing_state_is_told_with_its_path() {
    let error = Store::open("/nonexistent").unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/state/device0: "), "{error}");
}

#[test]
fn devices_lie_beside_each_other_and_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let layout = Layout::new(directory.path());
    assert_eq!(layout.device_count(), 0);
    for index in 0..3 {
        Store::create_device(directory.path(), index, DeviceParameters::standard(index)).unwrap();
    }
    assert_eq!(layout.device_count(), 3);
    let [first, third] = [0, 2].map(|index| Store::open_device(directory.path(), index).unwrap());
    first.update(|device, now_ns| device.create_context(now_ns, 7, "/a").unwrap()).unwrap();
    let [first, third] = [first, third].map(|store| store.snapshot().unwrap());
    assert_eq!((first.processes().len(), third.processes().len()), (1, 0));
    assert!(first.parameters().uuid != third.parameters().uuid);
    assert_eq!((first.parameters().pci_bus, third.parameters().pci_bus), (1, 3));
}

/// Every change of the device writes its whole state.
#[test]
fn the_state_does_not_grow_with_time() {
    let bytes_after = |seconds: u64| {
        let mut device = Device::new(DeviceParameters::standard(0), 0);
        for process in 0..3 {
            let context = device.create_context(0, process, "/a/cgroup/of/usual/length").unwrap();
            for _ in 0..1000 {
                device.submit_kernel(0, context, 1_000_000_000);
            }
        }
        device.advance(seconds * 1_000_000_000);
        assert_eq!(device.meter().process_samples().len() as u64, 3 * 4 * seconds.min(10));
        postcard::to_stdvec(&device).unwrap().len()
    };
    let (early, late, later) = (bytes_after(1), bytes_after(20), bytes_after(200));
    // A byte for each process and period of 250 ms in ten seconds, and longer numbers.
    assert!(late - early <= 3 * 40 + 40, "{early} bytes became {late}");
    assert!(later - late <= 20, "{late} bytes became {later}");
}
