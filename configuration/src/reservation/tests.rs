use super::*;
use crate::{Configuration, ConfigurationError, differences, parse};
use std::path::Path;

fn parsed(text: &str) -> Result<Configuration, ConfigurationError> {
    parse(Path::new("/etc/gpool/config.toml"), text)
}

fn reservation(keys: &str) -> Reservation {
    parsed(&format!("[reservation.r]\nteams = [\"vision\"]\n{keys}\n")).unwrap().reservation.remove("r").unwrap()
}

fn at(text: &str) -> DateTime {
    text.parse().unwrap()
}

fn phase(keys: &str, now: &str) -> Phase {
    reservation(keys).phase(at(now))
}

fn open(until: &str) -> Phase {
    Phase::Open(Some(at(until)))
}

fn closed(until: &str) -> Phase {
    Phase::Closed(Some(at(until)))
}

#[test]
fn what_is_left_out_is_all_of_a_gpu_for_good() {
    let plain = reservation("");
    assert_eq!((plain.gpus, plain.fraction.permille, plain.memory, plain.ahead_seconds), (1, 1000, None, 0));
    assert!(plain.is_for_good() && plain.phase(at("2026-12-01")) == Phase::Open(None));
    let part =
        reservation("fraction = \"0.25\"\nmemory = \"10GiB\"\ngpus = 2\nmodel = \"H100\"\npriority = \"guaranteed\"");
    assert_eq!((part.fraction.permille, part.memory.unwrap().bytes >> 30), (250, 10));
    assert_eq!(part.priority, Some(LeastPriority::Guaranteed));
}

#[test]
fn one_time_has_a_begin_and_an_end() {
    let keys = "from = \"2026-12-01 08:00\"\nuntil = \"2026-12-03\"";
    assert_eq!(phase(keys, "2026-11-30 23:00"), closed("2026-12-01 08:00"));
    assert_eq!(phase(keys, "2026-12-01 08:00"), open("2026-12-03 00:00"));
    assert_eq!(phase(keys, "2026-12-03 00:00"), Phase::Closed(None));
    assert_eq!(phase("from = \"2026-12-01\"", "2027-01-01"), Phase::Open(None));
    assert_eq!(phase("until = \"2026-12-01\"", "2026-11-01"), open("2026-12-01"));
}

#[test]
fn windows_come_back_each_week() {
    // 2026-12-01 is a Tuesday.
    let office = "windows = [\"Mon-Fri 08:00-18:00\"]";
    assert_eq!(phase(office, "2026-12-01 07:59"), closed("2026-12-01 08:00"));
    assert_eq!(phase(office, "2026-12-01 08:00"), open("2026-12-01 18:00"));
    assert_eq!(phase(office, "2026-12-04 18:00"), closed("2026-12-07 08:00"), "there is a weekend between");
    let night = "windows = [\"Mon-Sun 22:00-06:00\"]";
    assert_eq!(phase(night, "2026-12-01 03:00"), open("2026-12-01 06:00"), "it began the day before");
    assert_eq!(phase(night, "2026-12-01 23:00"), open("2026-12-02 06:00"));
    let touching = "windows = [\"Tue 08:00-24:00\", \"Wed 00:00-06:00\", \"Wed 05:00-07:00\"]";
    assert_eq!(phase(touching, "2026-12-01 09:00"), open("2026-12-02 07:00"));
    assert_eq!(phase(touching, "2026-12-02 07:00"), closed("2026-12-08 08:00"), "next week");
    assert_eq!(phase("windows = [\"Mon-Sun 00:00-24:00\"]", "2026-12-01 09:00"), Phase::Open(None), "there is no gap");
}

