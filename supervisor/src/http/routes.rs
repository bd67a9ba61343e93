//! What each method and path does.

use super::authority::Peer;
use super::exchange::{Lines, Request, answer, answer_text};
use super::following::FOLLOWING;
use super::ordinary;
use crate::clock;
use crate::device::DriverFilesError;
use crate::drains;
use crate::events::CHUNK;
use crate::gpu_tests;
use crate::guard;
use crate::lease::{self, Book, Leases, ReadAhead};
use crate::ledger::{self, BaselineQuestion, EnoughQuestion, Question, Scope};
use crate::memory_limits;
use crate::metrics;
use crate::mig;
use crate::overflow;
use crate::overrides;
use crate::queue::Placing;
use crate::quotas;
use crate::reservations;
use crate::revocation;
use crate::service::Identity;
use crate::suspension;
use gpool_configuration::Policy;
use gpool_protocol::{
    BindRequest, Counts, DrainRequest, DriverView, ErrorBody, ErrorCode, Event, GpuTestReport, GpuView, HostPid,
    LeaseAnswer, LeaseRequest, LeaseState, LeaseUpdate, LeaseView, MigApply, OverrideOf, OverrideRequest, PodName,
    PodPlace, SupervisorInfo, Trial, TrialRequest, WaitingView,
};
use gpool_shared_region::VERSION;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde_json::Value;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// A follower hears at least this often that the line is still up.
const FOLLOW_PERIOD: Duration = Duration::from_secs(5);
/// How soon it is seen that somebody who follows has gone.
const GONE_PERIOD: Duration = Duration::from_millis(250);

/// Answers one connection.
pub fn serve(mut stream: UnixStream, peer: &Peer, leases: &Arc<Leases>, identity: &Identity) -> io::Result<()> {
    let request = match Request::read(&mut stream) {
        Ok(request) => request,
        Err(error) => return answer(&mut stream, Err::<Value, _>(error)),
    };
    if request.method == "GET" && request.path == "/v1/events" {
        return events(&mut stream, &request, (peer, identity), leases);
    }
    if request.method == "GET" && request.path == "/metrics" {
        return answer_text(&mut stream, metrics::CONTENT_TYPE, &metrics::page(leases, identity));
    }
    // Who has given it up while it stood in line is not granted a lease that nobody hears of: he may have asked anew.
    if request.method == "POST" && request.path == "/v1/leases" && has_gone(&stream) {
        return Ok(());
    }
    if let Some(administers) = (request.method != "GET").then(|| peer.standing()).flatten() {
        leases.events.note_standing(peer.uid, administers);
    }
    answer(&mut stream, route(&request, peer, leases, identity))
}

fn value<T: Serialize>(message: T) -> Result<Value, ErrorBody> {
    serde_json::to_value(message).map_err(|cause| {
        ErrorBody::new(ErrorCode::SupervisorFailed, format!("the answer cannot be encoded ({cause})"), "report this")
    })
}

/// The same of what is read in the book, which is given back before the answer is written.
fn of_book<T: Serialize>(leases: &Leases, read: impl FnOnce(&Book) -> T) -> Result<Value, ErrorBody> {
    let message = read(&leases.book());
    value(message)
}

