//! The inner process: init of the command's PID namespace.

use super::description::Person;
use super::handing_on::HandingOn;
use super::mounts;
use super::pipes;
use super::plan::Plan;
use super::rights;
use super::signals::{self, Signals};
use super::terminal_input::{self, FilterCalls};
use super::{FAILED, NOT_EXECUTABLE, NOT_FOUND, SIGNALLED, unprepared};
use gpool_protocol::{ErrorBody, ErrorCode};
use nix::sys::prctl::{set_name, set_pdeathsig};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Gid, Pid, Uid, getpgid, getpgrp, setgid, setgroups, setuid};
use rustix::process::{WaitOptions, WaitStatus, chdir, wait};
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// The word by which the program knows that it is the inner half, and `gpool exec` that this has the command's environment for its own:
/// that of an older release, which had another word, has its caller's.
pub const VERB: &str = "--init";
/// What lists of processes show it as.
pub const NAME: &CStr = c"share-init";

/// Prepares what the plan says, waits for the word, and is the command's init. Returns the command's exit status.
///
/// # Errors
/// Told to the outer half as well, which is who reports it.
pub fn run(orders: &OsStr, words: &OsStr, filter_calls: FilterCalls) -> Result<u8, ErrorBody> {
    // Whoever kills the outer half ends the command: nobody would know of it any more.
    set_pdeathsig(Signal::SIGKILL).map_err(|error| unprepared("its end cannot be tied to gpool-run's", error))?;
    set_name(NAME).map_err(|error| unprepared("it cannot be named", error))?;
    let (orders, mut words) = (pipes::adopt(orders, false)?, pipes::adopt(words, true)?);
    let mut orders = BufReader::new(orders);
    let plan: Plan = pipes::hear(&mut orders)?;
    let ready = mounts::make(&plan);
    pipes::say(&mut words, &ready)?;
    if ready.is_err() {
        // It has been told.
        return Ok(FAILED);
    }
    pipes::hear::<()>(&mut orders)?;
    let entered = place().and_then(|inherited| enter_as_root(&plan.directory, inherited));
    if plan.person.is_some() {
        // It takes a right that is given up next. A kernel may be built without filters, and then it is as with su.
        let _ = filter_calls(&terminal_input::FILTER);
    }
    become_person(plan.person.as_ref())?;
    // A file system of the network may let the user in and not root.
    entered
        .or_else(|_| chdir(&plan.directory).map_err(Into::into))
        .map_err(|error| not_entered(&plan.directory, error))?;
    // The kernel forgets it when the user changes.
    set_pdeathsig(Signal::SIGKILL).map_err(|error| unprepared("its end cannot be tied to gpool-run's", error))?;
    let no_signals = |error| unprepared("signals cannot be waited for", error);
    signals::release().map_err(no_signals)?;
    let child = match command(&plan.command).spawn() {
        Ok(child) => Pid::from_raw(child.id().cast_signed()),
        Err(error) => return Ok(not_started("gpool run", &plan.command, &error)),
    };
    let signals = Signals::catch().map_err(no_signals)?;
    // The outer half keeps signals back until it hears this: from now on there is somebody to hand them to.
    pipes::say(&mut words, &())?;
    let orders = pipes::Signalled::new(orders).map_err(no_signals)?;
    Ok(Parent::new(child, orders, words).serve(&signals))
}

/// The working directory, as device and number.
pub fn place() -> std::io::Result<(u64, u64)> {
    std::fs::metadata(".").map(|found| (found.dev(), found.ino()))
}

/// Enters the caller's directory as root, so that who calls from one of root's own stays there, as with sudo and su. Its
/// path is followed anew, because mounts may cover it now; where it leads elsewhere than where the caller was, by a link
/// that somebody has put there meanwhile, only the user enters it. There is no second thread here.
pub fn enter_as_root(directory: &Path, inherited: (u64, u64)) -> std::io::Result<()> {
    chdir(directory)?;
    if place()? == inherited {
        return Ok(());
    }
    chdir("/")?;
    Err(ErrorKind::PermissionDenied.into())
}

/// Gives up what could undo the share, and becomes the user, if there is one to become.
pub fn become_person(person: Option<&Person>) -> Result<(), ErrorBody> {
    rights::give_up()?;
    let Some(person) = person else { return Ok(()) };
    let refused = |error: nix::Error| unprepared(format!("it cannot become the user {}", person.name), error);
    let groups: Vec<Gid> = person.groups.iter().copied().map(Gid::from_raw).collect();
    setgroups(&groups).map_err(refused)?;
    setgid(Gid::from_raw(person.gid)).map_err(refused)?;
    setuid(Uid::from_raw(person.uid)).map_err(refused)
}

