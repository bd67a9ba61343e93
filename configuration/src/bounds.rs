//! What the types of the keys cannot say: paths that must be absolute, lists that must name something, numbers with a range.

use crate::error::ConfigurationError;
use crate::health::{CONTAINED_FAULTS_MAX, HEALTH_FINDINGS, POLL_SECONDS_MAX, THERMAL_SECONDS_MAX};
use crate::keys::{
    ClassPolicy, Configuration, HALF_LIFE_DAYS_MAX, HANG_SECONDS_MAX, HEADROOM_BYTES_MAX, IDLE_SECONDS_MAX,
    LEDGER_DAYS_MAX, QUEUE_PLACES_MAX, SUPERVISOR_PATIENCE_SECONDS_MAX, SUPERVISOR_PATIENCE_SECONDS_MIN,
};
use crate::layers::{DEFAULT_PATH, Origin, dotted};
use crate::policy::REQUEST_KEYS;
use crate::quota::is_name;
use crate::rates::SHARES_MAX;
use crate::run_time::RUN_SECONDS_MAX;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// How teams and cost centers are named.
const NAME_FORM: &str = "write up to 63 letters, digits, dots, dashes and underscores, a letter or digit first";
/// What quotas of a month count is not forgotten before it is over.
const COUNTED_DAYS: u32 = 32;
/// Further apart, two names have nothing to do with each other.
const NEAR: usize = 3;

/// A value that its key cannot have.
pub struct Breach {
    key: String,
    cause: String,
}

impl Breach {
    /// With the file and line that gave the key its value.
    pub fn located(self, origins: &BTreeMap<String, Origin>) -> ConfigurationError {
        // Of a table in an array it is known where the last array begins.
        // One that is missing stands where the first of its table does.
        let first_of = |table: &str| {
            origins
                .iter()
                .filter(|(key, _)| key.strip_prefix(table).is_some_and(|key| key.starts_with('.')))
                .map(|(_, origin)| origin)
                .min_by_key(|origin| origin.line)
        };
        let in_table =
            || self.key.rsplit_once('.').and_then(|(table, _)| origins.get(table).or_else(|| first_of(table)));
        let known = origins.get(&self.key).or_else(in_table);
        match known {
            Some(origin) => ConfigurationError::new(&origin.path, Some(origin.line), self.cause),
            None => ConfigurationError::new(Path::new(DEFAULT_PATH), None, self.cause),
        }
    }
}

/// The first key whose value is out of bounds, with what to write.
pub fn check(configuration: &Configuration) -> Result<(), Breach> {
    check_absolute(absolute_paths(configuration))?;
    check_lists(configuration)?;
    if configuration.driver.context_bytes == 0 {
        let key = "driver.context_bytes".to_owned();
        let cause =
            format!("{key} = 0 is out of range; write what a CUDA context costs in bytes, for example 536870912");
        return Err(Breach { key, cause });
    }
    let headroom = configuration.driver.headroom_bytes;
    if headroom > HEADROOM_BYTES_MAX {
        let key = "driver.headroom_bytes".to_owned();
        let cause = format!("{key} = {headroom} is out of range; write {HEADROOM_BYTES_MAX} or less");
        return Err(Breach { key, cause });
    }
    let patience = configuration.runtime.supervisor_patience_seconds;
    if !(SUPERVISOR_PATIENCE_SECONDS_MIN..=SUPERVISOR_PATIENCE_SECONDS_MAX).contains(&patience) {
        let key = "runtime.supervisor_patience_seconds".to_owned();
        let cause = format!(
            "{key} = {patience} is out of range; write {SUPERVISOR_PATIENCE_SECONDS_MIN} to {SUPERVISOR_PATIENCE_SECONDS_MAX} seconds"
        );
        return Err(Breach { key, cause });
    }
    let places = configuration.queue.places;
    if places > QUEUE_PLACES_MAX {
        let key = "queue.places".to_owned();
        let cause = format!("{key} = {places} is out of range; write {QUEUE_PLACES_MAX} or less");
        return Err(Breach { key, cause });
    }
    let half_life = configuration.queue.half_life_days;
    if half_life > HALF_LIFE_DAYS_MAX {
        let key = "queue.half_life_days".to_owned();
        let cause = format!("{key} = {half_life} is out of range; write 1 to {HALF_LIFE_DAYS_MAX} days, 0 for turns");
        return Err(Breach { key, cause });
    }
    if let Some((name, its)) = configuration.team.iter().find(|(_, its)| !(1..=SHARES_MAX).contains(&its.shares)) {
        let key = format!("{}.shares", dotted("team", name));
        let cause = format!("{key} = {} is out of range; write 1 to {SHARES_MAX}", its.shares);
        return Err(Breach { key, cause });
    }
    check_ledger(configuration)?;
    if let Some((key, cause)) = configuration.audit.out_of_range() {
        return Err(Breach { key: key.to_owned(), cause: format!("{key} = {cause}") });
    }
    if let Some((key, cause)) = configuration.policy.out_of_range() {
        return Err(Breach { key: key.to_owned(), cause: format!("{key} = {cause}") });
    }
    if let Some((key, cause)) = configuration.latency.out_of_range() {
        return Err(Breach { key: key.to_owned(), cause: format!("{key} = {cause}") });
    }
    if let Some((key, cause)) = configuration.default_request.out_of_range() {
        return Err(Breach { key: key.to_owned(), cause: format!("{key} = {cause}") });
    }
    if let Some((key, cause)) = configuration.overflow.out_of_range() {
        return Err(Breach { key: key.to_owned(), cause: format!("{key} = {cause}") });
    }
    if let Some((key, cause)) = configuration.preemption.out_of_range() {
        return Err(Breach { key: key.to_owned(), cause: format!("{key} = {cause}") });
    }
    if let Some((key, cause)) = configuration.run_time.out_of_range() {
        return Err(Breach { key: key.to_owned(), cause: format!("{key} = {cause}") });
    }
    check_health(configuration)?;
    check_hang_times(configuration)?;
    check_idle_times(configuration)?;
    check_run_times(configuration)?;
    check_reservations(configuration)?;
    check_payers(configuration)
}

