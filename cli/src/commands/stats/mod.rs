//! `gpool stats`: what each lease did in the last interval, sample after sample.

mod interval;
mod text;

use crate::arguments::{Format, StatsOptions};
use crate::exit::Failure;
use crate::live::LiveBlock;
use crate::output;
use gpool_protocol::{Client, ErrorBody, ErrorCode, LeaseId, LeaseState, LeaseView, lease_path};
use interval::{Figures, Looks};
use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// GPU time is counted once a second, and the two looks of a first sample may lie between two counts, or before the first of a
/// lease that has just begun: it is looked again this often, for this long at most, until there are two.
const AGAIN: Duration = Duration::from_millis(100);
const COUNT_PATIENCE: Duration = Duration::from_secs(3);

/// Prints samples until the reader goes away, a signal ends the program, or the last of the named leases has ended.
pub fn run(client: &Client, options: &StatsOptions) -> Result<(), Failure> {
    let named = named(client, &options.ids)?;
    let mut printer = Printer { live: LiveBlock::on_stdout(), format: options.format, is_stream: !options.no_stream };
    let (mut looks, mut is_first, mut is_away) = (Looks::default(), true, false);
    let mut begun = Instant::now();
    let figures = looks.figures(chosen(client.get("/v1/leases")?, options, named.as_ref()), monotonic_ns());
    printer.begin(&figures)?;
    loop {
        std::thread::sleep(options.interval.saturating_sub(begun.elapsed()));
        begun = Instant::now();
        let look =
            || -> Result<Vec<LeaseView>, ErrorBody> { Ok(chosen(client.get("/v1/leases")?, options, named.as_ref())) };
        let seen = if is_first { with_a_count(&mut looks, look) } else { look() };
        let leases = match seen {
            Ok(leases) => leases,
            Err(error) if options.no_stream => return Err(error.into()),
            Err(error) => {
                // A restart or an upgrade takes seconds, and whoever collects figures for weeks goes on after it.
                if !is_away {
                    printer.interrupt(&format!("gpool: {}; samples go on when it answers", error.message));
                }
                is_away = true;
                looks.forget();
                continue;
            }
        };
        is_away = false;
        if named.is_some() && leases.is_empty() {
            return Ok(());
        }
        let figures = looks.figures(leases, monotonic_ns());
        printer.print(&figures)?;
        if options.no_stream {
            return Ok(());
        }
        if std::mem::take(&mut is_first) {
            // It may have been waited for.
            begun = Instant::now();
        }
    }
}

/// The leases that are named; none if all are meant.
fn named(client: &Client, ids: &[String]) -> Result<Option<BTreeSet<LeaseId>>, Failure> {
    let (mut named, mut refused) = (BTreeSet::new(), Vec::new());
    for id in ids {
        let lease = lease_path(id).and_then(|path| client.get::<LeaseView>(&path));
        match lease.and_then(that_runs) {
            Ok(lease) => drop(named.insert(lease.lease_id)),
            Err(refusal) => refused.push(refusal),
        }
    }
    Failure::of_all(&refused)?;
    Ok(Some(named).filter(|_| !ids.is_empty()))
}

/// A kept place is the mark of a lease that has ended.
fn that_runs(lease: LeaseView) -> Result<LeaseView, ErrorBody> {
    match lease.state {
        LeaseState::Held => Err(ErrorBody::new(
            ErrorCode::LeaseConflict,
            format!("container {} has ended, and its place is kept for a restart", lease.container_id.short()),
            "start it again; gpool ps lists those that run",
        )),
        _ => Ok(lease),
    }
}

/// Those of `leases` that are wanted and have not ended.
fn chosen(leases: Vec<LeaseView>, options: &StatsOptions, named: Option<&BTreeSet<LeaseId>>) -> Vec<LeaseView> {
    let team = options.team.as_deref();
    let is_wanted = |lease: &LeaseView| {
        lease.state != LeaseState::Held
            && team.is_none_or(|team| lease.team.as_deref().unwrap_or_default() == team)
            && named.is_none_or(|named| named.contains(&lease.lease_id))
    };
    leases.into_iter().filter(is_wanted).collect()
}

