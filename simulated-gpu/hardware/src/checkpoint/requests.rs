//! Who asks to have processes suspended and resumed. Nobody waits for anybody: what cannot be done yet is tried again.

use super::{Devices, REQUEST_BYTES, Verb};
use crate::clock::now_ns;
use crate::credentials;
use crate::server::Process;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};

/// Between two attempts at what cannot be done yet.
const PERIOD: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// The socket, and who has come.
pub(crate) struct Requests {
    listener: UnixListener,
    askers: Vec<Asker>,
}

/// Somebody who asks, and goes when that is answered.
struct Asker {
    stream: UnixStream,
    request: Option<Request>,
}

#[derive(Clone, Copy)]
struct Request {
    pid: u32,
    verb: Verb,
    /// When to give up.
    until_ns: Option<u64>,
}

impl Requests {
    /// Takes requests at this socket.
    pub(crate) fn new(listener: UnixListener) -> Self {
        Self { listener, askers: Vec::new() }
    }

    /// What to wait for: the socket, and each who has come.
    pub(crate) fn waits(&self) -> impl Iterator<Item = PollFd<'_>> {
        let askers = self.askers.iter().map(|asker| PollFd::new(&asker.stream, PollFlags::IN | PollFlags::RDHUP));
        std::iter::once(PollFd::new(&self.listener, PollFlags::IN)).chain(askers)
    }

    /// How long to wait at most.
    pub(crate) fn patience(&self) -> Option<Timespec> {
        self.askers.iter().any(|asker| asker.request.is_some()).then_some(PERIOD)
    }

    /// Attends to all, of whom those with a true in `happened`, in the order of [`Requests::waits`], have something to say.
    pub(crate) fn attend(&mut self, happened: &[bool], processes: &mut [Process], devices: Devices<'_>) {
        let mut spoke = happened.iter().skip(1);
        // Whoever has asked and says something has gone.
        self.askers.retain_mut(|asker| match (spoke.next() == Some(&true), asker.request.is_some()) {
            (true, true) => false,
            (true, false) => {
                asker.request = read(&asker.stream).unwrap_or(None);
                asker.request.is_some()
            }
            (false, _) => true,
        });
        if happened.first() == Some(&true)
            && let Ok((stream, _)) = self.listener.accept()
            && stream.set_nonblocking(true).and_then(|()| credentials::expect(&stream)).is_ok()
        {
            self.askers.push(Asker { stream, request: None });
        }
        self.askers
            .retain_mut(|asker| asker.request.is_none_or(|request| !asker.is_answered(request, processes, devices)));
        for process in processes {
            let is_wanted = |asker: &Asker| {
                asker.request.is_some_and(|one| one.pid == process.pid && matches!(one.verb, Verb::Lock { .. }))
            };
            process.progress.settle(self.askers.iter().any(is_wanted));
        }
    }
}

impl Asker {
    fn is_answered(&mut self, request: Request, processes: &mut [Process], devices: Devices<'_>) -> bool {
        let Request { pid, verb, until_ns } = request;
        // Of a program that was replaced by another one, the later is meant.
        let answer = match processes.iter_mut().rfind(|process| process.pid == pid) {
            Some(process) => process.progress.attempt(pid, verb, devices),
            None => Some(Err(super::Refusal::NoProcess)),
        };
        let is_late = until_ns.is_some_and(|until_ns| now_ns() >= until_ns);
        let Some(answer) = answer.or(is_late.then_some(Err(super::Refusal::NotReady))) else { return false };
        let line = serde_json::to_string(&answer).unwrap_or_default() + "\n";
        // It fits into the empty socket; whoever has gone is not told.
        let _ = self.stream.write_all(line.as_bytes());
        true
    }
}

/// What somebody asks; none if he has gone, or asks nothing that there is.
fn read(stream: &UnixStream) -> io::Result<Option<Request>> {
    let Some((bytes, pid)) = credentials::receive::<REQUEST_BYTES>(stream)? else { return Ok(None) };
    let until_ns = |timeout_ms: u32| now_ns() + u64::from(timeout_ms) * 1_000_000;
    Ok(Verb::from_bytes(bytes).map(|verb| {
        let until_ns = match verb {
            Verb::Lock { timeout_ms } if timeout_ms > 0 => Some(until_ns(timeout_ms)),
            _ => None,
        };
        Request { pid, verb, until_ns }
    }))
}