/// Whether a cost center has a name that a container could give, and prices do not contradict each other.
fn check_payers(configuration: &Configuration) -> Result<(), Breach> {
    for (team, its) in &configuration.team {
        if let Some(name) = its.cost_center.as_ref().filter(|name| !is_name(name)) {
            let key = format!("{}.cost_center", dotted("team", team));
            let cause = format!("{key} = {name:?} is no name; {NAME_FORM}");
            return Err(Breach { key, cause });
        }
    }
    match configuration.rates.contradiction() {
        Some(cause) => Err(Breach { key: "rates.price".to_owned(), cause }),
        None => Ok(()),
    }
}

/// Whether what is reserved can be, and can be had by somebody.
fn check_reservations(configuration: &Configuration) -> Result<(), Breach> {
    for (name, its) in &configuration.reservation {
        let table = dotted("reservation", name);
        if !is_name(name) {
            let cause = format!("reservation has {name:?}, which is no name; {NAME_FORM}");
            return Err(Breach { key: format!("{table}.gpus"), cause });
        }
        if let Some((key, cause)) = its.out_of_range() {
            let key = format!("{table}.{key}");
            let cause = format!("{key} {cause}");
            return Err(Breach { key, cause });
        }
    }
    Ok(())
}

/// Whether the days of the ledger make sense.
fn check_ledger(configuration: &Configuration) -> Result<(), Breach> {
    let ledger = &configuration.ledger;
    let out_of_range = |name: &str, days: u32, least: String| {
        let key = format!("ledger.{name}");
        let cause = format!("{key} = {days} is out of range; write {least} to {LEDGER_DAYS_MAX} days");
        Err(Breach { key, cause })
    };
    if !(1..=LEDGER_DAYS_MAX).contains(&ledger.minute_days) {
        return out_of_range("minute_days", ledger.minute_days, "1".to_owned());
    }
    if !(ledger.minute_days..=LEDGER_DAYS_MAX).contains(&ledger.hour_days) {
        let least = format!("{}, which is ledger.minute_days,", ledger.minute_days);
        return out_of_range("hour_days", ledger.hour_days, least);
    }
    check_counted(configuration)
}

/// Whether the ledger knows what has been reserved in the month that is not over, also after a restart.
fn check_counted(configuration: &Configuration) -> Result<(), Breach> {
    let Some(key) = configuration.first_that_counts() else { return Ok(()) };
    let ledger = &configuration.ledger;
    if !ledger.is_kept() {
        let cause = format!("{key} is counted by the ledger, and there is none; name a file in ledger.path");
        return Err(Breach { key, cause });
    }
    if ledger.hour_days < COUNTED_DAYS {
        let cause = format!(
            "ledger.hour_days = {} forgets what {key} counts; write {COUNTED_DAYS} or more days",
            ledger.hour_days
        );
        return Err(Breach { key: "ledger.hour_days".to_owned(), cause });
    }
    Ok(())
}

