//! Looks at leases that begin, end, start anew, and are counted by a supervisor that does.

use super::*;

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

fn worked(lease: LeaseView, seconds: u64) -> LeaseView {
    LeaseView {
        charged_gpu_ns: lease.charged_gpu_ns + seconds * 300 * MS,
        gate_wait_ns: lease.gate_wait_ns + seconds * 250 * MS,
        launches: lease.launches + seconds * 400,
        allocations_refused: lease.allocations_refused + seconds,
        ..lease
    }
}

fn is_unknown(one: &Figures) -> bool {
    let counters = [one.received_permille, one.gate_wait_permille, one.launches, one.allocations_refused];
    counters == [None; 4] && one.launches_per_second().is_none()
}

#[test]
fn figures_are_of_the_time_between_two_readings_of_the_supervisor() {
    let mut looks = Looks::default();
    let first = looks.figures(vec![sample("a", S)], 0).remove(0);
    assert!(is_unknown(&first) && first.interval_ns.is_none(), "the first look compares with nothing: {first:?}");
    assert_eq!(
        (first.memory_used_bytes, first.memory_permille(), first.processes),
        (Some(1 << 30), Some(250), Some(2))
    );
    // Two seconds for the supervisor, whatever this program's clock says.
    let second = looks.figures(vec![worked(sample("a", 3 * S), 2)], S).remove(0);
    assert_eq!(second.interval_ns, Some(2 * S));
    assert_eq!((second.received_permille, second.gate_wait_permille), (Some(300), Some(250)));
    assert_eq!(
        (second.launches, second.launches_per_second(), second.allocations_refused),
        (Some(800), Some(400), Some(2))
    );
}

#[test]
fn an_older_supervisor_is_timed_by_this_program_s_clock() {
    let mut looks = Looks::default();
    let unstamped = |one: LeaseView| LeaseView { read_at_ns: 0, ..one };
    looks.figures(vec![unstamped(sample("a", S))], S);
    let one = looks.figures(vec![unstamped(worked(sample("a", 2 * S), 1))], 5 * S).remove(0);
    assert_eq!((one.interval_ns, one.launches_per_second()), (Some(4 * S), Some(100)));
}

#[test]
fn gpu_time_is_of_the_seconds_in_which_it_is_counted() {
    let mut looks = Looks::default();
    let mut shown = Vec::new();
    for step in 0..8_u64 {
        let (at_ns, second) = (S + step * 400 * MS, 1 + step * 4 / 10);
        let now = LeaseView { charged_at_ns: second * S, ..worked(sample("a", at_ns), second) };
        shown.push(looks.figures(vec![now], 0)[0].received_permille);
    }
    assert_eq!(shown[..3], [None; 3], "nothing was counted anew");
    assert_eq!(shown[3..], [Some(300); 5], "what was counted last holds until the next time");
    let later = LeaseView { read_at_ns: 9 * S, charged_at_ns: 3 * S, ..worked(sample("a", 9 * S), 3) };
    assert_eq!(looks.figures(vec![later], 0)[0].received_permille, None, "six seconds ago is not now");
}

#[test]
fn of_several_gpus_the_mean_was_had() {
    let on_two = |one: LeaseView| LeaseView { gpus: vec![one.gpus[0].clone(), one.gpus[0].clone()], ..one };
    let mut looks = Looks::default();
    looks.figures(vec![on_two(sample("a", S))], 0);
    assert_eq!(looks.figures(vec![on_two(worked(sample("a", 2 * S), 1))], 0)[0].received_permille, Some(150));
}

#[test]
fn who_begins_or_ends_between_two_looks_disturbs_nobody() {
    let mut looks = Looks::default();
    looks.figures(vec![sample("a", S), sample("b", S)], 0);
    let now = looks.figures(vec![worked(sample("a", 2 * S), 1), worked(sample("c", 2 * S), 9)], 0);
    assert_eq!(now.len(), 2);
    assert_eq!((now[0].received_permille, now[0].launches), (Some(300), Some(400)));
    assert!(is_unknown(&now[1]), "what it had before it was seen first is in no interval: {:?}", now[1]);
    // The container of b was started anew: another lease, whose counters are no continuation.
    let now = looks.figures(vec![worked(sample("b2", 3 * S), 1)], 0);
    assert!(is_unknown(&now[0]), "{:?}", now[0]);
    let now = looks.figures(vec![worked(sample("a", 4 * S), 3)], 0);
    assert!(is_unknown(&now[0]), "it was not there at the last look: {:?}", now[0]);
}

