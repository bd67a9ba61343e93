//! Listening: one supervisor a socket, a thread a connection, so many at most for each user and for all tenants.

use super::authority::{self, Peer};
use super::exchange::answer;
use super::routes::serve;
use crate::lease::Leases;
use crate::service::Identity;
use crate::service_manager;
use gpool_protocol::{ErrorBody, ErrorCode};
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Connections of root served at once: every engine's starts.
const ROOT_CONNECTIONS: usize = 256;
/// Connections of any other user served at once.
const USER_CONNECTIONS: usize = 8;
/// Connections of all other users together, of all that are members of the socket's group together, and of all processes in
/// leased containers together, and of all that have ended.
const OTHER_CONNECTIONS: usize = 64;
/// So many that were turned away are kept at most.
const REFUSED_CONNECTIONS: usize = 64;
/// So often the number of the socket's group is asked for, which another configuration may name, or a directory server not say.
const GROUPS_PERIOD: Duration = Duration::from_secs(60);
/// A peer that sends or takes nothing for so long is let go.
const PATIENCE: Duration = Duration::from_secs(10);

/// A socket that cannot be had; the text names it.
#[derive(Debug, thiserror::Error)]
pub enum ListenerError {
    /// Another supervisor answers there.
    #[error("another supervisor answers on {0}; stop it first")]
    Taken(String),
    /// The socket cannot be made.
    #[error("cannot listen on {path}: {cause}")]
    Unusable {
        /// Its path.
        path: String,
        /// The kernel's words.
        cause: io::Error,
    },
}

/// The supervisor's socket.
pub struct Listener {
    listener: UnixListener,
}

impl Listener {
    /// Takes the socket at `path` that the service manager holds, whose queue outlives a supervisor; without one, makes
    /// it. With `has_replaced` nobody is behind one that is there, even if the kernel still takes connections.
    ///
    /// # Errors
    /// [`ListenerError`].
    pub fn open(path: &Path, has_replaced: bool) -> Result<Self, ListenerError> {
        match service_manager::socket_at(path) {
            Some(listener) => Ok(Self { listener }),
            None => Self::bind(path, has_replaced),
        }
    }

    /// Listens on `path`. A socket that nobody answers on is what a killed supervisor left.
    fn bind(path: &Path, has_replaced: bool) -> Result<Self, ListenerError> {
        let shown = || path.display().to_string();
        if !has_replaced && UnixStream::connect(path).is_ok() {
            return Err(ListenerError::Taken(shown()));
        }
        let bound = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(path)?;
            // Everybody may ask; who may change what is decided for each message.
            fs::set_permissions(path, PermissionsExt::from_mode(0o666))?;
            Ok(listener)
        });
        let listener = bound.map_err(|cause| ListenerError::Unusable { path: shown(), cause })?;
        Ok(Self { listener })
    }

    /// Serves for ever.
    pub fn serve(&self, leases: &Arc<Leases>, identity: Identity) {
        let (open, mut refused) = (Arc::new(Open::default()), Refused::default());
        let asking = leases.clone();
        let spawned = std::thread::Builder::new().name("groups".into()).spawn(move || {
            loop {
                authority::ask_for_group(&asking.configuration().socket.group);
                std::thread::sleep(GROUPS_PERIOD);
            }
        });
        if let Err(cause) = spawned {
            log!("who is in [socket] group is only found out when somebody asks for something ({cause})");
        }
        for stream in self.listener.incoming() {
            let Ok(stream) = stream else {
                // Out of descriptors, most likely: a pause lets connections end.
                std::thread::sleep(Duration::from_millis(50));
                continue;
            };
            let limits = stream.set_read_timeout(Some(PATIENCE)).and(stream.set_write_timeout(Some(PATIENCE)));
            // Now, while the peer is most likely to be there: its pid may be another's by the time it has asked.
            let Ok(peer) = Peer::of(&stream, leases) else { continue };
            let side = peer.side();
            if limits.is_err() {
                continue;
            }
            // Beyond its limit a user's connection is told so and closed at once, and keeps nobody else waiting.
            if !open.enter(side) {
                refused.turn_away(stream, &too_many(side));
                continue;
            }
            let (leases, counted) = (leases.clone(), open.clone());
            let spawned = std::thread::Builder::new().name("connection".into()).spawn(move || {
                peer.look_for_account();
                // A peer that went away is its own affair.
                let _ = serve(stream, &peer, &leases, &identity);
                counted.leave(side);
            });
            if spawned.is_err() {
                open.leave(side);
            }
        }
    }
}

/// Whose connections are counted together. A leased container's root is not the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Processes of leased containers.
    Tenants,
    /// Processes that have ended and left their connections to others.
    Ended,
    /// A member of the socket's group: whoever takes all that others have takes nothing from these.
    Administrator(u32),
    /// Another user of the host.
    User(u32),
}

