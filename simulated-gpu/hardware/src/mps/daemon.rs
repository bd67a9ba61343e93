//! The control daemon: takes clients in, starts and ends their server, and does what it is told.

use super::server::{Server, devices};
use super::{Answer, CONTROL, Membership, PID_FILE, Question, SHARED_DIRECTORY, pipe_directory};
use crate::{Layout, Store};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Who says nothing for so long is let go: there is one thread.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest line, in bytes.
const LINE_BYTES: u64 = 4096;
/// How often servers and clients are looked at unasked.
const PERIOD: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// A program that has joined.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) pid: u32,
    stream: UnixStream,
}

/// What a server gives its clients.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    pub(super) percent: u32,
    /// By device number.
    pub(super) memory_bytes: BTreeMap<usize, u64>,
}

/// The daemon's state.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) devices: Vec<(String, Store)>,
    /// What servers that start from now on give.
    pub(super) defaults: Limits,
    /// The server, what it gives, and its clients.
    pub(super) server: Option<(Server, Limits)>,
    pub(super) clients: Vec<Client>,
    /// Set by `quit`: no clients are taken in, and it ends with the last one, or then.
    pub(super) ends_at: Option<Option<Instant>>,
    token: String,
    log: Option<fs::File>,
}

/// Runs in the foreground until it is told to quit.
pub(super) fn run() -> io::Result<()> {
    let directory = pipe_directory();
    fs::create_dir_all(&directory)?;
    let socket = directory.join(CONTROL);
    if UnixStream::connect(&socket).is_ok() {
        return Err(io::Error::other("an instance of this daemon is already running"));
    }
    gone(fs::remove_file(&socket))?;
    let listener = UnixListener::bind(&socket)?;
    fs::set_permissions(&socket, Permissions::from_mode(0o666))?;
    let pid = std::process::id();
    fs::write(directory.join(PID_FILE), format!("{pid}\n"))?;
    let token = format!("gpool-simulated-mps-{pid}");
    let token_path = Path::new(SHARED_DIRECTORY).join(&token);
    fs::write(&token_path, "")?;
    let mut daemon = Daemon {
        devices: devices(&Layout::default()),
        defaults: Limits { percent: 100, memory_bytes: BTreeMap::new() },
        server: None,
        clients: Vec::new(),
        ends_at: None,
        token,
        log: log(),
    };
    daemon.note(&format!("simulated MPS control daemon (gpool) {pid} has started"));
    let served = daemon.serve(&listener);
    daemon.end_server();
    [socket, directory.join(PID_FILE), token_path].into_iter().try_for_each(|path| gone(fs::remove_file(path)))?;
    served
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|cause| if cause.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(cause) })
}

fn log() -> Option<fs::File> {
    let directory = std::env::var_os("CUDA_MPS_LOG_DIRECTORY").map(PathBuf::from)?;
    fs::create_dir_all(&directory).ok()?;
    OpenOptions::new().create(true).append(true).open(directory.join("control.log")).ok()
}

impl Daemon {
    fn serve(&mut self, listener: &UnixListener) -> io::Result<()> {
        loop {
            let mut waits = vec![PollFd::new(listener, PollFlags::IN)];
            waits.extend(self.clients.iter().map(|client| PollFd::new(&client.stream, PollFlags::RDHUP)));
            match poll(&mut waits, Some(&PERIOD)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(cause) => return Err(cause.into()),
            }
            let happened: Vec<bool> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
            let mut left = happened[1..].iter();
            self.clients.retain(|_| left.next() != Some(&true));
            if self.server.as_mut().is_some_and(|(server, _)| server.has_ended()) {
                self.note("the server has ended unasked");
                self.end_server();
            }
            if happened[0]
                && let Ok((stream, _)) = listener.accept()
            {
                // Who does not keep to the protocol gets no answer.
                let _ = self.answer(stream);
            }
            if let Some(deadline) = self.ends_at
                && (self.clients.is_empty() || deadline.is_some_and(|deadline| Instant::now() >= deadline))
            {
                return Ok(());
            }
        }
    }

    fn answer(&mut self, stream: UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let peer = socket_peercred(&stream)?;
        let (pid, uid) = (peer.pid.as_raw_pid().unsigned_abs(), peer.uid.as_raw());
        let mut line = String::new();
        BufReader::new((&stream).take(LINE_BYTES)).read_line(&mut line)?;
        let answer = match serde_json::from_str(&line)? {
            Question::Join => self.join(uid),
            Question::Command(line) => {
                // SAFETY: getuid cannot fail and touches nothing.
                let own = unsafe { libc::getuid() };
                match uid == own || uid == 0 {
                    true => self.command(&line),
                    false => Answer::Said("this user may not control the daemon".to_owned(), false),
                }
            }
        };
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        (&stream).write_all(&text)?;
        if matches!(answer, Answer::Joined(_)) {
            self.clients.push(Client { pid, stream });
        }
        Ok(())
    }

    /// Takes a program of the user `uid` in.
    fn join(&mut self, uid: u32) -> Answer {
        if self.ends_at.is_some() {
            return Answer::Wait;
        }
        let is_anothers = self.server.as_ref().is_some_and(|(server, _)| server.uid != uid);
        if is_anothers && !self.clients.is_empty() {
            return Answer::Wait;
        }
        if is_anothers {
            self.end_server();
        }
        if let Err(cause) = self.ensure_server(uid) {
            self.note(&format!("no server for the user {uid} ({cause})"));
            return Answer::Failed;
        }
        let Some((server, limits)) = &self.server else { return Answer::Failed };
        if self.is_recovering() {
            return Answer::Recovering;
        }
        let bytes_of =
            |(device, (uuid, _)): (usize, &(String, Store))| Some((uuid.clone(), *limits.memory_bytes.get(&device)?));
        Answer::Joined(Membership {
            server: server.pid,
            token: self.token.clone(),
            percent: limits.percent,
            memory_bytes: self.devices.iter().enumerate().filter_map(bytes_of).collect(),
        })
    }

    /// Starts a server of the user `uid` if none runs.
    pub(super) fn ensure_server(&mut self, uid: u32) -> io::Result<()> {
        if self.server.is_none() {
            let server = Server::start(uid)?;
            self.note(&format!("started the server {} of the user {uid}", server.pid));
            self.server = Some((server, self.defaults.clone()));
        }
        Ok(())
    }

    /// Ends the server, whose clients lose their contexts.
    pub(super) fn end_server(&mut self) {
        if let Some((mut server, _)) = self.server.take() {
            server.stop();
            self.note(&format!("the server {} is gone", server.pid));
        }
    }

    /// Whether a fault has reached clients that have not ended.
    pub(super) fn is_recovering(&self) -> bool {
        let Some((server, _)) = &self.server else { return false };
        self.devices.iter().any(|(_, store)| store.read(|device| device.is_recovering(server.pid)).unwrap_or(false))
    }

    /// Writes a line to the daemon's log.
    pub(super) fn note(&mut self, line: &str) {
        if let Some(log) = &mut self.log {
            // A full disk loses the log and nothing else.
            let _ = writeln!(log, "{line}");
        }
    }
}
