//! Of several processes of one lease, which have one slice.

use super::*;

/// Another process of the lease has so much to do on GPU `gpu`.
fn is_at_work(place: &Place, gpu: usize, left_ns: u64) -> &'static Slot {
    let other = place.registration.slot + 1;
    place.region.note_taken(other);
    let slot = place.region.slot(other);
    slot.gpu_contexts[gpu].store(1, Ordering::Relaxed);
    slot.estimated_end_ns.store(clock::now_ns() + left_ns, Ordering::Relaxed);
    slot.demand.store(Demand::Running as u32, Ordering::Release);
    slot
}

/// Whether the second of two kernels of 5 ms begins in a slice of 12 ms beside what another process has `left_ns` to do on GPU `gpu`.
fn second_begins(left_ns: u64, gpu: usize) -> bool {
    let (process, slot, control) = open_process();
    process.estimates.put(KERNEL, 5 * MS);
    let other = is_at_work(process.place().unwrap(), gpu, left_ns);
    open(control, clock::now_ns() + 12 * MS);
    let mut begins = false;
    std::thread::scope(|scope| {
        let launcher = scope.spawn(|| {
            // It turns the clock when it sleeps.
            clock::turn_ns(0);
            (0..2).map(|_| launch(process, KERNEL, 5 * MS)).max()
        });
        turning(0, || slot.waiters.load(Ordering::Relaxed) > 0 || launcher.is_finished());
        begins = slot.waiters.load(Ordering::Relaxed) == 0;
        other.demand.store(Demand::Idle as u32, Ordering::Release);
        open(control, clock::now_ns() + 60_000 * MS);
        turning(0, || launcher.is_finished());
        launcher.join().unwrap();
    });
    until_idle(slot);
    begins
}

/// A container of eight workers would have eight slices at a time otherwise, one behind the other on the device.
#[test]
fn what_the_other_processes_of_the_lease_have_issued_is_part_of_its_slice() {
    let _order = one_at_a_time();
    assert!(second_begins(0, 0), "both fit");
    assert!(!second_begins(10 * MS, 0));
    assert!(second_begins(10 * MS, 1), "on another GPU it is in nobody's way");
}