/// Whether GPUs are watched in a way that makes sense. A finding that is not known would drain nothing.
fn check_health(configuration: &Configuration) -> Result<(), Breach> {
    let health = &configuration.health;
    if health.contained_faults > CONTAINED_FAULTS_MAX {
        let key = "health.contained_faults".to_owned();
        let cause = format!(
            "{key} = {} is out of range; write 1 to {CONTAINED_FAULTS_MAX}, 0 for never",
            health.contained_faults
        );
        return Err(Breach { key, cause });
    }
    let times = [
        ("poll_seconds", health.poll_seconds, 0, POLL_SECONDS_MAX),
        ("thermal_seconds", health.thermal_seconds, 1, THERMAL_SECONDS_MAX),
    ];
    for (name, seconds, least, most) in times {
        if !(least..=most).contains(&seconds) {
            let key = format!("health.{name}");
            let off = if least == 0 { ", 0 for never" } else { "" };
            let cause = format!("{key} = {seconds} is out of range; write {least} to {most} seconds{off}");
            return Err(Breach { key, cause });
        }
    }
    match health.drain_on.iter().find(|name| !HEALTH_FINDINGS.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let key = "health.drain_on".to_owned();
            let cause =
                format!("{key} has {name:?}, which is nothing that is found; {}", meant(&HEALTH_FINDINGS, name));
            Err(Breach { key, cause })
        }
    }
}

/// Which of `known` was probably meant, or all of them.
fn meant(known: &[&str], name: &str) -> String {
    let nearest = known.iter().min_by_key(|known| strsim::levenshtein(known, name));
    match nearest.filter(|known| strsim::levenshtein(known, name) <= NEAR) {
        Some(known) => format!("did you mean {known:?}?"),
        None => format!("there are {}", known.join(", ")),
    }
}

/// The first key whose value does nothing, with what to write. A host works with it, so that whoever checks the files is told
/// of it and nobody else: an upgrade must not end at it.
pub fn check_strictly(configuration: &Configuration) -> Result<(), Breach> {
    check_absolute(configuration.driver.program_dirs.iter().map(|path| ("driver.program_dirs", path)))?;
    if let Some((key, cause)) = configuration.default_request.for_nothing() {
        return Err(Breach { key: key.to_owned(), cause });
    }
    check_request_keys(configuration)?;
    check_teams(configuration)
}

/// Whether a container can be of each team that something is said of.
fn check_teams(configuration: &Configuration) -> Result<(), Breach> {
    let impossible = |name: &str, table: &str, key: String| {
        let cause = format!("{table} has {name:?}, which no container can name; {NAME_FORM}");
        Err(Breach { key, cause })
    };
    if let Some((name, key)) = configuration.quota.impossible_team() {
        return impossible(name, "quota.team", key);
    }
    if let Some(name) = configuration.team.keys().find(|name| !is_name(name)) {
        return impossible(name, "team", format!("{}.cost_center", dotted("team", name)));
    }
    let priced = configuration.rates.price.iter().filter_map(|price| price.team.as_ref());
    match priced.into_iter().find(|name| !is_name(name)) {
        Some(name) => impossible(name, "rates.price", "rates.price".to_owned()),
        None => Ok(()),
    }
}

fn check_absolute<'a>(paths: impl IntoIterator<Item = (&'static str, &'a PathBuf)>) -> Result<(), Breach> {
    match paths.into_iter().find(|(_, path)| !path.is_absolute()) {
        Some((key, path)) => {
            let cause = format!("{key} = {:?} must be an absolute path", path.display().to_string());
            Err(Breach { key: key.to_owned(), cause })
        }
        None => Ok(()),
    }
}

/// Whether lists name what they must.
fn check_lists(configuration: &Configuration) -> Result<(), Breach> {
    let needed = [
        ("runtime.low_level", &configuration.runtime.low_level, "no container could be made; name a low-level runtime"),
        ("driver.library_dirs", &configuration.driver.library_dirs, "no driver could be found; name its directory"),
    ];
    if let Some((key, _, why)) = needed.into_iter().find(|(_, list, _)| list.is_empty()) {
        let cause = format!("{key} = [] is empty, and {why}, or leave the key out");
        return Err(Breach { key: key.to_owned(), cause });
    }
    Ok(())
}

