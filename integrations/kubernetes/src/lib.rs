//! `gpool-device-plugin`: the device plugin by which Kubernetes' scheduler knows what of a node's GPUs it may give out, and by which
//! what a pod asks for in its resource limits becomes its container's share.
//!
//! It decides nothing. What there is to give out the supervisor says (`GET /v1/counts`); the kubelet is told it as devices. What
//! the kubelet gives to a container goes into an annotation, which `gpool-runtime` reads as any request.
#![forbid(unsafe_code)]

mod arguments;
mod authority;
mod held;
pub mod kubelet;
mod offer;
mod plugin;
mod presence;

pub use arguments::{Arguments, command};

use gpool_protocol::{Client, Countable, Counts, Seal};
use offer::{Offered, Stock, offers};
use presence::Presence;
use sd_notify::NotifyState;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::sleep;

/// How often the supervisor is asked. A kubelet tells the cluster every ten seconds.
const PERIOD: Duration = Duration::from_secs(2);
/// And before it has said anything: without an answer there is nothing to present to the kubelet, which starts at the same moment.
const FIRST_PERIOD: Duration = Duration::from_millis(100);
/// For so long the kubelet, which systemd starts behind this program, is kept waiting for a supervisor.
const KEEPS_WAITING: Duration = Duration::from_secs(30);
/// For how long what a supervisor said last holds: it is away for a moment when it is upgraded.
const HOLDS: Duration = Duration::from_secs(10);
/// It answers within milliseconds, or is stuck.
const PATIENCE: Duration = Duration::from_secs(2);

/// The program.
pub fn main() -> ExitCode {
    let arguments = <Arguments as clap::Parser>::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(cause) => {
            log(&format!("it cannot be started ({cause})"));
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(until_told(run(arguments)));
    // A question that a stuck supervisor does not answer is not waited for.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            log(&format!("signals cannot be heard ({cause})"));
            ExitCode::FAILURE
        }
    }
}

/// Says a line, which the journal takes. One that cannot be written is lost.
fn log(words: &str) {
    let _ = writeln!(std::io::stderr(), "gpool-device-plugin: {words}");
}

/// Does its work until systemd or a person ends it. The kubelet then gives nothing more out; who has something keeps it.
async fn until_told(work: impl Future<Output = ()>) -> std::io::Result<()> {
    let (mut told, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        () = work => {}
        _ = told.recv() => {}
        _ = interrupted.recv() => {}
    }
    Ok(())
}

/// Tells the kubelet of everything, for ever.
async fn run(arguments: Arguments) {
    let client = Client::new(&arguments.socket).with_timeout(PATIENCE);
    let mut offering = Offering::new(arguments.kubelet, arguments.pod_resources);
    let (began, mut is_ready) = (Instant::now(), false);
    loop {
        let client = client.clone();
        let counts = tokio::task::spawn_blocking(move || client.get::<Counts>("/v1/counts")).await;
        match counts {
            Ok(Ok(counts)) => offering.hears(&counts),
            Ok(Err(cause)) => offering.hears_nothing(&cause.sentence()),
            Err(cause) => offering.hears_nothing(&cause.to_string()),
        }
        let has_heard = offering.heard.is_some();
        if !is_ready && (has_heard || began.elapsed() >= KEEPS_WAITING) {
            // A service manager that does not listen loses nothing but its own view.
            let _ = sd_notify::notify(&[NotifyState::Ready]);
            is_ready = true;
        }
        sleep(if has_heard { PERIOD } else { FIRST_PERIOD }).await;
    }
}

/// What is offered, and how much of it.
struct Offering {
    directory: PathBuf,
    resources: PathBuf,
    stocks: BTreeMap<Offered, watch::Sender<Stock>>,
    seal: watch::Sender<Option<Seal>>,
    presences: tokio::task::JoinSet<()>,
    heard: Option<Instant>,
    said: String,
}

impl Offering {
    fn new(directory: PathBuf, resources: PathBuf) -> Self {
        let presences = tokio::task::JoinSet::new();
        let (stocks, seal) = (BTreeMap::new(), watch::Sender::default());
        Self { directory, resources, stocks, seal, presences, heard: None, said: String::new() }
    }

    /// The supervisor has said what there is.
    fn hears(&mut self, counts: &Counts) {
        self.heard = Some(Instant::now());
        // One that was told holds: what is answered without it the kubelet would keep for as long as there is the pod.
        if counts.seal.is_some() {
            send_if_other(&self.seal, counts.seal.clone());
        }
        let now: BTreeMap<Offered, Countable> = offers(counts).into_iter().collect();
        for (offered, sender) in &self.stocks {
            // What there is none of any more is offered as nothing: a kubelet forgets no resource.
            send_if_other(sender, Stock::Counted(now.get(offered).copied().unwrap_or_default()));
        }
        for (offered, count) in &now {
            if !self.stocks.contains_key(offered) {
                self.present(offered.clone(), *count);
            }
        }
        let mut words = String::new();
        for (offered, count) in &now {
            let between = if words.is_empty() { "" } else { ", " };
            let _ = write!(words, "{between}{} of {} {}", count.available, count.all, offered.resource());
        }
        self.says(if words.is_empty() { "no GPU to give out".to_owned() } else { words });
    }

    /// It has not: without it no container with a share starts, so other nodes are better.
    fn hears_nothing(&mut self, cause: &str) {
        if self.heard.is_some_and(|heard| heard.elapsed() < HOLDS) {
            return;
        }
        for sender in self.stocks.values() {
            let all = sender.borrow().all();
            send_if_other(sender, Stock::Unknown { all });
        }
        let words = format!("nothing to give out: {cause}");
        if words != self.said {
            log(&words);
        }
        self.says(words);
    }

    fn present(&mut self, offered: Offered, count: Countable) {
        let (sender, stock) = watch::channel(Stock::Counted(count));
        self.stocks.insert(offered.clone(), sender);
        let (directory, resources) = (self.directory.clone(), self.resources.clone());
        let presence =
            Presence { offered, stock, seal: self.seal.subscribe(), directory, resources, held: None, presented: None };
        self.presences.spawn(presence.keep());
    }

    /// Tells systemd, whose `status` shows it.
    fn says(&mut self, words: String) {
        if words != self.said {
            let _ = sd_notify::notify(&[NotifyState::Status(&words)]);
            self.said = words;
        }
    }
}

/// Sends what is another value than the last.
fn send_if_other<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|now| {
        let is_other = *now != value;
        *now = value;
        is_other
    });
}
