//! Everything that takes part in a container's life is killed with SIGKILL at every stage of it: afterwards a container
//! that runs has one lease, one that does not run has none, and nothing stays.

mod cell;
mod stop;

use self::cell::{Killed, cells, kill_somewhere};
use super::finish;
use crate::cgroups;
use crate::failure::{Result, ensure};
use crate::host::{Container, HOLD, Host};
use crate::namespaces::Inside;
use gpool_protocol::{Client, DEFAULT_SOCKET, GpuView, LeaseState, LeaseView};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// An engine that hangs on what was killed is let go after this.
const ENGINE: Duration = Duration::from_secs(10);
/// What is not back by then is leaked. The aim is 3 s; a machine busy with other things is slower.
const BACK: Duration = Duration::from_secs(20);
/// Kills of the wrapper, each later than the one before.
const SOMEWHERE: usize = 8;

/// Kills, and counts what is lost and leaked.
pub fn run(inside: &Inside) -> Result<()> {
    stop::install_low_level()?;
    let mut host = Host::start_with(inside, 1, &format!("[runtime]\nlow_level = [\"{}\"]\n", stop::LOW_LEVEL))?;
    let outcome = stop::install_hook(&host).and_then(|()| kill_all(&mut host));
    host.engine.remove_all_containers()?;
    remove_what_others_leave(&inside.cgroup_parent);
    finish(host, outcome)
}

/// The engine's own parts leave things when they are killed: containerd a shim that nobody asks any more, runc the empty
/// cgroup of a container whose start did not end. They are told and taken away, so that the census shows ours.
fn remove_what_others_leave(cgroup_parent: &str) {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_shim = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("containerd-shim"))
    };
    for pid in pids.filter(is_shim).filter_map(Pid::from_raw) {
        println!("    containerd left a shim");
        let _ = kill_process(pid, Signal::KILL);
    }
    for socket in fs::read_dir("/run/containerd/s").into_iter().flatten().flatten() {
        let _ = fs::remove_file(socket.path());
    }
    cgroups::remove_below(cgroup_parent);
}

fn kill_all(host: &mut Host) -> Result<()> {
    let watch = Watch::start();
    let mut killed = Vec::new();
    for cell in cells() {
        if cell.kills_the_supervisor() {
            settle(host, &mut killed)?;
        }
        let mut done = cell.run(host)?;
        done.wait_for_engine(ENGINE)?;
        killed.push(done);
    }
    for index in 0..SOMEWHERE {
        let after = Duration::from_micros(index as u64 * 3100);
        let mut done = kill_somewhere(host, &format!("somewhere-{index}"), after)?;
        done.wait_for_engine(ENGINE)?;
        killed.push(done);
    }
    let lost = settle(host, &mut killed)?;
    let last_seen = watch.stop();
    tell_times(host, &killed, &last_seen);
    host.engine.remove_all_containers()?;
    let leaked = leaked(host)?;
    println!("    killmatrix.kills {}", killed.len());
    println!("    killmatrix.lost {}", lost.len());
    println!("    killmatrix.leaked {}", leaked.len());
    ensure(lost.is_empty(), || format!("lost: {}", lost.join("; ")))?;
    ensure(leaked.is_empty(), || format!("leaked: {}", leaked.join("; ")))
}

