//! Processes that take memory by every way there is, eight at a time, each killed with SIGKILL at a random moment.

use super::allocator::Allocator;
use super::say;
use super::sharing::Way;
use clap::ValueEnum;
use serde_json::json;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How many there are at a time.
const AT_A_TIME: u64 = 8;
/// A process is killed before it has lived this long: some before their first call, most in the middle of their work.
const LIFE_MS: u64 = 250;
/// So many beside those of each kind give back what they take.
const CHURNING: usize = 6;
/// What a killed one has opened for another lives on for up to this long.
const AFTERLIFE_MS: u64 = 40;

/// Kills so many, says how many it were, and returns.
pub(super) fn rage(kills: u32, seed: u64) {
    let left = AtomicU32::new(kills);
    std::thread::scope(|scope| {
        for lane in 0..AT_A_TIME {
            let left = &left;
            scope.spawn(move || {
                let mut random = Random(seed.wrapping_add(lane + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
                let more = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
                while more().is_ok() {
                    kill_one(&mut random);
                }
            });
        }
    });
    say(&json!({"event": "storm", "kills": kills}));
}

fn kill_one(random: &mut Random) {
    let Some(mut child) = start(random) else { return };
    std::thread::sleep(Duration::from_micros(random.below(LIFE_MS * 1000)));
    let _ = child.kill();
    let _ = child.wait();
    std::thread::sleep(Duration::from_micros(random.below(AFTERLIFE_MS * 1000)));
    // SAFETY: the group is that of our own child, and its number stays taken while one of its processes lives; without
    // any this fails.
    unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
}

/// One that allocates by some allocator, one that gives back what it takes and takes it again, or one of two that share, in a process
/// group of its own.
fn start(random: &mut Random) -> Option<Child> {
    let (allocators, ways) = (Allocator::value_variants(), Way::value_variants());
    let choice = random.below((allocators.len() + ways.len() + CHURNING) as u64) as usize;
    let name = |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
    let (option, value) = match allocators.get(choice) {
        Some(allocator) => ("--allocator", name(allocator.to_possible_value())?),
        None => match ways.get(choice - allocators.len()) {
            Some(way) => ("--share", name(way.to_possible_value())?),
            None => ("--churn", "200".to_owned()),
        },
    };
    let (mib, threads) = ((1 + random.below(128)) * 2, 1 + random.below(3));
    let mut command = Command::new(std::env::current_exe().ok()?);
    command.args([option, &value, "--chunk-mib", &mib.to_string(), "--threads", &threads.to_string()]);
    command.args(["--kernel-us", "100", "--retry-allocation-ms", "1"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn().ok()
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) % limit
    }
}
