//! Among equals in the queue who has had least of GPUs before is first, where that counts; otherwise teams take turns.

use super::{finish, reload_with, said, wait_for};
use crate::failure::{Context, Result, ensure};
use crate::host::{Host, succeeded};
use crate::namespaces::{Inside, spawn_bound};
use gpool_protocol::WaitingView;
use std::process::{Child, Stdio};

const TURNS: &str = "[policy.env]\nallow = [\"fraction\", \"memory\", \"team\"]\n[lease]\nhold_ms = 0\n";

/// Has one team on a GPU, and both wait for it.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start(inside)?;
    let outcome = reload_with(&host, TURNS).and_then(|()| all(&mut host));
    finish(host, outcome)
}

fn all(host: &mut Host) -> Result<()> {
    let of_vision = [("GPOOL_TEAM", "vision"), ("GPOOL_FRACTION", "0.7"), ("GPOOL_MEMORY", "4GiB")];
    let holder = host.run_container("holder", &of_vision, &[], &["sleep", "600"])?;
    let mut waiting = Vec::new();
    for (team, count) in [("vision", 1), ("speech", 2)] {
        waiting.push(waits(host, team)?);
        wait_for("it to be in the queue", || Ok(teams(host)?.len() == count))?;
    }
    waiting.push(waits(host, "speech")?);
    wait_for("turns in the order in which they came", || Ok(teams(host)? == ["vision", "speech", "speech"]))?;
    ensure(queue(host)?.iter().all(|one| one.owner_had_gpu_seconds.is_none()), || "turns count".to_owned())?;

    // The one that runs is expected to have 0.7 GPU hours, and each that waits 0.6: speech is first, and then vision is level with it.
    reload_with(host, &format!("{TURNS}[queue]\nhalf_life_days = 7\n"))?;
    wait_for("who has had less to be first", || Ok(teams(host)? == ["speech", "speech", "vision"]))?;
    let had: Vec<u64> = queue(host)?.iter().filter_map(|one| one.owner_had_gpu_seconds).collect();
    ensure(had.len() == 3 && had[0] == had[1] && had[0] < 60 && (2500..2540).contains(&had[2]), || {
        format!("they have had {had:?}")
    })?;
    said(&host.gpool(&["queue", "ls", "--format", "wide"])?, 0, &["HAD"])?;

    // With ten times the shares it may have had more, and its first one is before the others' second.
    reload_with(host, &format!("{TURNS}[queue]\nhalf_life_days = 7\n[team.vision]\nshares = 10\n"))?;
    wait_for("shares to count", || Ok(teams(host)? == ["speech", "vision", "speech"]))?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    wait_for("the next supervisor to know it", || Ok(teams(host)? == ["speech", "vision", "speech"]))?;

    reload_with(host, TURNS)?;
    wait_for("teams to take turns again", || Ok(teams(host)? == ["vision", "speech", "speech"]))?;
    holder.kill_init()?;
    waiting.into_iter().try_for_each(|child| {
        succeeded("gpool run of one that waited", child.wait_with_output().context("gpool run")?).map(drop)
    })
}

/// A command of this team that waits for room.
fn waits(host: &Host, team: &str) -> Result<Child> {
    let mut command = host.command("gpool");
    command.args(["run", "--fraction", "0.6", "--memory", "1GiB", "--team", team, "--wait", "5m", "--", "/bin/true"]);
    spawn_bound(command.stdout(Stdio::piped()).stderr(Stdio::piped())).context("gpool run")
}

fn queue(host: &Host) -> Result<Vec<WaitingView>> {
    Ok(host.client().get("/v1/queue")?)
}

/// Whose requests wait, in order.
fn teams(host: &Host) -> Result<Vec<String>> {
    Ok(queue(host)?.into_iter().filter_map(|one| one.request.team).collect())
}