fn route(request: &Request, peer: &Peer, leases: &Leases, identity: &Identity) -> Result<Value, ErrorBody> {
    match (request.method.as_str(), parts(&request.path).as_slice()) {
        ("GET", ["v1", "info"]) => value(info(leases, identity)),
        ("GET", ["v1", "gpus"]) => {
            let told = (&leases.time_slices, &leases.memory_limits, &leases.compute_modes, &leases.sites);
            let closed = (&leases.silence, &leases.drains, &leases.healths);
            of_book(leases, |book| {
                let gpus = book.gpu_views(&leases.gpus(), &leases.memory_in_use(), told, closed);
                let closed_for = |place| leases.closed_for(book, place);
                let gpus = gpus.into_iter().map(|(place, gpu)| GpuView { closed_for: closed_for(place), ..gpu });
                gpus.collect::<Vec<_>>()
            })
        }
        ("GET", ["v1", "gpus", "silent"]) => value(leases.silence.views(&leases.gpus())),
        ("GET", ["v1", "gpus", "drained"]) => value(drains::views(leases)),
        ("GET", ["v1", "gpus", "tests"]) => value(gpu_tests::views(leases)),
        ("POST", ["v1", "gpus", gpu, "test"]) => {
            peer.must_administer("test a GPU")?;
            value(gpu_tests::begin(leases, gpu, peer.process()?)?)
        }
        ("POST", ["v1", "gpus", gpu, "tested"]) => {
            peer.must_administer("say what a test of a GPU has found")?;
            let report = request.message::<GpuTestReport>()?;
            value(gpu_tests::finish(leases, gpu, report, (&peer.process()?.name, peer.uid))?)
        }
        ("POST", ["v1", "gpus", gpu, "drain"]) => {
            peer.must_administer("drain a GPU")?;
            value(drains::drain(leases, gpu, request.message_or_default::<DrainRequest>()?, peer.uid)?)
        }
        ("POST", ["v1", "gpus", gpu, "undrain"]) => {
            peer.must_administer("end the draining of a GPU")?;
            value(drains::undrain(leases, gpu, &request.message_or_default()?, peer.uid)?)
        }
        ("GET", ["v1", "mig"]) => value(mig::view(leases)?),
        ("POST", ["v1", "mig", "apply"]) => {
            peer.must_be_root("divide GPUs")?;
            value(mig::apply(leases, &request.message::<MigApply>()?, mig::By::User(peer.uid))?)
        }
        ("GET", ["v1", "driver"]) => value(driver(leases)?),
        ("GET", ["v1", "configuration"]) => value(leases.settings.view()),
        ("POST", ["v1", "configuration", "reload"]) => {
            peer.must_administer("reload the configuration")?;
            value(leases.reload(Some(peer.uid))?)
        }
        ("GET", ["v1", "guard"]) => value(guard::with_charges(leases)),
        ("GET", ["v1", "guard", "outside"]) => {
            let seen = leases.unleased.lock().unwrap_or_else(PoisonError::into_inner).clone();
            value(&*seen)
        }
        ("GET", ["v1", "usage"]) => {
            let question = Question::read(&request.query, clock::unix_ms() / 1000)?;
            value(ledger::usage(leases, &question, peer.administers())?)
        }
        ("GET", ["v1", "charges"]) => {
            let scope = Scope::read(&request.query, clock::unix_ms() / 1000)?;
            value(ledger::charges(leases, &scope, peer.administers())?)
        }
        ("GET", ["v1", "history"]) => {
            let scope = Scope::read(&request.query, clock::unix_ms() / 1000)?;
            value(ledger::history(leases, &scope, peer.administers())?)
        }
        ("GET", ["v1", "savings"]) => {
            let question = EnoughQuestion::of_gpus(&request.query, clock::unix_ms() / 1000)?;
            value(ledger::savings(leases, &question, peer.administers())?)
        }
        ("GET", ["v1", "sizes"]) => {
            let question = EnoughQuestion::of_requests(&request.query, clock::unix_ms() / 1000)?;
            value(ledger::sizes(leases, &question, peer.administers())?)
        }
        ("GET", ["v1", "baseline"]) => {
            let question = BaselineQuestion::read(&request.query, clock::unix_ms() / 1000)?;
            value(ledger::baseline(leases, &question, peer.administers())?)
        }
        ("GET", ["v1", "queue"]) => of_book(leases, |book| book.queue.views()),
        ("GET", ["v1", "overflow"]) => of_book(leases, |book| overflow::view(leases, book)),
        ("GET", ["v1", "quota"]) => of_book(leases, |book| quotas::views(leases, book)),
        ("GET", ["v1", "overrides"]) => value(leases.overrides.at(clock::unix_ms())),
        ("POST", ["v1", "overrides"]) => {
            peer.must_administer("lift a quota")?;
            value(overrides::begin(leases, request.message::<OverrideRequest>()?, peer.uid)?)
        }
        ("POST", ["v1", "overrides", "end"]) => {
            peer.must_administer("have a quota hold again")?;
            value(overrides::end(leases, &request.message::<OverrideOf>()?, peer.uid)?)
        }
        ("GET", ["v1", "reservations"]) => of_book(leases, |book| reservations::views(leases, book)),
        ("GET", ["v1", "counts"]) => {
            let seal = peer.administers().then(|| leases.seal.get()).transpose()?;
            value(Counts { seal, ..leases.counts() })
        }
        ("POST", ["v1", "queue", id, "cancel"]) => value(cancel(peer, leases, id)?),
        ("POST", ["v1", "queue", id, "hold"]) => value(place(peer, leases, id, Placing::Hold)?),
        ("POST", ["v1", "queue", id, "release"]) => value(place(peer, leases, id, Placing::Release)?),
        ("POST", ["v1", "queue", id, "first"]) => {
            peer.must_administer("put one before others in the queue")?;
            value(place(peer, leases, id, Placing::First)?)
        }
        ("GET", ["v1", "leases"]) => {
            let ahead = ReadAhead::of(&leases.book);
            of_book(leases, |book| book.views(&ahead))
        }
        ("GET", ["v1", "leases", id]) => value(leases.book().view_of(id)?),
        ("POST", ["v1", "leases"]) => value(start(request, peer, leases)?),
        ("POST", ["v1", "trial"]) => value(try_out(request, peer, leases)?),
        ("POST", ["v1", "leases", id, "bind"]) => {
            let lease_id = peer.own(&leases.book, |book| Ok(&book.exactly(id)?.record))?;
            let init_pid = request.message::<BindRequest>()?.init_pid;
            let bound = leases.bind(&lease_id, init_pid, peer.confined_to())?;
            // Its program begins when this is answered.
            memory_limits::keep_of(leases, &bound.lease_id)?;
            value(bound)
        }
        ("POST", ["v1", "leases", id, "ended"]) => value(ended(peer, leases, id)?),
        ("POST", ["v1", "leases", id, "pause"]) => value(set_paused(peer, leases, id, true)?),
        ("POST", ["v1", "leases", id, "resume"]) => value(set_paused(peer, leases, id, false)?),
        ("POST", ["v1", "leases", id, "suspend"]) => value(suspend(peer, leases, id)?),
        ("POST", ["v1", "leases", id, "evict"]) => value(evict(peer, leases, id)?),
        ("GET", ["v1", "leases", id, "explain"]) => value(leases.explain(id)?),
        ("PATCH", ["v1", "leases", id]) => value(update(request, peer, leases, id)?),
        (method, _) => Err(ErrorBody::new(
            ErrorCode::MessageInvalid,
            format!("{method} {} is nothing that the supervisor answers", request.path),
            "docs/socket.md has the messages; packages have it in /usr/share/doc/gpool",
        )),
    }
}

