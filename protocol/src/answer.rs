//! Reading an answer of the supervisor: its head, and a body that is told from one that was cut off.

use std::io::{BufRead, Error, ErrorKind, Read, Result};

/// No line before a body is longer.
const LINE_BYTES: usize = 8192;

/// What stands before the body.
pub struct Head {
    pub status: u16,
    length: Length,
}

/// How the end of a body is known (RFC 9112, section 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    /// By its length in bytes.
    Bytes(u64),
    /// By an empty chunk.
    Chunked,
    /// By nothing but the end of the connection.
    Unknown,
}

fn invalid() -> Error {
    Error::new(ErrorKind::InvalidData, "no HTTP answer")
}

fn cut_short() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "the answer was cut short")
}

impl Head {
    /// Reads up to the empty line.
    ///
    /// # Errors
    /// Something else than HTTP, or an end within it.
    pub fn read(reader: &mut impl BufRead) -> Result<Self> {
        let status = line(reader)?.split(' ').nth(1).and_then(|word| word.parse().ok()).ok_or_else(invalid)?;
        let mut length = Length::Unknown;
        loop {
            let header = line(reader)?;
            let Some((name, value)) = header.split_once(':') else {
                return if header.is_empty() { Ok(Self { status, length }) } else { Err(invalid()) };
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = Length::Bytes(value.trim().parse().map_err(|_| invalid())?);
            }
            if name.eq_ignore_ascii_case("transfer-encoding") && value.trim().eq_ignore_ascii_case("chunked") {
                length = Length::Chunked;
            }
        }
    }

    /// The body behind this head.
    pub fn body<R: BufRead>(&self, reader: R) -> Body<R> {
        let left = if let Length::Bytes(bytes) = self.length { bytes } else { 0 };
        Body { reader, length: self.length, left, has_ended: false }
    }
}

/// One line without its end.
fn line(reader: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    reader.take(LINE_BYTES as u64).read_line(&mut line)?;
    let Some(text) = line.strip_suffix('\n') else {
        return Err(if line.len() < LINE_BYTES { cut_short() } else { invalid() });
    };
    Ok(text.trim_end().to_owned())
}

/// A body. An end that comes too early is an error, so that half an answer is not taken for a whole one.
pub struct Body<R> {
    reader: R,
    length: Length,
    /// Bytes until the end of the body, or of its chunk.
    left: u64,
    has_ended: bool,
}

impl<R> Body<R> {
    /// What it is read from.
    pub fn get_mut(&mut self) -> &mut R {
        &mut self.reader
    }
}

impl<R: BufRead> Body<R> {
    /// Goes on to the next chunk.
    fn begin_chunk(&mut self) -> Result<()> {
        let size = line(&mut self.reader).map_err(|_| cut_short())?;
        self.left = u64::from_str_radix(&size, 16).map_err(|_| invalid())?;
        self.has_ended = self.left == 0;
        Ok(())
    }

    fn read_piece(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let count = self.reader.by_ref().take(self.left).read(buffer)?;
        if count == 0 {
            return Err(cut_short());
        }
        self.left -= count as u64;
        if self.left == 0 && self.length == Length::Chunked && !line(&mut self.reader)?.is_empty() {
            return Err(invalid());
        }
        Ok(count)
    }
}

impl<R: BufRead> Read for Body<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if buffer.is_empty() || self.has_ended {
            return Ok(0);
        }
        match self.length {
            Length::Unknown => self.reader.read(buffer),
            Length::Bytes(_) if self.left == 0 => Ok(0),
            Length::Bytes(_) => self.read_piece(buffer),
            Length::Chunked => {
                if self.left == 0 {
                    self.begin_chunk()?;
                }
                if self.has_ended { Ok(0) } else { self.read_piece(buffer) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;

    fn read(answer: &str) -> Result<String> {
        // One byte at a time: an answer comes in pieces as they please.
        let mut reader = BufReader::with_capacity(1, answer.as_bytes());
        let head = Head::read(&mut reader)?;
        let mut text = String::new();
        head.body(reader).read_to_string(&mut text)?;
        Ok(text)
    }

    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

    #[test]
    fn a_whole_body_is_read_however_its_end_is_told() {
        assert_eq!(read("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcd").unwrap(), "abc");
        assert_eq!(read("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabcd").unwrap(), "abcd");
        assert_eq!(read(&format!("{CHUNKED}3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n")).unwrap(), "abc0123456789");
        assert_eq!(read(&format!("{CHUNKED}0\r\n\r\n")).unwrap(), "");
    }

    #[test]
    fn half_a_body_is_no_body() {
        let whole = format!("{CHUNKED}3\r\nabc\r\n2\r\nde\r\n0\r\n");
        for end in CHUNKED.len()..whole.len() - 2 {
            assert!(read(&whole[..end]).is_err(), "{:?}", &whole[CHUNKED.len()..end]);
        }
        assert!(read("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab").is_err());
        for wrong in ["3\r\nabcd\r\n0\r\n\r\n", "x\r\nabc\r\n", "-1\r\n"] {
            assert_eq!(read(&format!("{CHUNKED}{wrong}")).unwrap_err().kind(), ErrorKind::InvalidData, "{wrong:?}");
        }
    }
}
