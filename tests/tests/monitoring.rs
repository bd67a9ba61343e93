//! The alarms and the dashboard that are shipped: what they name is there. That they work is for the scenario `prometheus`.

use gpool_protocol::{EventKind, EventPriority};
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

/// The kinds of events that alarms are about.
fn alarmed_kinds(text: &str) -> BTreeSet<&str> {
    (text.split("gpool_events_total{kind=").skip(1))
        .flat_map(|part| part.trim_start_matches(['~', '"']).split('"').next().unwrap_or_default().split('|'))
        .collect()
}

/// Warnings whose alarm looks at a figure that stands for as long as what they tell of.
const ALARMED_BY_FIGURES: [(EventKind, &str); 5] = [
    (EventKind::GpuSilent, "gpool_gpu_silent"),
    (EventKind::GpuHealth, "gpool_gpu_health"),
    (EventKind::GpuTestFailed, "gpool_gpu_health"),
    (EventKind::DriverReplaced, "gpool_driver_replaced"),
    (EventKind::ConfigurationRefused, "gpool_configuration_usable"),
];

#[test]
fn each_kind_of_event_that_is_a_warning_sets_an_alarm_off() {
    let text = read(ALARMS);
    let (named, figures) = (alarmed_kinds(&text), figures(&text));
    for kind in EventKind::ALL.into_iter().filter(|kind| kind.priority() == EventPriority::Warning) {
        let by_figure = ALARMED_BY_FIGURES.iter().find(|(its, _)| *its == kind).map(|(_, figure)| *figure);
        let is_alarmed = by_figure.map_or(named.contains(kind.word().as_str()), |figure| figures.contains(figure));
        assert!(is_alarmed, "no alarm is about {}", kind.word());
    }
}

#[test]
fn alarms_name_events_and_commands_that_there_are() {
    let text = read(ALARMS);
    let kinds: BTreeSet<String> = EventKind::ALL.iter().map(|kind| kind.word()).collect();
    let named = alarmed_kinds(&text);
    for kind in &named {
        assert!(kinds.contains(*kind), "there is no event {kind}");
    }
    assert!(named.len() > 5, "only {named:?}");
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
