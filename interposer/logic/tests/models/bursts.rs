//! The ring of bursts, written by the process and read by the supervisor.

use super::lease::Lease;
use gpool_interposer_logic::announce::publish;
use gpool_shared_region::BurstTag;
use loom::sync::atomic::Ordering;
use loom::thread;

#[test]
fn no_burst_is_read_half_written() {
    loom::model(|| {
        let lease = Lease::new();
        let process = {
            let lease = lease.clone();
            thread::spawn(move || {
                (0..2).for_each(|n| {
                    publish(lease.slot(0), BurstTag(n + 1), 10 * n + 5, 10 * n + 8, 1);
                })
            })
        };
        let slot = lease.slot(0);
        // The count lies before the ring, and pread copies in that order.
        let count = slot.burst_count.load(Ordering::Acquire);
        let total_ns = slot.burst_total_ns.load(Ordering::Relaxed);
        for n in 0..count {
            let record = &slot.bursts[n as usize];
            let read = (record.start_ns.load(Ordering::Relaxed), record.end_ns.load(Ordering::Relaxed));
            assert_eq!(read, (10 * n + 5, 10 * n + 8));
            assert_eq!(slot.burst_tags[n as usize].load(Ordering::Relaxed), n + 1);
        }
        assert!(total_ns >= 3 * count, "the sum is never behind the count");
        process.join().unwrap();
    });
}
