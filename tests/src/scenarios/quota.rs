//! Quotas of teams: what is beyond one is refused or waits, in nobody's way, until a container of the team has ended or the quota is
//! raised; priority=burst goes beyond it; and a quota that is lowered takes nothing from anybody, also across a restart of the
//! supervisor.

use super::{finish, is_refused, reload_with, said, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::image;
use crate::namespaces::{Inside, spawn_bound};
use crate::tenant::Tenant;
use gpool_protocol::{QuotaHeld, QuotaView, WaitingView};
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Child, Stdio};
use std::time::Duration;

/// Teams come by the environment.
const CONFIGURATION: &str = "[policy.env]\nallow = [\"fraction\", \"memory\", \"team\", \"priority\", \"wait\"]\n";
/// An ended container's place is free at once.
const AT_ONCE: &str = "[lease]\nhold_ms = 0\n";
const BOUNDED: &str = "[quota.team.vision]\ngpus = \"0.5\"\nmemory = \"3GiB\"\n[quota.default_team]\nleases = 1\n\
    [quota.team.full]\nmemory = \"1GiB\"\n[quota.team.small]\ncontainer_gpus = \"0.15\"\n";
const RAISED: &str = "[quota.team.vision]\ngpus = \"0.8\"\n";
const LOWERED: &str = "[quota.team.vision]\ngpus = \"0.1\"\n[quota.user.0]\nleases = 2\n";
/// Nobody here waits for so long.
const LONG: &str = "300s";

/// Has two teams share one GPU, of which one has a quota of a half.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 1, CONFIGURATION)?;
    let outcome = bound_by(&host, BOUNDED)
        .and_then(|()| beyond_it(&host))
        .and_then(|first| somebody_waits(&mut host, &first))
        .and_then(|second| raised_and_lowered(&host, &second));
    finish(host, outcome)
}

fn bound_by(host: &Host, quotas: &str) -> Result<()> {
    reload_with(host, &format!("{AT_ONCE}{quotas}"))
}

fn of_team<'a>(team: &'a str, fraction: &'a str) -> [(&'a str, &'a str); 3] {
    [("GPOOL_TEAM", team), ("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", "1GiB")]
}

fn start(host: &Host, name: &str, env: &[(&str, &str)]) -> Result<Container> {
    host.run_container(name, env, &[], &["sleep", "600"])
}

/// What is refused, and what is not. The container that has most of the quota at the end.
fn beyond_it(host: &Host) -> Result<Container> {
    let first = start(host, "first", &of_team("vision", "0.4"))?;
    let is_told = [
        "GPOOL-E206",
        "[quota.team.vision] gpus allows team vision 0.5 GPUs of guaranteed share: 0.4 is reserved, and 0.2 is asked for",
        "ask for 0.1 or less in all",
        "priority=burst",
        "GPOOL_WAIT",
    ];
    is_refused(host, &of_team("vision", "0.2"), &is_told)?;
    let wait = [&of_team("vision", "0.6")[..], &[("GPOOL_WAIT", LONG)]].concat();
    let of_one = "[quota.team.small] container_gpus allows containers of team small 0.15 GPUs of guaranteed share each";
    for more in [&[][..], &[("GPOOL_WAIT", LONG)]] {
        let large = [&of_team("small", "0.2")[..], more].concat();
        is_refused(host, &large, &["GPOOL-E206", of_one, "ask for 0.15 or less"])?;
    }
    is_refused(host, &wait, &["GPOOL-E206", "0.5 GPUs of guaranteed share altogether, and 0.6 is asked for"])?;
    let burst = [&of_team("vision", "0.6")[..], &[("GPOOL_PRIORITY", "burst")]].concat();
    start(host, "burst", &burst)?;
    let large: Vec<(&str, &str)> =
        burst.iter().map(|it| if it.0 == "GPOOL_MEMORY" { (it.0, "2GiB") } else { *it }).collect();
    is_refused(host, &large, &["GPOOL-E206", "[quota.team.vision] memory allows team vision 3GiB", "1024MiB or less"])?;
    let grown = host.gpool(&["update", &first.id, "--fraction", "0.6"])?;
    said(&grown, 75, &["GPOOL-E206", "[quota.team.vision] gpus"])?;
    asked_beforehand(host)?;
    all_at_once(host)?;
    a_lower_cap_gives_nothing_back(host)?;
    Ok(first)
}

