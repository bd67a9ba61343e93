//! Deadlines: who says by when it has to be through, and how long it runs, begins in time or is refused at once; nobody takes what is
//! planned for it, one that is in a hurry goes before one that is not, and a restart of the supervisor forgets no moment.

use super::{finish, is_refused, reload_with, said, wait_for};
use crate::failure::{Context, Result, ensure};
use crate::host::{Host, succeeded};
use crate::namespaces::{Inside, spawn_bound};
use gpool_protocol::{EventKind, LeaseState, WaitingView};
use rustix::time::{ClockId, clock_gettime};
use std::process::{Child, Output, Stdio};

const CONFIGURATION: &str =
    "[policy.env]\nallow = [\"fraction\", \"memory\", \"run-time\", \"priority\"]\n[lease]\nhold_ms = 0\n";
const MAKES_ROOM: &str = "[preemption]\nenabled = true\nafter_seconds = 0\nleast_run_seconds = 0\ngrace_seconds = 3\n";
/// So long the one runs that is there first, seconds.
const HOLDS: u64 = 45;
/// What is planned beyond an end, until its GPUs are free; seconds.
const SETTLES: u64 = 10;

/// Has some with and some without deadlines on a GPU.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 1, "")?;
    let outcome = reload_with(&host, CONFIGURATION)
        .and_then(|()| what_cannot_be_is_refused(&host))
        .and_then(|()| all_are_through_in_time(&mut host))
        .and_then(|()| whose_room_goes_is_told(&host))
        .and_then(|()| lower_priorities_make_room_in_time(&host));
    finish(host, outcome)
}

fn holds(run_time: Option<&str>) -> Vec<(&str, &str)> {
    let share = [("GPOOL_FRACTION", "0.6"), ("GPOOL_MEMORY", "1GiB")];
    share.into_iter().chain(run_time.map(|time| ("GPOOL_RUN_TIME", time))).collect()
}

fn what_cannot_be_is_refused(host: &Host) -> Result<()> {
    let asks = |more: &[&str]| {
        let own = ["run", "--fraction", "0.9", "--memory", "1GiB"];
        host.gpool(&[&own[..], more, &["--", "/bin/true"]].concat())
    };
    said(&asks(&["--deadline", "1h"])?, 125, &["GPOOL-E101", "deadline given, but no run-time"])?;
    said(&asks(&["--deadline", "1m", "--run-time", "2m"])?, 125, &["deadline=1m is shorter than run-time=2m"])?;
    let past = ["--deadline", "2020-01-01T00:00:00Z", "--run-time", "2m"];
    said(&asks(&past)?, 125, &["GPOOL-E207", "deadline=2020-01-01T00:00:00Z would be missed by"])?;
    let by_env = [&holds(Some("1m"))[..], &[("GPOOL_DEADLINE", "1h")]].concat();
    is_refused(host, &by_env, &["GPOOL-E104", "GPOOL_DEADLINE", "gpool.io/deadline"])?;
    // With room it begins at once.
    succeeded("gpool run with a deadline", asks(&["--deadline", "10m", "--run-time", "1m"])?)?;

    let holder = host.run_container("endless", &holds(None), &[], &["sleep", "600"])?;
    let why = ["GPOOL-E207", "deadline=1h cannot be kept to", "have no end that anybody could count on"];
    said(&asks(&["--deadline", "1h", "--run-time", "10s"])?, 125, &why)?;
    holder.kill_init()?;
    wait_for("nobody to be there", || Ok(host.leases()?.is_empty()))
}