#[test]
fn windows_are_within_the_time_from_when_until_when() {
    let keys = "from = \"2026-12-01 12:00\"\nuntil = \"2026-12-08 09:00\"\nwindows = [\"Mon-Tue 08:00-18:00\"]";
    assert_eq!(phase(keys, "2026-11-01"), closed("2026-12-01 12:00"), "the window is open then");
    assert_eq!(phase(keys, "2026-12-01 12:00"), open("2026-12-01 18:00"));
    assert_eq!(phase(keys, "2026-12-02"), closed("2026-12-07 08:00"));
    assert_eq!(phase(keys, "2026-12-08 08:30"), open("2026-12-08 09:00"));
    assert_eq!(phase(keys, "2026-12-08 09:00"), Phase::Closed(None));
    let short = "until = \"2026-12-03\"\nwindows = [\"Fri 08:00-18:00\"]";
    assert_eq!(phase(short, "2026-12-01"), Phase::Closed(None), "it ends before that");
    let later = "from = \"2027-03-02\"\nwindows = [\"Mon 08:00-18:00\"]";
    assert_eq!(phase(later, "2026-12-01"), closed("2027-03-08 08:00"));
}

#[test]
fn what_cannot_be_is_refused_with_what_to_write() {
    for (text, parts) in [
        ("[reservation.r]\ngpus = 1", ["line 2", "reservation.r.teams", "teams, users or a priority"]),
        ("[reservation.r]\nteams = [\"a b\"]", ["line 2", "reservation.r.teams", "\"a b\""]),
        ("[reservation.r]\nusers = [7]\ngpus = 17", ["line 3", "reservation.r.gpus", "1 to 16"]),
        ("[reservation.r]\nusers = [7]\nfraction = 0", ["line 3", "reservation.r.fraction", "memory"]),
        ("[reservation.r]\nusers = [7]\nfraction = \"1.5\"", ["line 3", "fraction", "0 to 1"]),
        ("[reservation.r]\nusers = [7]\nmodel = \" \"", ["line 3", "reservation.r.model", "a word of one"]),
        (
            "[reservation.r]\nusers = [7]\nfrom = \"2026-12-02\"\nuntil = \"2026-12-01\"",
            ["line 4", "reservation.r.until = \"2026-12-01 00:00\"", "later"],
        ),
        ("[reservation.r]\nusers = [7]\nuntil = \"2026-12-01T08:00Z\"", ["line 3", "until", "local time"]),
        ("[reservation.r]\nusers = [7]\nuntil = \"2026-12-01 08:00+05:00\"", ["line 3", "until", "local time"]),
        ("[reservation.r]\nusers = [7]\nuntil = \"2026-12-01 08:00-04\"", ["line 3", "until", "local time"]),
        ("[reservation.r]\nusers = [7]\nahead_seconds = 700000", ["line 3", "ahead_seconds", "604800"]),
        ("[reservation.r]\nusers = [7]\nwindows = [\"Xyz 1-2\"]", ["line 3", "windows", "write days"]),
        ("[reservation.\"a b\"]\nusers = [7]", ["reservation", "\"a b\"", "letters"]),
        ("[reservation.r]\nteam = \"vision\"", ["line 2", "team", "teams"]),
    ] {
        let error = parsed(text).unwrap_err().to_string();
        parts.iter().for_each(|part| assert!(error.contains(part), "{text}\ngives {error}, which lacks {part}"));
    }
}

#[test]
fn a_changed_reservation_is_told_by_its_table() {
    let old = parsed("[reservation.r]\nusers = [7]\nuntil = \"2026-12-01 08:00\"").unwrap();
    let new = parsed("[reservation.r]\nusers = [7]\nuntil = \"2026-12-01T08:00:30\"").unwrap();
    let told: Vec<_> = differences(&old, &new).into_iter().map(|it| (it.key, it.old, it.new)).collect();
    let text = |text: &str| Some(text.to_owned());
    let want = ("reservation.r.until".to_owned(), text("\"2026-12-01 08:00\""), text("\"2026-12-01 08:00:30\""));
    assert_eq!(told, [want]);
}
