//! Whether the hardware heeds time slices that are set from outside, tried on two processes of our own.

use super::channel_groups::ChannelGroups;
use super::control_file::{ControlFile, ResourceManager};
use super::load::READY;
use crate::device::{Gpu, Kind};
use crate::events::About;
use crate::lease::Leases;
use crate::procfs::WatchedProcess;
use gpool_protocol::{EventKind, HostPid, TimeSlices};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The slices that are tried, microseconds: one process has the long one, then the other. What the longer one should have
/// of the work is 16/17, 0.94.
const LONG_US: u64 = 16_000;
const SHORT_US: u64 = 1_000;
/// What it must have, thousandths. Without effect it would have about a half.
const LEAST_PERMILLE: u64 = 850;
/// Until both are at work: contexts are made, and code is compiled.
const START_PATIENCE: Duration = Duration::from_secs(40);
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// From setting to the first count: what is under way ends first.
const SETTLE: Duration = Duration::from_millis(300);
const MEASURED: Duration = Duration::from_millis(1200);
/// Between two attempts, when it could not be tried; later ones are further apart ...
const AGAIN: Duration = Duration::from_secs(60);
/// ... up to so many times that.
const AGAIN_MOST: u32 = 10;
/// What was not kept is tried so often before that counts.
const NEGATIVES: usize = 3;
/// While a GPU is tried it is looked so often whether somebody else is to have it.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// Tries every GPU of which there is no verdict yet, for ever; runs on its own thread.
pub fn test_all(leases: &Leases) {
    for attempt in 1.. {
        let mut is_open = false;
        for gpu in leases.gpus().iter().filter(|gpu| gpu.kind == Kind::Whole) {
            if leases.time_slices.take_over_one(gpu) {
                continue;
            }
            let verdict = verdict(leases, gpu);
            if leases.time_slices.of(&gpu.uuid).as_ref() != Some(&verdict) {
                let message = format!("tried time slices on {}: {}", gpu.uuid.0, verdict.told);
                leases.events.note(EventKind::TimeSlicesTried, About::default(), message);
            }
            is_open |= !verdict.is_final;
            leases.time_slices.note(gpu, verdict);
        }
        // A GPU may also come back from being divided.
        std::thread::sleep(if is_open { AGAIN * AGAIN_MOST.min(attempt) } else { AGAIN });
    }
}

/// Why a GPU is not tried now, or no longer, if so: it is for others.
fn in_the_way(leases: &Leases, gpu: &Gpu) -> Option<&'static str> {
    if leases.drains.of(gpu).is_some() {
        return Some("the GPU is drained");
    }
    let (book, gpus) = (leases.book(), leases.gpus());
    let mut leased = book.leases.values().flat_map(|lease| lease.gpus());
    leased.any(|index| gpus[index].uuid == gpu.uuid).then_some("containers have the GPU")
}

fn verdict(leases: &Leases, gpu: &Gpu) -> TimeSlices {
    let driver = leases.configuration().driver.clone();
    if let Some(others) = in_the_way(leases, gpu) {
        let told = format!("it is not tried while {others}");
        return TimeSlices { kept: false, is_final: false, told };
    }
    let index = leases.gpus().iter().position(|other| other.uuid == gpu.uuid);
    if index.is_some_and(|index| leases.occupants.living(index, |_| true) > 0) {
        let told = "it is not tried while other processes use the GPU".to_owned();
        return TimeSlices { kept: false, is_final: false, told };
    }
    let give_way = || in_the_way(leases, gpu).map_or(Ok(()), |others| Err(io::Error::other(others)));
    let once = || tried(&driver.library_dirs, &driver.device_dir, gpu, &give_way);
    let is_kept = |shares: &[u64; 2]| shares.iter().all(|permille| *permille >= LEAST_PERMILLE);
    // Whatever else the host does meanwhile may spoil one, and never make one.
    let mut outcome = once();
    for _ in 1..NEGATIVES {
        match &outcome {
            Ok(shares) if !is_kept(shares) => outcome = once(),
            Ok(_) | Err(_) => break,
        }
    }
    match outcome {
        Ok(shares) => {
            let told = format!(
                "of two processes the one with {} of {} ms had {} and {} thousandths of the work",
                LONG_US / 1000,
                (LONG_US + SHORT_US) / 1000,
                shares[0],
                shares[1]
            );
            TimeSlices { kept: is_kept(&shares), is_final: true, told }
        }
        Err(error) => TimeSlices { kept: false, is_final: false, told: format!("it could not be tried ({error})") },
    }
}

/// Waits for so long, unless the GPU is somebody else's meanwhile.
///
/// # Errors
/// It is.
fn pause(patience: Duration, give_way: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        give_way()?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(LOOK_PERIOD));
    }
}

