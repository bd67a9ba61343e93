//! A blocking HTTP/1.1 client for the supervisor's socket: one request a connection, no dependencies.

use crate::answer::{Body, Head};
use crate::connection::Connection;
use crate::error::{ErrorBody, ErrorCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the supervisor listens unless configured otherwise.
pub const DEFAULT_SOCKET: &str = "/run/gpool/gpool.sock";

/// No answer is longer than this; a larger one is a fault, not data.
const ANSWER_LIMIT_BYTES: u64 = 64 << 20;

/// The status of an answer of who has no room for another call at the moment.
const BUSY: u16 = 503;

/// Every failure of a call, the supervisor's own refusals included.
pub type ClientError = ErrorBody;

/// A failure of a call, by whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// Nobody answered, or in time, or with anything that can be understood.
    Unanswered(ErrorBody),
    /// The connection ended before the answer did, as when the supervisor is restarted meanwhile. Whether it has done what was
    /// asked is not known.
    BrokenOff(ErrorBody),
    /// The supervisor has no room for another call at the moment (status 503), and has not looked at this one.
    Busy(ErrorBody),
    /// The supervisor's own words.
    Refused(ErrorBody),
}

impl CallError {
    /// What is told to people.
    #[must_use]
    pub fn into_body(self) -> ErrorBody {
        match self {
            CallError::Unanswered(body)
            | CallError::BrokenOff(body)
            | CallError::Busy(body)
            | CallError::Refused(body) => body,
        }
    }
}

/// A client of one supervisor socket. Connects anew for each call.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    timeout: Duration,
}

impl Client {
    /// A client of the socket at `socket`, with ten seconds of patience.
    pub fn new(socket: impl AsRef<Path>) -> Self {
        Self { socket: socket.as_ref().to_owned(), timeout: Duration::from_secs(10) }
    }

    /// The same client with another limit on a whole call, from connecting to the last byte of the answer. Of a
    /// stream it limits what comes before the first line.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// `GET path`.
    pub fn get<Answer: DeserializeOwned>(&self, path: &str) -> Result<Answer, ClientError> {
        self.call("GET", path, None).map_err(CallError::into_body)
    }

    /// `POST path` with a JSON body.
    pub fn post<Body: Serialize, Answer: DeserializeOwned>(
        &self,
        path: &str,
        body: &Body,
    ) -> Result<Answer, ClientError> {
        self.try_post(path, body).map_err(CallError::into_body)
    }

    /// `POST path` with a JSON body, for who tells a refusal from a supervisor that is away.
    pub fn try_post<Body: Serialize, Answer: DeserializeOwned>(
        &self,
        path: &str,
        body: &Body,
    ) -> Result<Answer, CallError> {
        self.call("POST", path, Some(encode(body).map_err(CallError::Refused)?))
    }

    /// `PATCH path` with a JSON body.
    pub fn patch<Body: Serialize, Answer: DeserializeOwned>(
        &self,
        path: &str,
        body: &Body,
    ) -> Result<Answer, ClientError> {
        self.call("PATCH", path, Some(encode(body)?)).map_err(CallError::into_body)
    }

    /// `GET path`, handing each line of the answer to `each` as it comes, until its end or until `each` returns false.
    /// Silence is no error here; a supervisor that goes away before the end of its answer is one.
    pub fn stream(&self, path: &str, mut each: impl FnMut(&str) -> bool) -> Result<(), ClientError> {
        let mut body = self.begin("GET", path, None).map_err(CallError::into_body)?;
        // A stream may rightly be silent for hours.
        body.get_mut().get_mut().wait_for_ever().map_err(|cause| self.broken(&cause))?;
        for line in BufReader::new(body).lines() {
            let line = line.map_err(|cause| self.broken(&cause))?;
            if !line.is_empty() && !each(&line) {
                break;
            }
        }
        Ok(())
    }

    /// The same of an answer that ends: the client's patience is for all of it.
    ///
    /// # Errors
    /// As [`Client::stream`], and where it does not come in time.
    pub fn lines(&self, path: &str, mut each: impl FnMut(&str)) -> Result<(), ClientError> {
        let body = self.begin("GET", path, None).map_err(CallError::into_body)?;
        for line in BufReader::new(body).lines() {
            let line = line.map_err(|cause| self.broken(&cause))?;
            if !line.is_empty() {
                each(&line);
            }
        }
        Ok(())
    }

    fn call<Answer: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Answer, CallError> {
        let answer = read_whole(&mut self.begin(method, path, body)?).map_err(|cause| self.unanswered(&cause))?;
        serde_json::from_slice(&answer).map_err(|cause| CallError::Unanswered(self.broken(&cause)))
    }

    /// Sends a request; the body of the answer if it is none of refusal.
    fn begin(&self, method: &str, path: &str, body: Option<Vec<u8>>) -> Result<Body<BufReader<Connection>>, CallError> {
        let mut reader = self.send(method, path, body)?;
        // Who manages the services may hold the socket for a supervisor that does not come up: it takes every connection.
        if reader.fill_buf().is_err_and(|cause| cause.kind() == ErrorKind::TimedOut) {
            return Err(CallError::Unanswered(self.silent()));
        }
        let head = Head::read(&mut reader).map_err(|cause| self.unanswered(&cause))?;
        let mut answer = head.body(reader);
        if head.status >= 400 {
            return Err(self.refusal(&mut answer, head.status));
        }
        Ok(answer)
    }