/// Connections that were told that there are too many, the newest last. They are kept for a while though nobody reads them: a peer that
/// has not sent all of its request by now could not, and would not look for an answer.
#[derive(Default)]
struct Refused(VecDeque<UnixStream>);

impl Refused {
    /// Answers a connection without reading what it asks for, and without waiting.
    fn turn_away(&mut self, mut stream: UnixStream, why: &ErrorBody) {
        // One that does not take it at once has not been there, or is gone.
        let told = stream.set_nonblocking(true).and_then(|()| answer(&mut stream, Err::<Value, _>(why.clone())));
        if told.and_then(|()| stream.shutdown(Shutdown::Write)).is_ok() {
            self.0.push_back(stream);
        }
        self.0.drain(..self.0.len().saturating_sub(REFUSED_CONNECTIONS));
    }
}

/// What a connection is told that is one too many.
fn too_many(side: Side) -> ErrorBody {
    let whose = match side {
        Side::Tenants => format!("processes in leased containers have all of their {OTHER_CONNECTIONS} connections"),
        Side::Ended => format!("processes that have ended have all of their {OTHER_CONNECTIONS} connections"),
        Side::User(0) => format!("root has all of its {ROOT_CONNECTIONS} connections"),
        Side::User(uid) | Side::Administrator(uid) => format!(
            "user {uid} has all of its {USER_CONNECTIONS} connections, or users like it all of their {OTHER_CONNECTIONS}"
        ),
    };
    ErrorBody::new(
        ErrorCode::SupervisorAbsent,
        format!("the supervisor takes no more connections: {whose}"),
        "ask again in a moment; whoever follows events, waits or watches has one for as long",
    )
}

/// Open connections by side.
#[derive(Default)]
struct Open(Mutex<BTreeMap<Side, usize>>);

impl Open {
    fn enter(&self, side: Side) -> bool {
        let mut by_side = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_beside = |its: &Side| match (side, its) {
            (Side::User(_), Side::User(uid)) => *uid != 0,
            (Side::Administrator(_), Side::Administrator(_)) => true,
            _ => false,
        };
        let others: usize = by_side.iter().filter(|(side, _)| is_beside(side)).map(|(_, count)| *count).sum();
        let mine = by_side.entry(side).or_default();
        let fits = match side {
            Side::User(0) => *mine < ROOT_CONNECTIONS,
            Side::User(_) | Side::Administrator(_) => *mine < USER_CONNECTIONS && others < OTHER_CONNECTIONS,
            Side::Tenants | Side::Ended => *mine < OTHER_CONNECTIONS,
        };
        *mine += usize::from(fits);
        fits
    }

    fn leave(&self, side: Side) {
        let mut by_side = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_side.get_mut(&side) {
            *count -= 1;
            if *count == 0 {
                by_side.remove(&side);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn who_is_turned_away_hears_why_also_if_he_asks_afterwards() {
        let (mut refused, why) = (Refused::default(), too_many(Side::User(1000)));
        let (here, mut there) = UnixStream::pair().unwrap();
        refused.turn_away(here, &why);
        there.write_all(b"GET /v1/leases HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        there.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        let told: ErrorBody = serde_json::from_str(body).unwrap();
        assert_eq!(told, why);
        assert!(told.message.contains("user 1000 has all of its 8 connections"), "{told}");
        let mut peers = Vec::new();
        for _ in 0..2 * REFUSED_CONNECTIONS {
            let (here, there) = UnixStream::pair().unwrap();
            refused.turn_away(here, &why);
            peers.push(there);
        }
        assert_eq!(refused.0.len(), REFUSED_CONNECTIONS);
    }

    #[test]
    fn nobody_can_take_all_connections() {
        let open = Open::default();
        let entered = |sides: &mut dyn Iterator<Item = Side>| sides.filter(|side| open.enter(*side)).count();
        assert_eq!(entered(&mut (0..100).map(|_| Side::User(1000))), USER_CONNECTIONS);
        assert_eq!(entered(&mut (1001..1100).map(Side::User)), OTHER_CONNECTIONS - USER_CONNECTIONS);
        assert_eq!(entered(&mut (0..1000).map(|_| Side::Ended)), OTHER_CONNECTIONS);
        assert_eq!(entered(&mut (0..1000).map(|_| Side::Tenants)), OTHER_CONNECTIONS);
        assert!(open.enter(Side::User(0)), "root of the host is served");
        assert!(open.enter(Side::Administrator(1000)), "a member of the group is served");
        let members = entered(&mut (1001..1100).map(Side::Administrator));
        assert_eq!(members, OTHER_CONNECTIONS - 1);
        open.leave(Side::User(1000));
        assert!(open.enter(Side::User(1000)));
        open.leave(Side::Tenants);
        assert!(open.enter(Side::Tenants));
    }
}
