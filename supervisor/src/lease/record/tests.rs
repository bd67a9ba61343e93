//! What is read of a record, and what follows of it.

use super::*;

#[test]
fn packages_leave_the_directory_of_leases_as_the_supervisor_makes_it() {
    let run_dir = tempfile::tempdir().unwrap();
    prepare(run_dir.path()).unwrap();
    let mode = fs::metadata(run_dir.path().join(LEASES_DIR)).unwrap().mode() & 0o7777;
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
    let text = |file: &str| fs::read_to_string(packaging.join(file)).unwrap();
    let says = |file: &str, line: &str| assert!(text(file).lines().any(|its| its.trim() == line), "{file}: {line}");
    says("systemd/gpool.tmpfiles", &format!("d /run/gpool/leases {mode:04o} root root -"));
    says("debian/postinst", &format!("chmod {mode:o} /run/gpool/leases"));
}

#[test]
fn a_record_of_an_older_supervisor_is_read() {
    let record = sample();
    assert_eq!(record.gpus(), [GpuUuid("GPU-1".into())]);
    assert_eq!((record.limit_permille, record.class, record.priority), (None, Class::Batch, Priority::Guaranteed));
    assert_eq!(record.highest_cap_bytes, None);
    assert!(record.shims.is_empty() && record.uncounted_calls == 0 && record.mechanism == Mechanism::Slice);
    assert!(record.revocation.is_none() && !record.has_no_share());
    assert!(!record.paused && !record.unenforced && record.standing.is_none() && record.processes.is_empty());
}

#[test]
fn a_budget_that_was_spent_is_known_to_the_next_supervisor() {
    let beyond = Record { priority: Priority::Burst, has_no_hours: true, ..sample() };
    let read: Record = serde_json::from_str(&serde_json::to_string(&beyond).unwrap()).unwrap();
    assert!(read == beyond && read.is_beyond_budget() && !sample().is_beyond_budget());
    let promised_since = Record { priority: Priority::Guaranteed, ..beyond.clone() };
    assert!(!promised_since.is_beyond_budget(), "an older supervisor has kept the mark and promised it again");
    assert_eq!(beyond.with_its_promise(), sample());
}

#[test]
fn a_container_comes_back_under_its_id_or_its_name_in_the_pod_and_to_its_user() {
    let place = |name: &str| Some(PodPlace { sandbox_id: "s".into(), container_name: name.into() });
    let record = Record { in_pod: place("web"), ..sample() };
    let comes_back = |record: &Record, id: &str, in_pod: Option<PodPlace>, uid: u32| {
        let text = format!(r#"{{"container_id":"{id}","request":{{"fraction_permille":300}}}}"#);
        let asked = LeaseRequest { in_pod, ..serde_json::from_str(&text).unwrap() };
        record.is_started_anew_by(&asked, uid)
    };
    assert!(comes_back(&record, "c", None, 0) && comes_back(&record, "next", place("web"), 0));
    assert!(!comes_back(&record, "next", place("log"), 0) && !comes_back(&record, "next", None, 0));
    assert!(!comes_back(&record, "next", place("web"), 1000), "of another user");
    assert!(!comes_back(&sample(), "next", None, 0), "two that are in no pod are not the same");
}

#[test]
fn what_was_not_watched_is_no_idle_time() {
    let mut record = sample();
    assert_eq!(record.idleness(900, 40).idle_ns(900), 0, "of an older supervisor's nothing is known");
    record.standing = Some(StandingRecord { at_ns: 0, gpus: Vec::new(), counted: None, used_ns: Some(100) });
    assert_eq!((record.idleness(900, 0).idle_ns(900), record.idleness(900, 300).idle_ns(900)), (800, 500));
    assert_eq!(record.idleness(900, u64::MAX).idle_ns(900), 0);
}

#[test]
fn a_cap_in_time_slices_is_one_where_it_was_asked_for() {
    let uncapped = Record { mechanism: Mechanism::TimeSlice, ..sample() };
    assert_eq!((uncapped.cap_bytes(), uncapped.promised_bytes(), uncapped.limit_bytes()), (0, 0, None));
    let capped = Record { caps_time_slices: true, ..uncapped };
    let cap_bytes = capped.memory_cap_bytes;
    assert_eq!((capped.promised_bytes(), capped.limit_bytes()), (cap_bytes, Some(cap_bytes)));
    assert_eq!(Record { unenforced: true, ..capped }.limit_bytes(), None, "it could lift the limit itself");
    assert_eq!(Record { mechanism: Mechanism::Exclusive, ..sample() }.limit_bytes(), None);
}

#[test]
fn no_more_is_believed_than_was_ever_allowed() {
    let mut record = sample();
    (record.memory_cap_bytes, record.highest_cap_bytes) = (4, Some(9));
    assert_eq!([3, 8, u64::MAX].map(|said| record.believed_peak(said)), [3, 8, 9]);
    let counted = Some(Counted { peak_bytes: u64::MAX, ..Counted::default() });
    record.standing = Some(StandingRecord { at_ns: 0, gpus: Vec::new(), counted, used_ns: None });
    assert_eq!(record.written_peak(), 9, "nor of what was written down");
    record.mechanism = Mechanism::Exclusive;
    assert_eq!(record.believed_peak(10), 10, "that is the device's own figure");
}
