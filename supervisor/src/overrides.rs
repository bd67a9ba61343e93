//! Emergencies. An administrator says that somebody's work comes first for a while, and why: no quota and no budget holds for it,
//! it stands first in the queue among its priority, and lower priorities make room for it without its having waited. What was said is
//! written down, since it should outlive the supervisor and a boot, and is over by itself.
//!
//! What others were promised stays theirs: no guaranteed lease, no reservation and no plan gives way.

use crate::clock;
use crate::drains::{put_aside, write};
use crate::events::About;
use crate::lease::{Holder, Leases, failed};
use crate::ledger::moment;
use gpool_protocol::{ErrorBody, ErrorCode, EventKind, OVERRIDE_SECONDS_MAX, Override, OverrideOf, OverrideRequest};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// In `[paths] state_dir`.
const NAME: &str = "overrides.json";
/// By so much clocks are put right without anybody's wondering.
const CLOCK_STEP_MS: u64 = 60_000;

type All = BTreeMap<OverrideOf, Override>;

/// Those that are in force. The lock is taken after the book's, and nobody holds it while a disk takes its time.
#[derive(Debug)]
pub struct Overrides {
    file: PathBuf,
    /// Held by who changes them.
    changing: Mutex<()>,
    all: Mutex<All>,
}

impl Overrides {
    /// What was written down in this directory, which need not be there. What cannot be read is told and left as it is, aside.
    pub fn open(state_dir: &Path) -> Self {
        let file = state_dir.join(NAME);
        let all = read(&file).unwrap_or_else(|cause| {
            log!("{} cannot be read: {cause}; no override is in force{}", file.display(), put_aside(&file));
            All::new()
        });
        Self { file, changing: Mutex::default(), all: Mutex::new(all) }
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For whom there are any at a moment, Unix milliseconds.
    pub fn holders(&self, unix_ms: u64) -> Vec<Holder> {
        self.lock().values().filter(|its| is_in_force(its, unix_ms)).map(|its| holder(&its.of)).collect()
    }

    /// Those that are in force at a moment, Unix milliseconds.
    pub fn at(&self, unix_ms: u64) -> Vec<Override> {
        self.lock().values().filter(|its| is_in_force(its, unix_ms)).cloned().collect()
    }

    /// The one that is in force now for any of those.
    pub fn of(&self, holders: &[Holder; 2]) -> Option<Override> {
        self.of_at(holders, clock::unix_ms())
    }

    /// The same at a moment, Unix milliseconds.
    pub fn of_at(&self, holders: &[Holder; 2], unix_ms: u64) -> Option<Override> {
        let is_for = |its: &&Override| is_in_force(its, unix_ms) && holders.contains(&holder(&its.of));
        self.lock().values().find(is_for).cloned()
    }

    /// All of them, also those that are over and not taken out yet.
    fn at_all(&self) -> Vec<Override> {
        self.lock().values().cloned().collect()
    }

    /// Writes a change down, then makes it.
    ///
    /// # Errors
    /// It cannot be written, and nothing has changed.
    fn change<T>(&self, make: impl FnOnce(&mut All) -> T) -> io::Result<T> {
        let _turn = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.lock().clone();
        let mut new = old.clone();
        let outcome = make(&mut new);
        if new != old {
            let listed: Vec<&Override> = new.values().collect();
            write(&self.file, &listed)?;
            *self.lock() = new;
        }
        Ok(outcome)
    }
}

/// Whether it holds at a moment. With a clock that is far off, as before a host that has booted has asked for the time, none does that
/// has begun later or would last for longer than any may.
fn is_in_force(its: &Override, unix_ms: u64) -> bool {
    let since_ms = its.since_unix_ms.saturating_sub(CLOCK_STEP_MS);
    let most_ms = OVERRIDE_SECONDS_MAX.saturating_mul(1000).saturating_add(CLOCK_STEP_MS);
    (since_ms..its.until_unix_ms).contains(&unix_ms) && its.until_unix_ms.saturating_sub(unix_ms) <= most_ms
}

fn read(file: &Path) -> io::Result<All> {
    let listed: Vec<Override> = match fs::read(file) {
        Ok(text) => serde_json::from_slice(&text).map_err(io::Error::from)?,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(cause) => return Err(cause),
    };
    Ok(listed.into_iter().map(|its| (its.of.clone(), its)).collect())
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
    let made = leases.overrides.change(|all| {
        let since_unix_ms = all.get(&new.of).filter(|old| is_in_force(old, now_ms)).map(|old| old.since_unix_ms);
        let new = Override { since_unix_ms: since_unix_ms.unwrap_or(now_ms), ..new.clone() };
        all.insert(new.of.clone(), new.clone());
        new
    });
    let made = made.map_err(|cause| failed("no override begins, since it cannot be written down", cause))?;
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
    let ended = leases.overrides.change(|all| all.remove(of));
    let ended = ended.map_err(|cause| failed("the override goes on, since its end cannot be written down", cause))?;
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
    let is_any_over = leases.overrides.lock().values().any(|its| its.until_unix_ms <= now_ms);
    if !is_any_over {
        return;
    }
    let is_over = |its: &Override| its.until_unix_ms <= now_ms;
    let over: Vec<Override> = leases.overrides.at_all().into_iter().filter(is_over).collect();
    let written = leases.overrides.change(|all| all.retain(|_, its| !is_over(its)));
    if let Err(cause) = written {
        // It holds no more all the same, also where the file has it still.
        log!("the end of an override cannot be written down: {cause}");
        leases.overrides.lock().retain(|_, its| !is_over(its));
    }
    over.iter().for_each(|its| told_over(leases, its, None));
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
            overrides.change(|all| all.insert(its.of.clone(), its.clone())).unwrap();
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
        again.change(|all| all.insert(user.of.clone(), user)).unwrap();
        assert!(is_of(Some("b"), 7) && is_of(None, 7) && !is_of(None, 8));
    }

    #[test]
    fn what_cannot_be_read_is_put_aside() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(NAME), "{").unwrap();
        assert_eq!(Overrides::open(directory.path()).at(0), []);
        assert!(directory.path().join("overrides.json.unreadable").exists());
    }
}