/// What stands between the slashes of a path. Nothing is put right: an empty part is one, and no route has it.
fn parts(path: &str) -> Vec<&str> {
    path.strip_prefix('/').map(|path| path.split('/').collect()).unwrap_or_default()
}

fn start(request: &Request, peer: &Peer, leases: &Leases) -> Result<LeaseAnswer, ErrorBody> {
    let policy = &leases.configuration().policy;
    // Whoever may not start anything, or asks for nothing that can be named, is counted; events are of the others.
    let mut asked = readable(request, peer, policy).inspect_err(|error| leases.counters.note_refusal(error.code))?;
    let allowed = peer.confined_to().map_or(Ok(()), |uid| ordinary::check_request(policy, uid, &asked));
    let allowed = allowed.and_then(|()| leases.unseal(&mut asked));
    leases.without_reserved(&mut asked);
    let granted = allowed.and_then(|()| leases.lease_or_wait(&asked, peer.maker(asked.asked_for_parent)?, peer.uid));
    granted.inspect_err(|error| leases.note_refusal(&asked, error, peer.uid))
}

/// Whoever may look at GPUs and quotas may ask what a container would have now: of his own, if he starts containers without root, else of
/// root's engine. It is no refusal of anything, so it is neither counted nor told.
fn try_out(request: &Request, peer: &Peer, leases: &Leases) -> Result<Trial, ErrorBody> {
    let policy = &leases.configuration().policy;
    let asked = lease::of_nobody(request.message::<TrialRequest>()?);
    let own = peer.confined_to().filter(|_| peer.must_start(policy).is_ok());
    own.map_or(Ok(()), |uid| ordinary::check_request(policy, uid, &asked))?;
    leases.try_out(&asked, own.unwrap_or(0), peer.administers())
}

