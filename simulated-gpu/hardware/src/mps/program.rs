//! The command line of the simulated `nvidia-cuda-mps-control`, which is its servers' program, too.

use super::server::{SERVER_NAME, serve};
use super::session::ask;
use super::{Answer, CONTROL, Question, daemon, pipe_directory};
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// How long a daemon may take to start.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a daemon in the background is started with.
const BACKGROUND: &str = "--background";
const USAGE: &str = "nvidia-cuda-mps-control of the simulated GPU (gpool), no program of NVIDIA's

  -d  run the daemon in the background
  -f  run the daemon in the foreground
  without an option, read commands from standard input, among them get_server_list and quit";

/// Runs the program with the process's arguments.
pub fn run() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let name = arguments.first().map(Path::new).and_then(Path::file_name);
    let arguments: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    let result = match arguments.as_slice() {
        [] if name.is_some_and(|name| name == SERVER_NAME) => serve(),
        [] => return control(),
        ["-f"] => daemon::run(),
        [BACKGROUND] => rustix::process::setsid().map_err(io::Error::from).and_then(|_| daemon::run()),
        ["-d"] => start(),
        _ => {
            println!("{USAGE}");
            return if arguments == ["-h"] { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            eprintln!("simulated nvidia-cuda-mps-control: {cause}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the daemon and waits until it listens.
fn start() -> io::Result<()> {
    let mut command = Command::new("/proc/self/exe");
    command.arg(BACKGROUND).stdin(Stdio::null()).stdout(Stdio::null());
    let mut process = command.spawn()?;
    let deadline = Instant::now() + PATIENCE;
    while UnixStream::connect(pipe_directory().join(CONTROL)).is_err() {
        if let Some(status) = process.try_wait()? {
            return Err(io::Error::other(format!("the daemon ended with {status}")));
        }
        if Instant::now() > deadline {
            process.kill()?;
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Has the daemon do each line of the input.
fn control() -> ExitCode {
    let mut has_failed = false;
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let Ok(stream) = UnixStream::connect(pipe_directory().join(CONTROL)) else {
            println!("Cannot find MPS control daemon process");
            return ExitCode::FAILURE;
        };
        match ask(&stream, &Question::Command(line)) {
            Ok(Answer::Said(text, succeeded)) => {
                has_failed |= !succeeded;
                let end = if text.is_empty() { "" } else { "\n" };
                if write!(io::stdout(), "{text}{end}").is_err() {
                    return ExitCode::FAILURE;
                }
            }
            Ok(_) | Err(_) => {
                println!("The simulated MPS control daemon did not answer");
                return ExitCode::FAILURE;
            }
        }
    }
    // As in a pipe; at a terminal a person has seen what failed.
    if has_failed && !io::stdin().is_terminal() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