/// Waits until every container that runs has one active lease and no other has any; says who has not.
fn settle(host: &Host, killed: &mut [Killed]) -> Result<Vec<String>> {
    let deadline = Instant::now() + BACK;
    loop {
        let leases = host.leases()?;
        let wrong: Vec<String> = killed.iter().filter_map(|killed| disagreement(host, killed, &leases)).collect();
        if wrong.is_empty() || Instant::now() > deadline {
            return Ok(wrong);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn disagreement(host: &Host, killed: &Killed, leases: &[LeaseView]) -> Option<String> {
    let its = leases.iter().filter(|lease| lease.container_id.0 == killed.container_id);
    let states: Vec<LeaseState> = its.map(|lease| lease.state).filter(|state| *state != LeaseState::Held).collect();
    let runs = runs(host, killed);
    let agrees = if runs { states == [LeaseState::Active] } else { states.is_empty() };
    (!agrees).then(|| {
        format!("{} {} and its leases are {states:?}", killed.cell.name, if runs { "runs" } else { "is dead" })
    })
}

fn runs(host: &Host, killed: &Killed) -> bool {
    Container::inspect(&host.engine, &killed.cell.name)
        .is_ok_and(|container| container.init_pid > 0 && container.is_alive())
}

/// What is left of leases when no container is left.
fn leaked(host: &Host) -> Result<Vec<String>> {
    let deadline = Instant::now() + BACK + HOLD;
    loop {
        let left = left(host)?;
        if left.is_empty() || Instant::now() > deadline {
            return Ok(left);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn left(host: &Host) -> Result<Vec<String>> {
    let mut left: Vec<String> =
        host.leases()?.iter().map(|lease| format!("lease {} {:?}", lease.lease_id, lease.state)).collect();
    let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
    let promised = |gpu: &&GpuView| gpu.fraction_leased_permille > 0 || gpu.memory_leased_bytes > 0;
    left.extend(gpus.iter().filter(promised).map(|gpu| format!("a promise on GPU {}", gpu.index)));
    let directories = fs::read_dir("/run/gpool/leases").into_iter().flatten().flatten();
    left.extend(directories.map(|entry| format!("directory {}", entry.path().display())));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    left.extend(mounts.lines().filter(|line| line.contains("/run/gpool/leases/")).map(|line| format!("mount {line}")));
    let reader = host.meter()?;
    let (held, processes) = (reader.memory_used_bytes()?, reader.processes()?.len());
    if held > 0 || processes > 0 {
        left.push(format!("{held} bytes of {processes} processes on the device"));
    }
    Ok(left)
}

/// How long each lease was there after the kill, where its container did not live on.
fn tell_times(host: &Host, killed: &[Killed], last_seen: &BTreeMap<String, Instant>) {
    let mut times: Vec<(Duration, &str)> = killed
        .iter()
        .filter(|killed| !runs(host, killed))
        .filter_map(|killed| {
            let seen = last_seen.get(&killed.container_id)?;
            Some((seen.saturating_duration_since(killed.at), killed.cell.name.as_str()))
        })
        .collect();
    times.sort();
    for (time, name) in times.iter().rev().take(5) {
        println!("    lease back {:.2} s after the kill of {name}", time.as_secs_f64());
    }
    if let Some((middle, _)) = times.get(times.len() / 2) {
        println!("    lease back after {:.2} s in the middle, aim 3 s at most", middle.as_secs_f64());
        println!("    killmatrix.back_p50_s {:.3}", middle.as_secs_f64());
    }
    if let Some((longest, _)) = times.last() {
        println!("    killmatrix.back_worst_s {:.3}", longest.as_secs_f64());
    }
}

/// Looks at all leases again and again, and remembers when each was last there.
struct Watch {
    over: Arc<AtomicBool>,
    seen: Arc<Mutex<BTreeMap<String, Instant>>>,
    thread: JoinHandle<()>,
}

impl Watch {
    fn start() -> Self {
        let (over, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(BTreeMap::new())));
        let (is_over, book) = (over.clone(), seen.clone());
        let thread = std::thread::spawn(move || {
            let client = Client::new(DEFAULT_SOCKET).with_timeout(Duration::from_secs(1));
            while !is_over.load(Ordering::Relaxed) {
                let leases: Vec<LeaseView> = client.get("/v1/leases").unwrap_or_default();
                let now = Instant::now();
                let live = leases.into_iter().filter(|lease| lease.state != LeaseState::Held);
                let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
                book.extend(live.map(|lease| (lease.container_id.0, now)));
                drop(book);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { over, seen, thread }
    }

    fn stop(self) -> BTreeMap<String, Instant> {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        std::mem::take(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
