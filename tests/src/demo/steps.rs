//! What happens in the demo, step by step, and which figure judges which promise.

use super::board::Board;
use super::promises::{Bounds, Promises};
use super::window::{TOO_MUCH, Window, quietest};
use crate::failure::{Context, Failure, Result};
use crate::host::{Container, Host, succeeded, text};
use crate::measure::{self, Entitled};
use crate::meter::{MeterReader, now_ns, usage_of};
use crate::scenarios::wait_until_running;
use crate::tenant::{self, PauseFile, Tenant};
use crate::trace::{Recorder, Trace};
use gpool_protocol::{format_bytes, parse_bytes};
use std::time::{Duration, Instant};

/// How long all three run while their shares are judged.
const JUDGED: Duration = Duration::from_secs(10);
/// After a change, before a share is judged: how fast is shown, not judged.
const SETTLE: Duration = Duration::from_secs(1);
/// The same for shares after a change.
const AFTER_CHANGE: Duration = Duration::from_secs(5);
/// An effect is there in the first window of this length whose shares are this close (0 to 1) to the new ones: short
/// enough to tell before from after, long enough for several slices of everybody.
const EFFECT_WINDOW: Duration = Duration::from_millis(250);
const EFFECT_TOLERANCE: f64 = 0.05;
/// Between two readings of the meter, while nothing changes.
const EVERY: Duration = Duration::from_millis(50);
/// After a change, while it is watched closely.
const WATCHED: Duration = Duration::from_millis(500);

/// Name, share, memory and kernel length of the three containers.
const TENANTS: [(&str, &str, &str, u64); 3] = [
    ("small-kernels", "0.3", "4GiB", 300),
    ("medium-kernels", "0.6", "10GiB", 2000),
    ("long-kernels", "0.1", "1GiB", 5000),
];

/// Says what comes.
pub fn announce(step: u32, what: &str) {
    println!("\n[{step}/7] {what}");
}

/// Moments of the demo, in nanoseconds of the meter's clock.
#[derive(Debug, Default)]
struct Moments {
    updated: u64,
    paused: u64,
    resumed: u64,
    killed: u64,
    end: u64,
}

/// When shares are judged.
struct Judged {
    all_busy: Window,
    updated: Window,
    back: Window,
}

/// Plays every step and judges.
pub fn play(host: &mut Host, promises: &mut Promises) -> Result<()> {
    let reader = host.meter()?;
    let pause = PauseFile::new("/run/gpool-demo-pause")?;
    let containers = start_three(host, &pause)?;
    refuse_a_fourth(host, promises)?;
    wait_until_running(host, &containers)?;

    let [first, second, third] = &containers;
    let all = [first, second, third];
    let mut board = Board::new(reader.clone());
    let mut at = Moments::default();
    let recorder = Recorder::start(reader.clone(), EVERY);

    announce(4, "all three are busy for ten seconds");
    std::thread::sleep(SETTLE);
    let tries = promises.bounds.tries;
    let all_busy = quietest(tries, || Window::during(|| board.show(host, &all, JUDGED)))?;

    announce(5, "gpool update: the first and the third container get 20 % each while they run");
    update(host, first, "0.2")?;
    at.updated = now_ns();
    update(host, third, "0.2")?;
    board.show(host, &all, SETTLE)?;
    let updated = quietest(tries, || Window::during(|| board.show(host, &all, AFTER_CHANGE)))?;

    announce(6, "the 60 % container falls idle, its time goes to the others; then it comes back");
    at.paused = now_ns();
    recorder.closely(WATCHED, || pause.pause())?;
    board.show(host, &all, Duration::from_secs(4))?;
    let resume = || {
        at.resumed = now_ns();
        pause.resume()
    };
    recorder.closely(SETTLE, resume)?;
    let back = quietest(tries, || Window::during(|| board.show(host, &all, AFTER_CHANGE)))?;

    announce(7, "kill -9 on the first process of the first container");
    let kill = || {
        at.killed = now_ns();
        first.kill_init()
    };
    recorder.closely(WATCHED, kill)?;
    board.show(host, &[second, third], Duration::from_secs(3))?;
    at.end = now_ns();
    let trace = recorder.stop()?;

    let judged = Judged { all_busy, updated, back };
    [all_busy, updated, back].iter().for_each(|window| promises.note_stolen(window.stolen));
    judge_shares(&trace, &containers, &at, &judged, promises);
    judge_memory(host, &trace, &containers, promises)?;
    judge_idle(&trace, &containers, &at, &judged, promises);
    judge_kill(host, &reader, &trace, &containers, &at, promises)
}