#[test]
fn counters_that_go_back_are_no_figures_and_count_on() {
    let mut looks = Looks::default();
    looks.figures(vec![worked(sample("a", S), 5)], 0);
    // A supervisor that was killed has written down less than it had counted.
    let after = looks.figures(vec![worked(sample("a", 2 * S), 4)], 0).remove(0);
    assert!(is_unknown(&after), "{after:?}");
    assert_eq!((after.interval_ns, after.memory_used_bytes), (Some(S), Some(1 << 30)));
    let next = looks.figures(vec![worked(sample("a", 3 * S), 5)], 0).remove(0);
    assert_eq!((next.received_permille, next.launches), (Some(300), Some(400)));
    // One that has just started has counted no GPU time at all.
    let uncounted = LeaseView { charged_at_ns: 0, ..worked(sample("a", 4 * S), 6) };
    let after = looks.figures(vec![uncounted], 0).remove(0);
    assert_eq!((after.received_permille, after.launches), (None, Some(400)));
    let counted = looks.figures(vec![worked(sample("a", 5 * S), 7)], 0).remove(0);
    assert_eq!(counted.received_permille, None, "since when is not known");
}

#[test]
fn after_a_gap_nothing_is_compared() {
    let mut looks = Looks::default();
    looks.figures(vec![sample("a", S)], 0);
    looks.forget();
    assert!(is_unknown(&looks.figures(vec![worked(sample("a", 2 * S), 1)], 0)[0]));
}

#[test]
fn what_nobody_counts_is_unknown() {
    use gpool_protocol::LeaseState;
    use gpool_protocol::Mechanism::{Exclusive, Mig, Mps, Slice, TimeSlice};
    let (active, stranded) = (LeaseState::Active, LeaseState::Stranded);
    for (mechanism, state, has_gpu_time, has_memory, has_reports) in [
        (Slice, active, true, true, true),
        (Exclusive, active, true, true, false),
        (TimeSlice, active, true, true, false),
        (Mps, active, true, true, false),
        (Mig, active, false, true, false),
        (Slice, stranded, false, false, false),
    ] {
        let of = |one: LeaseView| LeaseView { mechanism, state, ..one };
        let mut looks = Looks::default();
        looks.figures(vec![of(sample("a", S))], 0);
        let one = looks.figures(vec![of(worked(sample("a", 2 * S), 1))], 0).remove(0);
        let known = (one.received_permille.is_some(), one.memory_used_bytes.is_some(), one.launches.is_some());
        assert_eq!(known, (has_gpu_time, has_memory, has_reports), "{mechanism} {state:?}");
        let reports = [one.gate_wait_permille.is_some(), one.allocations_refused.is_some(), one.processes.is_some()];
        assert_eq!(reports, [has_reports; 3], "{mechanism} {state:?}");
        assert_eq!(one.memory_permille().is_some(), has_memory);
        assert!(has_gpu_time || !looks.want_a_count(std::slice::from_ref(&one.lease)));
    }
    let uncapped = LeaseView { memory_cap_bytes: 0, ..sample("a", S) };
    assert_eq!(Looks::default().figures(vec![uncapped], 0)[0].memory_permille(), None);
}

#[test]
fn the_first_sample_waits_for_a_count() {
    let mut looks = Looks::default();
    assert!(!looks.want_a_count(&[sample("a", S)]), "who has just come has no figure either way");
    looks.figures(vec![sample("a", S)], 0);
    let at_the_same_count = LeaseView { read_at_ns: 2 * S, ..sample("a", S) };
    assert!(looks.want_a_count(&[at_the_same_count]));
    assert!(!looks.want_a_count(&[sample("a", 2 * S)]));
    looks.figures(vec![worked(sample("a", 2 * S), 1)], 0);
    assert!(!looks.want_a_count(&[sample("a", 2 * S)]), "there is a figure, which holds");
    // One that has just begun is counted for the first time, and for the second.
    let (mut looks, new) = (Looks::default(), LeaseView { charged_at_ns: 0, ..sample("b", S) });
    looks.figures(vec![new.clone()], 0);
    assert!(looks.want_a_count(std::slice::from_ref(&new)));
    assert!(looks.want_a_count(&[worked(sample("b", 2 * S), 1)]));
    let counted = worked(sample("b", 3 * S), 2);
    assert!(!looks.want_a_count(std::slice::from_ref(&counted)));
    let one = looks.figures(vec![counted], 0).remove(0);
    assert_eq!((one.received_permille, one.interval_ns), (Some(300), Some(2 * S)));
}
