//! `gpool latency`

use crate::arguments::{Format, LatencyOptions};
use crate::exit::{ExitStatus, Failure};
use crate::output::{self, Column, borderless, csv, figure, text};
use crate::table::format_duration;
use gpool_protocol::{
    Class, Client, ErrorBody, ErrorCode, LeaseId, LeaseState, LeaseView, PromiseState, format_short_time, lease_path,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Of fewer requests nobody says whether a promise is kept.
const ENOUGH: u64 = 100;

/// Between two looks: the supervisor has new figures so often.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// A request is in the figures so long after its end at the latest: it is looked at after two seconds, once in a second.
const FIGURES_LATE: Duration = Duration::from_millis(3500);

const COLUMNS: [Column; 8] = [
    text("CONTAINER"),
    figure("REQUESTS"),
    figure("P50"),
    figure("P99"),
    figure("ALONE"),
    figure("PROMISED"),
    figure("LATE"),
    text("PROMISE"),
];
const HEADER: [&str; 11] = [
    "container_id",
    "lease_id",
    "p99_promised_ns",
    "requests",
    "p50_ns",
    "p99_ns",
    "p99_alone_ns",
    "requests_late",
    "all_requests",
    "all_requests_late",
    "promise",
];

/// Shows how long requests take, and with `--check` ends by what became of the promises: as they stand, or with `--for` by the
/// requests that come meanwhile.
pub fn run(client: &Client, options: &LatencyOptions) -> Result<(), Failure> {
    let mut leases = shown(client, options)?;
    let mut judgement = judge(&leases, None);
    if let Some(seconds) = options.seconds {
        // What comes from now on is in the figures after that.
        std::thread::sleep(FIGURES_LATE);
        let (until, mut watched) = (Instant::now() + Duration::from_secs(seconds), Watched::default());
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match shown(client, options) {
                Ok(seen) => leases = seen,
                // It may be started anew just now.
                Err(refusal) if refusal.code == ErrorCode::SupervisorAbsent && !left.is_zero() => {
                    std::thread::sleep(BETWEEN_LOOKS.min(left));
                    continue;
                }
                Err(refusal) => return Err(refusal.into()),
            }
            watched.note(&leases);
            judgement = judge(&leases, Some(&watched));
            if left.is_zero() || matches!(judgement, Judgement::Missed(_)) {
                break;
            }
            std::thread::sleep(BETWEEN_LOOKS.min(left));
        }
    }
    match options.format {
        Format::Table | Format::Wide => output::print(&borderless(&COLUMNS, leases.iter().map(cells)))?,
        Format::Json => output::print_json("requests", &leases.iter().map(json).collect::<Vec<_>>())?,
        Format::Csv => output::print(&csv(&HEADER, leases.iter().map(csv_cells)))?,
    }
    if options.check { outcome(&leases, judgement) } else { Ok(()) }
}

/// Those that are meant, or all that answer somebody; to be checked, all of those to whom something was promised that can be seen.
fn shown(client: &Client, options: &LatencyOptions) -> Result<Vec<LeaseView>, ErrorBody> {
    if !options.ids.is_empty() {
        return options.ids.iter().map(|id| client.get(&lease_path(id)?)).collect();
    }
    let all: Vec<LeaseView> = client.get("/v1/leases")?;
    let can_be_judged = |lease: &LeaseView| lease.p99_ns.is_some() && lease.requests.is_some();
    let is_shown = |lease: &LeaseView| lease.class == Class::Latency && lease.state == LeaseState::Active;
    Ok(all.into_iter().filter(|lease| is_shown(lease) && (!options.check || can_be_judged(lease))).collect())
}

/// How many requests had been measured, and were late, when it was begun to look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Watched(BTreeMap<LeaseId, (u64, u64)>);

impl Watched {
    /// Who is seen first begins then; a supervisor that was started anew counts from none.
    fn note(&mut self, leases: &[LeaseView]) {
        for (lease, its) in leases.iter().filter_map(|lease| Some((lease, lease.requests?))) {
            let begun = self.0.entry(lease.lease_id.clone()).or_insert((its.all, its.all_late));
            if its.all < begun.0 || its.all_late < begun.1 {
                *begun = (0, 0);
            }
        }
    }

