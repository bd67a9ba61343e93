//! One resource's presence at the kubelet: a socket that it can call, made and presented anew whenever it no longer knows of it.

use crate::held::held;
use crate::kubelet::registration_client::RegistrationClient;
use crate::kubelet::{Devices, RegisterRequest, SOCKET, VERSION};
use crate::offer::{Offered, devices};
use crate::plugin::Plugin;
use crate::{log, send_if_other};
use gpool_protocol::{Countable, Seal};
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::transport::Endpoint;

/// How often it is looked whether the kubelet is still the one that knows of it, and which devices containers have.
const PERIOD: Duration = Duration::from_secs(1);
/// A kubelet that is told of a plugin asks for its list at once, or after it has tried to reach it for ten seconds; one that does
/// not in so many looks has lost it. Kubelets do not come back by themselves when the connection breaks.
const LOOKS_WITHOUT_A_WATCHER: u32 = 15;
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
    pub count: watch::Receiver<Countable>,
    /// What the supervisor knows its own plugin by.
    pub seal: watch::Receiver<Option<Seal>>,
    /// Where the kubelet and plugins have their sockets.
    pub directory: PathBuf,
    /// Where the kubelet says who has which devices.
    pub resources: PathBuf,
}

/// What has been said of what went wrong: the same again is not news.
#[derive(Default)]
struct Told(String);

impl Told {
    fn tell(&mut self, words: String) {
        if words != self.0 {
            log(&words);
            self.0 = words;
        }
    }
}

impl Presence {
    /// Presents it to each kubelet that comes, for ever.
    pub async fn keep(mut self) {
        let mut told = Told::default();
        loop {
            match self.once(&mut told).await {
                Ok(()) => sleep(PERIOD).await,
                Err(cause) => {
                    told.tell(cause);
                    let is_there = identity(&self.directory.join(SOCKET)).is_some();
                    sleep(if is_there { PAUSE } else { PERIOD }).await;
                }
            }
        }
    }

    /// Until another kubelet is there.
    async fn once(&mut self, told: &mut Told) -> Result<(), String> {
        let (kubelet, own) = (self.directory.join(SOCKET), self.directory.join(self.offered.endpoint()));
        let Some(asked) = identity(&kubelet) else {
            return Err(format!("no kubelet listens on {}; waiting for one", kubelet.display()));
        };
        let said = |cause: io::Error| format!("{} cannot be made ({cause})", own.display());
        remove(&own).map_err(said)?;
        let listener = UnixListener::bind(&own).map_err(said)?;
        let listens = identity(&own);
        // Each presentation has its own, so that those who watch an earlier one are not taken for watchers of this one.
        let lists = watch::Sender::new(self.list(&mut Told::default()).await);
        let mut serving = tokio::task::JoinSet::new();
        serving.spawn(Plugin::new(self.offered.clone(), lists.clone(), self.seal.clone()).serve(listener));
        let resource = self.offered.resource();
        register(&kubelet, &self.offered)
            .await
            .map_err(|cause| format!("the kubelet on {} does not take {resource}: {cause}", kubelet.display()))?;
        let (mut alone, mut is_watched, mut unsaid) = (0, false, Told::default());
        loop {
            tokio::select! {
                ended = serving.join_next() => return Err(format!("{resource} is served no more: {ended:?}")),
                changed = self.count.changed() => if changed.is_err() { return Ok(()) },
                () = sleep(PERIOD) => {
                    alone = if lists.receiver_count() == 0 { alone + 1 } else { 0 };
                }
            }
            if !is_watched && lists.receiver_count() > 0 {
                is_watched = true;
                told.tell(format!("the kubelet on {} has been told of {resource}", kubelet.display()));
            }
            send_if_other(&lists, self.list(&mut unsaid).await);
            if identity(&kubelet).as_ref() != Some(&asked) || identity(&own) != listens {
                *told = Told::default();
                return Ok(());
            }
            if alone == LOOKS_WITHOUT_A_WATCHER {
                return Err(format!("the kubelet does not watch {resource}; it is told again"));
            }
        }
    }

    /// What the kubelet is told now. Who has which device matters where not all may be given out.
    async fn list(&mut self, told: &mut Told) -> Devices {
        let count = *self.count.borrow_and_update();
        let held = match count.available < count.all {
            true => held(&self.resources, &self.offered.resource()).await.unwrap_or_else(|cause| {
                told.tell(format!("the kubelet does not say on {} who has what: {cause}", self.resources.display()));
                BTreeSet::new()
            }),
            false => BTreeSet::new(),
        };
        devices(count, &held)
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
