//! What those used who have no lease.

use super::*;
use crate::ledger::question::BaselineQuestion;
use crate::ledger::there::Memories;
use crate::ledger::unleased::{GpuSighting, Sighting};
use gpool_policy::sizing::Seen;
use gpool_protocol::{Baseline, Unleased, UnleasedKind, UnleasedUse};

/// The sample's GPU has as much.
const MEMORY: u64 = 16 << 30;
const GIB: u64 = 1 << 30;
const DAY_S: u64 = 86_400;

fn container(name: &str) -> Unleased {
    Unleased { kind: UnleasedKind::Container, name: name.into(), uid: None }
}

fn program(name: &str, uid: u32) -> Unleased {
    Unleased { kind: UnleasedKind::Program, name: name.into(), uid: Some(uid) }
}

/// A second with so many milliseconds of work.
fn second(busy_ms: u64, peak_bytes: u64) -> Sighting {
    let seen = Seen { held_ns: S, busy_ns: busy_ms * 1_000_000, peak_bytes, at_once: 1, ..Seen::default() };
    Sighting { seen, command: "train".into(), pod: Some("ml/a".into()) }
}

/// A look at the GPU after so many seconds, at the second before it.
fn look(unwritten: &mut Unwritten, at_s: u64, users: impl IntoIterator<Item = (Unleased, Sighting)>) {
    let its = GpuSighting { gpu: gpu(), watched_ns: S, users: users.into_iter().collect() };
    unwritten.note(BEGUN_S + at_s, vec![its]);
}

fn baseline(path: &Path, question: &str) -> Baseline {
    let question = format!("since={}&until={}&{question}", BEGUN_S - 20, BEGUN_S + 10_000_000);
    let question = BaselineQuestion::read(&question, BEGUN_S).unwrap();
    let known: Memories = [(gpu().0, MEMORY)].into_iter().collect();
    Reader::open(path, &Rates::default()).unwrap().baseline(&question, &known).unwrap()
}

impl Life {
    /// Enters what was seen beside leases until that second.
    fn enter_seen(&mut self, second: u64, unwritten: &Unwritten) {
        let (batch, next) = self.balance.next(at(second), (&[gpu()], &drawn(0)), &[]);
        self.store.write((&batch, unwritten), (&facts(7), ""), at(second), self.boot).unwrap();
        self.balance = next;
    }
}

/// Ten minutes from twenty seconds past one. In all of them a container works a tenth of the time with 3 GiB, and in the minute
/// that begins after 220 s for nine tenths; a program of user 1000 is there from 220 s to 280 s, with 10 GiB.
fn beside_each_other(path: &Path) -> Life {
    let mut life = Life::begin(path, "a", 0);
    life.enter_seen(0, &Unwritten::default());
    let mut unwritten = Unwritten::default();
    for at_s in 0..600 {
        let busy_ms = if (220..280).contains(&at_s) { 900 } else { 100 };
        let program = (220..280).contains(&at_s).then(|| (program("python3", 1000), second(50, 10 * GIB)));
        look(&mut unwritten, at_s, [(container("a"), second(busy_ms, 3 * GIB))].into_iter().chain(program));
        if at_s % 10 == 9 {
            life.enter_seen(at_s + 1, &unwritten);
            unwritten = Unwritten::default();
        }
    }
    life
}

fn figures(row: &UnleasedUse) -> (u64, u64, u64, u64, Option<u64>, u64) {
    let seconds = [row.held_gpu_ns, row.busy_gpu_ns].map(|ns| ns / S);
    let enough = row.enough.map_or((None, 0), |its| (its.fraction_permille, its.memory_bytes / (256 << 20)));
    (seconds[0], seconds[1], row.work_permille, row.memory_peak_bytes / GIB, enough.0, enough.1)
}

