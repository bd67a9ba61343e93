//! What `gpool-runtime` adds to the low-level runtime: whole processes, in turn with plain runc.

use super::bundle::{Bundle, RUNC};
use super::sheet::Sheet;
use super::verbs;
use crate::failure::Result;
use crate::host::Host;
use std::path::Path;
use std::time::Duration;

/// Processes of each kind in one round.
const PROCESSES: usize = 50;
/// Containers that are started and ended in one round.
const STARTED: usize = 200;
/// One plain container stands beside so many leased ones.
const STARTED_PER_PLAIN: usize = 4;
/// The least share there is. An ended container keeps its place for a while, so many places are taken at once.
const REQUEST: [&str; 2] = ["GPOOL_FRACTION=0.01", "GPOOL_MEMORY=64MiB"];
/// Room for them.
const ROOM_PERMILLE: u16 = 900;

/// Own and native times.
pub type Pairs = Vec<(Duration, Duration)>;

/// Adds one round.
pub fn measure(host: &Host, cgroup_parent: &str, sheet: &mut Sheet) -> Result<()> {
    super::wait_for_room(host, ROOM_PERMILLE)?;
    let wrapper = host.stage.program("gpool-runtime");
    let runc = Path::new(RUNC);
    let plain = Bundle::new(host, "plain", runc, runc, cgroup_parent, &[])?;
    let leased = Bundle::new(host, "leased", &wrapper, runc, cgroup_parent, &REQUEST)?;
    let unasked = Bundle::new(host, "unasked", &wrapper, runc, cgroup_parent, &[])?;
    creations(&leased, &plain, sheet)?;
    pass_through(&unasked, &plain, sheet)?;
    starts(&leased, &plain, sheet)?;
    verbs::of_runc(host, cgroup_parent, sheet)?;
    verbs::of_crun(host, cgroup_parent, sheet)
}

fn creations(leased: &Bundle, plain: &Bundle, sheet: &mut Sheet) -> Result<()> {
    let create = |bundle: &Bundle, id: &str| {
        bundle.renew(id, &["sleep", "1000"])?;
        let elapsed = bundle.time("create", id)?;
        bundle.delete(id)?;
        Ok(elapsed)
    };
    let pairs = in_turn(PROCESSES, "create", |id| create(leased, id), |id| create(plain, id))?;
    added(sheet, "runtime.create_added", &pairs)
}

fn pass_through(unasked: &Bundle, plain: &Bundle, sheet: &mut Sheet) -> Result<()> {
    let id = "state";
    plain.renew(id, &["sleep", "1000"])?;
    plain.time("create", id)?;
    let pairs = in_turn(PROCESSES, id, |_| unasked.time_call(&[id, id]), |_| plain.time_call(&[id, id]))?;
    plain.delete(id)?;
    added(sheet, "runtime.passthrough_added", &pairs)
}

fn starts(leased: &Bundle, plain: &Bundle, sheet: &mut Sheet) -> Result<()> {
    let run = |bundle: &Bundle, id: String| {
        bundle.renew(&id, &["true"])?;
        bundle.time("run", &id)
    };
    let (mut own, mut native) = (Duration::ZERO, Duration::ZERO);
    for index in 0..STARTED {
        own += run(leased, format!("start-leased-{index}"))?;
        if index % STARTED_PER_PLAIN == 0 {
            native += run(plain, format!("start-plain-{index}"))?;
        }
    }
    let native_rate = STARTED.div_ceil(STARTED_PER_PLAIN) as f64 / native.as_secs_f64();
    sheet.add("runtime.start_200", &[STARTED as f64 / own.as_secs_f64()], &[native_rate])
}

/// Own and native times, one after the other; who comes first changes, so that neither profits from the other.
pub fn in_turn(
    pairs: usize,
    name: &str,
    own: impl Fn(&str) -> Result<Duration>,
    native: impl Fn(&str) -> Result<Duration>,
) -> Result<Pairs> {
    let pair = |index: usize| {
        let (own_id, native_id) = (format!("{name}-leased-{index}"), format!("{name}-plain-{index}"));
        if index.is_multiple_of(2) {
            let first = own(&own_id)?;
            Ok((first, native(&native_id)?))
        } else {
            let first = native(&native_id)?;
            Ok((own(&own_id)?, first))
        }
    };
    (0..pairs).map(pair).collect()
}

/// What was added from pair to pair, in milliseconds, goes onto the sheet.
pub fn added(sheet: &mut Sheet, name: &str, pairs: &Pairs) -> Result<()> {
    let (added, native) = in_milliseconds(pairs);
    sheet.add(name, &added, &native)
}

/// The median of what was added from pair to pair, and of the native times, in milliseconds.
pub fn median_added(pairs: &Pairs) -> (f64, f64) {
    let (added, native) = in_milliseconds(pairs);
    (super::sheet::median(&added), super::sheet::median(&native))
}

fn in_milliseconds(pairs: &Pairs) -> (Vec<f64>, Vec<f64>) {
    let added = pairs.iter().map(|(own, native)| (own.as_secs_f64() - native.as_secs_f64()) * 1e3).collect();
    (added, pairs.iter().map(|(_, native)| native.as_secs_f64() * 1e3).collect())
}
