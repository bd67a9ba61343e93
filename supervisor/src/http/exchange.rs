//! Reading one request and writing one answer.

use gpool_protocol::{ErrorBody, ErrorCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// No request head is longer.
const HEAD_LIMIT: usize = 16 << 10;
/// A whole request comes within this, however its bytes trickle.
const REQUEST_PATIENCE: Duration = Duration::from_secs(10);
/// A whole answer is taken within this, and so is a part of one that has no end: what waits to be taken is kept in memory.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// No request body is longer.
const BODY_LIMIT: usize = 1 << 20;

/// One request.
pub struct Request {
    pub method: String,
    pub path: String,
    /// `name=value` pairs behind the question mark.
    pub query: String,
    pub body: Vec<u8>,
}

fn invalid(what: impl Into<String>) -> ErrorBody {
    ErrorBody::new(ErrorCode::MessageInvalid, what, "see the messages in the documentation of the socket")
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    /// A head or body that is no HTTP, too long, or cut short.
    pub fn read(stream: &mut UnixStream) -> Result<Self, ErrorBody> {
        Self::read_until(stream, Instant::now() + REQUEST_PATIENCE)
    }

    fn read_until(stream: &mut UnixStream, deadline: Instant) -> Result<Self, ErrorBody> {
        let mut bytes = Vec::new();
        let (mut request, head_end, length) = loop {
            let mut chunk = [0; 4096];
            wait_no_longer_than(stream, deadline)?;
            let count =
                stream.read(&mut chunk).map_err(|cause| invalid(format!("the request was cut short ({cause})")))?;
            bytes.extend_from_slice(&chunk[..count]);
            if let Some(head) = parse_head(&bytes)? {
                break head;
            }
            if count == 0 || bytes.len() > HEAD_LIMIT {
                return Err(invalid("the request has no complete head"));
            }
        };
        request.body = bytes.split_off(head_end);
        if length > BODY_LIMIT || request.body.len() > length {
            return Err(invalid("the request's body is longer than it may be"));
        }
        let got = request.body.len();
        request.body.resize(length, 0);
        fill(stream, &mut request.body[got..], deadline)?;
        Ok(request)
    }

    /// The body as a message.
    ///
    /// # Errors
    /// No JSON, or JSON of another shape.
    pub fn message<T: DeserializeOwned>(&self) -> Result<T, ErrorBody> {
        serde_json::from_slice(&self.body).map_err(|cause| invalid(format!("the body is not understood ({cause})")))
    }

    /// The body, or the message without anything said where there is none, or `null`.
    ///
    /// # Errors
    /// As [`Request::message`].
    pub fn message_or_default<T: DeserializeOwned + Default>(&self) -> Result<T, ErrorBody> {
        if self.body.is_empty() { Ok(T::default()) } else { self.message::<Option<T>>().map(Option::unwrap_or_default) }
    }

    /// The value of `name` in the query.
    pub fn query_value(&self, name: &str) -> Option<&str> {
        self.query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value)
    }
}

/// Reads what is missing of a body. The limit is set anew for each read: the kernel's begins anew with each byte.
fn fill(stream: &mut UnixStream, mut missing: &mut [u8], deadline: Instant) -> Result<(), ErrorBody> {
    let cut_short = |cause: io::Error| invalid(format!("the body was cut short ({cause})"));
    while !missing.is_empty() {
        wait_no_longer_than(stream, deadline)?;
        match stream.read(missing) {
            Ok(0) => return Err(cut_short(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => missing = &mut missing[count..],
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cut_short(cause)),
        }
    }
    Ok(())
}

/// Sets the limit of the next read to what is left until `deadline`.
fn wait_no_longer_than(stream: &UnixStream, deadline: Instant) -> Result<(), ErrorBody> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
        return Err(invalid("the request took too long"));
    }
    Ok(())
}

