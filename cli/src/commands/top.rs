//! `gpool top`

use super::events::is_absence;
use super::{ps, shown};
use crate::arguments::{Format, TopOptions, TopSort};
use crate::exit::Failure;
use crate::follower::say;
use crate::live::LiveBlock;
use crate::output;
use crate::table::{GateWait, LeaseRow, render, render_csv, render_wide};
use gpool_protocol::{Client, LeaseId, LeaseView};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Instant;

/// Watches the leases until the reader goes away or a signal ends the program.
pub fn run(client: &Client, options: &TopOptions) -> Result<(), Failure> {
    let TopOptions { once, interval, format, .. } = *options;
    let mut live = LiveBlock::on_stdout();
    let (mut seen, mut is_first, mut is_away, mut has_header) = (Seen::default(), true, false, false);
    loop {
        let at = Instant::now();
        let mut leases = match shown::leases(client, &options.whose) {
            Ok(leases) => leases,
            Err(error) if once || is_first || !is_absence(&error) => return Err(error.into()),
            Err(error) => {
                // A restart or an upgrade takes seconds, and whoever watches goes on after it.
                if !std::mem::replace(&mut is_away, true) {
                    live.leave();
                    say(&format!("gpool: {}; it goes on when it answers", error.message));
                }
                // What happened meanwhile is not of one interval.
                seen = Seen::default();
                std::thread::sleep(interval.saturating_sub(at.elapsed()));
                continue;
            }
        };
        (is_first, is_away) = (false, false);
        if matches!(format, Format::Table | Format::Wide) {
            let mut rows = seen.rows(Look { at, leases });
            first(&mut rows, options, Clone::clone);
            let drawn = if format == Format::Wide { render_wide(&rows) } else { render(&rows) };
            live.draw(&mut std::io::stdout().lock(), &drawn)?;
        } else {
            first(&mut leases, options, |lease| LeaseRow::from(lease));
            match format {
                Format::Csv => output::print(&csv_block(&leases, std::mem::replace(&mut has_header, true)))?,
                _ => ps::print(&leases, format)?,
            }
        }
        if once {
            return Ok(());
        }
        std::thread::sleep(interval.saturating_sub(at.elapsed()));
    }
}

/// Brings them into the order that is asked for, and leaves as many as are.
fn first<T>(all: &mut Vec<T>, options: &TopOptions, row: impl Fn(&T) -> LeaseRow) {
    match options.sort {
        None => {}
        Some(TopSort::Name) => all.sort_by_cached_key(|its| row(its).container),
        Some(sort) => all.sort_by_cached_key(|its| Reverse(figure(&row(its), sort))),
    }
    all.truncate(options.lines.unwrap_or(usize::MAX));
}

/// What the order goes by; none where nobody knows.
fn figure(row: &LeaseRow, sort: TopSort) -> Option<u64> {
    match sort {
        TopSort::Received => Some(row.received_permille),
        TopSort::Memory => Some(row.memory_used_bytes),
        // Of one look all are in the same unit, but for those that are new in it.
        TopSort::Gate => match row.gate_wait {
            GateWait::TotalNs(figure) | GateWait::Permille(figure) => Some(figure),
        },
        TopSort::Idle => row.idle_seconds,
        TopSort::Name => None,
    }
}

/// The lines of one look. The first has the header, so that all of them are one file.
fn csv_block(leases: &[LeaseView], has_header: bool) -> String {
    let block = render_csv(leases);
    match block.split_once('\n') {
        Some((_, lines)) if has_header => lines.to_owned(),
        _ => block,
    }
}

struct Look {
    at: Instant,
    leases: Vec<LeaseView>,
}

/// What of a lease is compared with an earlier look.
#[derive(Debug, Clone, Copy)]
struct Counted {
    charged_ns: u64,
    /// When it was charged, by the supervisor's clock: it counts once a second, however often it is asked.
    charged_at_ns: u64,
    received_permille: u64,
}

/// What the looks so far have shown.
#[derive(Default)]
struct Seen {
    last: Option<Look>,
    counted: HashMap<LeaseId, Counted>,
}

impl Seen {
    /// The first look shows the supervisor's own averages, each later one what happened since the look before.
    fn rows(&mut self, look: Look) -> Vec<LeaseRow> {
        let last = self.last.as_ref();
        let before: HashMap<&LeaseId, &LeaseView> =
            last.iter().flat_map(|last| &last.leases).map(|lease| (&lease.lease_id, lease)).collect();
        let elapsed_ns = last.map_or(1, |last| look.at.duration_since(last.at).as_nanos().max(1));
        let mut counted = HashMap::new();
        let mut rows = Vec::new();
        for lease in &look.leases {
            let mut row = LeaseRow::from(lease);
            let its = counted_since(self.counted.get(&lease.lease_id), lease);
            if let Some(before) = before.get(&lease.lease_id) {
                row.received_permille = its.received_permille;
                row.gate_wait = GateWait::Permille(permille(lease.gate_wait_ns, before.gate_wait_ns, elapsed_ns));
            }
            counted.insert(lease.lease_id.clone(), its);
            rows.push(row);
        }
        (self.last, self.counted) = (Some(look), counted);
        rows
    }
}

