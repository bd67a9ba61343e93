//! Run times: who says how long it runs is told before that is over and loses its GPU then, also after a restart of itself or of the
//! supervisor; who waits first can begin by then, and what is kept for it is lent to those who have ended, and to nobody else.

use super::ledger::history;
use super::{finish, is_refused, reload_with, said, wait_for};
use crate::cgroups;
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::namespaces::{Inside, spawn_bound};
use gpool_protocol::{Event, EventKind, LeaseState, LeaseView, WaitingView};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const CONFIGURATION: &str = "[policy.env]\nallow = [\"fraction\", \"memory\", \"class\", \"run-time\", \"priority\"]\n";
/// What ignores the signal, and goes on without its program.
const STUBBORN: &str = "trap '' TERM; gpool-tenant --kernel-us 500 --allocate-mib 256; exec sleep 600";
/// For so long it says to run, seconds.
const SAID: u64 = 600;
/// So long it runs still, from when it is told to run shorter, seconds.
const LEFT: u64 = 45;

/// Has some of known and some of unknown ends on a GPU.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 1, CONFIGURATION)?;
    let outcome = reload_with(&host, &configuration("SIGTERM", 0))
        .and_then(|()| what_a_class_may(&host))
        .and_then(|()| it_is_lent_and_given_back(&mut host))
        .and_then(|()| a_restart_begins_no_new_one(&host))
        .and_then(|()| who_ends_before_a_reservation_is_let_in(&host));
    finish(host, outcome)
}

fn configuration(signal: &str, hold_ms: u64) -> String {
    format!(
        "[lease]\nhold_ms = {hold_ms}\n[run_time]\nnotice_seconds = 40\nsignal = \"{signal}\"\n\
         [class.notebook]\nlongest_run_seconds = 3600\n"
    )
}

fn asks<'a>(fraction: &'a str, run_time: Option<&'a str>) -> Vec<(&'a str, &'a str)> {
    let share = [("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", "1GiB")];
    share.into_iter().chain(run_time.map(|time| ("GPOOL_RUN_TIME", time))).collect()
}

/// Who says nothing has the longest of its class, and no more than that is given.
fn what_a_class_may(host: &Host) -> Result<()> {
    let notebook = |run_time| [&asks("0.1", run_time)[..], &[("GPOOL_CLASS", "notebook")]].concat();
    is_refused(host, &notebook(Some("2h")), &["GPOOL-E105", "run-time=2h", "class=notebook", "ask for 1h or less"])?;
    is_refused(host, &notebook(Some("20")), &["GPOOL-E101", "GPOOL_RUN_TIME", "with its unit"])?;
    let container = host.run_container("notebook", &notebook(None), &[], &["sleep", "600"])?;
    let left = left_of(host, &container)?;
    ensure(left.is_some_and(|left| (3500..=3600).contains(&left)), || format!("{left:?} s of an hour are left"))?;
    let longer = host.gpool(&["update", &container.id, "--run-time", "2h"])?;
    succeeded("gpool update by root", longer)?;
    said(&host.gpool(&["explain", &container.id])?, 0, &["run time: 2h, and its GPUs are taken from it in "])?;
    succeeded("gpool update", host.gpool(&["update", &container.id, "--no-run-time"])?)?;
    ensure(left_of(host, &container)?.is_none(), || "its run time was taken away, and some of it is left".to_owned())?;
    let changes = of(host, EventKind::LeaseUpdated, &container)?;
    let told: Vec<&str> = changes.iter().filter_map(|event| event.message.split_once(": ")).map(|its| its.1).collect();
    ensure(told == ["run time 1h to 2h", "run time 2h to none"], || format!("{told:?}"))?;
    container.kill_init()?;
    wait_for("its place to be free", || Ok(host.leases()?.is_empty()))
}

/// One that does not fit waits for the end that another one has named; until then its room is lent, and then it begins.
fn it_is_lent_and_given_back(host: &mut Host) -> Result<()> {
    let holder = host.run_container("holder", &asks("0.6", Some("10m")), &[], &["sh", "-c", STUBBORN])?;
    wait_for("its program to be there", || Ok(host.lease_of(&holder)?.processes == 1))?;
    let granted = host.lease_of(&holder)?.created_unix_ms;
    let head = waiting(host, "0.9")?;
    wait_for("what is known of its begin", || Ok(begin_of(host)?.is_some()))?;
    let begins = begin_of(host)?.unwrap_or(0);
    ensure(begins.abs_diff(granted + SAID * 1000) <= 5000, || {
        format!("it begins at {begins}, and the other one was granted at {granted} for {SAID} s")
    })?;

    let kept = ["GPOOL-E201", "kept for 1 container that waits"];
    is_refused(host, &asks("0.3", None), &[&kept[..], &["s or less, GPOOL_RUN_TIME="]].concat())?;
    is_refused(host, &asks("0.3", Some("11m")), &kept)?;
    let asked = host.gpool(&["explain", "--request", "fraction=0.3,memory=1GiB,run-time=1m,p99=50ms"])?;
    said(&asked, 0, &["now      granted"])?;
    let lent = host.gpool(&["run", "--fraction", "0.3", "--memory", "1GiB", "--run-time", "1m", "--", "/bin/true"])?;
    succeeded("gpool run in what is kept for another one", lent)?;
    let shown = text(&host.gpool(&["metrics"])?.stdout);
    ensure(shown.contains("\ngpool_queue_backfilled_total 1\n"), || shown.clone())?;
    is_refused(host, &asks("0.3", None), &kept)?;

    let before = left_of(host, &holder)?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    let after = left_of(host, &holder)?;
    ensure(after.is_some() && after <= before, || {
        format!("{after:?} s are left under the next supervisor, of {before:?}")
    })?;
    it_ends(host, &holder, head)
}