/// What a peer that may start containers asks for, with names that can be told.
fn readable(request: &Request, peer: &Peer, policy: &Policy) -> Result<LeaseRequest, ErrorBody> {
    peer.must_start(policy)?;
    let mut asked = request.message::<LeaseRequest>()?;
    asked.container_id.check()?;
    asked.in_pod.as_ref().map_or(Ok(()), PodPlace::check)?;
    asked.pod.as_ref().map_or(Ok(()), PodName::check)?;
    lease::without_doubtful_dir(&mut asked, peer.uid);
    if peer.confined_to().is_some() {
        ordinary::without_doubtful_pod(&mut asked);
    }
    Ok(asked)
}

fn update(request: &Request, peer: &Peer, leases: &Leases, id: &str) -> Result<LeaseView, ErrorBody> {
    let change = change_in(request)?;
    let lease_id = own(peer, leases, id)?;
    if let Some(uid) = peer.confined_to() {
        ordinary::check_change(&leases.configuration().policy, uid, &change)?;
    }
    let id = leases.book().find(&lease_id)?.record.lease_id.clone();
    if change.memory_bytes.is_some() {
        // A cap that the driver alone keeps is not changed while it does not say that it does.
        memory_limits::check_is_kept(leases, &id)?;
    }
    let changed = leases.update(&lease_id, &change, (peer.uid, peer.administers()))?;
    if change.memory_bytes.is_none() || memory_limits::keep_of(leases, &id).is_err() {
        return Ok(changed);
    }
    // It may have ended by now.
    Ok(leases.book().view_of(&changed.lease_id.0).unwrap_or(changed))
}

/// # Errors
/// A body that is no change, has a field that is not known, or changes nothing.
fn change_in(request: &Request) -> Result<LeaseUpdate, ErrorBody> {
    let remedy = "give fraction_permille, limit_permille or no_limit, memory_bytes, spill_bytes, class, p99_ns or no_p99, priority, or run_seconds or no_run_time";
    let wrong = |message: String| ErrorBody::new(ErrorCode::RequestInvalid, message, remedy);
    let change = request.message::<LeaseUpdate>().map_err(|error| wrong(error.message))?;
    match change == LeaseUpdate::default() {
        true => Err(wrong("the body names nothing that is to change".to_owned())),
        false => Ok(change),
    }
}

/// A lease that is given up by who asked for it before there is a container is over. Of every other end this is a hint: the
/// attendant sees it by itself, and looks again now.
fn ended(peer: &Peer, leases: &Leases, id: &str) -> Result<LeaseView, ErrorBody> {
    let mut book = leases.book();
    let lease = book.exactly(id)?;
    let (view, lease_id) = (lease.view(), lease.record.lease_id.clone());
    let is_pending = lease.state == LeaseState::Pending;
    if is_pending && lease.requester.as_ref().is_some_and(|requester| peer.asked_for(&requester.name)) {
        leases.end(&mut book, &lease_id, "its container was not made");
    }
    drop(book);
    (leases.watch_changed)();
    Ok(view)
}

fn set_paused(peer: &Peer, leases: &Leases, id: &str, paused: bool) -> Result<LeaseView, ErrorBody> {
    let lease_id = own(peer, leases, id)?;
    leases.set_paused(&lease_id, paused, (peer.uid, peer.administers()))
}

fn suspend(peer: &Peer, leases: &Leases, id: &str) -> Result<LeaseView, ErrorBody> {
    let lease_id = own(peer, leases, id)?;
    let by = suspension::By::User(peer.uid);
    suspension::begin(leases, &lease_id, &format!("user {} asked for it", peer.uid), by)
}

