//! Budgets: a team that has spent its GPU hours is promised no more. What it runs goes on with what others leave, also when it is
//! started again and across a restart of the supervisor, and has its share again when there are hours and the share is free.

use super::{finish, is_refused, reload_with, said, wait_for};
use crate::failure::{Failure, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::namespaces::Inside;
use crate::tenant::Tenant;
use gpool_protocol::{EventKind, GpuView, LeaseView, Priority, QuotaBudget, QuotaView};
use serde_json::Value;
use std::time::Duration;

const CONFIGURATION: &str = "[policy.env]\nallow = [\"fraction\", \"memory\", \"team\", \"mode\"]\n";
/// Four seconds of a GPU, and hours of it. A month lasts for longer than this.
const SHORT: &str = "[quota.team.vision]\ngpu_hours = \"0.001/month\"\n";
const LONG: &str = "[lease]\nhold_ms = 0\n[quota.team.vision]\ngpu_hours = \"5/month\"\n";
/// Those who have to go have time.
const MAKES_ROOM: &str = "[preemption]\nenabled = true\nafter_seconds = 0\ngrace_seconds = 60\nleast_run_seconds = 0\n";
const KERNEL_US: u64 = 500;

/// Has two teams share a GPU beside another one, of which one has a budget.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 2, CONFIGURATION)?;
    let outcome = reload_with(&host, SHORT)
        .and_then(|()| it_is_spent(&host))
        .and_then(|tenants| nobody_is_promised_more(&mut host, &tenants).map(|()| tenants))
        .and_then(|tenants| nobody_goes_for_it(&host).map(|()| tenants))
        .and_then(|tenants| there_are_hours_again(&host, &tenants));
    finish(host, outcome)
}

struct Tenants {
    vision: Container,
    speech: Container,
}

fn of_team<'a>(team: &'a str, fraction: &'a str) -> [(&'a str, &'a str); 3] {
    [("GPOOL_TEAM", team), ("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", "1GiB")]
}

fn start(host: &Host, name: &str, team: &str, fraction: &str) -> Result<Container> {
    Tenant { allocate_mib: Some(16), ..Tenant::greedy(KERNEL_US) }.run(host, name, &of_team(team, fraction))
}

/// Who has a budget has its share until it is spent, and then what the other leaves.
fn it_is_spent(host: &Host) -> Result<Tenants> {
    let tenants =
        Tenants { vision: start(host, "vision", "vision", "0.6")?, speech: start(host, "speech", "speech", "0.3")? };
    let before = had(host, &tenants, Duration::from_secs(1))?;
    ensure(before > 1.5, || format!("vision has {before} times what speech has, with 0.6 beside 0.3 and hours left"))?;
    wait_for("the budget to be spent", || Ok(host.lease_of(&tenants.vision)?.beyond_budget))?;
    let lease = host.lease_of(&tenants.vision)?;
    ensure(lease.priority == Priority::Burst && !host.lease_of(&tenants.speech)?.beyond_budget, || {
        format!("{lease:?}")
    })?;
    let after = had(host, &tenants, Duration::from_secs(2))?;
    ensure(after < 0.1, || format!("vision has {after} times what speech has, without a promise"))?;
    let listed = text(&host.gpool(&["ps"])?.stdout);
    let is_shown = listed.lines().filter(|line| line.contains("over-budget")).count() == 1;
    ensure(is_shown, || format!("gpool ps says {listed}"))?;
    let explained = text(&host.gpool(&["explain", &tenants.vision.id])?.stdout);
    ensure(explained.contains("over budget: that of team vision is spent until 20"), || {
        format!("it is explained: {explained}")
    })?;
    let told = host.events_of(EventKind::Budget)?;
    let is_told =
        |part: &str| told.iter().any(|event| event.message.contains("team vision: ") && event.message.contains(part));
    ensure(is_told("what it runs has what is idle until"), || format!("{told:?}"))?;
    Ok(tenants)
}

/// Nobody of the team, nor the same once more, also by the next supervisor. And others may have what it had.
fn nobody_is_promised_more(host: &mut Host, tenants: &Tenants) -> Result<()> {
    let is_told = [
        "GPOOL-E206",
        "[quota.team.vision] gpu_hours allows team vision 0.001 hours of a GPU in a month",
        "priority=burst",
    ];
    let whole = [("GPOOL_TEAM", "vision"), ("GPOOL_MODE", "exclusive")];
    is_refused(host, &whole, &is_told[..2])?;
    let promised = host.gpool(&["update", &tenants.vision.id, "--priority", "guaranteed"])?;
    said(&promised, 75, &is_told)?;
    let asked = host.gpool(&["explain", "--request", "fraction=0.05,memory=1GiB,team=vision"])?;
    said(&asked, 0, &["now      granted by mode=slice: 5 %", ", to user 0; a budget is spent, so with what is idle"])?;
    let spent = budget(host)?.spent_gpu_ns;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    wait_for("what was spent to be known again", || Ok(budget(host)?.spent_gpu_ns >= spent))?;
    // Its share is free, and it looks again and again.
    std::thread::sleep(Duration::from_secs(5));
    is_beyond(host, &tenants.vision, "taken over")?;
    let updates = host.events_of(EventKind::LeaseUpdated)?;
    ensure(updates.is_empty(), || format!("it was promised something in between: {updates:?}"))?;
    let late = host.run_container("late", &of_team("vision", "0.05"), &[], &["sleep", "600"])?;
    is_beyond(host, &late, "begun when it was spent")?;
    host.run_container("other", &of_team("other", "0.6"), &[], &["sleep", "600"])?;
    // It goes where it would have its share, and not where others have all.
    let wide = host.run_container("wide", &of_team("vision", "0.5"), &[], &["sleep", "600"])?;
    is_beyond(host, &wide, "begun where there is room")?;
    let gpu_of = |container: &Container| Ok::<_, Failure>(host.lease_of(container)?.gpu_uuid);
    ensure(gpu_of(&wide)? != gpu_of(&tenants.vision)?, || "it is on the GPU that others were promised".to_owned())?;
    ensure(gpu_of(&late)? == gpu_of(&tenants.vision)?, || "it has opened a GPU that it does not need".to_owned())?;
    succeeded("docker restart", host.docker(&["restart", "-t", "0", "vision"])?)?;
    is_beyond(host, &Container::inspect(&host.engine, "vision")?, "started again")
}

