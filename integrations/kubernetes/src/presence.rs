//! One resource's presence at the kubelet: a socket that it can call, made and presented anew whenever it no longer knows of it.

use crate::kubelet::registration_client::RegistrationClient;
use crate::kubelet::{RegisterRequest, SOCKET, VERSION};
use crate::log;
use crate::offer::Offered;
use crate::plugin::Plugin;
use gpool_protocol::Countable;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::transport::Endpoint;

/// How often it is looked whether the kubelet is still the one that knows of it.
const PERIOD: Duration = Duration::from_secs(1);
/// A kubelet that is told of a plugin asks for its list at once; one that does not in so many looks has lost it. Kubelets do not
/// come back by themselves when the connection breaks.
const LOOKS_WITHOUT_A_WATCHER: u32 = 5;
/// After a kubelet that did not take it.
const PAUSE: Duration = Duration::from_secs(5);
/// A kubelet answers at once, or not.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which file is at a path.
#[derive(PartialEq, Eq)]
struct Identity(u64, u64);

fn identity(path: &Path) -> Option<Identity> {
    std::fs::symlink_metadata(path).ok().map(|file| Identity(file.dev(), file.ino()))
}

/// Who is to be at the kubelet.
pub struct Presence {
    /// With what.
    pub offered: Offered,
    /// How much there is of it.
    pub count: watch::Sender<Countable>,
    /// Where the kubelet and plugins have their sockets.
    pub directory: PathBuf,
}

impl Presence {
    /// Presents it to each kubelet that comes, for ever.
    pub async fn keep(self) {
        let mut told = String::new();
        loop {
            let said = match self.once().await {
                Ok(()) => String::new(),
                Err(cause) => cause,
            };
            // A kubelet that is away, or does not take it, is told of once.
            if !said.is_empty() && said != told {
                log(&said);
            }
            let is_refused = !said.is_empty() && identity(&self.directory.join(SOCKET)).is_some();
            let pause = if is_refused { PAUSE } else { PERIOD };
            told = said;
            sleep(pause).await;
        }
    }

    /// Until the kubelet no longer knows of it.
    async fn once(&self) -> Result<(), String> {
        let (kubelet, own) = (self.directory.join(SOCKET), self.directory.join(self.offered.endpoint()));
        let Some(asked) = identity(&kubelet) else {
            return Err(format!("no kubelet listens on {}; waiting for one", kubelet.display()));
        };
        let said = |cause: io::Error| format!("{} cannot be made ({cause})", own.display());
        remove(&own).map_err(said)?;
        let listener = UnixListener::bind(&own).map_err(said)?;
        let listens = identity(&own);
        let plugin = Plugin::new(self.offered.clone(), self.count.clone());
        // Dropped, it is ended with all that it has accepted.
        let mut serving = tokio::task::JoinSet::new();
        serving.spawn(plugin.serve(listener));
        let resource = self.offered.resource();
        register(&kubelet, &self.offered)
            .await
            .map_err(|cause| format!("the kubelet on {} does not take {resource}: {cause}", kubelet.display()))?;
        log(&format!("the kubelet on {} has been told of {resource}", kubelet.display()));
        let mut alone = 0;
        loop {
            tokio::select! {
                ended = serving.join_next() => return Err(format!("{resource} is served no more: {ended:?}")),
                () = sleep(PERIOD) => {}
            }
            alone = if self.count.receiver_count() == 0 { alone + 1 } else { 0 };
            if identity(&kubelet).as_ref() != Some(&asked) || identity(&own) != listens {
                return Ok(());
            }
            if alone == LOOKS_WITHOUT_A_WATCHER {
                log(&format!("the kubelet does not watch {resource}; it is told again"));
                return Ok(());
            }
        }
    }
}

/// Takes a socket away, as of one that was killed.
fn remove(socket: &Path) -> io::Result<()> {
    match std::fs::remove_file(socket) {
        Err(cause) if cause.kind() != ErrorKind::NotFound => Err(cause),
        _ => Ok(()),
    }
}

async fn register(kubelet: &Path, offered: &Offered) -> Result<(), String> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", kubelet.display())).map_err(|cause| cause.to_string())?;
    let present = async {
        let channel = endpoint.connect().await.map_err(|cause| cause.to_string())?;
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: offered.endpoint(),
            resource_name: offered.resource(),
            options: None,
        };
        let answer = RegistrationClient::new(channel).register(request).await;
        answer.map(drop).map_err(|status| status.message().to_owned())
    };
    timeout(PATIENCE, present).await.map_err(|_| "it does not answer".to_owned())?
}