fn start_three(host: &Host, pause: &PauseFile) -> Result<[Container; 3]> {
    announce(2, "start three containers: 30 % and 4 GiB, 60 % and 10 GiB, 10 % and 1 GiB of the same GPU");
    let start = |(name, fraction, memory, kernel_us): (&str, &str, &str, u64)| {
        let tenant = Tenant { kernel_us, allocate_mib: None, pause: (fraction == "0.6").then_some(pause) };
        println!("$ docker run -d --runtime=gpool -e GPOOL_FRACTION={fraction} -e GPOOL_MEMORY={memory} ...");
        let env = [("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", memory)];
        tenant.run(host, name, &env)
    };
    let [first, second, third] = TENANTS;
    Ok([start(first)?, start(second)?, start(third)?])
}

fn refuse_a_fourth(host: &Host, promises: &mut Promises) -> Result<()> {
    announce(3, "a fourth container asks for 20 %, which is not free");
    let command = Tenant::greedy(1000).command();
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let refused = host.try_run_container("refused", &[("GPOOL_FRACTION", "0.2")], &[], &command)?;
    let said = text(&refused.stderr);
    println!("$ docker run -d --runtime=gpool -e GPOOL_FRACTION=0.2 ...\n{said}");
    let is_right = !refused.status.success() && said.contains("GPOOL-E201");
    promises.judge(
        "a fourth container is refused",
        &format!("exit {}", refused.status.code().unwrap_or(-1)),
        "GPOOL-E201",
        is_right,
    );
    // A refused `docker run -d` leaves a container in the state Created.
    host.docker(&["rm", "-f", "refused"]).map(drop)
}

fn update(host: &Host, container: &Container, fraction: &str) -> Result<()> {
    let id = &container.id[..12];
    println!("$ gpool update {id} --fraction {fraction}");
    succeeded("gpool update", host.gpool(&["update", id, "--fraction", fraction])?).map(drop)
}

fn judge_shares(trace: &Trace, containers: &[Container; 3], at: &Moments, judged: &Judged, promises: &mut Promises) {
    let [first, second, third] = containers.each_ref().map(|container| container.id.as_str());
    let entitled = [(first, 0.3), (second, 0.6), (third, 0.1)];
    judge_error(trace, "share received over 10 s, all busy", &entitled, judged.all_busy, promises);
    let busy = trace.busy(judged.all_busy.from_ns, judged.all_busy.to_ns) * 100.0;
    let aim = promises.bounds.used_percent;
    promises.judge("GPU busy while work was there", &format!("{busy:.2} %"), &format!("{aim} % (97 %)"), busy >= aim);
    let switching = trace.switching(judged.all_busy.from_ns, judged.all_busy.to_ns) * 100.0;
    promises.show("GPU exchanging contexts meanwhile", &format!("{switching:.2} %"), "");
    let entitled = [(first, 0.2), (second, 0.6), (third, 0.2)];
    judge_error(trace, "new shares after gpool update", &entitled, judged.updated, promises);
    let seen = measure::effect_time(trace, &entitled, at.updated, EFFECT_WINDOW, EFFECT_TOLERANCE);
    promises.show_speed("update seen in the shares", seen, "1000 ms");
}

fn judge_error(trace: &Trace, what: &str, entitled: &[Entitled], window: Window, promises: &mut Promises) {
    let Window { from_ns: from, to_ns: to, .. } = window;
    let Bounds { idle_is_error, share_points: aim, used_percent, .. } = promises.bounds;
    let is_disturbed = idle_is_error && window.stolen >= TOO_MUCH;
    let busy = trace.busy(from, to) * 100.0;
    let (error, whole) = match idle_is_error && !is_disturbed {
        true => (measure::worst_error_points(trace, entitled, from, to), String::new()),
        false => (measure::worst_proportion_error_points(trace, entitled, from, to), format!(" of {busy:.1}")),
    };
    // Where the processors were away the simulated GPU stood still for everybody, but not for long.
    let is_used = !is_disturbed || busy >= used_percent;
    let shares: Vec<String> =
        entitled.iter().map(|(id, _)| format!("{:.1}", trace.share(id, from, to) * 100.0)).collect();
    let figure = format!("{}{whole} %, error {error:.2}", shares.join(" / "));
    promises.judge(what, &figure, &format!("{aim} points"), error <= aim && is_used);
}

fn judge_memory(host: &Host, trace: &Trace, containers: &[Container; 3], promises: &mut Promises) -> Result<()> {
    for (container, (name, _, memory, _)) in containers.iter().zip(TENANTS) {
        let cap = parse_bytes(memory).context(memory)?;
        let peak = measure::peak_bytes(trace, &container.id);
        let over = peak.saturating_sub(cap);
        let figure = format!("{} held, {over} bytes over", format_bytes(peak));
        promises.judge(&format!("memory cap of {name}"), &figure, &format_bytes(cap), over == 0 && peak > 0);
        let report = tenant::report(&container.log(&host.engine)?)?;
        let figure = format!("{} / {}", format_bytes(report.cuda_total_bytes), format_bytes(report.nvml_total_bytes));
        let is_cap = report.cuda_total_bytes == cap && report.nvml_total_bytes == cap;
        promises.judge(&format!("cuMemGetInfo / NVML in {name}"), &figure, &format_bytes(cap), is_cap);
    }
    Ok(())
}

