//! Emergencies. An administrator says that somebody's work comes first for a while, and why: no quota and no budget holds for it,
//! it stands first in the queue among its priority, and lower priorities make room for it without its having waited. What was said is
//! written down, since it should outlive the supervisor and a boot, and is over by itself.
//!
//! What others were promised stays theirs: no guaranteed lease, no reservation and no plan gives way.

use crate::clock;
use crate::events::About;
use crate::lease::{Holder, Leases, failed};
use crate::ledger::moment;
use crate::state_file::StateFile;
use gpool_protocol::{ErrorBody, ErrorCode, EventKind, OVERRIDE_SECONDS_MAX, Override, OverrideOf, OverrideRequest};
use std::path::Path;

/// In `[paths] state_dir`.
const NAME: &str = "overrides.json";
/// By so much clocks are put right without anybody's wondering.
const CLOCK_STEP_MS: u64 = 60_000;

/// The clock of a host that has booted lately may be wrong still, and is right after so long.
const CLOCK_IS_RIGHT_NS: u64 = 3600 * 1_000_000_000;

/// Those that are in force, one of each team and user.
#[derive(Debug)]
pub struct Overrides {
    said: StateFile<Vec<Override>>,
    /// When they were read: Unix time, milliseconds.
    opened_unix_ms: u64,
}

impl Overrides {
    /// What was written down in this directory, which need not be there.
    pub fn open(state_dir: &Path) -> Self {
        let said = StateFile::open(state_dir, NAME, "no override is in force");
        Self { said, opened_unix_ms: clock::unix_ms() }
    }

    /// For whom there are any at a moment, Unix milliseconds.
    pub fn holders(&self, unix_ms: u64) -> Vec<Holder> {
        self.said.lock().iter().filter(|its| is_in_force(its, unix_ms)).map(|its| holder(&its.of)).collect()
    }

    /// Those that are in force at a moment, Unix milliseconds.
    pub fn at(&self, unix_ms: u64) -> Vec<Override> {
        self.said.lock().iter().filter(|its| is_in_force(its, unix_ms)).cloned().collect()
    }

    /// Whether it will not be in force again, Unix milliseconds and CLOCK_MONOTONIC. One of an earlier life may be, with a clock that is
    /// ahead after a boot: it holds again once that is right.
    fn is_over(&self, its: &Override, unix_ms: u64, now_ns: u64) -> bool {
        let is_clock_right = its.since_unix_ms >= self.opened_unix_ms || now_ns >= CLOCK_IS_RIGHT_NS;
        its.until_unix_ms <= unix_ms && is_clock_right
    }

    /// Writes down what could not be written before.
    pub fn catch_up(&self) {
        self.said.catch_up();
    }

    /// The one that is in force now for any of those.
    pub fn of(&self, holders: &[Holder; 2]) -> Option<Override> {
        self.of_at(holders, clock::unix_ms())
    }

    /// The same at a moment, Unix milliseconds.
    pub fn of_at(&self, holders: &[Holder; 2], unix_ms: u64) -> Option<Override> {
        let is_for = |its: &&Override| is_in_force(its, unix_ms) && holders.contains(&holder(&its.of));
        self.said.lock().iter().find(is_for).cloned()
    }
}

/// Whether it holds at a moment. With a clock that is far off, as before a host that has booted has asked for the time, none does that
/// has begun later or would last for longer than any may.
fn is_in_force(its: &Override, unix_ms: u64) -> bool {
    let since_ms = its.since_unix_ms.saturating_sub(CLOCK_STEP_MS);
    let most_ms = OVERRIDE_SECONDS_MAX.saturating_mul(1000).saturating_add(CLOCK_STEP_MS);
    (since_ms..its.until_unix_ms).contains(&unix_ms) && its.until_unix_ms.saturating_sub(unix_ms) <= most_ms
}

/// Whose requests it is for.
fn holder(of: &OverrideOf) -> Holder {
    match (&of.team, of.user) {
        (Some(team), _) => Holder::Team(team.clone()),
        (None, Some(uid)) => Holder::User(uid),
        (None, None) => Holder::NoTeam,
    }
}

/// Begins one, or gives one that is in force another end and another reason.
///
/// # Errors
/// What is asked for cannot be, or cannot be written down: nothing has changed then.
pub fn begin(leases: &Leases, asked: OverrideRequest, uid: u32) -> Result<Override, ErrorBody> {
    asked.check()?;
    tend(leases);
    let now_ms = clock::unix_ms();
    let new = Override {
        of: asked.of.clone(),
        since_unix_ms: now_ms,
        until_unix_ms: now_ms.saturating_add(asked.seconds.saturating_mul(1000)),
        uid,
        reason: asked.reason.trim().to_owned(),
    };
    let made = leases.overrides.said.change(|all| {
        let old = taken_out(all, &new.of).filter(|old| is_in_force(old, now_ms));
        let new = Override { since_unix_ms: old.map_or(now_ms, |old| old.since_unix_ms), ..new };
        all.push(new.clone());
        new
    });
    let (made, _) = made.map_err(|cause| failed("no override begins, since it cannot be written down", cause))?;
    sort(leases);
    let until = moment(made.until_unix_ms / 1000);
    let message = format!(
        "no quota holds for {} until {until}, and it stands first in the queue: {}",
        made.of.text(),
        made.reason
    );
    leases.events.note(EventKind::Override, About { uid: Some(uid), ..About::default() }, message);
    Ok(made)
}

