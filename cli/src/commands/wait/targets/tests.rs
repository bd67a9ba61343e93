//! Looks at leases and requests that come, go and are told of.

use super::*;

fn lease(id: &str, container: &str, state: LeaseState) -> LeaseView {
    let text = format!(
        r#"{{"lease_id":"{id}","container_id":"{container}","state":"active","gpu_uuid":"GPU-1","fraction_permille":300,
        "received_permille":0,"charged_gpu_ns":0,"memory_cap_bytes":1,"memory_used_bytes":0,"allocations_refused":0,
        "gate_wait_ns":0,"launches":0,"processes":0,"init_pid":null,"cgroup":null,"enforcement":"co-operative",
        "owner_uid":0,"created_unix_ms":100}}"#
    );
    LeaseView { state, ..serde_json::from_str(&text).unwrap() }
}

fn waiting(container: &str) -> WaitingView {
    let text = format!(
        r#"{{"container_id":"{container}","place":1,"owner_uid":0,"since_unix_ms":50,"waited_ms":9,
        "request":{{"fraction_permille":500,"wait_seconds":600}},"cause":"no room"}}"#
    );
    serde_json::from_str(&text).unwrap()
}

fn event(unix_ms: u64, kind: EventKind, lease: Option<&str>, container: &str) -> Event {
    Event {
        sequence: unix_ms,
        unix_ms,
        started_unix_ms: None,
        kind,
        priority: None,
        lease_id: lease.map(|id| LeaseId(id.into())),
        container_id: Some(ContainerId(container.into())),
        uid: Some(0),
        charged: Vec::new(),
        message: format!("{} {container}", kind.word()),
    }
}

fn outcome(snapshot: &Snapshot, target: &Target, awaited: Awaited) -> Option<(Outcome, Option<String>)> {
    let (outcome, event) = snapshot.outcome_of(target, awaited)?;
    Some((outcome, event.map(|event| event.message.clone())))
}

#[test]
fn a_lease_has_ended_when_it_is_gone_or_leaves_a_kept_place() {
    use LeaseState::{Active, Ending, Held, Pending, Revoked, Stranded};
    let target = Target::of_lease(&lease("01", "c", Active));
    for state in [Pending, Active, Revoked, Ending, Stranded] {
        let snapshot = Snapshot { leases: vec![lease("01", "c", state)], ..Snapshot::default() };
        assert_eq!(outcome(&snapshot, &target, Awaited::End), None, "{state:?}");
    }
    let ended = event(200, EventKind::LeaseEnded, Some("01"), "c");
    // The container was started anew: that is another lease.
    for leases in [vec![], vec![lease("01", "c", Held)], vec![lease("02", "c", Active)]] {
        let events = vec![event(150, EventKind::LeaseEnded, Some("00"), "c"), ended.clone()];
        let snapshot = Snapshot { leases: leases.clone(), events, ..Snapshot::default() };
        assert_eq!(outcome(&snapshot, &target, Awaited::End), Some((Outcome::Ended, Some("lease-ended c".to_owned()))));
        // It ended while no supervisor was there to see it.
        let snapshot = Snapshot { leases, ..Snapshot::default() };
        assert_eq!(outcome(&snapshot, &target, Awaited::End), Some((Outcome::Ended, None)));
    }
}