fn judge_idle(trace: &Trace, containers: &[Container; 3], at: &Moments, judged: &Judged, promises: &mut Promises) {
    let [first, second, third] = containers.each_ref().map(|container| container.id.as_str());
    let from = at.paused + SETTLE.as_nanos() as u64;
    let lent = (trace.share(first, from, at.resumed) + trace.share(third, from, at.resumed)) * 100.0;
    let aim = promises.bounds.used_percent;
    promises.judge("idle time lent to the others", &format!("{lent:.2} %"), &format!("{aim} %"), lent >= aim);
    promises.show_speed(
        "idle time lent after",
        measure::lend_gap(trace, second, at.paused, at.resumed),
        "one slice, 20 ms",
    );
    promises.show_speed("lent time taken back after", measure::first_run(trace, second, at.resumed), "50 ms");
    let entitled = [(first, 0.2), (second, 0.6), (third, 0.2)];
    judge_error(trace, "shares after it came back", &entitled, judged.back, promises);
}

fn judge_kill(
    host: &Host,
    reader: &MeterReader,
    trace: &Trace,
    containers: &[Container; 3],
    at: &Moments,
    promises: &mut Promises,
) -> Result<()> {
    let [first, second, third] = containers;
    promises.show_speed(
        "memory of a killed container free after",
        measure::memory_freed(trace, &first.id, at.killed),
        "1000 ms",
    );
    let entitled = [(second.id.as_str(), 0.75), (third.id.as_str(), 0.25)];
    let seen = measure::effect_time(trace, &entitled, at.killed, EFFECT_WINDOW, EFFECT_TOLERANCE);
    promises.show_speed("its slice with the others after", seen, "1000 ms");
    let held = usage_of(&reader.read()?, &first.id).bytes_now;
    let from = at.killed + SETTLE.as_nanos() as u64;
    let busy = trace.busy(from, at.end) * 100.0;
    let figure = format!("{} held, {busy:.1} % with the others", format_bytes(held));
    let aim = promises.bounds.used_percent;
    promises.judge(
        "a killed container's slice and memory are free",
        &figure,
        &format!("0, {aim} %"),
        held == 0 && busy >= aim,
    );
    let granted = successor(host)?;
    let figure = if granted { "granted" } else { "refused" };
    promises.judge("its share can be given to another container", figure, "granted", granted);
    Ok(())
}

/// Whether another container gets the 20 % that the killed one had, once its place is no longer kept for a restart.
fn successor(host: &Host) -> Result<bool> {
    let deadline = Instant::now() + crate::host::HOLD + Duration::from_secs(4);
    let env = [("GPOOL_FRACTION", "0.2"), ("GPOOL_MEMORY", "4GiB")];
    loop {
        match Tenant::greedy(1000).run(host, "successor", &env) {
            Ok(_) => return Ok(true),
            Err(_) if Instant::now() < deadline => host.docker(&["rm", "-f", "successor"]).map(drop)?,
            Err(failure) if failure.to_string().contains("GPOOL-E2") => return Ok(false),
            Err(failure) => return Err(Failure::new(format!("after the kill: {failure}"))),
        }
        std::thread::sleep(Duration::from_millis(250));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::tests::traced;

    #[test]
    fn a_gpu_that_stood_still_is_an_error_only_where_the_processors_were_there() {
        // 3 % of the time are lost, to both as much as they have.
        let even = traced(2000, |ms| vec![("a", ms * 388_000), ("b", ms * 582_000)]);
        let uneven = traced(2000, |ms| vec![("a", ms * 370_000), ("b", ms * 600_000)]);
        let idle = traced(2000, |ms| vec![("a", ms * 360_000), ("b", ms * 540_000)]);
        let nothing = traced(2000, |_| vec![("a", 0), ("b", 0)]);
        let holds = |trace: &Trace, stolen| {
            let mut promises = Promises::new(Bounds::PROMISED);
            let window = Window { from_ns: 0, to_ns: 2_000_000_000, stolen };
            judge_error(trace, "shares", &[("a", 0.4), ("b", 0.6)], window, &mut promises);
            promises.all_hold()
        };
        assert!(!holds(&even, 0.0) && holds(&even, 0.04));
        assert!(!holds(&uneven, 0.0) && !holds(&uneven, 0.04), "one of them lost all of it");
        assert!(!holds(&idle, 0.04) && !holds(&nothing, 0.04), "that is more than other machines explain");
    }
}
