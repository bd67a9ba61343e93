//! A container that registers processes without end, each of which is slow to find, delays no other's processes: what they
//! wait for their first memory is compared with what they waited before.

use super::finish;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::Host;
use crate::namespaces::{Inside, spawn_bound};
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

const FLOOD: (&str, &str) = ("/run/registers_without_end.py", include_str!("../../programs/registers_without_end.py"));
const FIRST: (&str, &str) = ("/run/first_memory.py", include_str!("../../programs/first_memory.py"));
/// Record locks of the flood, through all of which the kernel goes to find one.
const LOCKS: &str = "30000";
/// Room for all of the neighbour's contexts: what those hold that have ended is charged until that is seen, and this judges times.
const NEIGHBOUR_MEMORY: &str = "14GiB";
/// Processes of the neighbour, before and meanwhile.
const PROCESSES: usize = 25;
/// So many of them are faster than the one that is judged by.
const SLOWER: usize = PROCESSES * 3 / 4;
/// The flood goes on for so long before the neighbour is asked again: what cannot be kept up with has come together then.
const FLOODED: Duration = Duration::from_secs(4);
/// A process may wait for so many times as long as before.
const TIMES: u64 = 4;

/// Floods, and asks the neighbour.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = flood(&host);
    finish(host, outcome)
}

fn flood(host: &Host) -> Result<()> {
    for (place, program) in [FLOOD, FIRST] {
        fs::write(place, program).context(place)?;
    }
    let mut neighbour = Program::start(host, NEIGHBOUR_MEMORY, &[FIRST.0])?;
    let mut quiet = neighbour.first_memory_ns(PROCESSES)?;
    let mut vandal = Program::start(host, "4GiB", &[FLOOD.0, LOCKS])?;
    let said = vandal.says()?;
    ensure(said == "registers", || format!("the flood says {said}"))?;
    std::thread::sleep(FLOODED);
    let mut flooded = neighbour.first_memory_ns(PROCESSES)?;
    // Its places are all taken over and over.
    let places: Vec<u32> = host.leases()?.iter().map(|lease| lease.processes).collect();
    ensure(places.contains(&64), || format!("the flood has not been heard: {places:?}"))?;
    let is_alive = vandal.0.try_wait().context("the flood")?.is_none();
    ensure(is_alive, || "the flood has ended".to_owned())?;
    quiet.sort_unstable();
    flooded.sort_unstable();
    let (before, beside) = (quiet[SLOWER], flooded[SLOWER]);
    println!("    first memory after {} us, beside the flood {} us", before / 1000, beside / 1000);
    ensure(beside <= TIMES * before, || format!("{beside} ns beside the flood, {before} ns before: {flooded:?}"))
}

/// A program under `gpool run`, which ends when this is dropped.
struct Program(Child, Lines<BufReader<ChildStdout>>);

impl Program {
    fn start(host: &Host, memory: &str, arguments: &[&str]) -> Result<Self> {
        let mut command = host.command_named(host.stage.program("gpool"));
        command.args(["run", "--fraction", "0.3", "--memory", memory, "--", "/usr/bin/python3"]).args(arguments);
        let mut child = spawn_bound(command.stdin(Stdio::piped()).stdout(Stdio::piped())).context("gpool run")?;
        let said = child.stdout.take().ok_or_else(|| Failure::new("its output is not to be had"))?;
        Ok(Self(child, BufReader::new(said).lines()))
    }

    fn says(&mut self) -> Result<String> {
        self.1.next().ok_or_else(|| Failure::new("a program has ended"))?.context("what a program says")
    }

    /// How long so many processes waited, one after the other.
    fn first_memory_ns(&mut self, processes: usize) -> Result<Vec<u64>> {
        let one = |_| {
            let input = self.0.stdin.as_mut().ok_or_else(|| Failure::new("its input is not to be had"))?;
            input.write_all(b"\n").context("asking for a process")?;
            let said = self.says()?;
            said.parse().context(&said)
        };
        (0..processes).map(one).collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