/// One runs; one that can wait for long is planned for after it, one that cannot goes before that one, and who would be in their way is
/// let in only until then.
fn all_are_through_in_time(host: &mut Host) -> Result<()> {
    let holds_for = format!("{HOLDS}s");
    let holder = host.run_container("holder", &holds(Some(&holds_for)), &[], &["sleep", "600"])?;
    let granted = host.lease_of(&holder)?.created_unix_ms;
    let patient = waiting(host, "patient", ("10m", 60))?;
    wait_for("its moment", || Ok(begins(host, "patient")?.is_some()))?;
    let free = granted + (HOLDS + SETTLES) * 1000;
    let told = begins(host, "patient")?.unwrap_or(0);
    ensure(told.abs_diff(free) <= 3000, || format!("it begins at {told}, and the GPU is free at {free}"))?;

    let others = ["GPOOL-E201", "kept for 1 container that waits", "GPOOL_RUN_TIME="];
    let small = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "1GiB")];
    is_refused(host, &small, &others)?;
    is_refused(host, &[&small[..], &[("GPOOL_RUN_TIME", "10m")]].concat(), &["GPOOL-E201"])?;
    succeeded("gpool update", host.gpool(&["update", &holder.id, "--no-run-time"])?)?;
    wait_for("it to be at risk", || Ok(of_kind(host, AT_RISK)? == 1))?;
    succeeded("gpool update", host.gpool(&["update", &holder.id, "--run-time", &holds_for])?)?;
    wait_for("its moment again", || Ok(begins(host, "patient")?.is_some_and(|at| at.abs_diff(free) <= 3000)))?;
    let lent = host.gpool(&["run", "--fraction", "0.3", "--memory", "1GiB", "--run-time", "3s", "--", "/bin/true"])?;
    succeeded("gpool run of one that has ended by then", lent)?;

    host.kill_supervisor()?;
    host.start_supervisor()?;
    let again = begins(host, "patient")?.unwrap_or(0);
    ensure(again.abs_diff(told) <= 3000, || format!("under the next supervisor it begins at {again}, not {told}"))?;

    // Its time fits only before the other one's.
    let deadline = format!("{}s", free.saturating_sub(unix_ms()) / 1000 + HURRIED + 12);
    let hurried = waiting(host, "hurried", (&deadline, HURRIED))?;
    wait_for("the other one to be moved", || {
        let (first, second) = (begins(host, "hurried")?, begins(host, "patient")?);
        Ok(first.zip(second).is_some_and(|(first, second)| first.abs_diff(free) <= 3000 && second > first + 10_000))
    })?;
    let due = of(host, "hurried")?.and_then(|its| its.deadline_unix_ms).unwrap_or(0);
    said(&host.gpool(&["queue", "ls", "--format", "wide"])?, 0, &["DEADLINE IN", "BEGINS IN"])?;
    said(&run_by(host, &deadline, HURRIED)?, 125, &["GPOOL-E207", "there is room in ", " too late"])?;

    let [first, second] = [through_at(hurried)?, through_at(patient)?];
    ensure(first <= due && first < second, || {
        format!("the hurried one was through at {first}, of {due}; the other one at {second}")
    })?;
    ensure(of_kind(host, "in time for its deadline")? >= 1, || "nobody was told a moment".to_owned())?;
    holder.kill_init()?;
    wait_for("nobody to be there", || Ok(host.leases()?.is_empty()))
}

/// Where others stay for longer than they have said, the deadline is not kept to, and that is told.
fn whose_room_goes_is_told(host: &Host) -> Result<()> {
    let holder = host.run_container("stays", &holds(Some("30s")), &[], &["sleep", "600"])?;
    let waits = waiting(host, "unlucky", ("70s", HURRIED))?;
    wait_for("its moment", || Ok(begins(host, "unlucky")?.is_some()))?;
    let before = of_kind(host, AT_RISK)?;
    succeeded("gpool update", host.gpool(&["update", &holder.id, "--run-time", "1h"])?)?;
    wait_for("it to be at risk", || Ok(of(host, "unlucky")?.is_some_and(|its| its.is_at_risk)))?;
    let id = of(host, "unlucky")?.map(|its| its.container_id.to_string()).unwrap_or_default();
    said(&host.gpool(&["explain", &id])?, 0, &["which will probably be missed"])?;
    ensure(of_kind(host, AT_RISK)? == before + 1, || "it was not told once".to_owned())?;
    let refused = waits.wait_with_output().context("gpool run")?;
    said(&refused, 125, &["GPOOL-E207", "deadline=1m10s would be missed by"])?;
    holder.kill_init()?;
    wait_for("nobody to be there", || Ok(host.leases()?.is_empty()))
}