/// What `lease` has had since the supervisor counted `before`; the same as then until it counts again.
fn counted_since(before: Option<&Counted>, lease: &LeaseView) -> Counted {
    let (charged_ns, charged_at_ns) = (lease.charged_gpu_ns, lease.charged_at_ns);
    let received_permille = match before {
        Some(before) if before.charged_at_ns == charged_at_ns && charged_at_ns > 0 => return *before,
        // One that began anew counts from its own beginning.
        Some(before) if before.charged_at_ns < charged_at_ns && before.charged_at_ns > 0 => {
            let elapsed_ns = u128::from(charged_at_ns - before.charged_at_ns);
            permille(charged_ns, before.charged_ns, elapsed_ns * lease.gpus.len().max(1) as u128)
        }
        _ => lease.received_permille.into(),
    };
    Counted { charged_ns, charged_at_ns, received_permille }
}

fn permille(now_ns: u64, before_ns: u64, elapsed_ns: u128) -> u64 {
    (u128::from(now_ns.saturating_sub(before_ns)) * 1000 / elapsed_ns) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    const S: u64 = 1_000_000_000;

    fn options(sort: Option<TopSort>, lines: Option<usize>) -> TopOptions {
        TopOptions {
            once: true,
            interval: Duration::ZERO,
            sort,
            whose: Default::default(),
            lines,
            format: Format::Json,
        }
    }

    fn view() -> LeaseView {
        let text = r#"{"lease_id":"01","container_id":"c","state":"active","gpu_uuid":"GPU-1","fraction_permille":300,
            "received_permille":250,"charged_gpu_ns":0,"memory_cap_bytes":3,"memory_used_bytes":4,"allocations_refused":5,
            "gate_wait_ns":0,"launches":7,"processes":0,"init_pid":null,"cgroup":null,"enforcement":"co-operative",
            "owner_uid":0,"created_unix_ms":9}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn those_with_the_most_come_first_and_no_more_than_are_asked_for() {
        let of = |id: &str, received_permille, memory_used_bytes, gate_wait_ns, idle_seconds| LeaseView {
            container_id: gpool_protocol::ContainerId(id.into()),
            received_permille,
            memory_used_bytes,
            gate_wait_ns,
            idle_seconds,
            ..view()
        };
        let all = [of("c", 5, 20, 9, None), of("a", 9, 10, 7, Some(3)), of("b", 7, 30, 8, Some(600))];
        let order = |sort, lines| {
            let mut leases = all.to_vec();
            first(&mut leases, &options(sort, lines), |lease| LeaseRow::from(lease));
            leases.into_iter().map(|lease| lease.container_id.0).collect::<String>()
        };
        assert_eq!((order(None, None), order(None, Some(2))), ("cab".into(), "ca".into()));
        let sorted = [TopSort::Received, TopSort::Memory, TopSort::Gate, TopSort::Idle, TopSort::Name];
        assert_eq!(sorted.map(|sort| order(Some(sort), None)), ["abc", "bca", "cba", "bac", "abc"]);
        assert_eq!(order(Some(TopSort::Memory), Some(1)), "b");
    }

    #[test]
    fn a_look_that_fails_ends_it_only_where_it_is_the_first_or_the_only_one() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let client = Client::new(&socket);
        let answer = |text: &str| {
            let mut stream = listener.accept().unwrap().0;
            let _ = stream.read(&mut [0; 512]).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
        };
        let none = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]";
        let watch = |once: bool| {
            let client = client.clone();
            let options = TopOptions { once, interval: Duration::from_millis(10), ..options(None, None) };
            std::thread::spawn(move || run(&client, &options).is_ok())
        };
        let only = watch(true);
        answer("");
        assert!(!only.join().unwrap());
        let first = watch(false);
        answer("");
        assert!(!first.join().unwrap());
        let goes_on = watch(false);
        // It asks again after what failed, or nobody would come to be answered.
        [none, "", "", none].into_iter().for_each(answer);
        assert!(!goes_on.is_finished());
    }

    #[test]
    fn a_share_is_the_growth_over_the_time_between_two_looks() {
        assert_eq!(permille(1_300, 1_000, 1_000), 300);
        assert_eq!(permille(1_000, 1_300, 1_000), 0, "a counter that restarted is no negative share");
    }

    #[test]
    fn a_share_is_of_the_seconds_that_the_supervisor_counts_however_often_it_is_asked() {
        let lease = view();
        let one = std::slice::from_ref(&lease);
        let (first, later) = (csv_block(one, false), csv_block(one, true));
        assert!(
            first.starts_with("container_id,lease_id,") && first.ends_with(&format!("\n{later}")),
            "{first}{later}"
        );
        assert_eq!((later.lines().count(), csv_block(&[], true).as_str()), (1, ""));
        let (mut seen, start) = (Seen::default(), Instant::now());
        // Asked each 0.4 s of one that counts 0.3 s of its time in each second, and stands at a gate for a tenth.
        let mut shown = Vec::new();
        for step in 0..10_u64 {
            let second = 1 + step * 4 / 10;
            let now = LeaseView {
                charged_gpu_ns: second * 3 * S / 10,
                charged_at_ns: second * S,
                gate_wait_ns: step * S / 25,
                ..lease.clone()
            };
            let at = start + Duration::from_millis(step * 400);
            let row = seen.rows(Look { at, leases: vec![now] }).remove(0);
            shown.push(row.received_permille);
            assert!(step == 0 || row.gate_wait == GateWait::Permille(100), "{:?}", row.gate_wait);
        }
        assert_eq!(shown, [250, 250, 250, 300, 300, 300, 300, 300, 300, 300]);
        // After a restart of the host's clock, as far as we know: its own average.
        let anew = LeaseView { charged_at_ns: S, ..lease };
        let row = seen.rows(Look { at: start + Duration::from_secs(5), leases: vec![anew] }).remove(0);
        assert_eq!(row.received_permille, 250);
    }
}
