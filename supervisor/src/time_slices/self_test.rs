//! Whether the hardware heeds time slices that are set from outside, tried on two processes of our own.

use super::channel_groups::ChannelGroups;
use super::control_file::{ControlFile, ResourceManager};
use super::load::READY;
use crate::device::{Gpu, Kind};
use crate::events::About;
use crate::lease::Leases;
use crate::procfs::WatchedProcess;
use gpool_protocol::{EventKind, GpuUuid, HostPid, TimeSlices};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
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
/// Verdicts of this boot, in the directory of what runs.
const FILE: &str = "time-slices.json";

/// A verdict as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    gpu: GpuUuid,
    driver: String,
    verdict: TimeSlices,
}

/// Tries every GPU of which there is no verdict yet, for ever; runs on its own thread.
pub fn test_all(leases: &Leases) {
    let path = leases.configuration().paths.run_dir.join(FILE);
    let mut kept = read(&path);
    for attempt in 1.. {
        let mut is_open = false;
        for gpu in leases.gpus().iter().filter(|gpu| gpu.kind == Kind::Whole) {
            if leases.time_slices.of(&gpu.uuid).is_some_and(|verdict| verdict.is_final) {
                continue;
            }
            let known = kept.iter().find(|known| known.gpu == gpu.uuid && known.driver == gpu.driver_version);
            if let Some(known) = known {
                leases.time_slices.note(gpu.uuid.clone(), known.verdict.clone());
                continue;
            }
            let verdict = verdict(leases, gpu);
            if leases.time_slices.of(&gpu.uuid).as_ref() != Some(&verdict) {
                let message = format!("tried time slices on {}: {}", gpu.uuid.0, verdict.told);
                leases.events.note(EventKind::TimeSlicesTried, About::default(), message);
            }
            leases.time_slices.note(gpu.uuid.clone(), verdict.clone());
            is_open |= !verdict.is_final;
            if verdict.is_final {
                kept.retain(|known| known.gpu != gpu.uuid);
                kept.push(Kept { gpu: gpu.uuid.clone(), driver: gpu.driver_version.clone(), verdict });
                write(&path, &kept);
            }
        }
        // A GPU may also come back from being divided.
        std::thread::sleep(if is_open { AGAIN * AGAIN_MOST.min(attempt) } else { AGAIN });
    }
}

fn read(path: &Path) -> Vec<Kept> {
    fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

/// Lost with what is written: it would be tried again.
fn write(path: &Path, kept: &[Kept]) {
    let new = path.with_extension("new");
    let text = serde_json::to_vec(kept).unwrap_or_default();
    if let Err(error) = fs::write(&new, text).and_then(|()| fs::rename(&new, path)) {
        log!("{}: {error}", path.display());
    }
}

fn verdict(leases: &Leases, gpu: &Gpu) -> TimeSlices {
    let driver = leases.configuration().driver.clone();
    let is_leased = {
        let (book, gpus) = (leases.book(), leases.gpus());
        book.leases.values().flat_map(|lease| lease.gpus()).any(|index| gpus[index].uuid == gpu.uuid)
    };
    if is_leased {
        let told = "it is not tried while containers have the GPU".to_owned();
        return TimeSlices { kept: false, is_final: false, told };
    }
    let index = leases.gpus().iter().position(|other| other.uuid == gpu.uuid);
    if index.is_some_and(|index| leases.occupants.living(index, |_| true) > 0) {
        let told = "it is not tried while other processes use the GPU".to_owned();
        return TimeSlices { kept: false, is_final: false, told };
    }
    let once = || tried(&driver.library_dirs, &driver.device_dir, gpu);
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

/// What the process with the long slice had of the work, in thousandths: first one of the two, then the other.
fn tried(library_dirs: &[PathBuf], device_dir: &Path, gpu: &Gpu) -> io::Result<[u64; 2]> {
    check_right()?;
    // The length of the kernels is found by the first one while it is alone; those of the second one must be as long.
    let mut first = Load::start(library_dirs, gpu, 0)?;
    let rounds = first.is_ready()?;
    let mut second = Load::start(library_dirs, gpu, rounds)?;
    second.is_ready()?;
    let mut loads = [first, second];
    let mut permille = [0; 2];
    for (round, permille) in permille.iter_mut().enumerate() {
        let slices = if round == 0 { [LONG_US, SHORT_US] } else { [SHORT_US, LONG_US] };
        for (load, us) in loads.iter().zip(slices) {
            load.set(device_dir, us)?;
        }
        std::thread::sleep(SETTLE);
        let before = [loads[0].count()?, loads[1].count()?];
        std::thread::sleep(MEASURED);
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
    fn is_ready(&mut self) -> io::Result<u64> {
        let said = self.hear(START_PATIENCE)?;
        let rounds = said.strip_prefix(READY).and_then(|rounds| rounds.trim().parse().ok());
        rounds.ok_or_else(|| io::Error::other(format!("a process of our own that was to be at work says {said:?}")))
    }

    fn hear(&mut self, patience: Duration) -> io::Result<String> {
        let said = self.lines.recv_timeout(patience);
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

    #[test]
    fn verdicts_are_kept_and_what_is_no_verdict_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        assert!(read(&path).is_empty());
        let verdict = TimeSlices { kept: true, is_final: true, told: "0.94".into() };
        let kept = [Kept { gpu: GpuUuid("GPU-1".into()), driver: "580.1".into(), verdict }];
        write(&path, &kept);
        assert_eq!(read(&path), kept);
        fs::write(&path, "{").unwrap();
        assert!(read(&path).is_empty());
    }
}
