//! The inner half of `gpool exec`: in the PID namespace and the cgroups of the command of `gpool run` from its first instruction on.

use crate::run::description::Person;
use crate::run::inner::{self, Parent};
use crate::run::pipes;
use crate::run::signals::{self, Signals};
use crate::run::terminal_input::{self, FilterCalls};
use crate::run::{FAILED, SIGNALLED, unprepared};
use gpool_protocol::ErrorBody;
use nix::sched::{CloneFlags, setns};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::prctl::{set_dumpable, set_name};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;
use rustix::process::chdir;
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The word by which the program knows that it is the entrant.
pub const VERB: &str = "--entrant";
/// What lists of processes show it as.
pub const NAME: &CStr = c"share-exec";

/// What the outer half tells it. The environment is the one that it has.
#[derive(Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The command with its arguments.
    pub command: Vec<String>,
    /// The caller's working directory, if it has one whose name is text.
    pub directory: Option<PathBuf>,
    /// Who runs it; root, who has called, if absent.
    pub person: Option<Person>,
}

/// Enters the mounts, waits for the word, starts the command and is its parent. Returns the command's exit status.
///
/// # Errors
/// It was not started by `gpool exec`, or the kernel refuses what it refuses nobody.
pub fn run(orders: &OsStr, words: &OsStr, mounts: &OsStr, filter_calls: FilterCalls) -> Result<u8, ErrorBody> {
    // An init is sent no signal that it does not wait for. This is none, and what stops or ends its process group has to leave it there to
    // tell of it and to hand it on.
    let no_signals = |error| unprepared("signals cannot be waited for", error);
    let kept_back = signals::kept_back_by_the_caller().map_err(no_signals)?;
    SigSet::all().thread_block().map_err(no_signals)?;
    let signals = Signals::catch().map_err(no_signals)?;
    set_name(NAME).map_err(|error| unprepared("it cannot be named", error))?;
    // Programs of the share see it from now on, and some are root's: its program and its memory are the host's alone.
    set_dumpable(false).map_err(|error| unprepared("it cannot be hidden from the share", error))?;
    let (orders, mut words) = (pipes::adopt(orders, false)?, pipes::adopt(words, true)?);
    let mounts = pipes::adopt(mounts, false)?;
    let mut orders = BufReader::new(orders);
    // Where the outer half has gone it has said why, if it could.
    let Ok(entry) = pipes::hear::<Entry>(&mut orders) else { return Ok(FAILED) };
    let ready = enter(mounts, &entry, filter_calls);
    pipes::say(&mut words, &ready)?;
    if ready.is_err() {
        // It has been told.
        return Ok(FAILED);
    }
    // Not before the outer half has seen where this is.
    if pipes::hear::<()>(&mut orders).is_err() {
        return Ok(FAILED);
    }
    pipes::say(&mut words, &())?;
    if let Some(signal) = std::iter::from_fn(|| signals.next()).find(|signal| signals::ends(*signal)) {
        // Of one that came before there is a command nobody else would end.
        pipes::tell(&mut words, signal as i32);
        return Ok(SIGNALLED + signal as u8);
    }
    match spawn(&entry.command, &kept_back) {
        Ok(child) => {
            let orders = pipes::Signalled::new(orders).map_err(no_signals)?;
            Ok(Parent::new(child, orders, words).serve(&signals))
        }
        Err(error) => {
            let status = inner::not_started("gpool exec", &entry.command, &error.into());
            pipes::tell_status(&mut words, status);
            Ok(status)
        }
    }
}

/// Starts the command with its caller's signals, which this process keeps back for itself. By the system's own function: the standard
/// library's has the child keep back what this one does.
fn spawn(words: &[String], kept_back: &SigSet) -> nix::Result<Pid> {
    let text = |bytes: Vec<u8>| CString::new(bytes).map_err(|_| nix::Error::EINVAL);
    let words: Vec<CString> = words.iter().map(|word| text(word.clone().into())).collect::<Result<_, _>>()?;
    let entry = |(name, value): (OsString, OsString)| text([name.as_bytes(), value.as_bytes()].join(&b'='));
    let environment: Vec<CString> = std::env::vars_os().map(entry).collect::<Result<_, _>>()?;
    let mut how = PosixSpawnAttr::init()?;
    how.set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF)?;
    how.set_sigmask(kept_back)?;
    // Which the standard library has had ignored.
    how.set_sigdefault(&SigSet::from(Signal::SIGPIPE))?;
    posix_spawnp(words.first().ok_or(nix::Error::EINVAL)?, &PosixSpawnFileActions::init()?, &how, &words, &environment)
}

fn enter(mounts: File, entry: &Entry, filter_calls: FilterCalls) -> Result<(), ErrorBody> {
    let inherited = inner::place();
    setns(mounts, CloneFlags::CLONE_NEWNS)
        .map_err(|error| unprepared("the command's mount namespace cannot be entered", error))?;
    // Somebody else's program is not let into a directory of root's that its user may not enter: its caller looks into a job, and
    // did not write what the job's PATH leads to.
    let as_root = entry.directory.as_deref().filter(|_| entry.person.is_none());
    let entered = as_root.ok_or_else(|| ErrorKind::NotFound.into());
    let entered = entered.and_then(|directory| inner::enter_as_root(directory, inherited?));
    if entry.person.is_some() {
        // As with the command of gpool run.
        let _ = filter_calls(&terminal_input::FILTER);
    }
    inner::become_person(entry.person.as_ref())?;
    let by_itself = || chdir(entry.directory.as_deref().unwrap_or(Path::new("/")));
    entered
        .or_else(|_| by_itself())
        .or_else(|_| chdir("/"))
        .map_err(|error| unprepared("no working directory can be entered", error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{WaitOptions, waitpid};

    #[test]
    fn a_command_has_its_caller_s_signals_and_this_process_none() {
        let kept_back = signals::kept_back_by_the_caller().unwrap();
        SigSet::all().thread_block().unwrap();
        let run = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let child = spawn(&words, &kept_back)?;
            let child = rustix::process::Pid::from_raw(child.as_raw());
            Ok::<_, nix::Error>(waitpid(child, WaitOptions::empty()).unwrap().unwrap().1)
        };
        // The one that is sent to all is its own as well.
        assert_eq!(run(&["sh", "-c", "kill -TERM $$; exit 7"]).unwrap().terminating_signal(), Some(15));
        assert_eq!(run(&["sh", "-c", "kill -PIPE $$; exit 7"]).unwrap().terminating_signal(), Some(13));
        assert_eq!(run(&["sh", "-c", "test \"$0\" = sh && exit 7"]).unwrap().exit_status(), Some(7));
        assert_eq!(run(&["/nonexistent"]).unwrap_err(), nix::Error::ENOENT);
        assert_eq!(run(&["/etc/passwd"]).unwrap_err(), nix::Error::EACCES);
        kept_back.thread_set_mask().unwrap();
    }
}