/// Of those in its way whose time is promised to nobody some go for it, as for anybody who waits, where it would not be in time else.
fn lower_priorities_make_room_in_time(host: &Host) -> Result<()> {
    let burst = [("GPOOL_FRACTION", "0.6"), ("GPOOL_MEMORY", "70%"), ("GPOOL_PRIORITY", "burst")];
    let holder = host.run_container("burst", &burst, &[], &["sleep", "600"])?;
    let all =
        ["run", "--fraction", "0.9", "--memory", "60%", "--run-time", "10s", "--deadline", "5m", "--", "/bin/true"];
    said(&host.gpool(&all)?, 125, &["GPOOL-E207", "have no end that anybody could count on"])?;
    reload_with(host, &format!("{CONFIGURATION}{MAKES_ROOM}"))?;
    succeeded("gpool run for which another one goes", host.gpool(&all)?)?;
    ensure(host.lease_of(&holder)?.state == LeaseState::Revoked, || "it did not go".to_owned())?;
    ensure(of_kind(host, "of a lower priority have to make room")? == 1, || "that was not told".to_owned())?;
    holder.kill_init()?;
    wait_for("nobody to be there", || Ok(host.leases()?.is_empty()))?;
    so_they_do_beside_a_plan(host)
}

/// What is planned for later keeps nobody from going for one that will have ended by then.
fn so_they_do_beside_a_plan(host: &Host) -> Result<()> {
    let holder = host.run_container("until-later", &holds(Some("10m")), &[], &["sleep", "600"])?;
    let planned = waiting(host, "later", ("1h", HURRIED))?;
    wait_for("its moment", || Ok(begins(host, "later")?.is_some()))?;
    let burst = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "60%"), ("GPOOL_PRIORITY", "burst")];
    let goes =
        host.run_container("goes", &[&burst[..], &[("GPOOL_RUN_TIME", "9m")]].concat(), &[], &["sleep", "600"])?;
    let short = ["run", "--fraction", "0.3", "--memory", "60%", "--run-time", "10s", "--wait", "2m", "--", "/bin/true"];
    succeeded("gpool run for which another one goes", host.gpool(&short)?)?;
    ensure(host.lease_of(&goes)?.state == LeaseState::Revoked, || "it did not go".to_owned())?;
    ensure(begins(host, "later")?.is_some(), || "what was planned was lost".to_owned())?;
    let id = of(host, "later")?.map(|its| its.container_id.to_string()).unwrap_or_default();
    succeeded("gpool queue cancel", host.gpool(&["queue", "cancel", &id])?)?;
    said(&planned.wait_with_output().context("gpool run")?, 125, &["GPOOL-E205"])?;
    [&holder, &goes].into_iter().try_for_each(|container| container.kill_init())
}

/// What is told of one that is not in time any more.
const AT_RISK: &str = "will probably not be through";
/// So long those say to run that are in a hurry, seconds.
const HURRIED: u64 = 10;

fn run_by(host: &Host, deadline: &str, run_seconds: u64) -> Result<Output> {
    let run = format!("{run_seconds}s");
    let asked = ["run", "--fraction", "0.9", "--memory", "1GiB", "--run-time", &run, "--deadline", deadline];
    host.gpool(&[&asked[..], &["--", "/bin/true"]].concat())
}

/// A command of this team that waits, and says when it is through.
fn waiting(host: &Host, team: &str, (deadline, run_seconds): (&str, u64)) -> Result<Child> {
    let run = format!("{run_seconds}s");
    let mut command = host.command("gpool");
    command.args(["run", "--fraction", "0.9", "--memory", "1GiB", "--team", team, "--run-time", &run]);
    command.args(["--deadline", deadline, "--", "/bin/sh", "-c", "sleep 1; date +%s%3N"]);
    spawn_bound(command.stdout(Stdio::piped()).stderr(Stdio::piped())).context("gpool run")
}

/// When it was through, in milliseconds since 1970.
fn through_at(waits: Child) -> Result<u64> {
    let said = succeeded("gpool run of one that waits", waits.wait_with_output().context("gpool run")?)?;
    said.trim().parse().context("it said no time")
}

/// The one of this team that waits.
fn of(host: &Host, team: &str) -> Result<Option<WaitingView>> {
    let queue: Vec<WaitingView> = host.client().get("/v1/queue")?;
    Ok(queue.into_iter().find(|one| one.request.team.as_deref() == Some(team)))
}

/// When it begins at the latest, as it was told.
fn begins(host: &Host, team: &str) -> Result<Option<u64>> {
    Ok(of(host, team)?.filter(|one| !one.is_at_risk).and_then(|one| one.begins_unix_ms))
}

/// How many events about deadlines say that.
fn of_kind(host: &Host, part: &str) -> Result<usize> {
    Ok(host.events_of(EventKind::Deadline)?.iter().filter(|event| event.message.contains(part)).count())
}

fn unix_ms() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
