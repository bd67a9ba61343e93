//! A fake supervisor: answers every request with one canned JSON body and remembers what it was asked.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// A running fake; its thread ends with the process.
pub struct FakeSupervisor {
    socket: PathBuf,
    received: Arc<Mutex<Vec<(String, String)>>>,
}

impl FakeSupervisor {
    /// Listens on `socket` and gives `answer` to everybody.
    pub fn start(socket: &Path, answer: Value) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&received);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut reader = BufReader::new(stream.unwrap());
                let mut head = Vec::new();
                while let Some(line) = read_line(&mut reader) {
                    head.push(line);
                }
                let length = head.iter().find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok());
                let mut body = vec![0; length.unwrap_or(0)];
                reader.read_exact(&mut body).unwrap();
                seen.lock().unwrap().push((head[0].clone(), String::from_utf8(body).unwrap()));
                let text = answer.to_string();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
                reader.get_mut().write_all((head + &text).as_bytes()).unwrap();
            }
        });
        Self { socket: socket.to_owned(), received }
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Request line and body of every request so far.
    pub fn received(&self) -> Vec<(String, String)> {
        self.received.lock().unwrap().clone()
    }
}

fn read_line(reader: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    Some(line.trim_end().to_owned()).filter(|line| !line.is_empty())
}
