//! Everybody can reach the supervisor's socket, and the group whose members may change leases is there.

use super::{Fix, Outcome, Surroundings};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};

/// Read and write for everybody: who may do what the supervisor decides for each message.
const SOCKET_MODE: u32 = 0o666;
/// Everybody may pass through to the socket; the leases below are root's alone.
const DIRECTORY_MODE: u32 = 0o755;

pub fn check(host: &Surroundings) -> Outcome {
    let socket = host.configuration().socket;
    let path = host.path(&socket.path.display().to_string());
    let Ok(found) = std::fs::symlink_metadata(&path) else {
        return Outcome::skip(format!("{} is not there; check 5 tells of the supervisor", socket.path.display()));
    };
    if !found.file_type().is_socket() {
        return Outcome::fail(
            format!("{} is no socket", socket.path.display()),
            "remove it and start the supervisor again, or name another place with [socket] path",
        );
    }
    if let Some(directory) = path.parent()
        && let Ok(above) = std::fs::metadata(directory)
        && above.permissions().mode() & 0o001 == 0
    {
        let shown = socket.path.parent().unwrap_or(&socket.path).display();
        return Outcome::warn(
            format!("only root may enter {shown}, so no user reaches the supervisor"),
            format!("chmod 755 {shown}, which gpool doctor --fix does: leases below it stay closed"),
        )
        .with_fix(Fix::Mode { path: directory.to_owned(), mode: DIRECTORY_MODE });
    }
    if found.permissions().mode() & SOCKET_MODE != SOCKET_MODE {
        let shown = socket.path.display();
        return Outcome::warn(
            format!("{shown} has mode {:o}, so users do not reach the supervisor", found.permissions().mode() & 0o777),
            format!("chmod 666 {shown}, which gpool doctor --fix does; the supervisor decides who may do what"),
        )
        .with_fix(Fix::Mode { path, mode: SOCKET_MODE });
    }
    let groups = std::fs::read_to_string(host.path("/etc/group")).unwrap_or_default();
    let is_there = groups.lines().any(|line| line.split(':').next() == Some(&socket.group));
    if !is_there {
        return Outcome::warn(
            format!(
                "there is no group {} in /etc/group ([socket] group): only root may start leased containers",
                socket.group
            ),
            format!(
                "groupadd --system {}, or name another group; one of a directory service is not seen here",
                socket.group
            ),
        );
    }
    Outcome::ok(format!("{} is open to everybody, changes to root and group {}", socket.path.display(), socket.group))
}