/// Ends one before its time.
///
/// # Errors
/// There is none, or that cannot be written down.
pub fn end(leases: &Leases, of: &OverrideOf, uid: u32) -> Result<Override, ErrorBody> {
    of.check()?;
    tend(leases);
    let ended = leases.overrides.said.change(|all| taken_out(all, of));
    let (ended, _) =
        ended.map_err(|cause| failed("the override goes on, since its end cannot be written down", cause))?;
    let Some(ended) = ended else {
        let message = format!("no override is in force for {}", of.text());
        return Err(ErrorBody::new(ErrorCode::RequestInvalid, message, "gpool override ls shows those that are"));
    };
    sort(leases);
    told_over(leases, &ended, Some(uid));
    Ok(ended)
}

/// Has those stand first in the queue who do now.
fn sort(leases: &Leases) {
    let mut book = leases.book();
    let urgent = leases.overrides.holders(clock::unix_ms());
    book.queue.put_first(urgent);
}

/// Takes out those whose time is over; to be called now and then.
pub fn tend(leases: &Leases) {
    let now_ms = clock::unix_ms();
    let is_over = |its: &Override| leases.overrides.is_over(its, now_ms, clock::now_ns());
    let over: Vec<Override> = leases.overrides.said.lock().iter().filter(|its| is_over(its)).cloned().collect();
    if over.is_empty() {
        return;
    }
    if let Err(cause) = leases.overrides.said.change(|all| all.retain(|its| !is_over(its))) {
        // It holds no more all the same, also where the file has it still.
        log!("the end of an override cannot be written down: {cause}");
        leases.overrides.said.change_in_memory(|all| all.retain(|its| !is_over(its)));
    }
    over.iter().for_each(|its| told_over(leases, its, None));
}

/// Takes the one out that is for these, if there is one.
fn taken_out(all: &mut Vec<Override>, of: &OverrideOf) -> Option<Override> {
    let place = all.iter().position(|its| its.of == *of)?;
    Some(all.remove(place))
}

fn told_over(leases: &Leases, its: &Override, uid: Option<u32>) {
    let message = format!("the override of {} is over: its quota holds again ({})", its.of.text(), its.reason);
    leases.events.note(EventKind::Override, About { uid, ..About::default() }, message);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(team: &str, until_unix_ms: u64) -> Override {
        let whom = OverrideOf { team: Some(team.into()), user: None };
        let since_unix_ms = clock::unix_ms();
        Override { of: whom, since_unix_ms, until_unix_ms, uid: 0, reason: "incident 7".into() }
    }

    #[test]
    fn those_in_force_are_kept_and_over_by_themselves() {
        let directory = tempfile::tempdir().unwrap();
        let overrides = Overrides::open(directory.path());
        let now_ms = clock::unix_ms();
        for its in [of("a", now_ms + 60_000), of("b", now_ms.saturating_sub(1))] {
            overrides.said.change(|all| all.push(its)).unwrap();
        }
        let again = Overrides::open(directory.path());
        let in_force = |unix_ms| again.at(unix_ms).into_iter().map(|its| its.of.text()).collect::<Vec<_>>();
        assert_eq!((in_force(now_ms), in_force(now_ms + 60_000)), (vec!["team a".to_owned()], Vec::new()));
        assert!(in_force(now_ms - 2 * CLOCK_STEP_MS).is_empty(), "a clock that is not right yet");
        let long = of("long", now_ms + OVERRIDE_SECONDS_MAX * 1000 + 2 * CLOCK_STEP_MS);
        assert!(
            !is_in_force(&long, now_ms) && is_in_force(&long, now_ms + 2 * CLOCK_STEP_MS),
            "nor was it when it began"
        );
        let is_of = |team: Option<&str>, uid| again.of(&Holder::both(team, uid)).is_some();
        assert!(is_of(Some("a"), 7) && !is_of(Some("b"), 7) && !is_of(None, 0));
        let user = Override { of: OverrideOf { team: None, user: Some(7) }, ..of("", now_ms + 60_000) };
        again.said.change(|all| all.push(user)).unwrap();
        assert!(is_of(Some("b"), 7) && is_of(None, 7) && !is_of(None, 8));
    }

    #[test]
    fn a_clock_that_is_ahead_after_a_boot_ends_none_for_good() {
        let directory = tempfile::tempdir().unwrap();
        let overrides = Overrides::open(directory.path());
        let (minute_ns, opened_ms) = (60_000_000_000, overrides.opened_unix_ms);
        let before = Override { since_unix_ms: opened_ms - 1000, ..of("a", opened_ms + 5000) };
        let is_over = |its: &Override, unix_ms, now_ns| overrides.is_over(its, unix_ms, now_ns);
        assert!(!is_over(&before, opened_ms + 4999, CLOCK_IS_RIGHT_NS));
        assert!(!is_over(&before, opened_ms + 5000, minute_ns), "who knows what time it is");
        assert!(is_over(&before, opened_ms + 5000, CLOCK_IS_RIGHT_NS));
        let own = Override { since_unix_ms: opened_ms, ..before };
        assert!(is_over(&own, opened_ms + 5000, minute_ns), "it was said by this clock");
    }

    #[test]
    fn what_cannot_be_read_is_put_aside() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(NAME), "{").unwrap();
        assert_eq!(Overrides::open(directory.path()).at(0), []);
        assert!(directory.path().join("overrides.json.unreadable").exists());
    }
}
