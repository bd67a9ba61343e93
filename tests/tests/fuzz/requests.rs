//! What comes in over the socket, up to the request grammar. The reading of bytes is `supervisor/src/http/exchange.rs`'s
//! own search.

use super::mutation::feed;
use gpool_protocol::{BindRequest, LeaseRequest, LeaseUpdate};

fn search(times: usize) {
    feed("request", times, |bytes| {
        let body = bytes.windows(4).position(|window| window == b"\r\n\r\n").map_or(bytes, |at| &bytes[at + 4..]);
        if let Ok(asked) = serde_json::from_slice::<LeaseRequest>(body) {
            let _ = asked.request.check();
        }
        let _ = serde_json::from_slice::<LeaseUpdate>(body);
        let _ = serde_json::from_slice::<BindRequest>(body);
    });
}

#[test]
fn no_message_breaks_its_reader() {
    search(5000);
}

#[test]
#[ignore = "long"]
fn no_message_breaks_its_reader_for_long() {
    search(500_000);
}
