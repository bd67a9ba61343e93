//! How long processes take in this container, from fork to their end.

use serde_json::json;
use std::io::{self, BufRead};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// For each line of input starts both programs, and prints microseconds: who asks decides when, so that another
/// container can be asked in turn.
pub(super) fn time() -> ExitCode {
    let Ok(own) = std::env::current_exe() else { return ExitCode::FAILURE };
    for line in io::stdin().lock().lines() {
        let plain = one(Command::new("/bin/busybox").arg("true"));
        let with_driver = one(Command::new(&own).arg("--only-start"));
        let (Ok(_), Some(plain), Some(with_driver)) = (line, plain, with_driver) else { return ExitCode::FAILURE };
        println!("{}", json!({ "true_us": plain, "cuinit_us": with_driver }));
    }
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