/// Method and path, where the head ends, and how long the body is; none while the head is incomplete.
fn parse_head(bytes: &[u8]) -> Result<Option<(Request, usize, usize)>, ErrorBody> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Request::new(&mut headers);
    let parsed = head.parse(bytes).map_err(|cause| invalid(format!("the request is no HTTP ({cause})")))?;
    let httparse::Status::Complete(end) = parsed else { return Ok(None) };
    let length = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = match length {
        None => 0,
        Some(header) => std::str::from_utf8(header.value)
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .ok_or_else(|| invalid("the content-length is no number"))?,
    };
    let target = head.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let method = head.method.unwrap_or_default().to_owned();
    Ok(Some((Request { method, path: path.into(), query: query.into(), body: Vec::new() }, end, length)))
}

/// The HTTP status for a refusal.
fn status_of(code: ErrorCode) -> (u16, &'static str) {
    match code {
        ErrorCode::MessageInvalid | ErrorCode::RequestInvalid => (400, "Bad Request"),
        ErrorCode::NotPermitted | ErrorCode::RequestNotAllowed => (403, "Forbidden"),
        ErrorCode::LeaseUnknown => (404, "Not Found"),
        ErrorCode::LeaseConflict
        | ErrorCode::LayoutFixed
        | ErrorCode::ShareNotFree
        | ErrorCode::MemoryNotFree
        | ErrorCode::NoGpu
        | ErrorCode::NoMechanism
        | ErrorCode::TakenOutOfQueue
        | ErrorCode::QuotaReached
        | ErrorCode::DeadlineNotMet => (409, "Conflict"),
        // Here it answers, and takes no more connections.
        ErrorCode::SupervisorAbsent => (503, "Service Unavailable"),
        _ => (500, "Internal Server Error"),
    }
}

/// Writes an answer or a refusal.
pub fn answer<T: Serialize>(stream: &mut UnixStream, outcome: Result<T, ErrorBody>) -> io::Result<()> {
    let (status, body) = match &outcome {
        Ok(message) => ((200, "OK"), serde_json::to_vec(message)?),
        Err(error) => (status_of(error.code), serde_json::to_vec(error)?),
    };
    drop(outcome);
    write_whole(stream, status, "application/json", &body)
}

/// Writes an answer that is no JSON.
pub fn answer_text(stream: &mut UnixStream, content_type: &str, text: &str) -> io::Result<()> {
    write_whole(stream, (200, "OK"), content_type, text.as_bytes())
}

fn write_whole(stream: &mut UnixStream, status: (u16, &str), content_type: &str, body: &[u8]) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        status.0,
        status.1,
        body.len()
    );
    write_within(stream, [head.as_bytes(), body], ANSWER_PATIENCE)
}

/// Writes all parts, in one piece where the peer takes them at once: a client that waits is woken once. The limit is set anew for
/// each write: the kernel's begins anew with each byte that is taken.
fn write_within<const PARTS: usize>(
    stream: &mut UnixStream,
    parts: [&[u8]; PARTS],
    patience: Duration,
) -> io::Result<()> {
    let deadline = Instant::now() + patience;
    let mut slices = parts.map(IoSlice::new);
    let mut left = &mut slices[..];
    // Those that are empty at the beginning are no reason to write.
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(remaining))?;
        match stream.write_vectored(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut left, count),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(())
}

/// An answer of lines whose number nobody knows when it begins. Its reader knows its end from a connection that broke
/// (RFC 9112, section 7.1).
pub struct Lines<'a> {
    stream: &'a mut UnixStream,
}

impl<'a> Lines<'a> {
    /// Begins an answer of JSON lines.
    pub fn begin(stream: &'a mut UnixStream) -> io::Result<Self> {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/jsonl\r\nTransfer-Encoding: chunked\r\n\
                    Connection: close\r\n\r\n";
        write_within(stream, [head.as_bytes()], ANSWER_PATIENCE)?;
        Ok(Self { stream })
    }