/// What the process with the long slice had of the work, in thousandths: first one of the two, then the other. Both are at their end with
/// the first error of `give_way`.
fn tried(
    library_dirs: &[PathBuf],
    device_dir: &Path,
    gpu: &Gpu,
    give_way: &dyn Fn() -> io::Result<()>,
) -> io::Result<[u64; 2]> {
    check_right()?;
    // The length of the kernels is found by the first one while it is alone; those of the second one must be as long.
    let mut first = Load::start(library_dirs, gpu, 0)?;
    let rounds = first.is_ready(give_way)?;
    let mut second = Load::start(library_dirs, gpu, rounds)?;
    second.is_ready(give_way)?;
    let mut loads = [first, second];
    let mut permille = [0; 2];
    for (round, permille) in permille.iter_mut().enumerate() {
        let slices = if round == 0 { [LONG_US, SHORT_US] } else { [SHORT_US, LONG_US] };
        for (load, us) in loads.iter().zip(slices) {
            load.set(device_dir, us)?;
        }
        pause(SETTLE, give_way)?;
        let before = [loads[0].count()?, loads[1].count()?];
        pause(MEASURED, give_way)?;
        let after = [loads[0].count()?, loads[1].count()?];
        let [a, b] = [0, 1].map(|which| after[which].saturating_sub(before[which]));
        let long = if round == 0 { a } else { b };
        *permille = (1000 * long)
            .checked_div(a + b)
            .ok_or_else(|| io::Error::other("neither of two processes has got any work done"))?;
    }
    Ok(permille)
}

/// Whether files may be borrowed at all: where a unit forbids the call, no process need be started to find that out.
fn check_right() -> io::Result<()> {
    let own = WatchedProcess::open(HostPid(std::process::id()))?;
    let (end, _other) = rustix::pipe::pipe()?;
    pidfd_getfd(&own.pidfd, end.as_raw_fd(), PidfdGetfdFlags::empty())?;
    Ok(())
}

/// A process of our own at work.
struct Load {
    child: Child,
    lines: Receiver<String>,
}

impl Load {
    fn start(library_dirs: &[PathBuf], gpu: &Gpu, rounds: u64) -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        let libraries: Vec<String> = library_dirs.iter().map(|dir| dir.display().to_string()).collect();
        command.args(["--time-slice-load", &rounds.to_string()]).env("CUDA_VISIBLE_DEVICES", &gpu.uuid.0);
        command.env("LD_LIBRARY_PATH", libraries.join(":"));
        // Not a client of a daemon that the host may have in the usual place.
        command.env("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn()?;
        let (sender, lines) = mpsc::channel();
        if let Some(out) = child.stdout.take() {
            // Ends with the process.
            std::thread::spawn(move || {
                BufReader::new(out).lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
            });
        }
        Ok(Self { child, lines })
    }

    /// Waits until it is at work; how many rounds its kernels have.
    fn is_ready(&mut self, give_way: &dyn Fn() -> io::Result<()>) -> io::Result<u64> {
        let deadline = Instant::now() + START_PATIENCE;
        let said = loop {
            give_way()?;
            match self.lines.recv_timeout(LOOK_PERIOD) {
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                said => break self.heard(said)?,
            }
        };
        let rounds = said.strip_prefix(READY).and_then(|rounds| rounds.trim().parse().ok());
        rounds.ok_or_else(|| io::Error::other(format!("a process of our own that was to be at work says {said:?}")))
    }

    fn hear(&mut self, patience: Duration) -> io::Result<String> {
        let said = self.lines.recv_timeout(patience);
        self.heard(said)
    }

    fn heard(&mut self, said: Result<String, RecvTimeoutError>) -> io::Result<String> {
        said.map_err(|_| match self.child.try_wait() {
            Ok(Some(status)) => io::Error::other(format!("a process of our own ended with {status}")),
            _ => io::Error::other("a process of our own says nothing"),
        })
    }

    /// Kernels that have ended so far.
    fn count(&mut self) -> io::Result<u64> {
        let Some(input) = &mut self.child.stdin else { return Err(io::ErrorKind::BrokenPipe.into()) };
        input.write_all(b"\n")?;
        self.hear(ANSWER_PATIENCE)?.parse().map_err(io::Error::other)
    }

    /// Sets all its time slices.
    fn set(&self, device_dir: &Path, us: u64) -> io::Result<()> {
        let process = WatchedProcess::open(HostPid(self.child.id()))?;
        let own = ControlFile::open(device_dir)?;
        let files = ControlFile::borrow(&process, &ControlFile::numbers_of(&process)?)?;
        let mut groups = ChannelGroups::default();
        groups.look_for_clients(&files, own.newest_client()?);
        groups.look(&files);
        let mut set = 0;
        for (client, group) in groups.all() {
            set += usize::from(files.iter().any(|file| file.set_time_slice_us(client, group, us).is_ok()));
        }
        match set {
            0 => Err(io::Error::other("no channel group of a process of our own was found")),
            _ => Ok(()),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let deadline = Instant::now() + ANSWER_PATIENCE;
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn who_comes_onto_the_gpu_ends_the_trial_at_once() {
        let looks = Cell::new(0);
        let give_way = || {
            looks.set(looks.get() + 1);
            if looks.get() < 3 { Ok(()) } else { Err(io::Error::other("containers have the GPU")) }
        };
        let ended = pause(Duration::from_secs(600), &give_way).unwrap_err();
        assert_eq!((ended.to_string().as_str(), looks.get()), ("containers have the GPU", 3));
        pause(Duration::ZERO, &|| Ok(())).unwrap();
        let mut load = Load { child: Command::new("sleep").arg("600").spawn().unwrap(), lines: mpsc::channel().1 };
        assert!(load.is_ready(&|| Err(io::Error::other("the GPU is drained"))).is_err(), "also while it begins");
        let pid = HostPid(load.child.id());
        drop(load);
        assert!(WatchedProcess::open(pid).is_err(), "it is ended with that");
    }
}
