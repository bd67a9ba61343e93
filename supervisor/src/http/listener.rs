//! Listening: one supervisor a socket, a thread a connection, so many at most for each user.

use super::routes::serve;
use crate::lease::Leases;
use crate::service::Identity;
use rustix::net::sockopt::socket_peercred;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Connections of root served at once: every engine's starts.
const ROOT_CONNECTIONS: usize = 256;
/// Connections of any other user served at once.
const USER_CONNECTIONS: usize = 8;
/// Connections of all other users together.
const OTHER_CONNECTIONS: usize = 64;
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
    /// Listens on `path`. A socket that nobody answers on is what a killed supervisor left.
    ///
    /// # Errors
    /// [`ListenerError`].
    pub fn bind(path: &Path) -> Result<Self, ListenerError> {
        let shown = || path.display().to_string();
        if UnixStream::connect(path).is_ok() {
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
        let open = Arc::new(Open::default());
        for stream in self.listener.incoming() {
            let Ok(stream) = stream else {
                // Out of descriptors, most likely: a pause lets connections end.
                std::thread::sleep(Duration::from_millis(50));
                continue;
            };
            let Ok(uid) = socket_peercred(&stream).map(|peer| peer.uid.as_raw()) else { continue };
            let limits = stream.set_read_timeout(Some(PATIENCE)).and(stream.set_write_timeout(Some(PATIENCE)));
            // Beyond its limit a user's connection is closed at once, and keeps nobody else waiting.
            if limits.is_err() || !open.enter(uid) {
                continue;
            }
            let (leases, counted) = (leases.clone(), open.clone());
            let spawned = std::thread::Builder::new().name("connection".into()).spawn(move || {
                // A peer that went away is its own affair.
                let _ = serve(stream, &leases, &identity);
                counted.leave(uid);
            });
            if spawned.is_err() {
                open.leave(uid);
            }
        }
    }
}

/// Open connections by user.
#[derive(Default)]
struct Open(Mutex<BTreeMap<u32, usize>>);

impl Open {
    fn enter(&self, uid: u32) -> bool {
        let mut by_user = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let others: usize = by_user.iter().filter(|(user, _)| **user != 0).map(|(_, count)| *count).sum();
        let mine = by_user.entry(uid).or_default();
        let fits = match uid {
            0 => *mine < ROOT_CONNECTIONS,
            _ => *mine < USER_CONNECTIONS && others < OTHER_CONNECTIONS,
        };
        *mine += usize::from(fits);
        fits
    }

    fn leave(&self, uid: u32) {
        let mut by_user = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_user.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                by_user.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_can_take_all_connections() {
        let open = Open::default();
        assert_eq!((0..100).filter(|_| open.enter(1000)).count(), USER_CONNECTIONS);
        assert_eq!((1001..1100).filter(|uid| open.enter(*uid)).count(), OTHER_CONNECTIONS - USER_CONNECTIONS);
        assert!(open.enter(0), "root is served");
        open.leave(1000);
        assert!(open.enter(1000));
    }
}
