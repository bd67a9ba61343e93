//! Counts instructions by letting a process make one step at a time: exact, and the same on a busy machine.

use super::calls::{Call, Calls};
use super::instructions::{INT3, LONGEST, is_locked};
use super::place::{REAL, SHIM};
use crate::failure::{Context, Failure, Result, ensure};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;

/// Each call is counted so often. Now and then one meets the slow path, so the middle one counts.
const REPEATS: usize = 31;
/// What is counted, with the allocations that are alive meanwhile.
const COUNTED: [(&str, Call, usize); 8] = [
    ("launch", Call::Launch, 0),
    ("launch_mixed", Call::Mixed, 0),
    ("graph", Call::Graph, 0),
    ("copy", Call::Copy, 0),
    ("trampoline", Call::Trampoline, 0),
    ("pair_0", Call::Pair, 0),
    ("pair_1k", Call::Pair, 1000),
    ("pair_10k", Call::Pair, 10_000),
];
/// Before the estimates are settled.
const WARM_UP: usize = 64;

/// Instructions of one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Steps {
    /// The shim's own, and what it calls of libc.
    pub added: u64,
    /// Those that lock a cache line, of these.
    pub locked: u64,
    /// The driver's.
    pub driver: u64,
}

impl Steps {
    /// The counts of `name` in what the stand said.
    pub fn of(said: &Value, name: &str) -> Option<Self> {
        let count = |key| said[name][key].as_u64();
        Some(Self { added: count("added")?, locked: count("locked")?, driver: count("driver")? })
    }

    fn json(self) -> Value {
        json!({ "added": self.added, "locked": self.locked, "driver": self.driver })
    }
}

/// Counts all calls, through the shim and past it.
#[expect(clippy::disallowed_methods, reason = "there is one thread, and the child needs this mount namespace")]
pub fn count() -> Result<Value> {
    // SAFETY: this process has one thread, so its child has everything that it needs.
    match unsafe { libc::fork() } {
        -1 => Err(Failure::new("fork failed")),
        0 => {
            // SAFETY: asks to be traced by the parent.
            unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<u8>(), null_mut::<u8>()) };
            // From its first thread on, everything is seen.
            // SAFETY: a breakpoint, which the tracer passes over.
            unsafe { std::arch::asm!("int3", in("rdi") 0) };
            let made = be_counted();
            if let Err(failure) = &made {
                eprintln!("counted: {failure}");
            }
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(i32::from(made.is_err())) }
        }
        child => follow(child),
    }
}

/// The child: makes every call between two breakpoints.
fn be_counted() -> Result<()> {
    let ways = [Calls::of_shim()?, Calls::of_driver()?];
    let mut alive = Vec::new();
    for (index, (name, call, live)) in COUNTED.into_iter().enumerate() {
        while alive.len() < live {
            alive.push(ways[0].allocate(1 << 20).context(name)?);
        }
        for (way, calls) in ways.iter().enumerate() {
            ensure((0..WARM_UP).all(|turn| calls.make(call, turn)), || format!("{name} failed"))?;
            for turn in 0..REPEATS {
                let number = 1 + index * ways.len() + way;
                // SAFETY: breakpoints, which the tracer passes over.
                unsafe { std::arch::asm!("int3", in("rdi") number) };
                let is_made = calls.make(call, turn);
                // SAFETY: as above.
                unsafe { std::arch::asm!("int3", in("rdi") 0) };
                ensure(is_made, || format!("{name} failed"))?;
            }
        }
    }
    Ok(())
}

impl<T> Context<T> for Option<T> {
    fn context(self, doing: impl std::fmt::Display) -> Result<T> {
        self.ok_or_else(|| Failure::new(format!("{doing}: nothing")))
    }
}

/// The parent: from each first breakpoint on step by step.
fn follow(child: i32) -> Result<Value> {
    let memory = File::open(format!("/proc/{child}/mem"))?;
    let mut traced = Traced { child, memory, code: HashMap::new(), is_started: false };
    let mut counted: BTreeMap<usize, Vec<Steps>> = BTreeMap::new();
    while let Some(registers) = traced.run(libc::PTRACE_CONT)? {
        let number = registers.rdi as usize;
        if number > 0 {
            let steps = traced.steps()?;
            counted.entry(number - 1).or_default().push(steps);
        }
    }
    let mut said = serde_json::Map::new();
    for (number, mut steps) in counted {
        steps.sort();
        let (name, ..) = COUNTED[number / 2];
        let name = if number % 2 == 0 { name.to_owned() } else { format!("{name}_native") };
        said.insert(name, steps[steps.len() / 2].json());
    }
    ensure(said.len() == 2 * COUNTED.len(), || format!("counted only {:?}", said.keys()))?;
    Ok(Value::Object(said))
}

