//! The demo: the main job from end to end, shown to a person and judged.

mod board;
mod promises;
mod steps;
mod window;

use crate::failure::Result;
use crate::host::Host;
use crate::namespaces::{self, Inside};
use crate::{cgroups, janitor};
pub use promises::Bounds;
use promises::Promises;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

/// Longer than any healthy run by far.
const LIMIT: Duration = Duration::from_secs(240);

/// `gpool-demo`: exit status 0 only if every judged promise holds and nothing is left behind.
pub fn run() -> ExitCode {
    if let Some(code) = janitor::serve_if_asked() {
        return code;
    }
    if let Some(code) = namespaces::serve_if_inside(show) {
        return code;
    }
    println!("gpool demo: three containers share one simulated GPU, on cgroup version {}", cgroups::version());
    match namespaces::run(&[], LIMIT, Stdio::inherit()) {
        Ok(ended) => ended.exit_code(),
        Err(failure) => {
            eprintln!("gpool demo: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn show(inside: &Inside) -> Result<ExitCode> {
    Ok(if play_and_judge(inside, Bounds::PROMISED)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Plays the demo and says whether every judged promise holds, shares within `bounds`.
///
/// # Errors
/// When a step cannot be done at all.
pub fn play_and_judge(inside: &Inside, bounds: Bounds) -> Result<bool> {
    steps::announce(1, "start a simulated GPU of 24 GiB, the supervisor and a private Docker engine");
    let mut promises = Promises::new(bounds);
    let mut host = Host::start(inside)?;
    let played = steps::play(&mut host, &mut promises);
    if played.is_err() {
        eprint!("{}", host.logs());
    }
    // Stopped also after a failure, so that what it leaves is seen then too.
    let left = host.stop();
    played?;
    let left = left?;
    left.iter().for_each(|thing| eprintln!("left behind: {thing}"));
    promises.judge("nothing left behind", &format!("{} things", left.len()), "0", left.is_empty());
    promises.show_stolen();
    print!("{}", promises.summary());
    Ok(promises.all_hold())
}
