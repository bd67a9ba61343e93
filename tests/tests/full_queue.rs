//! A supervisor that is hung with a full queue of connections must not hold up who asks it.

use gpool_protocol::{Client, ErrorCode, SupervisorInfo};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use std::time::Duration;

#[test]
fn a_full_queue_of_connections_ends_with_the_callers_patience() {
    let path = std::env::temp_dir().join(format!("gpool-queue-{}.sock", std::process::id()));
    let address = SocketAddrUnix::new(&path).unwrap();
    let stream = |flags| socket_with(AddressFamily::UNIX, SocketType::STREAM, flags | SocketFlags::CLOEXEC, None);
    let listener = stream(SocketFlags::empty()).unwrap();
    bind(&listener, &address).unwrap();
    listen(&listener, 1).unwrap();
    let mut waiting = Vec::new();
    loop {
        let client = stream(SocketFlags::NONBLOCK).unwrap();
        if connect(&client, &address).is_err() {
            break;
        }
        waiting.push(client);
        assert!(waiting.len() < 100, "the queue has no end");
    }
    let client = Client::new(&path).with_timeout(Duration::from_millis(300));
    let refused = client.get::<SupervisorInfo>("/v1/info").unwrap_err();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(refused.code, ErrorCode::SupervisorAbsent, "{refused}");
    assert!(refused.message.contains("does not answer"), "{refused}");
}
