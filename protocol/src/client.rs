//! A blocking HTTP/1.1 client for the supervisor's socket: one request a connection, no dependencies.

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

/// Every failure of a call, the supervisor's own refusals included.
pub type ClientError = ErrorBody;

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
        self.call("GET", path, None)
    }

    /// `POST path` with a JSON body.
    pub fn post<Body: Serialize, Answer: DeserializeOwned>(
        &self,
        path: &str,
        body: &Body,
    ) -> Result<Answer, ClientError> {
        self.call("POST", path, Some(encode(body)?))
    }

    /// `PATCH path` with a JSON body.
    pub fn patch<Body: Serialize, Answer: DeserializeOwned>(
        &self,
        path: &str,
        body: &Body,
    ) -> Result<Answer, ClientError> {
        self.call("PATCH", path, Some(encode(body)?))
    }

    /// `GET path`, handing each line of the answer to `each` as it comes, until the supervisor ends it or
    /// `each` returns false. Silence is no error here.
    pub fn stream(&self, path: &str, mut each: impl FnMut(&str) -> bool) -> Result<(), ClientError> {
        let mut reader = self.send("GET", path, None)?;
        let head = read_head(&mut reader).map_err(|cause| self.broken(&cause))?;
        if head.status >= 400 {
            return Err(self.refusal(&mut reader, &head));
        }
        // A stream may rightly be silent for hours.
        reader.get_mut().wait_for_ever().map_err(|cause| self.broken(&cause))?;
        for line in reader.lines() {
            let line = line.map_err(|cause| self.broken(&cause))?;
            if !line.is_empty() && !each(&line) {
                break;
            }
        }
        Ok(())
    }

    fn call<Answer: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Answer, ClientError> {
        let mut reader = self.send(method, path, body)?;
        let head = read_head(&mut reader).map_err(|cause| self.broken(&cause))?;
        if head.status >= 400 {
            return Err(self.refusal(&mut reader, &head));
        }
        let body = read_body(&mut reader, &head).map_err(|cause| self.broken(&cause))?;
        serde_json::from_slice(&body).map_err(|cause| self.broken(&cause))
    }

    fn send(&self, method: &str, path: &str, body: Option<Vec<u8>>) -> Result<BufReader<Connection>, ClientError> {
        let connected = Connection::open(&self.socket, self.timeout);
        let mut stream = connected.map_err(|cause| match cause.kind() {
            ErrorKind::TimedOut => self.broken(&"it takes no connection"),
            _ => self.absent(),
        })?;
        let body = body.unwrap_or_default();
        let mut message = format!(
            "{method} {path} HTTP/1.1\r\nHost: gpool\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        message.extend_from_slice(&body);
        stream.write_all(&message).map_err(|cause| self.broken(&cause))?;
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

    fn broken(&self, cause: &dyn std::fmt::Display) -> ClientError {
        ErrorBody::new(
            ErrorCode::SupervisorFailed,
            format!("the supervisor on {} gave no valid answer ({cause})", self.socket.display()),
            "look at the supervisor's log, then restart it; running containers are not touched by that",
        )
    }

    fn refusal(&self, reader: &mut impl Read, head: &Head) -> ClientError {
        let body = read_body(reader, head).unwrap_or_default();
        serde_json::from_slice(&body).unwrap_or_else(|_| self.broken(&format!("status {}", head.status)))
    }
}

fn encode<Body: Serialize>(body: &Body) -> Result<Vec<u8>, ClientError> {
    serde_json::to_vec(body).map_err(|cause| {
        ErrorBody::new(ErrorCode::MessageInvalid, format!("the message cannot be encoded ({cause})"), "report this")
    })
}

struct Head {
    status: u16,
    length: Option<u64>,
}

fn read_head(reader: &mut impl BufRead) -> std::io::Result<Head> {
    let invalid = || std::io::Error::new(std::io::ErrorKind::InvalidData, "no HTTP answer");
    let mut line = String::new();
    reader.take(8192).read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or_else(invalid)?;
    let mut length = None;
    loop {
        let mut header = String::new();
        if reader.take(8192).read_line(&mut header)? == 0 {
            return Err(invalid());
        }
        let header = header.trim_end();
        if header.is_empty() {
            return Ok(Head { status, length });
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = Some(value.trim().parse().map_err(|_| invalid())?);
        }
    }
}

fn read_body(reader: &mut impl Read, head: &Head) -> std::io::Result<Vec<u8>> {
    let mut body = Vec::new();
    reader.take(head.length.unwrap_or(ANSWER_LIMIT_BYTES).min(ANSWER_LIMIT_BYTES)).read_to_end(&mut body)?;
    match head.length {
        Some(length) if length != body.len() as u64 => {
            Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the answer was cut short"))
        }
        _ => Ok(body),
    }
}
