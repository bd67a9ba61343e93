//! What calls through the shim cost in instructions, counted one by one: the same on every machine and however busy.

use crate::failure::{Failure, Result, ensure};
use crate::namespaces::Inside;
use crate::stage::Stage;
use crate::stand::{Stand, Steps};
use std::path::Path;

/// Most instructions that each call may have beyond the driver's: what was counted, and some for another compiler.
const MOST: [(&str, u64); 8] = [
    ("launch", 95),
    ("launch_mixed", 95),
    ("graph", 70),
    ("copy", 30),
    ("trampoline", 1),
    ("pair_0", 1250),
    ("pair_1k", 1250),
    ("pair_10k", 1250),
];
/// These take no cache line that threads share, and none at all for themselves.
const WITHOUT_LOCKS: [&str; 5] = ["launch", "launch_mixed", "graph", "copy", "trampoline"];

/// Counts every call through the shim and past it.
pub fn run(_inside: &Inside) -> Result<()> {
    let stand = Stand::new(&Stage::of_this_program()?, Path::new("/run/gpool-stand"))?;
    let said = stand.ask("count")?;
    let of = |name: &str| Steps::of(&said, name).ok_or_else(|| Failure::new(format!("{name} was not counted")));
    for (name, most) in MOST {
        let (own, native) = (of(name)?, of(&format!("{name}_native"))?);
        println!("{name:14}{:6} instructions, {} of them locked; native {}", own.added, own.locked, native.driver);
        ensure(own.added <= most, || format!("{name} has {} instructions, and may have {most}", own.added))?;
        ensure(native.added == 0 && native.driver > 0, || format!("{name} past the shim met the shim: {native:?}"))?;
        ensure(own.added > 0 && own.driver >= native.driver, || format!("{name} did not come through: {own:?}"))?;
    }
    for name in WITHOUT_LOCKS {
        let own = of(name)?;
        ensure(own.locked == 0, || format!("{name} has {} locked instructions", own.locked))?;
        ensure(own.driver == of(&format!("{name}_native"))?.driver, || {
            format!("{name} asks the driver more: {own:?}")
        })?;
    }
    // The counter sees locks where there are some: allocations charge an account that processes share.
    ensure(of("pair_0")?.locked > 0, || "an allocation has no locked instruction".into())?;
    ensure(of("pair_0")? == of("pair_10k")?, || "an allocation costs more beside 10,000".into())
}
