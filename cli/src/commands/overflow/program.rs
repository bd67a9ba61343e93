//! Running the program that is told.

use super::NAME;
use crate::exit::{ExitStatus, Failure};
use crate::output::{SCHEMA_VERSION, to_value};
use gpool_protocol::OverflowView;
use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus as Ended, Stdio};
use std::time::{Duration, Instant};

/// How often it is looked whether it has ended.
const LOOK: Duration = Duration::from_millis(10);
/// What has been asked to end has so long to do so.
const GRACE: Duration = Duration::from_secs(10);

/// Whether a program that is named by a path is one.
///
/// # Errors
/// It is not.
pub fn check(command: &[OsString]) -> Result<(), Failure> {
    let Some(program) = command.first().map(Path::new) else { return Ok(()) };
    if !program.as_os_str().as_encoded_bytes().contains(&b'/') {
        return Ok(());
    }
    let may_execute = || access(program, Access::EXEC_OK).map_err(std::io::Error::from);
    let cause = match std::fs::metadata(program).and_then(|its| may_execute().map(|()| its)) {
        Ok(its) if its.is_file() => return Ok(()),
        Ok(_) => "it is no file".to_owned(),
        Err(error) => error.to_string(),
    };
    let sentence = format!(
        "gpool: {} cannot be run: {cause}; name a program that this user may execute (chmod +x)",
        program.display()
    );
    Err(Failure::Refused(ExitStatus::Usage, sentence))
}

/// Tells the program how the host stands, and waits until it has ended.
///
/// # Errors
/// Why it does not count as told, as the end of a sentence.
pub fn tell(command: &[OsString], its: &OverflowView, timeout: Duration) -> Result<(), String> {
    let Some((program, arguments)) = command.split_first() else { return Err("no program is named".to_owned()) };
    let word = if its.is_short { "began" } else { "ended" };
    let mut child = Command::new(program)
        .args(arguments)
        .arg(word)
        .env("OVERFLOW_WAITING", its.waiting.len().to_string())
        .env("OVERFLOW_GPUS", format!("{}.{:03}", its.wanted_permille / 1000, its.wanted_permille % 1000))
        .env("OVERFLOW_BYTES", its.wanted_memory_bytes.to_string())
        .stdin(Stdio::piped())
        // So that what it has started ends with it. Who interrupts the command at a terminal leaves it to its end: it may be half-way.
        .process_group(0)
        .spawn()
        .map_err(|error| format!("{} cannot be run: {error}", program.display()))?;
    let text = format!("{:#}\n", json!({ "schemaVersion": SCHEMA_VERSION, NAME: to_value(its) }));
    if let Some(mut stdin) = child.stdin.take() {
        // It need not read that, and may be slow.
        std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    }
    let ended = wait(&mut child, timeout).map_err(|error| format!("{} is lost: {error}", program.display()))?;
    judge(program, ended, timeout)
}

fn judge(program: &OsStr, ended: Option<Ended>, timeout: Duration) -> Result<(), String> {
    match ended {
        Some(ended) if ended.success() => Ok(()),
        Some(ended) => Err(format!("{} has ended with {ended}", program.display())),
        None => Err(format!("{} took longer than {} s and was ended", program.display(), timeout.as_secs())),
    }
}

/// How it has ended; none where it had to be made to.
fn wait(child: &mut Child, timeout: Duration) -> std::io::Result<Option<Ended>> {
    if let Some(ended) = wait_until(child, Instant::now() + timeout)? {
        return Ok(Some(ended));
    }
    let group = Pid::from_child(child);
    // Its group is there at least until it has been waited for, and after that for as long as somebody is in it.
    let _ = kill_process_group(group, Signal::TERM);
    let has_ended = wait_until(child, Instant::now() + GRACE)?.is_some();
    let _ = kill_process_group(group, Signal::KILL);
    if !has_ended {
        child.wait()?;
    }
    Ok(None)
}

fn wait_until(child: &mut Child, deadline: Instant) -> std::io::Result<Option<Ended>> {
    loop {
        let ended = child.try_wait()?;
        if ended.is_some() || Instant::now() >= deadline {
            return Ok(ended);
        }
        std::thread::sleep(LOOK.min(deadline.saturating_duration_since(Instant::now())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::overflow::sample;

    fn shell(script: &str) -> Vec<OsString> {
        ["/bin/sh", "-c", script, "sh"].map(OsString::from).to_vec()
    }

    #[test]
    fn the_program_gets_the_word_the_figures_and_all_of_it_as_json() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("heard");
        let script =
            format!("{{ echo \"$1 $OVERFLOW_WAITING $OVERFLOW_GPUS $OVERFLOW_BYTES\"; cat; }} > {}", file.display());
        tell(&shell(&script), &sample(true), Duration::from_secs(60)).unwrap();
        let heard = std::fs::read_to_string(&file).unwrap();
        let (line, text) = heard.split_once('\n').unwrap();
        assert_eq!(line, "began 2 1.500 3221225472");
        let document: serde_json::Value = serde_json::from_str(text).unwrap();
        let told: OverflowView = serde_json::from_value(document[NAME].clone()).unwrap();
        assert_eq!((told, document["schemaVersion"].as_u64()), (sample(true), Some(SCHEMA_VERSION.into())));
        // One that reads nothing is told as well.
        tell(&shell(&format!("echo $1 > {}", file.display())), &sample(false), Duration::from_secs(60)).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "ended\n");
    }

    #[test]
    fn what_fails_or_takes_too_long_was_not_told() {
        let tell = |script: &str, ms| tell(&shell(script), &sample(true), Duration::from_millis(ms)).unwrap_err();
        let error = tell("exit 3", 60_000);
        assert!(error.contains("/bin/sh has ended with exit status: 3"), "{error}");
        // With a child of its own that would stay, and ends with it.
        let directory = tempfile::tempdir().unwrap();
        let pid = directory.path().join("pid");
        let script = format!("(trap '' TERM; exec sleep 1000) & echo $! > {}; wait", pid.display());
        let error = tell(&script, 1000);
        assert!(error.contains("took longer than"), "{error}");
        let child: i32 = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
        let is_there = || rustix::process::test_kill_process(Pid::from_raw(child).unwrap()).is_ok();
        let is_gone = (0..500).any(|_| {
            !is_there()
                || std::fs::read_to_string(format!("/proc/{child}/stat")).is_ok_and(|stat| stat.contains(") Z "))
                || {
                    std::thread::sleep(LOOK);
                    false
                }
        });
        assert!(is_gone, "its child is there still");
        let absent = super::tell(&["/nonexistent".into()], &sample(true), Duration::from_secs(1)).unwrap_err();
        assert!(absent.contains("cannot be run"), "{absent}");
    }

    #[test]
    fn a_path_that_is_no_program_is_found_out_at_the_start() {
        let check = |path: &str| check(&[path.into()]).map_err(|error| format!("{error:?}"));
        assert!(check("/bin/sh").is_ok() && check("looked-for-in-path").is_ok());
        let no_program = tempfile::NamedTempFile::new().unwrap();
        assert!(check(no_program.path().to_str().unwrap()).unwrap_err().contains("chmod +x"));
        assert!(check("/etc").unwrap_err().contains("it is no file"));
        assert!(check("/nonexistent").unwrap_err().contains("No such file"));
    }
}