/// Sooner than it has said, and though it is paused.
fn it_ends(host: &Host, holder: &Container, head: Child) -> Result<()> {
    succeeded("docker pause", host.docker(&["pause", "holder"])?)?;
    let ran = SAID - left_of(host, holder)?.unwrap_or(0);
    let shorter = host.gpool(&["update", &holder.id, "--run-time", &format!("{}s", ran + LEFT)])?;
    succeeded("gpool update", shorter)?;
    let lease = host.lease_of(holder)?;
    let ends = lease.created_unix_ms + (ran + LEFT) * 1000;
    wait_for("who waits to be told", || Ok(begin_of(host)?.is_some_and(|begins| begins.abs_diff(ends) <= 5000)))?;
    let deadline = Instant::now() + Duration::from_secs(2 * LEFT);
    while !text(&host.gpool(&["ps"])?.stdout).contains("  leaving  ") {
        ensure(Instant::now() < deadline, || "nobody is told to leave".to_owned())?;
        std::thread::sleep(Duration::from_millis(200));
    }
    let notice = &of(host, EventKind::LeaseRunTime, holder)?[0].message;
    let parts = ["is over in ", "its GPUs are taken from it then", "its program there was sent SIGTERM"];
    ensure(parts.iter().all(|part| notice.contains(part)), || format!("it was told {notice:?}"))?;
    succeeded("gpool run of who waited", head.wait_with_output().context("gpool run")?)?;
    let taken = of(host, EventKind::LeaseRevoked, holder)?;
    let is_said = taken.len() == 1 && taken[0].message.contains("its run time of ");
    ensure(is_said && host.lease_of(holder)?.state == LeaseState::Revoked, || format!("{taken:?}"))?;
    let began = host.events_of(EventKind::LeaseUnqueued)?.last().map_or(0, |event| event.unix_ms);
    ensure(taken[0].unix_ms <= began && began <= ends + 20_000, || {
        format!("it began at {began}, after {taken:?}, {ends}")
    })?;
    ensure(holder.is_alive(), || "what does not use the GPU has ended with it".to_owned())?;
    // What was paused is so still, but for who has lost the GPU.
    let cgroup = host.lease_of(holder)?.cgroup.unwrap_or_default();
    let is_paused = cgroups::is_anything_frozen(cgroup.trim_start_matches('/'));
    ensure(is_paused, || "it is not paused any more".to_owned())?;
    succeeded("docker unpause", host.docker(&["unpause", "holder"])?)?;
    holder.kill_init()?;
    let is_over = || Ok(history(host, &[&holder.id])?.iter().all(|lease| lease.ending.as_deref() == Some("run-time")));
    wait_for("its end to be told in gpool history", is_over)
}

/// When the first that waits can begin, as it was told.
fn begin_of(host: &Host) -> Result<Option<u64>> {
    let queue: Vec<WaitingView> = host.client().get("/v1/queue")?;
    Ok(queue.first().and_then(|one| one.begins_unix_ms))
}

/// Whoever is started again in its place has what was left.
fn a_restart_begins_no_new_one(host: &Host) -> Result<()> {
    reload_with(host, &configuration("none", 20_000))?;
    let container = host.run_container("again", &asks("0.2", Some("1h")), &[], &["sleep", "600"])?;
    succeeded("gpool update", host.gpool(&["update", &container.id, "--run-time", "30m"])?)?;
    succeeded("docker restart", host.docker(&["restart", "--time", "0", "again"])?)?;
    let again = Container::inspect(&host.engine, "again")?;
    let left = left_of(host, &again)?;
    ensure(left.is_some_and(|left| left <= 1800), || format!("{left:?} s are left after a restart"))?;
    reload_with(host, &configuration("none", 0))?;
    again.kill_init()?;
    host.engine.remove_all_containers()?;
    wait_for("nobody to be there", || Ok(host.leases()?.is_empty()))
}

/// What is kept of a reservation before it begins is had by who has ended then.
fn who_ends_before_a_reservation_is_let_in(host: &Host) -> Result<()> {
    let output = Command::new("date").args(["+%F %T", "-d", "+10 minutes"]).output().context("date")?;
    let from = succeeded("date", output)?.trim().to_owned();
    let table = "[reservation.serving]\nteams = [\"vision\"]\nfraction = \"0.5\"\nahead_seconds = 3600\n";
    reload_with(host, &format!("{}{table}from = \"{from}\"\n", configuration("none", 0)))?;
    let kept = ["GPOOL-E201", "reserved for others by [reservation.serving]"];
    is_refused(host, &asks("0.6", None), &kept)?;
    is_refused(host, &asks("0.6", Some("20m")), &kept)?;
    let short = host.run_container("short", &asks("0.6", Some("5m")), &[], &["sleep", "600"])?;
    ensure(host.lease_of(&short)?.state == LeaseState::Active, || "it does not run".to_owned())?;
    short.kill_init()
}

/// A command that waits for room.
fn waiting(host: &Host, fraction: &str) -> Result<Child> {
    let mut command = host.command("gpool");
    command.args(["run", "--fraction", fraction, "--memory", "1GiB", "--wait", "300s", "--", "/bin/true"]);
    spawn_bound(command.stdout(Stdio::piped()).stderr(Stdio::piped())).context("gpool run")
}

fn left_of(host: &Host, container: &Container) -> Result<Option<u64>> {
    let lease: LeaseView = host.lease_of(container)?;
    Ok(lease.run_left_seconds)
}

fn of(host: &Host, kind: EventKind, container: &Container) -> Result<Vec<Event>> {
    let is_its = |event: &Event| event.container_id.as_ref().is_some_and(|id| id.0 == container.id);
    Ok(host.events_of(kind)?.into_iter().filter(is_its).collect())
}
