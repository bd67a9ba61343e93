//! The host's system log, for what no engine shows.

use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// Where syslog daemons and systemd's journal listen.
pub const SYSTEM_LOG: &str = "/dev/log";
/// Facility user (1), severity warning (4), as RFC 3164 writes them: facility x 8 + severity.
const USER_WARNING: u32 = 12;

/// Writes one line to the system log at `socket`, or none where nobody listens or the log is full: the caller has
/// nobody else to tell, and must not be held up.
pub fn note(socket: &Path, text: &str) {
    let Ok(sender) = UnixDatagram::unbound() else { return };
    let line = format!("<{USER_WARNING}>gpool-hook[{}]: {text}", std::process::id());
    let _ = sender.set_nonblocking(true).and_then(|()| sender.send_to(line.as_bytes(), socket));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_arrives_with_its_severity_and_nobody_listening_is_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("log");
        note(&socket, "unheard");
        let listener = UnixDatagram::bind(&socket).unwrap();
        note(&socket, "gpool: refused [GPOOL-E201]");
        let mut line = [0; 256];
        let length = listener.recv(&mut line).unwrap();
        let text = std::str::from_utf8(&line[..length]).unwrap();
        assert!(text.starts_with("<12>gpool-hook[") && text.ends_with("]: gpool: refused [GPOOL-E201]"), "{text}");
    }
}
