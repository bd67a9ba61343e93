//! How long processes take in this container, from fork to their end.

use serde_json::json;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// Starts both programs in turn, and prints microseconds.
pub(super) fn time(times: u32) -> ExitCode {
    let Ok(own) = std::env::current_exe() else { return ExitCode::FAILURE };
    let (mut plain, mut with_driver) = (Vec::new(), Vec::new());
    for _ in 0..times {
        let (Some(first), Some(second)) =
            (one(Command::new("/bin/busybox").arg("true")), one(Command::new(&own).arg("--only-start")))
        else {
            return ExitCode::FAILURE;
        };
        plain.push(first);
        with_driver.push(second);
    }
    println!("{}", json!({ "true_us": plain, "cuinit_us": with_driver }));
    ExitCode::SUCCESS
}

fn one(command: &mut Command) -> Option<f64> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let start = Instant::now();
    let status = command.status();
    let elapsed = start.elapsed();
    match status {
        Ok(status) if status.success() => Some(elapsed.as_secs_f64() * 1e6),
        other => {
            eprintln!("{command:?}: {other:?}");
            None
        }
    }
}
