//! `gpool wait`: comes back when leases have ended, or when who waits for room has a lease.
//!
//! The events are followed first and looked at afterwards, so nothing is missed in between. They only say when to look: what has
//! come is read from the leases, the queue and the events that are kept, in this order. So one that was missed costs time and
//! nothing else.

mod targets;
mod text;

use crate::arguments::{Awaited, Format, WaitOptions};
use crate::exit::{ExitStatus, Failure};
use crate::follower::{Heard, LOOK_PERIOD, RETRY, Supervisor, follow};
use crate::output;
use gpool_protocol::{Client, ErrorBody, ErrorCode, LeaseView, WaitingView, format_seconds, lease_path};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};
use targets::{Outcome, Snapshot, Target, meant};

/// Waits, and prints a line for each as it comes.
///
/// # Errors
/// An id that means nothing, requests that leave the queue without a lease, or what is left when the time is over.
pub fn run(client: &Client, options: &WaitOptions) -> Result<(), Failure> {
    let begun = Instant::now();
    let deadline = options.timeout.map(|seconds| begun + Duration::from_secs(seconds));
    let heard = follow(client);
    // Who cannot be reached at first is not there; who goes away later may come back.
    let first = deadline.map_or_else(
        || heard.recv().map_err(|_| RecvTimeoutError::Disconnected),
        |deadline| heard.recv_timeout(deadline.saturating_duration_since(Instant::now())),
    );
    if let Ok(Heard::Lost(error)) = first {
        return Err(error.into());
    }
    let mut left = targets_of(client, options)?;
    if options.format == Format::Csv {
        output::print(&text::csv_header())?;
    }
    let mut supervisor = Supervisor::new(heard);
    let (all, mut in_vain) = (left.len(), 0);
    loop {
        let looked = look(client, options.awaited);
        let next_look = Instant::now() + if looked.is_ok() { LOOK_PERIOD } else { RETRY };
        match &looked {
            Ok(snapshot) => {
                supervisor.note_back();
                in_vain += settle(&mut left, snapshot, options)?;
            }
            Err(error) => supervisor.note_away(error),
        }
        if left.is_empty() {
            return judge(in_vain, all);
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(too_late(&left, options));
        }
        let until = deadline.map_or(next_look, |deadline| deadline.min(next_look));
        supervisor.until_there_is_news(|event| left.iter().any(|target| target.is_met_by(event)), until);
    }
}

/// What the ids mean now.
fn targets_of(client: &Client, options: &WaitOptions) -> Result<Vec<Target>, Failure> {
    // Before the leases, so that nobody is missed on the way from here to there.
    let waiting: Vec<WaitingView> = client.get("/v1/queue")?;
    let (mut targets, mut refused) = (Vec::new(), Vec::new());
    for id in &options.ids {
        let target = match options.awaited {
            Awaited::End => lease_of(client, id).map_err(|refusal| waits_still(refusal, &waiting, id)),
            Awaited::Grant => meant(&waiting, id)
                .and_then(|one| one.map_or_else(|| lease_of(client, id), |one| Ok(Target::of_waiting(one)))),
        };
        match target {
            // Said twice it is printed once.
            Ok(target) if targets.contains(&target) => {}
            Ok(target) => targets.push(target),
            Err(refusal) => refused.push(refusal),
        }
    }
    Failure::of_all(&refused)?;
    Ok(targets)
}

fn lease_of(client: &Client, id: &str) -> Result<Target, ErrorBody> {
    client.get::<LeaseView>(&lease_path(id)?).map(|lease| Target::of_lease(&lease))
}

/// Of a container that waits for room it is said that it has no lease yet.
fn waits_still(refusal: ErrorBody, waiting: &[WaitingView], id: &str) -> ErrorBody {
    match meant(waiting, id) {
        Ok(Some(one)) if refusal.code == ErrorCode::LeaseUnknown => ErrorBody::new(
            ErrorCode::LeaseUnknown,
            format!(
                "container {} waits for room and has no lease whose end could be waited for",
                one.container_id.short()
            ),
            "gpool wait --for grant waits until it has one",
        ),
        _ => refusal,
    }
}

fn look(client: &Client, awaited: Awaited) -> Result<Snapshot, ErrorBody> {
    let waiting = if awaited == Awaited::Grant { client.get("/v1/queue")? } else { Vec::new() };
    let leases = client.get("/v1/leases")?;
    let mut events = Vec::new();
    // A supervisor that stands still in its answer is one that is away.
    client.lines("/v1/events?after=0", |line| events.extend(serde_json::from_str(line)))?;
    Ok(Snapshot { waiting, leases, events })
}

/// Prints what has come and leaves the others in `left`. How many have left the queue without a lease.
fn settle(left: &mut Vec<Target>, snapshot: &Snapshot, options: &WaitOptions) -> Result<usize, Failure> {
    let (mut lines, mut in_vain) = (String::new(), 0);
    left.retain(|target| {
        let Some((outcome, event)) = snapshot.outcome_of(target, options.awaited) else { return true };
        in_vain += usize::from(outcome == Outcome::Left);
        lines += &text::line(target, outcome, event, options.format);
        false
    });
    if !lines.is_empty() {
        output::print(&lines)?;
    }
    Ok(in_vain)
}

fn judge(in_vain: usize, all: usize) -> Result<(), Failure> {
    let sentence = match (in_vain, all) {
        (0, _) => return Ok(()),
        (1, 1) => "it has left the queue without a lease".to_owned(),
        (in_vain, all) => format!("{in_vain} of {all} have left the queue without a lease"),
    };
    Err(Failure::Refused(
        ExitStatus::Failed,
        format!("gpool: {sentence}; gpool events says why, and start it again to wait again"),
    ))
}

fn too_late(left: &[Target], options: &WaitOptions) -> Failure {
    let waited = format_seconds(options.timeout.unwrap_or(0));
    let ids: Vec<&str> = left.iter().map(|target| target.container_id.short()).collect();
    let who = if left.len() == 1 { "this one has" } else { "these have" };
    let what = match options.awaited {
        Awaited::End => "not ended",
        Awaited::Grant => "no lease",
    };
    let sentence = format!("gpool: after {waited} {who} {what}: {}", ids.join(", "));
    Failure::Refused(ExitStatus::NoCapacity, sentence)
}