/// Whether a container can ask for all that `[policy.env] allow` names.
fn check_request_keys(configuration: &Configuration) -> Result<(), Breach> {
    for name in &configuration.policy.env.allow {
        if REQUEST_KEYS.contains(&name.as_str()) {
            continue;
        }
        let remedy = meant(&REQUEST_KEYS, name);
        let key = "policy.env.allow".to_owned();
        let cause = format!("{key} has {name:?}, which no container can ask for; {remedy}");
        return Err(Breach { key, cause });
    }
    Ok(())
}

/// Whether the times after which a container counts as hung make sense.
fn check_hang_times(configuration: &Configuration) -> Result<(), Breach> {
    for (class, policy) in configuration.class.all() {
        let usual = policy.hang_seconds;
        if !(1..=HANG_SECONDS_MAX).contains(&usual) {
            let key = format!("class.{class}.hang_seconds");
            let cause = format!("{key} = {usual} is out of range; write 1 to {HANG_SECONDS_MAX} seconds");
            return Err(Breach { key, cause });
        }
        let shorter = policy.hang_seconds_while_latency_waits();
        if !(1..=usual).contains(&shorter) {
            let key = format!("class.{class}.hang_seconds_latency_waits");
            let cause = format!(
                "{key} = {shorter} is out of range; write 1 to {usual} seconds, which is class.{class}.hang_seconds, \
                 or leave it out"
            );
            return Err(Breach { key, cause });
        }
    }
    Ok(())
}

/// Whether the times after which a container counts as idle make sense.
fn check_idle_times(configuration: &Configuration) -> Result<(), Breach> {
    for (class, policy) in configuration.class.all() {
        let times = [("idle_seconds", policy.idle_seconds, 1), ("idle_grace_seconds", policy.idle_grace_seconds, 0)];
        for (name, seconds, least) in times {
            if !(least..=IDLE_SECONDS_MAX).contains(&seconds) {
                let key = format!("class.{class}.{name}");
                let cause = format!("{key} = {seconds} is out of range; write {least} to {IDLE_SECONDS_MAX} seconds");
                return Err(Breach { key, cause });
            }
        }
    }
    Ok(())
}

/// Whether what a class's containers may run for is a time.
fn check_run_times(configuration: &Configuration) -> Result<(), Breach> {
    let longest = |(class, policy): (_, &ClassPolicy)| policy.longest_run_seconds.map(|seconds| (class, seconds));
    let is_out = |(_, seconds): &(&str, u64)| !(1..=RUN_SECONDS_MAX).contains(seconds);
    match configuration.class.all().into_iter().filter_map(longest).find(is_out) {
        None => Ok(()),
        Some((class, seconds)) => {
            let key = format!("class.{class}.longest_run_seconds");
            let cause =
                format!("{key} = {seconds} is out of range; write 1 to {RUN_SECONDS_MAX} seconds, or leave it out");
            Err(Breach { key, cause })
        }
    }
}

fn absolute_paths(configuration: &Configuration) -> Vec<(&'static str, &PathBuf)> {
    let mut all = vec![
        ("paths.run_dir", &configuration.paths.run_dir),
        ("paths.shim_dir", &configuration.paths.shim_dir),
        ("paths.hook", &configuration.paths.hook),
        ("paths.state_dir", &configuration.paths.state_dir),
        ("socket.path", &configuration.socket.path),
        ("driver.device_dir", &configuration.driver.device_dir),
        ("driver.proc_dir", &configuration.driver.proc_dir),
    ];
    let ledger = &configuration.ledger;
    all.extend(ledger.is_kept().then_some(("ledger.path", &ledger.path)));
    let audit = &configuration.audit;
    all.extend(audit.is_kept().then_some(("audit.directory", &audit.directory)));
    all.extend(configuration.mig.layout.iter().map(|path| ("mig.layout", path)));
    for mount in &configuration.driver.mounts {
        all.push(("driver.mount.source", &mount.source));
        all.extend(mount.destination.iter().map(|path| ("driver.mount.destination", path)));
    }
    all.extend(configuration.driver.library_dirs.iter().map(|path| ("driver.library_dirs", path)));
    all.extend(configuration.runtime.low_level.iter().map(|path| ("runtime.low_level", path)));
    all
}