    /// Writes some lines, which all end with a newline; of none nothing is written.
    pub fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let size = format!("{:x}\r\n", lines.len());
        write_within(self.stream, [size.as_bytes(), lines, b"\r\n"], ANSWER_PATIENCE)
    }

    /// Where they go.
    pub fn stream(&self) -> &UnixStream {
        self.stream
    }

    /// There are no more.
    pub fn end(self) -> io::Result<()> {
        write_within(self.stream, [b"0\r\n\r\n"], ANSWER_PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<Request, ErrorBody> {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        there.write_all(text).unwrap();
        drop(there);
        Request::read(&mut here)
    }

    #[test]
    fn the_table_of_refusals_has_the_status_of_each_code() {
        let page = include_str!("../../../docs/socket.md");
        let table = page.split("\n## ").find(|section| section.starts_with("Refusals\n")).unwrap();
        for code in ErrorCode::ALL {
            let (status, _) = status_of(code);
            let name = format!("`{}`", code.text());
            let rows: Vec<&str> = table.lines().filter(|line| line.contains(&name)).collect();
            let is_right = match rows.as_slice() {
                [] => status == 500,
                [row] => row.starts_with(&format!("| {status} |")),
                _ => false,
            };
            assert!(is_right, "{name} is answered with {status}: {rows:?}");
        }
    }

    #[test]
    fn a_request_is_read_with_its_query_and_body() {
        let request = read(b"PATCH /v1/leases/x?a=1&b=2 HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}").unwrap();
        assert_eq!((request.method.as_str(), request.path.as_str()), ("PATCH", "/v1/leases/x"));
        assert_eq!((request.query_value("b"), request.body.as_slice()), (Some("2"), b"{}".as_slice()));
    }

    #[test]
    fn an_answer_that_is_taken_bit_by_bit_is_given_up() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let reader = std::thread::spawn(move || {
            let mut few = [0; 512];
            // Each time before a limit that began anew with it would be over.
            while there.read(&mut few).is_ok_and(|count| count > 0) {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let body = vec![0; 16 << 20];
        let written = write_within(&mut here, [b"head", &body], Duration::from_millis(300));
        assert!(matches!(written.unwrap_err().kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock));
        drop(here);
        reader.join().unwrap();
        let (mut here, mut there) = UnixStream::pair().unwrap();
        write_within(&mut here, [b"", b"head ", b"", b"body"], Duration::from_secs(10)).unwrap();
        drop(here);
        let mut text = String::new();
        there.read_to_string(&mut text).unwrap();
        assert_eq!(text, "head body");
    }

    #[test]
    fn rubbish_is_refused() {
        let long = [b"GET / HTTP/1.1\r\n".as_slice(), &[b'a'; 20_000]].concat();
        for text in
            [b"\x00\x01".as_slice(), b"GET / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n{}", &long]
        {
            assert!(read(text).is_err());
        }
        assert!(read(b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n").is_err());
    }

    /// Each byte comes well within the limit, and the whole body long after it.
    #[test]
    fn a_body_that_trickles_is_not_waited_for() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let trickle = std::thread::spawn(move || {
            there.write_all(b"POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\n")?;
            (0..100).try_for_each(|_| {
                std::thread::sleep(Duration::from_millis(10));
                there.write_all(b" ")
            })
        });
        assert!(Request::read_until(&mut here, Instant::now() + Duration::from_millis(200)).is_err());
        drop(here);
        assert!(trickle.join().unwrap().is_err(), "the peer was let go before it had sent all");
    }

    /// Every request of the corpus, cut off at each byte, with each byte changed, and with each header said twice.
    #[test]
    fn no_bytes_break_the_reader() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/corpus/request");
        for entry in std::fs::read_dir(corpus).unwrap() {
            let plain = std::fs::read(entry.unwrap().path()).unwrap();
            for at in 0..plain.len() {
                let _ = read(&plain[..at]);
                for byte in [0, b'\r', b' ', b':', b'9', 0x80, 0xff] {
                    let mut changed = plain.clone();
                    changed[at] = byte;
                    if let Ok(request) = read(&changed) {
                        assert!(request.body.len() <= BODY_LIMIT);
                    }
                    changed.insert(at, b'\n');
                    let _ = read(&changed);
                }
            }
        }
    }
}