fn evict(peer: &Peer, leases: &Leases, id: &str) -> Result<LeaseView, ErrorBody> {
    let lease_id = own(peer, leases, id)?;
    revocation::revoke(leases, &lease_id, &format!("user {} asked for it", peer.uid), Some(peer.uid))
}

fn place(peer: &Peer, leases: &Leases, id: &str, placing: Placing) -> Result<WaitingView, ErrorBody> {
    let (container_id, owner_uid) = leases.book().queue.find(id, peer.uid)?;
    peer.must_own(owner_uid)?;
    leases.place_waiting((&container_id, owner_uid), placing, (peer.uid, peer.administers()))
}

fn cancel(peer: &Peer, leases: &Leases, id: &str) -> Result<WaitingView, ErrorBody> {
    let (container_id, owner_uid) = leases.book().queue.find(id, peer.uid)?;
    peer.must_own(owner_uid)?;
    leases.cancel_waiting(&container_id, owner_uid, peer.uid)
}

/// The full id of a lease that the peer may change.
fn own(peer: &Peer, leases: &Leases, id: &str) -> Result<String, ErrorBody> {
    peer.own(&leases.book, |book| Ok(&book.find(id)?.record))
}

fn info(leases: &Leases, identity: &Identity) -> SupervisorInfo {
    let statistics = leases.gatekeeper.recent_statistics();
    let handoffs = statistics.handoffs;
    SupervisorInfo {
        version: gpool_protocol::version().into(),
        pid: HostPid(std::process::id()),
        started_unix_ms: identity.started_unix_ms,
        region_version: VERSION,
        handoff_ns: statistics.handoff_ns,
        slice_ns: statistics.slice_ns,
        handoff_count: Some(handoffs.map_or(0, |handoffs| handoffs.count)),
        handoff_p50_ns: handoffs.map(|handoffs| handoffs.p50_ns),
        handoff_p99_ns: handoffs.map(|handoffs| handoffs.p99_ns),
    }
}

fn driver(leases: &Leases) -> Result<DriverView, ErrorBody> {
    let missing = |cause: DriverFilesError| {
        ErrorBody::new(ErrorCode::SupervisorFailed, cause.to_string(), "install what is missing, then ask again")
    };
    let (real, chosen) = (leases.files.real().map_err(missing)?, leases.files.shims().map_err(missing)?);
    let coverage = &chosen.coverage;
    Ok(DriverView {
        version: leases.gpus().first().map(|gpu| gpu.driver_version.clone()).unwrap_or_default(),
        libraries: real.iter().map(|path| path.display().to_string()).collect(),
        shims: chosen.views(),
        missing: coverage.missing.clone(),
        uncounted: coverage.uncounted.clone(),
        unclassified: coverage.unclassified.clone(),
    })
}

fn events(
    stream: &mut UnixStream,
    request: &Request,
    (peer, identity): (&Peer, &Identity),
    leases: &Leases,
) -> io::Result<()> {
    let number = |name: &str| request.query_value(name).and_then(|text| text.parse::<u64>().ok());
    // Numbers of another life are none of this one's.
    let is_of_this_life = number("life").is_none_or(|life| life == identity.started_unix_ms);
    let after = number("after").filter(|_| is_of_this_life).unwrap_or(0);
    if request.query_value("follow") != Some("1") {
        return tell_events(stream, after, false, (leases, identity));
    }
    let _following = match FOLLOWING.begin(peer.side()) {
        Ok(following) => following,
        Err(refusal) => return answer(stream, Err::<Value, _>(refusal)),
    };
    tell_events(stream, after, true, (leases, identity))
}

fn tell_events(
    stream: &mut UnixStream,
    mut after: u64,
    follow: bool,
    (leases, identity): (&Leases, &Identity),
) -> io::Result<()> {
    let mut answer = Lines::begin(stream)?;
    loop {
        let events = if follow { news(leases, after, answer.stream()) } else { leases.events.after(after, None) };
        let mut lines = Vec::new();
        for event in &events {
            after = event.sequence;
            let told = Event { started_unix_ms: Some(identity.started_unix_ms), ..Event::clone(event) };
            serde_json::to_writer(&mut lines, &told)?;
            lines.push(b'\n');
        }
        answer.write(&lines)?;
        if !follow && events.len() < CHUNK {
            return answer.end();
        }
        if events.is_empty() {
            // An empty line finds out whether anybody still listens.
            answer.write(b"\n")?;
        }
    }
}