fn is_beyond(host: &Host, container: &Container, when: &str) -> Result<()> {
    let lease = host.lease_of(container)?;
    ensure(lease.beyond_budget && lease.priority == Priority::Burst, || format!("{when}: {lease:?}"))
}

/// Who waits without hours has nobody go, since it would be before nobody itself; who has hours does.
fn nobody_goes_for_it(host: &Host) -> Result<()> {
    reload_with(host, &format!("{SHORT}{MAKES_ROOM}"))?;
    let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
    let ask = |team: &str| {
        // All but half of what the smallest of them has, beside what the driver holds.
        let memory = serde_json::json!({"bytes": gpus[0].memory_total_bytes - (512 << 20)});
        let request =
            serde_json::json!({"fraction_permille": 400, "memory": memory, "team": team, "wait_seconds": 600});
        let asked = serde_json::json!({"container_id": team, "request": request});
        host.client().post::<_, Value>("/v1/leases", &asked).map(drop)
    };
    let told = || Ok::<_, Failure>(host.events_of(EventKind::LeasePreempted)?.len());
    ask("vision")?;
    std::thread::sleep(Duration::from_secs(4));
    ask("vision")?;
    ensure(told()? == 0, || format!("{:?}", host.events_of(EventKind::LeasePreempted)))?;
    host.client().post::<_, Value>("/v1/queue/vision/cancel", &())?;
    wait_for("one to be told to go for a team with hours", || {
        ask("other")?;
        Ok(told()? > 0)
    })?;
    host.client().post::<_, Value>("/v1/queue/other/cancel", &())?;
    Ok(())
}

/// It has its share when that is free, and not before.
fn there_are_hours_again(host: &Host, tenants: &Tenants) -> Result<()> {
    let vision = Container::inspect(&host.engine, "vision")?;
    let late = Container::inspect(&host.engine, "late")?;
    reload_with(host, LONG)?;
    let wide = Container::inspect(&host.engine, "wide")?;
    let is_promised = |container: &Container| Ok::<_, Failure>(!host.lease_of(container)?.beyond_budget);
    wait_for("the others to have their shares", || Ok(is_promised(&late)? && is_promised(&wide)?))?;
    std::thread::sleep(Duration::from_secs(3));
    is_beyond(host, &vision, "with a share that another team has")?;
    let explained = text(&host.gpool(&["explain", &vision.id])?.stdout);
    ensure(explained.contains("its share is not its own yet: 60 % of a GPU is asked for"), || {
        format!("it is explained: {explained}")
    })?;
    host.engine.docker_text(&["rm", "-f", "other"])?;
    wait_for("it to have its share again", || Ok(!host.lease_of(&vision)?.beyond_budget))?;
    ensure(host.lease_of(&vision)?.priority == Priority::Guaranteed, || "it is promised nothing".to_owned())?;
    let both = Tenants { vision, speech: Container::inspect(&host.engine, "speech")? };
    let after = had(host, &both, Duration::from_secs(2))?;
    ensure(after > 1.5, || format!("vision has {after} times what speech has, with 0.6 beside 0.3 and hours left"))?;
    ensure(tenants.speech.is_alive(), || "a budget of others has ended a container".to_owned())?;
    let listed = text(&host.gpool(&["quota", "ls"])?.stdout);
    let row = listed.lines().find(|line| line.starts_with("team vision")).unwrap_or_default();
    ensure(row.contains("/5 month"), || format!("gpool quota ls says {listed}"))?;
    let metrics = text(&host.gpool(&["metrics"])?.stdout);
    let figure = "gpool_quota_budget_gpu_seconds{of=\"team\",name=\"vision\",period=\"month\"} 18000";
    ensure(metrics.lines().any(|line| line == figure), || format!("gpool metrics lacks {figure}: {metrics}"))
}

/// How much of the GPU vision had in a while, in parts of what speech had.
fn had(host: &Host, tenants: &Tenants, time: Duration) -> Result<f64> {
    let charged =
        || -> Result<[LeaseView; 2]> { Ok([host.lease_of(&tenants.vision)?, host.lease_of(&tenants.speech)?]) };
    // Once both work, and what was in flight when a share changed has ended.
    wait_for("both to work", || Ok(charged()?.iter().all(|lease| lease.launches > 0)))?;
    std::thread::sleep(Duration::from_millis(1500));
    let before = charged()?;
    std::thread::sleep(time + Duration::from_secs(1));
    let after = charged()?;
    let [vision, speech] = [0, 1].map(|place| after[place].charged_gpu_ns - before[place].charged_gpu_ns);
    ensure(speech > 0, || format!("speech has had nothing: {after:?}"))?;
    Ok(vision as f64 / speech as f64)
}

fn budget(host: &Host) -> Result<QuotaBudget> {
    let quotas: Vec<QuotaView> = host.client().get("/v1/quota")?;
    let found = quotas.iter().find(|quota| quota.team.as_deref() == Some("vision")).and_then(|quota| quota.budget);
    found.ok_or_else(|| Failure::new(format!("no budget of team vision: {quotas:?}")))
}