    /// Whether enough have come since, and whether more than one in a hundred of those was late.
    fn is_missed(&self, lease: &LeaseView) -> Option<bool> {
        let its = lease.requests?;
        let (all, late) = self.0.get(&lease.lease_id)?;
        let (all, late) = (its.all.saturating_sub(*all), its.all_late.saturating_sub(*late));
        (all >= ENOUGH && lease.p99_ns.is_some()).then_some(late > all / 100)
    }
}

/// What became of all promises together.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Judgement {
    Kept,
    /// Whose are not.
    Missed(Vec<String>),
    Unknown,
}

fn judge(leases: &[LeaseView], watched: Option<&Watched>) -> Judgement {
    let is_missed = |lease: &LeaseView| match watched {
        Some(watched) => watched.is_missed(lease),
        None => lease.requests.and_then(|its| its.promise).map(|state| state != PromiseState::Kept),
    };
    let missed = leases.iter().filter(|lease| is_missed(lease) == Some(true));
    let missed: Vec<String> = missed.map(|lease| lease.container_id.short().to_owned()).collect();
    match (missed.is_empty(), leases.iter().all(|lease| is_missed(lease).is_some()) && !leases.is_empty()) {
        (false, _) => Judgement::Missed(missed),
        (true, true) => Judgement::Kept,
        (true, false) => Judgement::Unknown,
    }
}

fn outcome(leases: &[LeaseView], judgement: Judgement) -> Result<(), Failure> {
    let refused = |status, sentence: String| Err(Failure::Refused(status, sentence));
    match judgement {
        Judgement::Kept => Ok(()),
        Judgement::Missed(ids) => {
            refused(ExitStatus::Warned, format!("gpool: requests take longer than is promised: {}", ids.join(", ")))
        }
        Judgement::Unknown => {
            // Without a promise nobody can say that it is kept, nor of one that nobody watches.
            let lacks = |lease: &&LeaseView| lease.p99_ns.is_none() || !lease.mechanism.has_shims();
            if let Some(lease) = leases.iter().find(lacks) {
                let short = lease.container_id.short();
                return Err(match lease.p99_ns {
                    None => ErrorBody::new(
                        ErrorCode::RequestInvalid,
                        format!("container {short} was promised no p99"),
                        "give it one with gpool update --p99, for example 20ms",
                    ),
                    Some(_) => ErrorBody::new(
                        ErrorCode::RequestInvalid,
                        format!("nobody sees how long requests of container {short} take: it has no slices"),
                        "start it with mode=slice",
                    ),
                }
                .into());
            }
            let what = match leases.is_empty() {
                true => "no container runs that was promised a p99",
                false => "fewer than 100 requests of each were measured: look for longer with --for",
            };
            refused(ExitStatus::NoCapacity, format!("gpool: nobody can say yet: {what}"))
        }
    }
}

fn cells(lease: &LeaseView) -> Vec<String> {
    let dash = || "-".to_owned();
    let its = lease.requests;
    let time = |ns: Option<u64>| ns.map_or_else(dash, format_duration);
    vec![
        lease.container_id.short().to_owned(),
        its.map_or_else(dash, |its| its.count.to_string()),
        time(its.and_then(|its| its.p50_ns)),
        time(its.and_then(|its| its.p99_ns)),
        time(its.and_then(|its| its.p99_alone_ns)),
        lease.p99_ns.map_or_else(dash, format_short_time),
        its.filter(|_| lease.p99_ns.is_some()).map_or_else(dash, |its| its.late.to_string()),
        its.and_then(|its| its.promise).map_or("-", PromiseState::text).to_owned(),
    ]
}

fn csv_cells(lease: &LeaseView) -> Vec<String> {
    let its = lease.requests;
    let number = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    vec![
        lease.container_id.to_string(),
        lease.lease_id.to_string(),
        number(lease.p99_ns),
        number(its.map(|its| its.count)),
        number(its.and_then(|its| its.p50_ns)),
        number(its.and_then(|its| its.p99_ns)),
        number(its.and_then(|its| its.p99_alone_ns)),
        number(its.map(|its| its.late)),
        number(its.map(|its| its.all)),
        number(its.map(|its| its.all_late)),
        its.and_then(|its| its.promise).map_or("", PromiseState::text).to_owned(),
    ]
}

