//! Jobs that live for less than a second are paid for: what each had is in the event that ends its lease, and in the total
//! of its GPU. And who follows the events hears that the supervisor went away, and what the next one tells.

use super::{finish, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Host, text};
use crate::meter::usage_of;
use crate::namespaces::{Inside, spawn_bound};
use crate::tenant::Tenant;
use gpool_protocol::EventKind;
use std::process::Stdio;
use std::time::Duration;

/// How many, one after the other.
const JOBS: usize = 6;
/// GPU time after which a job is ended: less than half a second of the clock, while the supervisor looks once a second.
const WORK_NS: u64 = 200_000_000;

/// Runs them, then ends the supervisor before a follower.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start(inside)?;
    let outcome = jobs_are_paid_for(&host).and_then(|()| a_follower_is_told(&mut host));
    finish(host, outcome)
}

fn jobs_are_paid_for(host: &Host) -> Result<()> {
    let reader = host.meter()?;
    let mut had_ns = 0;
    for job in 0..JOBS {
        let env = [("GPOOL_FRACTION", "0.1"), ("GPOOL_MEMORY", "1GiB")];
        let container = Tenant::greedy(500).run(host, &format!("job-{job}"), &env)?;
        wait_for("a job to have worked", || Ok(usage_of(&reader.read()?, &container.id).busy_ns > WORK_NS))?;
        container.kill_init()?;
        let ended = || host.events_of(EventKind::LeaseEnded);
        wait_for("its lease to end", || Ok(ended()?.len() > job))?;
        let event = ended()?.remove(job);
        let said_ns: u64 = event.charged.iter().map(|gpu| gpu.charged_gpu_ns).sum();
        let seen_ns = usage_of(&reader.read()?, &container.id).busy_ns;
        // What was under way when it was killed nobody reported.
        let ratio = said_ns as f64 / seen_ns as f64;
        ensure((0.8..1.05).contains(&ratio), || format!("{event:?}: the device saw {seen_ns} ns"))?;
        ensure(event.message.contains(" s of GPU time"), || event.message.clone())?;
        had_ns += said_ns;
    }
    let page = text(&host.gpool(&["metrics"])?.stdout);
    let total = page.lines().find_map(|line| line.strip_prefix("gpool_gpu_used_seconds_total{")?.split_once("} "));
    let (_, total) = total.ok_or_else(|| Failure::new("the metrics have no total of the GPU"))?;
    let ratio = total.parse::<f64>().context(total)? * 1e9 / had_ns as f64;
    ensure((0.99..1.01).contains(&ratio), || format!("the GPU's total is {total} s, its leases' {had_ns} ns"))
}

fn a_follower_is_told(host: &mut Host) -> Result<()> {
    let all = host.gpool(&["events"])?;
    let count = text(&all.stdout).lines().count();
    ensure(all.status.success() && count > 3 * JOBS, || format!("{count} events, {}", all.status))?;
    let mut follower = host.command("gpool");
    follower.args(["events", "--follow"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut follower = spawn_bound(&mut follower).context("gpool events --follow")?;
    std::thread::sleep(Duration::from_millis(300));
    host.kill_supervisor()?;
    std::thread::sleep(Duration::from_millis(300));
    host.start_supervisor()?;
    // It looks twice a second whether there is one again.
    std::thread::sleep(Duration::from_secs(3));
    follower.kill().context("gpool events --follow")?;
    let ended = follower.wait_with_output().context("gpool events --follow")?;
    let (told, said) = (text(&ended.stdout), text(&ended.stderr));
    ensure(told.matches("supervisor-started").count() == 2, || format!("{said}{told}"))?;
    let is_said = ["cut short", "events go on when it answers", "is back"].iter().all(|part| said.contains(part));
    ensure(is_said && said.lines().count() == 2, || said.clone())
}