/// `gpool explain --request` says what a start would be told, and starts nothing.
fn asked_beforehand(host: &Host) -> Result<()> {
    let before = (host.leases()?.len(), host.events()?.len());
    let ask = |request: &str| host.gpool(&["explain", "--request", request]);
    let over = ask("fraction=0.2,memory=1GiB,team=vision")?;
    said(
        &over,
        75,
        &["now      refused: [quota.team.vision] gpus allows team vision 0.5 GPUs", "GPOOL-E206", "priority=burst"],
    )?;
    let large = ask("fraction=0.7,memory=1GiB,team=speech")?;
    said(&large, 75, &["now      refused: 70 % of a GPU is asked for", "has 60 % free", "GPOOL-E201"])?;
    said(
        &ask("fraction=0.6,memory=1GiB,team=speech,p99=50ms")?,
        0,
        &["now      granted by mode=slice: 60 % and 1GiB of GPU-"],
    )?;
    let never = ask("fraction=0.3,mode=exclusive")?;
    said(&never, 2, &["now      refused: ", "GPOOL-E101"])?;
    let json = text(&host.gpool(&["explain", "--request", "fraction=0.1,memory=1GiB", "--format", "json"])?.stdout);
    ensure(json.contains("\"now\": {\n      \"granted\": {"), || format!("gpool explain --format json says {json}"))?;
    let after = (host.leases()?.len(), host.events()?.len());
    ensure(before == after, || format!("who asks beforehand leaves something: {before:?} leases and events, {after:?}"))
}

/// What is held beyond a cap that was lowered counts on, at once and later, and can be had back.
fn a_lower_cap_gives_nothing_back(host: &Host) -> Result<()> {
    let tenant = Tenant { allocate_mib: Some(600), ..Tenant::greedy(500) };
    let full = tenant.run(host, "full", &of_team("full", "0.05"))?;
    wait_for("it to have allocated", || Ok(host.lease_of(&full)?.memory_used_bytes >= 600 << 20))?;
    succeeded("gpool update", host.gpool(&["update", &full.id, "--memory", "256MiB"])?)?;
    let more = [("GPOOL_TEAM", "full"), ("GPOOL_FRACTION", "0.01"), ("GPOOL_MEMORY", "512MiB")];
    for pause in [Duration::ZERO, Duration::from_millis(2500)] {
        std::thread::sleep(pause);
        is_refused(host, &more, &["GPOOL-E206", "[quota.team.full] memory allows team full 1GiB"])?;
    }
    succeeded("gpool update back", host.gpool(&["update", &full.id, "--memory", "1GiB"])?)?;
    full.kill_init()?;
    wait_for("its place to be free", || Ok(quota_of(host, "full")?.held.leases == 0))
}

/// Of several that start at the same time no more are let in than the quota has places.
fn all_at_once(host: &Host) -> Result<()> {
    let command = || {
        let mut command = host.command("gpool");
        command.args(["run", "--team", "rush", "--fraction", "0.01", "--memory", "1GiB", "--", "sleep", "600"]);
        spawn_bound(command.stdout(Stdio::piped()).stderr(Stdio::piped())).context("gpool run")
    };
    let mut running = (0..4).map(|_| command()).collect::<Result<Vec<Child>>>()?;
    let mut refused = Vec::new();
    wait_for("three of four to be refused", || {
        while let Some(place) = running.iter_mut().position(|one| matches!(one.try_wait(), Ok(Some(_)))) {
            refused.push(running.remove(place));
        }
        Ok(refused.len() >= 3)
    })?;
    for one in refused {
        let told = text(&one.wait_with_output().context("gpool run")?.stderr);
        let is_told = told.contains("[quota.default_team] leases allows team rush 1 container");
        ensure(is_told, || format!("gpool run says {told}"))?;
    }
    wait_for("the fourth to have its lease", || Ok(quota_of(host, "rush").is_ok_and(|rush| rush.held.leases == 1)))?;
    let [one] = running.as_mut_slice() else { return Err(Failure::new("the one that may be was refused as well")) };
    kill_process(Pid::from_child(one), Signal::TERM).context("gpool run is gone")?;
    one.wait().context("gpool run").map(drop)
}

/// One waits for its own team, and starts when that has room in its quota. It is given back.
fn somebody_waits(host: &mut Host, first: &Container) -> Result<Container> {
    let waiting = waiting_container(host, "second", &of_team("vision", "0.2"))?;
    let waits = waits(host, 1)?;
    let is_in_nobodys_way = waits[0].kept_on.is_empty() && waits[0].cause.contains("[quota.team.vision]");
    ensure(is_in_nobodys_way, || format!("it waits so: {waits:?}"))?;
    start(host, "speech", &of_team("speech", "0.6"))?;
    is_refused(
        host,
        &of_team("speech", "0.01"),
        &["GPOOL-E206", "[quota.default_team] leases allows team speech 1 container"],
    )?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    is_refused(host, &of_team("vision", "0.2"), &["GPOOL-E206", "0.4 is reserved"])?;
    let vision = quota_of(host, "vision")?;
    let held = QuotaHeld { share_permille: 400, memory_bytes: 2 << 30, leases: 2 };
    ensure((vision.held, vision.waiting) == (held, 1), || format!("{vision:?}"))?;
    let listed = text(&host.gpool(&["quota", "ls"])?.stdout);
    let row = listed.lines().find(|line| line.starts_with("team vision")).unwrap_or_default();
    let fields: Vec<&str> = row.split_whitespace().collect();
    ensure(fields == ["team", "vision", "0.4/0.5", "2GiB/3GiB", "2/-", "-", "1"], || {
        format!("gpool quota ls says {listed}")
    })?;
    first.kill_init()?;
    succeeded("docker run of the container that waited", waiting.wait_with_output().context("docker run")?)?;
    Container::inspect(&host.engine, "second")
}