/// Looks until the GPU time of all that were there before is known, for a while.
fn with_a_count(
    looks: &mut Looks,
    look: impl Fn() -> Result<Vec<LeaseView>, ErrorBody>,
) -> Result<Vec<LeaseView>, ErrorBody> {
    let begun = Instant::now();
    loop {
        let leases = look()?;
        if !looks.want_a_count(&leases) || begun.elapsed() >= COUNT_PATIENCE {
            return Ok(leases);
        }
        std::thread::sleep(AGAIN);
    }
}

/// As the supervisor's clock, which is this host's.
fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Writes samples, each of them at once.
struct Printer {
    live: LiveBlock,
    format: Format,
    is_stream: bool,
}

impl Printer {
    /// What stands before the first sample: on a terminal what is known without one, so that nobody looks at nothing.
    fn begin(&mut self, figures: &[Figures]) -> Result<(), Failure> {
        match self.format {
            Format::Csv => output::print(&text::csv_header()),
            Format::Table | Format::Wide if self.is_stream && std::io::stdout().is_terminal() => self.print(figures),
            _ => Ok(()),
        }
    }

    fn print(&mut self, figures: &[Figures]) -> Result<(), Failure> {
        let time = format!("{:.3}", Timestamp::now());
        let table = match self.format {
            Format::Json => return output::print(&text::json_lines(&time, figures)),
            Format::Csv => return output::print(&text::csv_lines(&time, figures)),
            Format::Table => text::render(figures),
            Format::Wide => text::render_wide(figures),
        };
        match self.is_stream {
            true => Ok(self.live.draw(&mut std::io::stdout().lock(), &table)?),
            false => output::print(&table),
        }
    }

    /// Says something beside the samples; what is drawn stays above it.
    fn interrupt(&mut self, sentence: &str) {
        self.live.leave();
        // Nothing is left to do when stderr is closed.
        let _ = writeln!(std::io::stderr(), "{sentence}");
    }
}

#[cfg(test)]
mod tests {
    use super::interval::sample;
    use super::*;
    use std::cell::Cell;

    fn options(team: Option<&str>) -> StatsOptions {
        StatsOptions {
            ids: Vec::new(),
            no_stream: true,
            interval: Duration::from_secs(1),
            team: team.map(str::to_owned),
            format: Format::Table,
        }
    }

    fn ids(leases: &[LeaseView]) -> Vec<&str> {
        leases.iter().map(|lease| lease.lease_id.0.as_str()).collect()
    }

    #[test]
    fn kept_places_are_no_leases_and_a_team_or_names_choose_among_those() {
        let of_team = |id: &str, team: &str| LeaseView { team: Some(team.into()), ..sample(id, 1) };
        let held = LeaseView { state: LeaseState::Held, ..sample("d", 1) };
        let all = vec![sample("a", 1), of_team("b", "red"), of_team("c", "blue"), held.clone()];
        assert_eq!(ids(&chosen(all.clone(), &options(None), None)), ["a", "b", "c"]);
        assert_eq!(ids(&chosen(all.clone(), &options(Some("red")), None)), ["b"]);
        assert_eq!(ids(&chosen(all.clone(), &options(Some("")), None)), ["a"]);
        let named: BTreeSet<LeaseId> = ["c", "d", "gone"].map(|id| LeaseId(id.into())).into();
        assert_eq!(ids(&chosen(all, &options(None), Some(&named))), ["c"]);
        assert_eq!(that_runs(held).unwrap_err().code, ErrorCode::LeaseConflict);
    }

    #[test]
    fn a_first_sample_is_looked_for_until_gpu_time_is_counted() {
        const S: u64 = 1_000_000_000;
        let mut looks = Looks::default();
        looks.figures(vec![sample("a", S)], 0);
        let asked = Cell::new(0);
        let look = || {
            asked.set(asked.get() + 1);
            let charged_at_ns = if asked.get() < 3 { S } else { 2 * S };
            Ok(vec![LeaseView { charged_at_ns, ..sample("a", 2 * S) }])
        };
        let leases = with_a_count(&mut looks, look).unwrap();
        assert_eq!((asked.get(), leases[0].charged_at_ns), (3, 2 * S));
    }
}