/// What happens behind `after`, waited for a while. Whoever has gone is not waited for: it counts among those who follow.
fn news(leases: &Leases, after: u64, stream: &UnixStream) -> Vec<Arc<Event>> {
    let until = Instant::now() + FOLLOW_PERIOD;
    loop {
        let events = leases.events.after(after, Some(GONE_PERIOD));
        if !events.is_empty() || Instant::now() >= until || has_gone(stream) {
            return events;
        }
    }
}

/// Whether the other end is closed.
fn has_gone(stream: &UnixStream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec::default())).is_ok() && polled[0].revents().contains(PollFlags::HUP)
}

#[cfg(test)]
mod tests {
    use super::super::authority::tests::of_member;
    use super::*;

    #[test]
    fn who_has_gone_is_seen_and_who_only_says_no_more_is_not() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(!has_gone(&ours));
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(!has_gone(&ours));
        drop(theirs);
        assert!(has_gone(&ours));
    }

    /// A namespace is billed by it.
    #[test]
    fn whose_pod_it_is_says_who_administers_alone() {
        let policy = Policy { rootless_group: "gpool-users".to_owned(), ..Policy::default() };
        let said = |peer: &Peer, sandbox_id: &str| {
            let body = format!(
                r#"{{"container_id":"c","request":{{"fraction_permille":300}},"in_pod":{{"sandbox_id":"{sandbox_id}",
                "container_name":"web"}},"pod":{{"namespace":"ml","pod":"a","container":"web"}}}}"#
            );
            let (method, path, query) = ("POST".to_owned(), "/v1/leases".to_owned(), String::new());
            let asked = readable(&Request { method, path, query, body: body.into() }, peer, &policy).unwrap();
            (asked.pod.map(|pod| pod.namespace), asked.in_pod.map(|place| place.sandbox_id))
        };
        let (ml, id) = (Some("ml".to_owned()), "3f".repeat(32));
        let user = of_member(1000, |group| (group == "gpool-users").then_some(7));
        let operator = of_member(1000, |group| (group == "gpu-operators").then_some(7));
        for administrator in [operator, of_member(0, |_| None)] {
            assert_eq!(said(&administrator, "sandbox"), (ml.clone(), Some("sandbox".to_owned())));
        }
        // Where no name is known bills have this in its place.
        assert_eq!((said(&user, "ml"), said(&user, &id)), ((None, None), (None, Some(id.clone()))));
    }

    #[test]
    fn a_change_names_what_changes_and_nothing_else() {
        let read = |body: &str| {
            let (method, path, query) = ("PATCH".to_owned(), "/v1/leases/a".to_owned(), String::new());
            change_in(&Request { method, path, query, body: body.into() })
        };
        assert_eq!(read(r#"{"memory_bytes":4294967296}"#).unwrap().memory_bytes, Some(4 << 30));
        for (body, part) in [
            ("{}", "names nothing"),
            (r#"{"no_limit":false}"#, "names nothing"),
            (r#"{"memory":"4GiB"}"#, "unknown field `memory`"),
            (r#"{"memory_bytes":"4GiB"}"#, "invalid type"),
            ("", "EOF"),
        ] {
            let error = read(body).unwrap_err();
            assert!(error.message.contains(part) && error.remedy.contains("memory_bytes"), "{body}: {error}");
            assert_eq!(error.code, ErrorCode::RequestInvalid, "{body}");
        }
    }

    #[test]
    fn a_path_is_taken_as_it_stands() {
        assert_eq!(parts("/v1/leases/abc"), ["v1", "leases", "abc"]);
        // No lease has the empty id, and all leases are asked for without the last slash.
        assert_eq!(parts("/v1/leases/"), ["v1", "leases", ""]);
        assert_eq!(parts("//v1/info"), ["", "v1", "info"]);
        assert_eq!(parts("v1/info"), Vec::<&str>::new());
    }
}
