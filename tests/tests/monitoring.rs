//! The alarms and the dashboard that are shipped: what they name is there. That they work is for the scenario `prometheus`.

use gpool_protocol::EventKind;
use gpool_tests::manual::{self, command_lines};
use std::collections::BTreeSet;
use std::fs;

const ALARMS: &str = "configs/prometheus/gpool-alerts.yml";
const DASHBOARD: &str = "configs/grafana/gpool.json";

fn read(file: &str) -> String {
    fs::read_to_string(manual::repository().join(file)).unwrap()
}

/// Words that begin like a figure of gpool.
fn figures(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("gpool_")).collect()
}

#[test]
fn alarms_and_the_dashboard_name_figures_that_there_are() {
    let page = read("docs/reference/metrics.md");
    let known = figures(&page);
    for file in [ALARMS, DASHBOARD] {
        let text = read(file);
        let named = figures(&text);
        assert!(named.len() > 15, "{file} names {named:?}");
        let unknown: Vec<_> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "{file}: there is no {unknown:?}");
    }
}

#[test]
fn alarms_name_events_and_commands_that_there_are() {
    let text = read(ALARMS);
    let kinds: BTreeSet<String> = EventKind::ALL.iter().map(|kind| kind.word()).collect();
    let mut named = 0;
    for part in text.split("gpool_events_total{kind=").skip(1) {
        let value = part.trim_start_matches(['~', '"']).split('"').next().unwrap_or_default();
        for kind in value.split('|') {
            assert!(kinds.contains(kind), "there is no event {kind}");
            named += 1;
        }
    }
    assert!(named > 5, "only {named} kinds of events");
    for words in text.lines().filter_map(|line| line.trim().strip_prefix("description: ")) {
        // Commands stand in sentences, without marks: from the name on to the end of what could be one.
        for (place, _) in words.match_indices("gpool ") {
            let rest = &words[place..];
            let end = rest.find([';', '.', ',', ')', '{']).unwrap_or(rest.len());
            let sentence: Vec<&str> = rest[..end].split_whitespace().collect();
            let is_one =
                (2..=sentence.len()).any(|count| command_lines::mention_defect(&sentence[..count].join(" ")).is_none());
            assert!(is_one, "{rest:?} begins with no command");
        }
    }
}

#[test]
fn each_alarm_has_a_test_and_says_what_to_do() {
    let (text, tests) = (read(ALARMS), read("tests/prometheus/alerts.yml"));
    let names: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() > 15, "only {names:?}");
    for name in &names {
        let of_it: Vec<&str> = text.split("- alert: ").filter(|part| part.starts_with(&format!("{name}\n"))).collect();
        assert!(of_it.len() == 1 && of_it[0].contains("description: ") && of_it[0].contains("severity: "), "{name}");
        assert!(tests.contains(&format!("alertname: {name}\n")), "nothing sets {name} off in its tests");
    }
}
