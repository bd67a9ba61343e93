//! Of programs that wait for events, and of those for which the device waits.

use super::*;

/// The burst of a program that works ahead is as long as one without waits; what has drained is measured without the silence
/// after it.
#[test]
fn an_event_that_is_waited_for_ends_a_burst_once_its_stream_has_drained() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    // Its cost is learnt, with a launch alone.
    launch(process, KERNEL, 100 * US);
    until_idle(slot);
    launch(process, KERNEL, 100 * US);
    let records = DEVICE.lock().records;
    for _ in 0..5 {
        launch(process, KERNEL, 100 * US);
        process.after_event_wait();
    }
    assert_eq!(DEVICE.lock().records, records, "its burst goes on: there is more");
    clock::turn_ns(600 * US);
    process.after_event_wait();
    assert_eq!(DEVICE.lock().records, records + 1, "its end");
    // Long after: the silence is not in it.
    clock::turn_ns(50 * MS);
    until_idle(slot);
    let measured_ns = slot.burst_total_ns.load(Ordering::Relaxed);
    assert!((700 * US - US..=700 * US + US).contains(&measured_ns), "7 launches of 0.1 ms, measured {measured_ns} ns");
}

/// The processor launches more slowly than the device computes: that is no silence, and a burst goes on while launches are
/// added. Once they are not, it ends.
#[test]
fn a_program_that_launches_slowly_has_few_bursts() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    launch(process, KERNEL, 4 * US);
    until_idle(slot);
    let (bursts, records) = (slot.burst_count.load(Ordering::Relaxed), DEVICE.lock().records);
    for _ in 0..100 {
        launch(process, KERNEL, 4 * US);
        for _ in 0..4 {
            clock::turn_ns(10 * US);
            // For the watcher to look.
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    until_idle(slot);
    let count = slot.burst_count.load(Ordering::Relaxed) - bursts;
    assert!((1..=4).contains(&count), "{count} bursts of 100 launches in 4 ms");
    assert!(DEVICE.lock().records - records <= 12);
    let launches = slot.launches.load(Ordering::Relaxed);
    assert_eq!(launches, 101);
}
