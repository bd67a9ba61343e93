//! How long an allocation and its end take, with others alive.

use super::calls::{Call, Calls};
use crate::failure::{Result, ensure};
use serde_json::{Value, json};
use std::time::Instant;

const LIVE: [(&str, usize); 3] = [("pair_0", 0), ("pair_1k", 1000), ("pair_10k", 10_000)];
const PAIRS: u32 = 50_000;
const REPEATS: usize = 5;

/// Nanoseconds of a pair through the shim and past it, in turn in one process.
pub fn measure() -> Result<Value> {
    let (shim, driver) = (Calls::of_shim()?, Calls::of_driver()?);
    let (mut said, mut alive) = (serde_json::Map::new(), 0);
    for (name, live) in LIVE {
        ensure((alive..live).all(|_| shim.allocate(1 << 20).is_some()), || format!("{live} allocations"))?;
        alive = live;
        let (mut own, mut native) = (Vec::new(), Vec::new());
        for _ in 0..REPEATS {
            own.push(per_pair(&shim)?);
            native.push(per_pair(&driver)?);
        }
        said.insert(name.into(), json!({ "own": own, "native": native }));
    }
    Ok(Value::Object(said))
}

fn per_pair(calls: &Calls) -> Result<f64> {
    let start = Instant::now();
    let is_made = (0..PAIRS).all(|turn| calls.make(Call::Pair, turn as usize));
    let elapsed_ns = start.elapsed().as_nanos() as f64;
    ensure(is_made, || "an allocation failed".into())?;
    Ok(elapsed_ns / f64::from(PAIRS))
}