#[test]
fn each_is_told_with_what_would_have_been_enough_and_how_many_gpus_for_all() {
    let (_folder, path) = in_folder();
    let _life = beside_each_other(&path);
    let all = baseline(&path, "percent=100");
    let [first, other] = all.users.as_slice() else { panic!("{all:?}") };
    assert_eq!((&first.user, first.command.as_str()), (&container("a"), "train"));
    assert_eq!(first.pod.as_deref(), Some("ml/a"));
    // 3 GiB and a tenth are 13.2 steps of 256 MiB.
    assert_eq!(figures(first), (600, 108, 900, 3, Some(900), 14));
    assert_eq!((first.first_unix_s, first.last_unix_s), (BEGUN_S - 20, BEGUN_S + 640));
    assert_eq!((&other.user, figures(other)), (&program("python3", 1000), (60, 3, 50, 10, Some(50), 44)));
    let is_whole = |row: &UnleasedUse| row.enough.is_some_and(|its| its.is_whole);
    assert!(is_whole(first) && !is_whole(other));
    // At once they were two; their work and 13 of 16 GiB are one GPU's.
    assert_eq!((all.gpus_for_each, all.gpus_shared, all.there_permille, all.known_ns), (2, 1, 1000, 600 * S));
    // The first has a whole GPU by its request, and beside it a twentieth of another one is asked for.
    assert_eq!(all.gpus_with_requests, 2);
    // The busy minute is a tenth of the time in which it worked.
    let mostly = baseline(&path, "percent=89");
    assert_eq!((figures(&mostly.users[0]).2, is_whole(&mostly.users[0]), mostly.gpus_for_each), (100, false, 1));
    assert_eq!(mostly.gpus_with_requests, 1);
    let of_user = baseline(&path, "percent=100&user=1000");
    assert_eq!((of_user.users.len(), of_user.gpus_for_each, of_user.gpus_shared), (1, 1, 1));
    assert_eq!(baseline(&path, "gpu=GPU-none").users, []);
}

#[test]
fn hours_go_on_with_the_sums_of_their_minutes_and_are_taken_out_in_the_end() {
    let (_folder, path) = in_folder();
    let mut life = beside_each_other(&path);
    let before = baseline(&path, "percent=100");
    let configured = Configured { minute_days: 1, hour_days: 3, ..Configured::default() };
    life.store.forget(&configured, BEGUN_S + 5 * DAY_S / 2).unwrap();
    let merged = baseline(&path, &format!("percent=100&since={}", BEGUN_S - 4000));
    let of = |row: &UnleasedUse| (row.held_gpu_ns, row.busy_gpu_ns, row.memory_peak_bytes, row.user.clone());
    assert_eq!(merged.users.iter().map(of).collect::<Vec<_>>(), before.users.iter().map(of).collect::<Vec<_>>());
    assert_eq!(figures(&merged.users[0]).2, 180, "of the hour: 108 s of 600");
    let hour_s = BEGUN_S + 20 - (BEGUN_S + 20) % 3600 + 3600;
    assert_eq!((before.hours_until_unix_s, merged.hours_until_unix_s), (None, Some(hour_s)));
    assert_eq!((before.known_ns, merged.known_ns, merged.begins_unix_s), (600 * S, 600 * S, Some(hour_s - 3600)));
    for _ in 0..4 {
        life.store.forget(&configured, BEGUN_S + 9 * DAY_S).unwrap();
    }
    let left = |table: &str| -> i64 {
        life.store.connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    };
    assert_eq!(["unleased_line", "unleased", "watched"].map(left), [0; 3]);
}

#[test]
fn what_was_not_written_is_written_later_and_others_are_as_many_as_they_were() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter_seen(0, &Unwritten::default());
    let (mut older, mut newer) = (Unwritten::default(), Unwritten::default());
    // Three others at once, with what they hold together.
    let others = || {
        let seen = Seen { held_ns: 3 * S, busy_ns: S / 2, peak_bytes: 3 * GIB, ..Seen::default() };
        (Unleased::default(), Sighting { seen, ..Sighting::default() })
    };
    look(&mut older, 5, [(program("x", 1), second(1, GIB)), (program("x", 2), second(1, GIB)), others()]);
    look(&mut newer, 6, [(program("x", 1), second(1, 2 * GIB))]);
    newer.take_back(older);
    look(&mut newer, 7, [(program("x", 2), second(1, GIB))]);
    life.enter_seen(10, &newer);
    let all = baseline(&path, "percent=100");
    let of = |user: &Unleased| {
        let row = all.users.iter().find(|row| row.user == *user);
        row.map(|row| (row.held_gpu_ns / S, row.memory_peak_bytes / GIB, row.enough.is_some()))
    };
    assert_eq!([1, 2].map(|uid| of(&program("x", uid))), [Some((2, 2, true)), Some((2, 1, true))]);
    assert_eq!((of(&Unleased::default()), all.known_ns, all.users.len()), (Some((3, 3, false)), 3 * S, 3));
    assert_eq!(all.users[2].user, Unleased::default(), "they are the last");
    // Seven places in three seconds.
    assert_eq!((all.gpus_for_each, all.gpus_with_requests, all.gpus_shared), (3, 1, 1));
}

