//! Forecasts of what was asked for on a fleet, held against what came: tasks of openb (`cluster-trace-gpu-v2023` of
//! alibaba/clusterdata), 149 days.
//!
//! The data is not part of this repository. `GPOOL_TRACES` names a folder with `openb_pods.csv`: after a header a line for each task, with its
//! GPUs, thousandths of each, and the seconds at which it was created and deleted in the 4th, 5th, 9th and 11th field.

use gpool_policy::forecast::{WEEK_HOURS, forecast, tried};

const HOUR_S: u64 = 3600;

/// Thousandths of GPUs that tasks had in each hour.
fn hours(text: &str) -> Vec<u64> {
    let task = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
        Some((number(3)? * number(4)?, number(8)?, number(10)?))
    };
    let tasks: Vec<(u64, u64, u64)> = text.lines().skip(1).filter_map(task).collect();
    let end_s = tasks.iter().map(|(.., end_s)| *end_s).max().unwrap_or(0);
    let mut sums = vec![0u64; (end_s / HOUR_S) as usize + 1];
    for (permille, begin_s, end_s) in tasks {
        let mut at_s = begin_s;
        while at_s < end_s {
            let until_s = end_s.min((at_s / HOUR_S + 1) * HOUR_S);
            sums[(at_s / HOUR_S) as usize] += permille * (until_s - at_s);
            at_s = until_s;
        }
    }
    sums.into_iter().map(|sum| sum / HOUR_S).collect()
}

#[test]
fn on_a_fleet_the_trend_is_nearer_than_the_last_week() {
    let Ok(folder) = std::env::var("GPOOL_TRACES") else {
        eprintln!("skipped: GPOOL_TRACES names no folder with openb_pods.csv");
        return;
    };
    let path = std::path::Path::new(&folder).join("openb_pods.csv");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let hours = hours(&text);
    let whole = &hours[..hours.len() / WEEK_HOURS * WEEK_HOURS];
    for ahead in [1, 2, 4] {
        let its = tried(whole, ahead).unwrap();
        println!(
            "{ahead} weeks ahead, {} weeks: off by {} permille by the trend, {} as the last week",
            its.weeks, its.trend_permille, its.last_week_permille
        );
        assert!(its.weeks >= 14 && its.trend_permille < its.last_week_permille, "{its:?}");
        assert_eq!(forecast(whole, ahead).unwrap().hours.len(), WEEK_HOURS);
    }
}

#[test]
fn a_task_counts_in_each_hour_for_as_long_as_it_was_there() {
    let text = "h\n0,0,0,2,500,,LS,Running,1800,1800,9000\n1,0,0,0,0,,LS,Running,0,0,3600\n2,0,0,1,1000,,LS,Failed,0,,900\nbroken\n";
    assert_eq!(hours(text), [500 + 250, 1000, 500]);
}
