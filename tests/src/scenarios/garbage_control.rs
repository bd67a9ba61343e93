//! Control pages that no supervisor would write: no program dies of one.

use crate::failure::{Context, Result, ensure};
use crate::namespaces::Inside;
use crate::stage::Stage;
use crate::stand::Stand;
use std::path::Path;
use std::process::{Child, Stdio};

/// A page for each.
const SEEDS: u64 = 48;
/// So many at once: most of the time they wait.
const AT_ONCE: u64 = 16;

/// Lets a program meet each page.
pub fn run(_inside: &Inside) -> Result<()> {
    let stand = Stand::new(&Stage::of_this_program()?, Path::new("/run/gpool-stand"))?;
    let (mut refused, mut served) = (0, 0);
    for first in (0..SEEDS).step_by(AT_ONCE as usize) {
        let start = |seed: u64| -> Result<(u64, Child)> {
            let mut command = stand.command(&[], &["garbage", &seed.to_string()]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            Ok((seed, command.spawn().context("the stand")?))
        };
        let running = (first..first + AT_ONCE).map(start).collect::<Result<Vec<_>>>()?;
        for (seed, child) in running {
            let output = child.wait_with_output().context("the stand")?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            ensure(output.status.success(), || {
                format!(
                    "page {seed} ended a program with {}: {}",
                    output.status,
                    String::from_utf8_lossy(&output.stderr)
                )
            })?;
            *(if said.contains("refused") { &mut refused } else { &mut served }) += 1;
        }
    }
    println!("{refused} pages refused, {served} served");
    // One in four is no page at all; most of the others are read, or nothing would have been tried.
    ensure(refused >= SEEDS / 4 && served >= SEEDS / 4, || format!("{refused} refused and {served} served"))
}
