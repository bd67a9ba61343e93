//! Listening: one supervisor a socket, a thread a connection, so many at most.

use super::routes::serve;
use crate::lease::Leases;
use crate::service::Identity;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Connections served at once; more wait in the backlog.
const CONNECTIONS: usize = 64;
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
        let open = Arc::new(AtomicUsize::new(0));
        for stream in self.listener.incoming() {
            let Ok(stream) = stream else {
                // Out of descriptors, most likely: a pause lets connections end.
                std::thread::sleep(Duration::from_millis(50));
                continue;
            };
            while open.load(Ordering::Acquire) >= CONNECTIONS {
                std::thread::sleep(Duration::from_millis(5));
            }
            let limits = stream.set_read_timeout(Some(PATIENCE)).and(stream.set_write_timeout(Some(PATIENCE)));
            if limits.is_err() {
                continue;
            }
            let (leases, counted) = (leases.clone(), open.clone());
            open.fetch_add(1, Ordering::AcqRel);
            let spawned = std::thread::Builder::new().name("connection".into()).spawn(move || {
                // A peer that went away is its own affair.
                let _ = serve(stream, &leases, &identity);
                counted.fetch_sub(1, Ordering::AcqRel);
            });
            if spawned.is_err() {
                open.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}