/// One waits until the quota is raised. When it is lowered everybody goes on, and gets no more.
fn raised_and_lowered(host: &Host, second: &Container) -> Result<()> {
    Container::inspect(&host.engine, "speech")?.kill_init()?;
    let waiting = waiting_container(host, "third", &of_team("vision", "0.6"))?;
    // It is larger than the quota, so that it is refused and does not wait.
    let ended = waiting.wait_with_output().context("docker run")?;
    let told = text(&ended.stderr);
    let has_not_waited = told.contains("altogether") && !told.contains("the time to wait");
    ensure(!ended.status.success() && has_not_waited, || format!("more than the whole quota: {told}"))?;
    host.engine.docker_text(&["rm", "-f", "third"])?;
    let waiting = waiting_container(host, "third", &of_team("vision", "0.4"))?;
    waits(host, 1)?;
    bound_by(host, RAISED)?;
    succeeded("docker run of the container that waited", waiting.wait_with_output().context("docker run")?)?;
    let third = Container::inspect(&host.engine, "third")?;
    let fourth = waiting_container(host, "fourth", &of_team("vision", "0.5"))?;
    waits(host, 1)?;
    // From now on a place is kept for a restart again.
    reload_with(host, LOWERED)?;
    let told = text(&fourth.wait_with_output().context("docker run")?.stderr);
    ensure(told.contains("0.5 is asked for") && told.contains("altogether"), || {
        format!("one that waits for what the quota will never be again: {told}")
    })?;
    ensure(second.is_alive() && third.is_alive(), || "a lower quota has ended a container".to_owned())?;
    succeeded("gpool update", host.gpool(&["update", &third.id, "--fraction", "0.3"])?)?;
    said(&host.gpool(&["update", &third.id, "--fraction", "0.4"])?, 75, &["GPOOL-E206"])?;
    succeeded("docker restart", host.docker(&["restart", "-t", "0", "second"])?)?;
    is_refused(host, &of_team("speech", "0.1"), &["GPOOL-E206", "[quota.user.0] leases allows user 0 2 containers"])?;
    let metrics = text(&host.gpool(&["metrics"])?.stdout);
    for figure in [
        "gpool_quota_held_gpus{of=\"team\",name=\"vision\"} 0.5",
        "gpool_quota_allowed_gpus{of=\"team\",name=\"vision\"} 0.1",
        "gpool_quota_allowed_leases{of=\"user\",name=\"0\"} 2",
    ] {
        ensure(metrics.lines().any(|line| line == figure), || format!("gpool metrics lacks {figure}: {metrics}"))?;
    }
    Ok(())
}

/// `docker run`, which does not come back before there is room.
fn waiting_container(host: &Host, name: &str, env: &[(&str, &str)]) -> Result<Child> {
    let wait = format!("GPOOL_WAIT={LONG}");
    let env: Vec<String> = env.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mut words = vec!["run", "-d", "--runtime=gpool", "--name", name, "-e", &wait];
    words.extend(env.iter().flat_map(|text| ["-e", text.as_str()]));
    words.extend([image::NAME, "sleep", "600"]);
    let mut docker = host.docker_command(&words);
    spawn_bound(docker.stdout(Stdio::piped()).stderr(Stdio::piped())).context("docker run")
}

/// Who waits once these are so many.
fn waits(host: &Host, count: usize) -> Result<Vec<WaitingView>> {
    let all = || host.client().get::<Vec<WaitingView>>("/v1/queue");
    wait_for(&format!("{count} to wait"), || Ok(all()?.len() == count))?;
    Ok(all()?)
}

fn quota_of(host: &Host, team: &str) -> Result<QuotaView> {
    let quotas: Vec<QuotaView> = host.client().get("/v1/quota")?;
    let found = quotas.iter().find(|quota| quota.team.as_deref() == Some(team)).cloned();
    found.ok_or_else(|| Failure::new(format!("no quota of team {team}: {quotas:?}")))
}