#[test]
fn time_in_which_nobody_looked_counts_for_nothing() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    // As of a version that did not look yet: three hours of leases, of which ten minutes at the end were watched.
    life.enter(0, &[]);
    life.enter(10_000, &[]);
    let mut unwritten = Unwritten::default();
    for at_s in 10_000..10_600 {
        let both = [(container("a"), second(100, GIB)), (container("b"), second(100, GIB))];
        look(&mut unwritten, at_s, both);
    }
    // Laid down after an outage of the file: minutes in which the pool has hours.
    life.enter_seen(20_000, &unwritten);
    let all = baseline(&path, "");
    assert_eq!((all.gpus_for_each, all.gpus_shared, all.known_ns), (2, 1, 600 * S));
    assert_eq!(all.begins_unix_s, Some((BEGUN_S + 10_000) / 60 * 60));
}

#[test]
fn who_has_contexts_on_several_gpus_and_works_on_one_needs_one() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    let uuids: Vec<GpuUuid> = (0..4).map(|number| GpuUuid(format!("GPU-{number}"))).collect();
    let facts: Vec<GpuFacts> = (uuids.iter())
        .map(|uuid| GpuFacts { uuid: uuid.clone(), name: "a GPU".into(), profile: None, slices: (7, 7) })
        .collect();
    let mut unwritten = Unwritten::default();
    for at_s in 40..340 {
        let look = uuids.iter().enumerate().map(|(number, uuid)| {
            let mut its = second(if number == 0 { 500 } else { 0 }, GIB);
            its.seen.at_once = u64::from(number == 0);
            // Beside it, others that work for all of the time of another GPU.
            let others = Seen { held_ns: 2 * S, busy_ns: S, ..Seen::default() };
            let others = (number == 1).then(|| (Unleased::default(), Sighting { seen: others, ..Sighting::default() }));
            // And one that has a context and does nothing.
            let idle = (number == 3).then(|| (container("b"), second(0, GIB)));
            let users = [(container("a"), its)].into_iter().chain(others).chain(idle).collect();
            GpuSighting { gpu: uuid.clone(), watched_ns: S, users }
        });
        unwritten.note(BEGUN_S + at_s, look.collect());
    }
    let (batch, next) = life.balance.next(at(340), (&uuids, &drawn(0)), &[]);
    life.store.write((&batch, &unwritten), (&facts, ""), at(340), "a").unwrap();
    life.balance = next;
    let all = baseline(&path, "percent=100");
    let enough = all.users[0].enough.unwrap();
    assert_eq!((enough.gpus, enough.fraction_permille), (1, Some(500)));
    assert_eq!((all.users[1].user.name.as_str(), all.users[1].enough.unwrap().fraction_permille), ("b", None));
    // Seven at once, of which two are others; half a GPU, a whole one, and a hundredth; and what they did.
    assert_eq!((all.gpus_for_each, all.gpus_with_requests, all.gpus_shared), (7, 2, 2));
}

#[test]
fn while_nothing_can_be_written_the_oldest_minutes_go_with_the_word_that_they_were_watched() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter_seen(0, &Unwritten::default());
    let mut unwritten = Unwritten::default();
    for minute in 0..50 {
        let all = (0..500).map(|uid| (program("x", uid), second(1, GIB)));
        look(&mut unwritten, minute * 60, all);
    }
    life.enter_seen(3600, &unwritten);
    let all = baseline(&path, "percent=100");
    assert_eq!((all.known_ns, all.users[0].held_gpu_ns), (40 * S, 40 * S), "of 25,000 lines 20,000 are kept");
    assert_eq!(all.gpus_for_each, 500);
}

#[test]
fn a_ledger_of_version_4_goes_on_and_a_question_names_what_is_wrong_with_it() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    drop(life);
    make_older(&path, 4);
    let mut life = Life::begin(&path, "b", 20);
    let mut unwritten = Unwritten::default();
    look(&mut unwritten, 21, [(container("a"), second(100, GIB))]);
    life.enter_seen(30, &unwritten);
    assert_eq!(baseline(&path, "percent=100").users.len(), 1);
    for (query, part) in [
        ("percent=0", "from 1 to 100"),
        ("team=red", "write since, until, user or gpu, and percent"),
        ("by=team", "write since, until, user or gpu, and percent"),
    ] {
        let error = BaselineQuestion::read(query, BEGUN_S).unwrap_err().to_string();
        assert!(error.contains(part), "{query}: {error}");
    }
}
