//! Following the supervisor's events, also across its restarts.

use gpool_protocol::{Client, ErrorBody, Event};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Between two attempts to reach a supervisor that is away.
const RETRY: Duration = Duration::from_millis(500);

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
            std::thread::sleep(RETRY);
        }
    });
    receiver
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
