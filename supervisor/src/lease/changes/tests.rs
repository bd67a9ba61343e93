use super::super::record::sample;
use super::*;
use gpool_protocol::{Class, CountedResource, Priority};

const GIB: u64 = 1 << 30;
const PLAIN: &str = r#"{"fraction_permille":300,"limit_permille":600}"#;

fn asked(id: &str, request: &str) -> LeaseRequest {
    serde_json::from_str(&format!(r#"{{"container_id":"{id}","request":{request}}}"#)).unwrap()
}

/// Of a container that asks so, and has that.
fn record_of(its: &LeaseRequest) -> Record {
    let Request { fraction_permille, limit_permille, .. } = its.request;
    Record {
        container_id: its.container_id.clone(),
        in_pod: its.in_pod.clone(),
        asked: Some(Asked::of(&its.request, 4 * GIB)),
        fraction_permille,
        limit_permille,
        ..sample()
    }
}

fn noted(changes: &Changes, record: &Record) {
    changes.0.change(|all| enter(all, record, &[record], 7)).unwrap();
}

#[test]
fn who_is_started_anew_has_what_it_was_changed_to_and_another_one_has_not() {
    let directory = tempfile::tempdir().unwrap();
    let (changes, its) = (Changes::open(directory.path()), asked("c", PLAIN));
    assert_eq!(changes.of(&its, 0), None);
    let changed = Record {
        fraction_permille: 500,
        limit_permille: None,
        priority: Priority::Burst,
        class: Class::Train,
        ..record_of(&its)
    };
    noted(&changes, &changed);
    let again = Changes::open(directory.path());
    let (request, before) = again.of(&its, 0).unwrap();
    let want = Request {
        mode: Mode::Slice,
        fraction_permille: 500,
        limit_permille: None,
        memory: Some(MemoryCap::Bytes(4 * GIB)),
        priority: Priority::Burst,
        class: Class::Train,
        ..its.request.clone()
    };
    assert_eq!((request.request, &before), (want, changed.asked.as_ref().unwrap()), "with the memory that it had");
    assert_eq!(again.of(&its, 1000), None, "of another user");
    assert_eq!(again.of(&asked("d", PLAIN), 0), None);
    assert_eq!(again.of(&asked("c", r#"{"fraction_permille":300}"#), 0), None, "made anew under its name");
    // It has waited for a while.
    let waits = Request { wait_seconds: Some(37), ..its.request.clone() };
    let request = again.of(&LeaseRequest { request: waits, ..its.clone() }, 0).unwrap().0.request;
    assert_eq!((request.fraction_permille, request.wait_seconds), (500, Some(37)));
}

#[test]
fn what_is_changed_back_is_not_remembered() {
    let directory = tempfile::tempdir().unwrap();
    let changes = Changes::open(directory.path());
    for request in [
        r#"{"fraction_permille":300}"#,
        r#"{"fraction_permille":300,"memory":{"bytes":4294967296}}"#,
        r#"{"fraction_permille":300,"memory":{"permille":250},"mode":"auto"}"#,
    ] {
        let its = asked("c", request);
        let record = record_of(&its);
        for other in [
            Record { fraction_permille: 200, ..record.clone() },
            Record { memory_cap_bytes: 3 * GIB, ..record.clone() },
            Record { spill_bytes: GIB, ..record.clone() },
        ] {
            noted(&changes, &other);
            assert!(changes.of(&its, 0).is_some() && told(&other).contains("it asks for 30 %"), "{other:?}");
            noted(&changes, &record);
            assert!(changes.of(&its, 0).is_none() && told(&record).is_empty(), "{request}");
        }
    }
}

#[test]
fn a_budget_that_is_spent_is_no_change() {
    let record = record_of(&asked("c", PLAIN));
    assert_eq!(told(&Record { priority: Priority::Burst, has_no_hours: true, ..record }), "");
}

#[test]
fn nothing_is_remembered_of_who_does_not_come_back_or_is_somebody_elses_or_a_part_of_something_else() {
    let directory = tempfile::tempdir().unwrap();
    let changes = Changes::open(directory.path());
    let its = asked("c", PLAIN);
    let plain = Record { fraction_permille: 500, ..record_of(&its) };
    for record in [
        Record { asked: None, ..plain.clone() },
        Record { starts_once: true, ..plain.clone() },
        Record { owner_uid: 1000, ..plain.clone() },
        Record { resource: Some(CountedResource::Percent(30)), ..plain.clone() },
        Record { mig_profile: Some("3g.20gb".into()), ..plain.clone() },
        Record { mechanism: Mechanism::Mps, ..plain.clone() },
    ] {
        noted(&changes, &record);
        assert_eq!(changes.of(&its, 0), None);
    }
    let place = |name: &str| Some(PodPlace { sandbox_id: "s".into(), container_name: name.into() });
    noted(&changes, &Record { in_pod: place("web"), ..plain });
    let next = |name: &str| LeaseRequest { in_pod: place(name), ..asked("next", PLAIN) };
    assert!(changes.of(&next("web"), 0).is_some() && changes.of(&next("log"), 0).is_none());
}

#[test]
fn those_that_run_are_not_forgotten_nor_what_cannot_be_read() {
    let of = |number: usize| record_of(&asked(&format!("c{number}"), PLAIN));
    let changed = |number: usize| Record { fraction_permille: 200, ..of(number) };
    let (runs, unknown) = (changed(0), Entry::Unknown(serde_json::json!({"container_id": "x", "later": 1})));
    let mut all = vec![unknown.clone()];
    enter(&mut all, &runs, &[&runs], 1);
    for number in 1..REMEMBERED + 4 {
        let record = changed(number);
        enter(&mut all, &record, &[&runs, &record], 1 + number as u64);
    }
    let ids: Vec<&str> = all.iter().filter_map(Entry::change).map(|its| its.container_id.0.as_str()).collect();
    assert_eq!((ids[0], ids[1], all.len(), &all[0]), ("c0", "c3", REMEMBERED + 3, &unknown));
    let text = serde_json::to_string(&all).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Entry>>(&text).unwrap(), all);
}

#[test]
fn what_is_no_more_has_room_wherever_there_is_some_for_what_is_asked() {
    let of = |text: &str| asked("c", text).request;
    let own = Asked::of(&of(r#"{"fraction_permille":300,"mode":"slice"}"#), 4 * GIB);
    let less = Request { fraction_permille: 100, memory: Some(MemoryCap::Bytes(4 * GIB)), ..own.request.clone() };
    assert!(is_no_more(&less, &own) && is_no_more(&own.request, &own));
    for more in [
        Request { fraction_permille: 400, ..less.clone() },
        Request { memory: Some(MemoryCap::Bytes(5 * GIB)), ..less.clone() },
        Request { spill_bytes: Some(GIB), ..less.clone() },
        Request { priority: Priority::Burst, ..less.clone() },
        Request { class: Class::Latency, ..less.clone() },
        Request { mode: Mode::TimeSlice, ..less.clone() },
    ] {
        assert!(!is_no_more(&more, &own), "{more:?}");
    }
}