    fn send(&self, method: &str, path: &str, body: Option<Vec<u8>>) -> Result<BufReader<Connection>, CallError> {
        let connected = Connection::open(&self.socket, self.timeout);
        let mut stream = connected.map_err(|cause| match cause.kind() {
            ErrorKind::TimedOut => CallError::Unanswered(self.silent()),
            _ => CallError::Unanswered(self.absent()),
        })?;
        let body = body.unwrap_or_default();
        let mut message = format!(
            "{method} {path} HTTP/1.1\r\nHost: gpool\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        message.extend_from_slice(&body);
        stream.write_all(&message).map_err(|cause| self.unanswered(&cause))?;
        Ok(BufReader::new(stream))
    }

    /// The errno is left out on purpose: engines turn some of its texts into misleading messages of their own.
    fn absent(&self) -> ClientError {
        ErrorBody::new(
            ErrorCode::SupervisorAbsent,
            format!("the supervisor is not running (nothing answers on {})", self.socket.display()),
            "start gpool-supervisor",
        )
    }

    fn silent(&self) -> ClientError {
        ErrorBody::new(
            ErrorCode::SupervisorAbsent,
            format!("the supervisor on {} does not answer", self.socket.display()),
            "systemctl status gpool-supervisor says why",
        )
    }

    fn broken(&self, cause: &dyn std::fmt::Display) -> ClientError {
        ErrorBody::new(
            ErrorCode::SupervisorFailed,
            format!("the supervisor on {} gave no valid answer ({cause})", self.socket.display()),
            "look at the supervisor's log, then restart it; running containers are not touched by that",
        )
    }

    fn unanswered(&self, cause: &std::io::Error) -> CallError {
        let body = self.broken(cause);
        match cause.kind() {
            ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe => CallError::BrokenOff(body),
            _ => CallError::Unanswered(body),
        }
    }

    fn refusal(&self, body: &mut impl Read, status: u16) -> CallError {
        let body = read_whole(body).unwrap_or_default();
        match serde_json::from_slice(&body) {
            Ok(refusal) if status == BUSY => CallError::Busy(refusal),
            Ok(refusal) => CallError::Refused(refusal),
            Err(_) if status == BUSY => CallError::Busy(self.broken(&format!("status {status}"))),
            Err(_) => CallError::Unanswered(self.broken(&format!("status {status}"))),
        }
    }
}

fn encode<Body: Serialize>(body: &Body) -> Result<Vec<u8>, ClientError> {
    serde_json::to_vec(body).map_err(|cause| {
        ErrorBody::new(ErrorCode::MessageInvalid, format!("the message cannot be encoded ({cause})"), "report this")
    })
}

fn read_whole(body: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut whole = Vec::new();
    body.take(ANSWER_LIMIT_BYTES).read_to_end(&mut whole)?;
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// What a call of `patience_ms` ends with, where whoever listens says `answer` and no more, until the client has gone.
    fn refused(name: &str, answer: &'static str, patience_ms: u64) -> ErrorBody {
        failed(name, answer, patience_ms, true).into_body()
    }

    fn failed(name: &str, answer: &'static str, patience_ms: u64, stays: bool) -> CallError {
        let socket = std::env::temp_dir().join(format!("gpool-{name}-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&socket).unwrap();
        let listens = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let _ = stream.read(&mut [0; 512]).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            while stays && stream.read(&mut [0; 512]).is_ok_and(|bytes| bytes > 0) {}
        });
        let client = Client::new(&socket).with_timeout(Duration::from_millis(patience_ms));
        let failed = client.try_post::<_, serde_json::Value>("/v1/leases", &()).unwrap_err();
        std::fs::remove_file(&socket).unwrap();
        listens.join().unwrap();
        failed
    }

    #[test]
    fn who_ends_meanwhile_and_who_has_no_room_are_told_from_who_answers_wrongly() {
        for begun in ["", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{"] {
            let failed = failed("ends", begun, 30_000, false);
            assert!(matches!(failed, CallError::BrokenOff(_)), "{begun:?}: {failed:?}");
        }
        let busy = "HTTP/1.1 503 X\r\n\r\n{\"code\":\"GPOOL-E002\",\"message\":\"m\",\"remedy\":\"r\"}";
        for (answer, message) in [(busy, "m"), ("HTTP/1.1 503 X\r\n\r\n", "status 503")] {
            let failed = failed("busy", answer, 30_000, false);
            assert!(matches!(&failed, CallError::Busy(body) if body.message.contains(message)), "{failed:?}");
        }
        for wrong in ["nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n{"] {
            let failed = failed("wrong", wrong, 30_000, false);
            assert!(matches!(failed, CallError::Unanswered(_)), "{wrong:?}: {failed:?}");
        }
    }

    #[test]
    fn who_says_nothing_at_all_is_absent_and_who_breaks_off_has_failed() {
        let silent = refused("silent", "", 200);
        assert_eq!(silent.code, ErrorCode::SupervisorAbsent, "{silent}");
        assert!(silent.message.ends_with(".sock does not answer") && silent.remedy.contains("systemctl status"));
        for begun in ["H", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{"] {
            assert_eq!(refused("begun", begun, 200).code, ErrorCode::SupervisorFailed, "{begun}");
        }
    }
}
