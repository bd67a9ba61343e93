//! Threads that do a bit of everything, for whoever watches the shim's memory and locks meanwhile.

use super::calls::{Call, Calls};
use super::place::CONTEXT_BYTES;
use crate::failure::{Failure, Result, ensure};
use serde_json::{Value, json};
use std::time::Duration;

const THREADS: usize = 4;
const ROUNDS: usize = 300;
const KINDS: [Call; 6] = [Call::Launch, Call::Mixed, Call::Graph, Call::Copy, Call::Pair, Call::Trampoline];
/// Threads that a garbage page leaves at the gate stay there.
const PATIENCE: Duration = Duration::from_millis(300);

/// Several threads at an open gate, each on its own stream; every call must succeed.
pub fn everything() -> Result<Value> {
    let first = Calls::of_shim()?;
    let threads: Vec<_> = (1..THREADS).map(|_| Calls::of_shim()).collect::<Result<Vec<_>>>()?;
    let running: Vec<_> = threads.into_iter().map(|calls| std::thread::spawn(move || rounds(&calls, ROUNDS))).collect();
    let mut done = rounds(&first, ROUNDS);
    for thread in running {
        done += thread.join().map_err(|_| Failure::new("a thread broke"))?;
    }
    ensure(done == THREADS * ROUNDS * KINDS.len(), || format!("only {done} calls succeeded"))?;
    let (free, total) = first.room().ok_or_else(|| Failure::new("cuMemGetInfo failed"))?;
    let contexts = THREADS * CONTEXT_BYTES;
    ensure(total - free == contexts, || format!("{} bytes are left charged", total - free - contexts))?;
    Ok(json!({ "calls": done }))
}

/// Calls whose answers may be anything, in front of a page that may say anything. Only that this returns matters.
pub fn whatever_happens() -> Value {
    let Ok(calls) = Calls::of_shim() else { return json!("refused") };
    for bytes in [1, 1 << 20, 1 << 40, usize::MAX] {
        if let Some(pointer) = calls.allocate(bytes) {
            calls.free(pointer);
        }
    }
    let room = calls.room();
    // It may stand at the gate for ever, as it should where the page says so.
    std::thread::spawn(move || rounds(&calls, ROUNDS));
    std::thread::sleep(PATIENCE);
    json!({ "room": room })
}

/// How many calls succeeded.
fn rounds(calls: &Calls, count: usize) -> usize {
    let turns = (0..count).flat_map(|turn| KINDS.map(|call| (call, turn)));
    turns.filter(|(call, turn)| calls.make(*call, *turn)).count()
}