#[test]
fn a_request_is_granted_when_it_has_a_lease_of_its_own() {
    let target = Target::of_waiting(&waiting("c"));
    let waits = Snapshot { waiting: vec![waiting("c")], ..Snapshot::default() };
    assert_eq!(outcome(&waits, &target, Awaited::Grant), None);
    let active = lease("01", "c", LeaseState::Active);
    let granted = event(90, EventKind::LeaseGranted, Some("01"), "c");
    let told = || Some((Outcome::Granted, Some("lease-granted c".to_owned())));
    let snapshot = Snapshot { leases: vec![active.clone()], events: vec![granted.clone()], ..Snapshot::default() };
    assert_eq!(outcome(&snapshot, &target, Awaited::Grant), told());
    let untold = Snapshot { leases: vec![active.clone()], ..Snapshot::default() };
    assert_eq!(outcome(&untold, &target, Awaited::Grant), Some((Outcome::Granted, None)));
    // Granted and over between two looks.
    let over = Snapshot { events: vec![granted.clone()], ..Snapshot::default() };
    assert_eq!(outcome(&over, &target, Awaited::Grant), told());
    // Its MPS server has not taken it in yet.
    let pending = lease("01", "c", LeaseState::Pending);
    let snapshot = Snapshot { leases: vec![pending.clone()], ..Snapshot::default() };
    assert_eq!(outcome(&snapshot, &target, Awaited::Grant), None);
    let snapshot = Snapshot { leases: vec![pending], events: vec![granted], ..Snapshot::default() };
    assert_eq!(outcome(&snapshot, &target, Awaited::Grant), told());
    assert_eq!(outcome(&untold, &Target::of_lease(&active), Awaited::Grant), Some((Outcome::Granted, None)));
}

#[test]
fn who_leaves_the_queue_without_a_lease_is_told_why() {
    let target = Target::of_waiting(&waiting("c"));
    let refused = event(91, EventKind::LeaseRefused, None, "c");
    let unqueued = event(90, EventKind::LeaseUnqueued, None, "c");
    for (events, why) in [
        (vec![], None),
        (vec![unqueued.clone(), refused.clone()], Some("lease-unqueued c".to_owned())),
        (vec![refused], Some("lease-refused c".to_owned())),
        (vec![event(90, EventKind::LeaseUnqueued, None, "other")], None),
    ] {
        let snapshot = Snapshot { events, ..Snapshot::default() };
        assert_eq!(outcome(&snapshot, &target, Awaited::Grant), Some((Outcome::Left, why)));
    }
}

#[test]
fn what_was_before_under_the_same_id_and_what_is_another_user_s_is_not_it() {
    let target = Target::of_waiting(&waiting("c"));
    let old = LeaseView { created_unix_ms: 40, ..lease("00", "c", LeaseState::Held) };
    let of_other = LeaseView { owner_uid: 7, ..lease("07", "c", LeaseState::Active) };
    let events = vec![
        event(40, EventKind::LeaseGranted, Some("00"), "c"),
        Event { uid: Some(7), ..event(95, EventKind::LeaseGranted, Some("07"), "c") },
    ];
    let mut snapshot = Snapshot { leases: vec![old, of_other], events, ..Snapshot::default() };
    assert_eq!(outcome(&snapshot, &target, Awaited::Grant), Some((Outcome::Left, None)));
    snapshot.waiting = vec![WaitingView { owner_uid: 7, ..waiting("c") }];
    assert_eq!(outcome(&snapshot, &target, Awaited::Grant), Some((Outcome::Left, None)));
}

#[test]
fn an_id_means_one_that_waits() {
    let all = [waiting("3f9a"), waiting("b7c1"), waiting("b7c1d")];
    let found = |id: &str| meant(&all, id).map(|one| one.map(|one| one.container_id.0.clone()));
    assert_eq!(found("3f"), Ok(Some("3f9a".to_owned())));
    assert_eq!(found("b7c1"), Ok(Some("b7c1".to_owned())), "a whole id comes before those that begin with it");
    assert_eq!((found("x"), found("")), (Ok(None), Ok(None)));
    assert_eq!(found("b7").unwrap_err().code, ErrorCode::LeaseConflict);
}

#[test]
fn events_of_the_container_or_the_lease_are_looked_at() {
    let target = Target::of_lease(&lease("01", "c", LeaseState::Active));
    let about = |lease, container| event(1, EventKind::LeaseEnded, lease, container);
    assert!(target.is_met_by(&about(Some("01"), "d")) && target.is_met_by(&about(None, "c")));
    assert!(!target.is_met_by(&about(Some("02"), "d")));
    let unasked = Event { lease_id: None, container_id: None, ..about(None, "c") };
    assert!(!target.is_met_by(&unasked) && !Target::of_waiting(&waiting("c")).is_met_by(&unasked));
}
