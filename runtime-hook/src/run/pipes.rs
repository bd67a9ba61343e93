//! How the outer and the inner process speak: two pipes, a line of JSON each way and then single words. Once the command
//! runs, the outer one tells of signals, a byte each, and the inner one of those by which the command stopped, went on or
//! ended, or of its exit status.

use super::unprepared;
use gpool_protocol::{ErrorBody, ErrorCode};
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A pipe's two ends, of which `inherited` outlives an exec.
pub struct Ends {
    /// Stays here.
    pub own: OwnedFd,
    /// Goes to the other process, which finds it by its number.
    pub inherited: OwnedFd,
}

/// A pipe whose reading end, or whose writing end, goes to the other process.
///
/// # Errors
/// No descriptors are left.
pub fn pipe(reader_goes: bool) -> Result<Ends, ErrorBody> {
    let (reader, writer) = std::io::pipe().map_err(|error| unprepared("no pipe can be made", error))?;
    let (reader, writer) = (OwnedFd::from(reader), OwnedFd::from(writer));
    let (own, inherited) = if reader_goes { (writer, reader) } else { (reader, writer) };
    hand_down(&inherited)?;
    Ok(Ends { own, inherited })
}

/// The number by which the other process finds it.
pub fn number(fd: &impl AsRawFd) -> String {
    fd.as_raw_fd().to_string()
}

/// Lets what is open here outlive an exec.
///
/// # Errors
/// None that a kernel has.
pub fn hand_down(fd: impl AsFd) -> Result<(), ErrorBody> {
    let handed = fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()));
    handed.map(drop).map_err(|error| unprepared("a descriptor cannot be handed on", error))
}

/// Opens an inherited end anew, closed on exec, and closes the inherited one, which the command must not have.
///
/// # Errors
/// There is no such descriptor.
pub fn adopt(number: &OsStr, writes: bool) -> Result<File, ErrorBody> {
    let path = std::path::Path::new("/proc/self/fd").join(number);
    let opened = File::options().read(!writes).write(writes).open(path);
    let opened = opened.map_err(|error| unprepared("gpool-run was not started by itself", error))?;
    if let Some(number) = number.to_str().and_then(|number| number.parse::<i32>().ok()) {
        let _ = nix::unistd::close(number);
    }
    Ok(opened)
}

/// Writes one message.
///
/// # Errors
/// The other process has ended.
pub fn say(to: &mut impl Write, message: &impl serde::Serialize) -> Result<(), ErrorBody> {
    let mut line = serde_json::to_vec(message).map_err(|error| unprepared("a message", error))?;
    line.push(b'\n');
    to.write_all(&line).map_err(|error| unprepared("the other half of gpool-run has ended", error))
}

/// Reads one message.
///
/// # Errors
/// The other process has ended, or says something else.
pub fn hear<Message: serde::de::DeserializeOwned>(from: &mut BufReader<File>) -> Result<Message, ErrorBody> {
    let mut line = String::new();
    let read = from.read_line(&mut line);
    let unheard = || {
        ErrorBody::new(
            ErrorCode::CommandNotPrepared,
            "the command was not started: the other half of gpool-run ended before it was ready",
            "look for a message before this one",
        )
    };
    read.ok().filter(|length| *length > 0).ok_or_else(unheard)?;
    serde_json::from_str(&line).map_err(|_| unheard())
}

/// Tells of a signal by its number: nix knows no real-time ones. Nobody may be there any more to be told.
pub fn tell(to: &mut impl Write, signal: i32) {
    let _ = to.write_all(&[signal as u8]);
}

/// What stands before an exit status, and is no signal.
pub const STATUS_FOLLOWS: i32 = 0;

/// Tells that the command has ended by itself.
pub fn tell_status(to: &mut impl Write, status: u8) {
    let _ = to.write_all(&[STATUS_FOLLOWS as u8, status]);
}

/// Signals of which the other process tells, for as long as it lives.
pub struct Signalled {
    /// What has been read together with the last word.
    early: Vec<u8>,
    pipe: Option<File>,
}

impl Signalled {
    /// Takes the pipe over once all words have been heard.
    ///
    /// # Errors
    /// None that a kernel has.
    pub fn new(heard: BufReader<File>) -> nix::Result<Self> {
        let early = heard.buffer().to_vec();
        let pipe = heard.into_inner();
        // Nobody else reads there: the other process opened its end anew, see `adopt`.
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Self { early, pipe: Some(pipe) })
    }

    /// To wait for it.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// The numbers of those of which it has told by now.
    pub fn take(&mut self) -> Vec<i32> {
        let mut told = [0; 64];
        let length = match self.pipe.as_mut().map_or(Ok(0), |pipe| pipe.read(&mut told)) {
            Ok(length) if length > 0 => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            // Nobody writes any more; such a pipe would wake its reader for ever.
            _ => {
                self.pipe = None;
                0
            }
        };
        let early = std::mem::take(&mut self.early);
        let numbers = early.iter().chain(&told[..length]);
        numbers.map(|number| i32::from(*number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_told_until_nobody_tells_any_more() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut words = BufReader::new(OwnedFd::from(reader).into());
        say(&mut writer, &()).unwrap();
        tell(&mut writer, 10);
        hear::<()>(&mut words).unwrap();
        let mut told = Signalled::new(words).unwrap();
        assert_eq!(told.take(), [10], "what came with the last word");
        assert!(told.take().is_empty() && told.as_fd().is_some());
        tell(&mut writer, 15);
        tell(&mut writer, 34);
        assert_eq!(told.take(), [15, 34]);
        drop(writer);
        // A program that another test starts just now has the writing end, too, until its exec.
        while told.as_fd().is_some() {
            assert!(told.take().is_empty());
            std::thread::yield_now();
        }
    }
}