/// The command, with the environment that this process has been given for it.
fn command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    // Its own name as it was typed; std looks for it in PATH.
    command.args(&words[1..]).arg0(&words[0]);
    command
}

fn not_entered(directory: &Path, error: std::io::Error) -> ErrorBody {
    let (directory, cause) = (directory.display(), crate::low_level::cause(&error));
    ErrorBody::new(
        ErrorCode::CommandNotPrepared,
        format!("the command was not started: the working directory {directory} cannot be entered ({cause})"),
        "call gpool run in a directory that is there and that its user may enter",
    )
}

/// Says why, as a shell does, and gives the status that a shell gives.
pub fn not_started(verb: &str, command: &[String], error: &std::io::Error) -> u8 {
    let cause = match error.raw_os_error().map(nix::Error::from_raw) {
        Some(nix::Error::ENOEXEC) => "it is no program for this machine, and no script that begins with #!".to_owned(),
        Some(nix::Error::E2BIG) => "its arguments and its environment are too long".to_owned(),
        _ => crate::low_level::cause(error),
    };
    eprintln!("{verb}: {}: {cause}", command[0]);
    match error.kind() {
        ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    }
}

/// Who has started the command: the init of its PID namespace, to which the kernel sends no signal that it does not listen to, or what
/// `gpool exec` has in there.
pub struct Parent {
    command: Pid,
    orders: pipes::Signalled,
    /// Here the outer half hears by which signal the command has stopped, gone on or ended.
    words: File,
    handing_on: HandingOn,
}

impl Parent {
    /// Of a command that has just been started.
    pub fn new(command: Pid, orders: pipes::Signalled, words: File) -> Self {
        Self { command, orders, words, handing_on: HandingOn::default() }
    }

    /// Hands signals on and collects what ends, until the command has ended. With an init the kernel then ends what it left behind.
    pub fn serve(&mut self, signals: &Signals) -> u8 {
        loop {
            // Not nix's: of a child that a real-time signal has ended it says that there is an error.
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED) {
                Ok(Some((pid, status))) if pid.as_raw_pid() == self.command.as_raw() => {
                    if let Some(status) = self.note(status) {
                        return status;
                    }
                }
                // What the command has left behind.
                Ok(Some(_)) => {}
                Ok(None) => self.attend(signals),
                Err(_) => return FAILED,
            }
        }
    }

    /// Tells of what has happened to the command. Its exit status if it has ended.
    fn note(&mut self, status: WaitStatus) -> Option<u8> {
        if let Some(status) = status.exit_status() {
            pipes::tell_status(&mut self.words, status as u8);
            return Some(status as u8);
        }
        let told = if status.continued() { Some(Signal::SIGCONT as i32) } else { status.stopping_signal() };
        let ending = status.terminating_signal();
        ending.or(told).iter().for_each(|signal| pipes::tell(&mut self.words, *signal));
        ending.map(|signal| SIGNALLED + signal as u8)
    }

    /// Waits until something has happened, which may be the end of a child, and does what is due.
    fn attend(&mut self, signals: &Signals) {
        let _ = signals.wait(self.orders.as_fd(), self.handing_on.patience(Instant::now()));
        let now = Instant::now();
        // Its own first: they say what the outer half's are.
        while let Some(signal) = signals.next() {
            self.handing_on.had(signal, now);
        }
        let told = self.orders.take().into_iter().filter_map(|signal| Signal::try_from(signal).ok());
        if self.command_is_elsewhere() {
            // What is sent to the group of `gpool run` does not reach it.
            told.for_each(|signal| self.hand_on(signal));
        } else {
            told.for_each(|signal| self.handing_on.told(signal, now));
        }
        self.handing_on.due(now).into_iter().for_each(|signal| self.hand_on(signal));
        if self.orders.as_fd().is_none() {
            // The outer half has been killed, and nobody would know of the command any more.
            self.hand_on(Signal::SIGKILL);
        }
    }

    /// Whether the command has made a process group or a session of its own.
    fn command_is_elsewhere(&self) -> bool {
        getpgid(Some(self.command)).is_ok_and(|group| group != getpgrp())
    }

    fn hand_on(&self, signal: Signal) {
        // It may have ended meanwhile; then its end is next.
        let _ = kill(self.command, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_cannot_be_entered_is_named() {
        let error = not_entered(Path::new("/home/me"), ErrorKind::PermissionDenied.into());
        crate::report::assert_presentable(&error);
        assert!(error.message.contains("/home/me"), "{error}");
    }
}