fn json(lease: &LeaseView) -> serde_json::Value {
    serde_json::json!({
        "container_id": lease.container_id,
        "lease_id": lease.lease_id,
        "p99_ns": lease.p99_ns,
        "requests": lease.requests,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::sample;
    use gpool_protocol::{Mechanism, RequestFigures};

    fn lease(id: &str, promise: Option<PromiseState>) -> LeaseView {
        let figures = RequestFigures {
            all: 5000,
            all_late: 40,
            count: 640,
            p50_ns: Some(4_500_000),
            p99_ns: Some(24_100_000),
            p99_alone_ns: Some(9_000_000),
            late: 12,
            promise,
        };
        LeaseView { class: Class::Latency, p99_ns: Some(20_000_000), requests: Some(figures), ..sample(id, 300) }
    }

    #[test]
    fn a_line_says_what_sharing_adds() {
        let rows =
            [lease("3f9a", Some(PromiseState::MissedOthers)), LeaseView { requests: None, ..lease("b7c1", None) }];
        let want = "\
CONTAINER     REQUESTS    P50     P99  ALONE  PROMISED  LATE  PROMISE
3f9a3f9a3f9a       640  4.5ms  24.1ms  9.0ms      20ms    12  missed-others
b7c1b7c1b7c1         -      -       -      -      20ms     -  -
";
        assert_eq!(borderless(&COLUMNS, rows.iter().map(cells)), want);
        let text = csv(&HEADER, rows.iter().map(csv_cells));
        let line = text.lines().nth(1).unwrap();
        assert!(line.ends_with(",20000000,640,4500000,24100000,9000000,12,5000,40,missed-others"), "{line}");
    }

    #[test]
    fn the_exit_code_says_whether_all_promises_are_kept() {
        let kept = || lease("3f9a", Some(PromiseState::Kept));
        let status = |leases: &[LeaseView]| match outcome(leases, judge(leases, None)) {
            Ok(()) => ExitStatus::Done,
            Err(Failure::Refused(status, _)) => status,
            Err(other) => panic!("{other:?}"),
        };
        assert_eq!(status(&[kept()]), ExitStatus::Done);
        assert_eq!(status(&[kept(), lease("b7c1", Some(PromiseState::MissedItself))]), ExitStatus::Warned);
        assert_eq!(status(&[kept(), lease("b7c1", None)]), ExitStatus::NoCapacity);
        assert_eq!(status(&[]), ExitStatus::NoCapacity);
        let without = LeaseView { p99_ns: None, ..lease("b7c1", None) };
        assert_eq!(status(&[without]), ExitStatus::Usage);
        let whole = LeaseView { requests: None, mechanism: Mechanism::Exclusive, ..lease("b7c1", None) };
        assert_eq!(status(&[whole]), ExitStatus::Usage);
        assert_eq!(status(&[LeaseView { requests: None, ..lease("b7c1", None) }]), ExitStatus::NoCapacity, "not yet");
    }

    #[test]
    fn what_was_before_is_no_measure_of_what_is_looked_at() {
        let with = |all: u64, all_late: u64| {
            let its = lease("3f9a", Some(PromiseState::MissedOthers));
            let requests = its.requests.map(|figures| RequestFigures { all, all_late, ..figures });
            [LeaseView { requests, ..its }]
        };
        let mut watched = Watched::default();
        // A moment after another promise nothing is known yet.
        watched.note(&[LeaseView { requests: None, ..lease("3f9a", None) }]);
        watched.note(&with(5000, 900));
        let mut after = |all, all_late| {
            let leases = with(all, all_late);
            watched.note(&leases);
            judge(&leases, Some(&watched))
        };
        assert_eq!(after(5099, 900), Judgement::Unknown, "too few have come since");
        assert_eq!(after(5200, 902), Judgement::Kept);
        assert_eq!(after(5200, 903), Judgement::Missed(vec!["3f9a3f9a3f9a".to_owned()]));
        assert_eq!(after(150, 1), Judgement::Kept, "it is counted from none again");
    }
}
