//! One resource's presence at the kubelet: a socket that it can call, made and presented anew whenever it no longer knows of it.

use crate::held::{checkpointed, held};
use crate::kubelet::registration_client::RegistrationClient;
use crate::kubelet::{Devices, RegisterRequest, SOCKET, VERSION};
use crate::offer::{Offered, Stock};
use crate::plugin::Plugin;
use crate::{log, send_if_other};
use gpool_protocol::Seal;
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::transport::Endpoint;

/// How often it is looked whether the kubelet is still the one that knows of it, and which devices containers have.
const PERIOD: Duration = Duration::from_secs(1);
/// How often it is looked for a kubelet while none watches: one that starts ends pods whose plugin is not there yet.
const LOOK: Duration = Duration::from_millis(100);
/// A kubelet that is told of a plugin asks for its list at once, or after it has tried to reach it for ten seconds; one that has not
/// for so long has lost it. Kubelets do not come back by themselves when the connection breaks.
const WITHOUT_A_WATCHER: Duration = Duration::from_secs(15);
/// So long a kubelet that it was presented to may not know yet which pods there are.
const FRESH: Duration = Duration::from_secs(30);
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
    pub stock: watch::Receiver<Stock>,
    /// What the supervisor knows its own plugin by.
    pub seal: watch::Receiver<Option<Seal>>,
    /// Where the kubelet and plugins have their sockets.
    pub directory: PathBuf,
    /// Where the kubelet says who has which devices.
    pub resources: PathBuf,
    /// Which ones containers had, as it has said last.
    pub held: Option<BTreeSet<String>>,
    /// When it was presented last.
    pub presented: Option<Instant>,
}

/// Why it is not at a kubelet, and after how long that is tried again.
struct Absence {
    words: String,
    pause: Duration,
}

impl From<String> for Absence {
    fn from(words: String) -> Self {
        Self { words, pause: PAUSE }
    }
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
        let (mut told, kubelet) = (Told::default(), self.directory.join(SOCKET));
        // What a kubelet has written down it has after a boot as well, before it knows of any pod.
        self.held = self.held.or_else(|| checkpointed(&self.directory, &self.offered.resource()));
        loop {
            let found = identity(&kubelet);
            let Err(absence) = self.once(&mut told).await else { continue };
            told.tell(absence.words);
            let since = Instant::now();
            // One that comes meanwhile is not kept waiting.
            while since.elapsed() < absence.pause && identity(&kubelet) == found {
                sleep(LOOK).await;
            }
        }
    }

    /// Until another kubelet is there.
    async fn once(&mut self, told: &mut Told) -> Result<(), Absence> {
        let (kubelet, own) = (self.directory.join(SOCKET), self.directory.join(self.offered.endpoint()));
        let asked = identity(&kubelet);
        // After a boot the socket of the kubelet before it is there, and nobody listens.
        if let Err(cause) = UnixStream::connect(&kubelet).await {
            let why = if asked.is_none() { String::new() } else { format!(" ({cause})") };
            let words = format!("no kubelet listens on {}{why}; waiting for one", kubelet.display());
            return Err(Absence { words, pause: LOOK });
        }
        let said = |cause: io::Error| format!("{} cannot be made ({cause})", own.display());
        remove(&own).map_err(said)?;
        let listener = UnixListener::bind(&own).map_err(said)?;
        let listens = identity(&own);
        // Each presentation has its own, so that those who watch an earlier one are not taken for watchers of this one. What is known
        // of who has what does not keep a kubelet waiting that has just started; what is not, its list alone waits for.
        let stock = *self.stock.borrow_and_update();
        let held = if stock.depends_on_held() { self.held.clone() } else { Some(BTreeSet::new()) };
        let lists = watch::Sender::new(held.map(|held| stock.devices(&held)));
        let mut serving = tokio::task::JoinSet::new();
        serving.spawn(Plugin::new(self.offered.clone(), lists.clone(), self.seal.clone()).serve(listener));
        let resource = self.offered.resource();
        register(&kubelet, &self.offered)
            .await
            .map_err(|cause| format!("the kubelet on {} does not take {resource}: {cause}", kubelet.display()))?;
        self.presented = Some(Instant::now());
        let (mut watched, mut is_watched, mut unsaid) = (Instant::now(), false, Told::default());
        loop {
            let is_asked = lists.receiver_count() > 0;
            if is_asked || lists.borrow().is_none() {
                send_if_other(&lists, Some(self.list(&mut unsaid).await));
            }
            if is_asked {
                watched = Instant::now();
                if !is_watched {
                    told.tell(format!("the kubelet on {} has been told of {resource}", kubelet.display()));
                }
                is_watched = true;
            }
            if identity(&kubelet) != asked || identity(&own) != listens {
                *told = Told::default();
                return Ok(());
            }
            if watched.elapsed() >= WITHOUT_A_WATCHER {
                return Err(format!("the kubelet does not watch {resource}; it is told again").into());
            }
            tokio::select! {
                ended = serving.join_next() => return Err(format!("{resource} is served no more: {ended:?}").into()),
                changed = self.stock.changed() => if changed.is_err() {
                    return Err(format!("{resource} is counted no more").into());
                },
                () = lists.closed(), if is_asked => {}
                () = sleep(if is_asked { PERIOD } else { LOOK }) => {}
            }
        }
    }

    /// What the kubelet is told now. Who has which device matters where not all may be given out.
    async fn list(&mut self, told: &mut Told) -> Devices {
        let stock = *self.stock.borrow_and_update();
        if !stock.depends_on_held() {
            return stock.devices(&BTreeSet::new());
        }
        match held(&self.resources, &self.offered.resource()).await {
            Ok(told) => {
                // One that has just started knows of no pods yet, and says that nobody has anything.
                let is_fresh = self.presented.is_some_and(|presented| presented.elapsed() < FRESH);
                let remembered = self.held.take().filter(|_| is_fresh).unwrap_or_default();
                self.held = Some(told.into_iter().chain(remembered).collect());
            }
            Err(cause) => {
                told.tell(format!("the kubelet does not say on {} who has what: {cause}", self.resources.display()));
            }
        }
        stock.devices(self.held.as_ref().unwrap_or(&BTreeSet::new()))
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
