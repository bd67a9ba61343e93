//! Emergencies: for a team that an administrator names no quota holds for a while, and it stands first in the queue; that outlives the
//! supervisor, is over by itself, and is written down with who said so and why.

use super::{finish, is_refused, reload_with, said, wait_for};
use crate::failure::{Context, Result, ensure};
use crate::host::{Host, succeeded};
use crate::namespaces::{Inside, spawn_bound};
use gpool_protocol::{EventKind, WaitingView};
use std::process::{Child, Stdio};

const CONFIGURATION: &str = "[policy.env]\nallow = [\"fraction\", \"memory\", \"team\"]\n[lease]\nhold_ms = 0\n\
                             [quota.team.vision]\ngpus = \"0.5\"\n";

/// Has two teams on a GPU, of which one may have little.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 1, "")?;
    let outcome = reload_with(&host, CONFIGURATION).and_then(|()| all(&mut host));
    finish(host, outcome)
}

fn of_team<'a>(team: &'a str, fraction: &'a str) -> [(&'a str, &'a str); 3] {
    [("GPOOL_TEAM", team), ("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", "1GiB")]
}

fn all(host: &mut Host) -> Result<()> {
    let first = host.run_container("first", &of_team("vision", "0.3"), &[], &["sleep", "600"])?;
    is_refused(host, &of_team("vision", "0.3"), &["GPOOL-E206"])?;
    let begin = |time: &str, reason: &str| {
        host.gpool(&["override", "begin", "--team", "vision", "--for", time, "--reason", reason])
    };
    said(&begin("8d", "incident 7")?, 2, &["GPOOL-E101", "for 7d at most"])?;
    said(&begin("1h", " ")?, 2, &["GPOOL-E101", "a reason"])?;
    said(&host.gpool(&["override", "end", "--team", "vision"])?, 2, &["no override is in force for team vision"])?;
    said(&begin("1h", "incident 7")?, 0, &["no quota holds for team vision until "])?;
    said(&host.gpool(&["override", "ls"])?, 0, &["team vision", "user 0", "incident 7"])?;
    said(&host.gpool(&["quota", "ls", "--format", "wide"])?, 0, &["nothing until "])?;
    let second = host.run_container("second", &of_team("vision", "0.4"), &[], &["sleep", "600"])?;

    let other = waiting(host, "speech")?;
    wait_for("the first to wait", || Ok(teams(host)? == ["speech"]))?;
    let urgent = waiting(host, "vision")?;
    wait_for("who has an emergency to stand first", || Ok(teams(host)? == ["vision", "speech"]))?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    wait_for("it to stand first under the next supervisor", || Ok(teams(host)? == ["vision", "speech"]))?;

    said(&host.gpool(&["override", "end", "--team", "vision"])?, 0, &["the quota of team vision holds again"])?;
    wait_for("all to take turns again", || Ok(teams(host)? == ["speech", "vision"]))?;
    is_refused(host, &of_team("vision", "0.1"), &["GPOOL-E206"])?;
    ensure(host.leases()?.len() == 2, || "what it has had meanwhile is not its own any more".to_owned())?;

    said(&begin_again(host, "2s")?, 0, &["no quota holds for team vision until "])?;
    wait_for("it to be over by itself", || {
        let over = host.events_of(EventKind::Override)?;
        Ok(over.iter().any(|event| event.uid.is_none() && event.message.contains("is over: its quota holds again")))
    })?;
    ensure(teams(host)? == ["speech", "vision"], || "it stands first still".to_owned())?;
    let trail = host.gpool(&["audit", "show"])?;
    said(&trail, 0, &["no quota holds for team vision until ", "and it stands first in the queue: incident 7"])?;

    [&first, &second].into_iter().try_for_each(|container| container.kill_init())?;
    [other, urgent].into_iter().try_for_each(|child| {
        succeeded("gpool run of one that waited", child.wait_with_output().context("gpool run")?).map(drop)
    })
}

fn begin_again(host: &Host, time: &str) -> Result<std::process::Output> {
    host.gpool(&["override", "begin", "--team", "vision", "--for", time, "--reason", "incident 8"])
}

/// A command of this team that waits for room.
fn waiting(host: &Host, team: &str) -> Result<Child> {
    let mut command = host.command("gpool");
    command.args(["run", "--fraction", "0.4", "--memory", "1GiB", "--team", team, "--wait", "5m", "--", "/bin/true"]);
    spawn_bound(command.stdout(Stdio::piped()).stderr(Stdio::piped())).context("gpool run")
}

/// Whose requests wait, in order.
fn teams(host: &Host) -> Result<Vec<String>> {
    let queue: Vec<WaitingView> = host.client().get("/v1/queue")?;
    Ok(queue.into_iter().filter_map(|one| one.request.team).collect())
}
