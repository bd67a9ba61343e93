//! Following the supervisor's events, also across its restarts.

use gpool_protocol::{Client, ErrorBody, Event};
use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Whatever is heard or not, it is looked again after this time.
pub const LOOK_PERIOD: Duration = Duration::from_secs(60);
/// A look that failed beside events that are followed is tried again soon.
pub const RETRY: Duration = Duration::from_secs(1);
/// Between two attempts to reach a supervisor that is away.
pub const PAUSE: Duration = Duration::from_millis(500);

/// What is heard of the supervisor.
#[derive(Debug)]
pub enum Heard {
    /// Its events are followed from now on: what happens from here on is heard.
    Began,
    /// Something happened.
    Event(Box<Event>),
    /// They are not followed any more, until the next [`Heard::Began`].
    Lost(ErrorBody),
}

/// Follows the events on a thread of its own, for ever, beginning with all that are kept.
pub fn follow(client: &Client) -> Receiver<Heard> {
    let (sender, receiver) = channel();
    let client = client.clone();
    std::thread::spawn(move || {
        let mut is_heard = true;
        while is_heard {
            let mut has_begun = false;
            // The first one is there at once: that the supervisor was started.
            let ended = client.stream("/v1/events?after=0&follow=1", |line| {
                if !std::mem::replace(&mut has_begun, true) {
                    is_heard = sender.send(Heard::Began).is_ok();
                }
                // One that cannot be read is a newer supervisor's, and of a kind that nobody here waits for.
                if let Ok(event) = serde_json::from_str(line) {
                    is_heard = sender.send(Heard::Event(Box::new(event))).is_ok();
                }
                is_heard
            });
            if let Err(error) = ended {
                is_heard = sender.send(Heard::Lost(error)).is_ok();
            }
            std::thread::sleep(PAUSE);
        }
    });
    receiver
}

/// The supervisor, as far as it is heard.
pub struct Supervisor {
    heard: Receiver<Heard>,
    is_away: bool,
}

impl Supervisor {
    /// One of which this is heard.
    pub fn new(heard: Receiver<Heard>) -> Self {
        Self { heard, is_away: false }
    }

    /// Waits until something has happened that `is_meant`, or the supervisor is back, until `until` at most.
    pub fn until_there_is_news(&mut self, is_meant: impl Fn(&Event) -> bool, until: Instant) {
        let mut is_news = false;
        // What is heard at once, as when all events that are kept are told again, is one piece of news.
        loop {
            let patience = if is_news { Duration::ZERO } else { until.saturating_duration_since(Instant::now()) };
            match self.heard.recv_timeout(patience) {
                Ok(Heard::Event(event)) => is_news |= is_meant(&event),
                Ok(Heard::Began) => {
                    is_news = true;
                    self.note_back();
                }
                Ok(Heard::Lost(error)) => self.note_away(&error),
                Err(RecvTimeoutError::Timeout) => return,
                // Nobody follows any more, which cannot be: what is left is to look from time to time.
                Err(RecvTimeoutError::Disconnected) => {
                    return std::thread::sleep(RETRY.min(until.saturating_duration_since(Instant::now())));
                }
            }
        }
    }

    /// Says once that there is nobody to ask: it is restarted, or upgraded, and what runs goes on meanwhile.
    pub fn note_away(&mut self, error: &ErrorBody) {
        if !std::mem::replace(&mut self.is_away, true) {
            say(&format!("gpool: {}; waiting goes on until it answers", error.message));
        }
    }

    /// It answers.
    pub fn note_back(&mut self) {
        if std::mem::take(&mut self.is_away) {
            say("gpool: the supervisor is back");
        }
    }
}

/// Prints a line to stderr.
pub fn say(sentence: &str) {
    // Nothing is left to do when stderr is closed.
    let _ = writeln!(std::io::stderr(), "{sentence}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_supervisor_that_comes_back_is_followed_again_from_its_first_event() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let heard = follow(&Client::new(&socket));
        for life in 1..=2 {
            let mut stream = listener.accept().unwrap().0;
            let mut request = [0; 512];
            let length = stream.read(&mut request).unwrap();
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            assert!(request.starts_with("GET /v1/events?after=0&follow=1 "), "{request}");
            let event =
                format!("{{\"sequence\":1,\"unix_ms\":{life},\"kind\":\"supervisor-started\",\"message\":\"m\"}}\n");
            let newer = "{\"sequence\":2,\"unix_ms\":1,\"kind\":\"gpu-melted\",\"message\":\"m\"}\n";
            let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            // The last, empty chunk does not come: it was killed.
            let answer = format!("{head}{}{}{}", chunk(&event), chunk("\n"), chunk(newer));
            stream.write_all(answer.as_bytes()).unwrap();
            drop(stream);
            assert!(matches!(heard.recv().unwrap(), Heard::Began));
            assert!(matches!(heard.recv().unwrap(), Heard::Event(event) if event.unix_ms == life));
            assert!(matches!(heard.recv().unwrap(), Heard::Lost(_)));
        }
    }
}