type Ranges = Vec<Range<u64>>;

struct Traced {
    child: i32,
    memory: File,
    code: HashMap<u64, [u8; LONGEST]>,
    is_started: bool,
}

impl Traced {
    /// Lets it run until it stops at a breakpoint or after a step; none when it has ended.
    ///
    /// Its further threads stop as they begin and are never let go: step by step a program seems silent to the shim's
    /// watcher, which would end each burst after its first launch.
    fn run(&mut self, how: libc::c_uint) -> Result<Option<libc::user_regs_struct>> {
        const CLONED: i32 = libc::SIGTRAP | libc::PTRACE_EVENT_CLONE << 8;
        let mut status = CLONED << 8;
        while status >> 8 == CLONED {
            // The first stop is waited for: until then there is nothing to go on from.
            if self.is_started {
                self.request(how, 0)?;
            }
            // Of the other threads only the ends matter: before them the process does not end.
            let mut waited = 0;
            while waited != self.child {
                // SAFETY: there is a place for the answer.
                waited = unsafe { libc::waitpid(-1, &mut status, libc::__WALL) };
                ensure(waited > 0, || "the counted process is gone".into())?;
            }
        }
        if !self.is_started && libc::WIFSTOPPED(status) {
            self.is_started = true;
            self.request(libc::PTRACE_SETOPTIONS, libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL)?;
        }
        if libc::WIFEXITED(status) {
            let code = libc::WEXITSTATUS(status);
            return ensure(code == 0, || format!("the counted process ended with {code}")).map(|()| None);
        }
        let is_trap = libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTRAP;
        ensure(is_trap, || format!("the counted process met {status:#x}"))?;
        // SAFETY: all-zero registers are valid, and there is a place for them.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: the child is stopped.
        unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.child, null_mut::<u8>(), &raw mut registers) };
        Ok(Some(registers))
    }

    fn request(&self, request: libc::c_uint, data: i32) -> Result<()> {
        // SAFETY: the child is stopped and traced by this thread; these requests take a number or nothing.
        let failed = unsafe { libc::ptrace(request, self.child, null_mut::<u8>(), data as libc::c_ulong) };
        ensure(failed == 0, || format!("ptrace: {}", std::io::Error::last_os_error()))
    }

    /// Steps to the next breakpoint.
    fn steps(&mut self) -> Result<Steps> {
        let (driver, program) = self.mapped()?;
        let mut steps = Steps::default();
        let mut is_within = false;
        while let Some(registers) = self.run(libc::PTRACE_SINGLESTEP)? {
            let address = registers.rip;
            let code = self.code_at(address)?;
            if program.iter().any(|range| range.contains(&address)) {
                if code[0] == INT3 {
                    ensure(is_within, || "the call led nowhere".into())?;
                    return Ok(steps);
                }
            } else if driver.iter().any(|range| range.contains(&address)) {
                is_within = true;
                steps.driver += 1;
            } else {
                is_within = true;
                steps.added += 1;
                steps.locked += u64::from(is_locked(&code));
            }
        }
        Err(Failure::new("the counted process ended in a call"))
    }

    fn code_at(&mut self, address: u64) -> Result<[u8; LONGEST]> {
        if let Some(code) = self.code.get(&address) {
            return Ok(*code);
        }
        let mut code = [0; LONGEST];
        // The last page of a mapping may end within.
        ensure(self.memory.read_at(&mut code, address)? > 0, || format!("no code at {address:#x}"))?;
        self.code.insert(address, code);
        Ok(code)
    }

    /// Where the driver and the calling program lie.
    fn mapped(&self) -> Result<(Ranges, Ranges)> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.child))?;
        let program = fs::read_link(format!("/proc/{}/exe", self.child))?.display().to_string();
        let of = |wanted: &str| -> Ranges {
            let lines = maps.lines().filter(|line| line.split_whitespace().nth(5).is_some_and(|path| path == wanted));
            lines
                .filter_map(|line| {
                    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
                    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
                })
                .collect()
        };
        let (driver, shim) = (of(&REAL.to_string_lossy()), of(&SHIM.to_string_lossy()));
        ensure(!driver.is_empty() && !shim.is_empty(), || format!("shim and driver are not mapped:\n{maps}"))?;
        Ok((driver, of(&program)))
    }
}
