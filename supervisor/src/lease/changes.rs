//! Shares that were changed while their containers ran. Who is started anew asks for what its container says, and has what it was
//! changed to, as with `docker update`: also after a restart of the supervisor and a boot.

use super::book::Book;
use super::grant::Leases;
use super::placing::Place;
use super::record::Record;
use crate::clock;
use crate::procfs::ProcessName;
use crate::state_file::StateFile;
use gpool_protocol::{
    ContainerId, ErrorBody, ErrorCode, LeaseRequest, LeaseUpdate, Mechanism, MemoryCap, PodPlace, Request,
    format_bytes, format_permille,
};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::path::Path;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// In `[paths] state_dir`.
const NAME: &str = "changes.json";
/// Of containers that have not been started for so long nothing is remembered.
const REMEMBERED_MS: u64 = 90 * 24 * 3600 * 1000;
/// How many of one user's are, the last ones.
const OF_USER: usize = 256;
/// That one is still started is written down so often: it costs a disk's time.
const NOTED_MS: u64 = 24 * 3600 * 1000;
/// Who was refused sooner is looked after once more: who asks hears of nothing after [`GRANT_PATIENCE`](super::placing::GRANT_PATIENCE).
const SECOND_LOOK: Duration = Duration::from_secs(2);

/// What one container was changed to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Change {
    container_id: ContainerId,
    /// Which container of a pod it is, whose next attempt has another id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    in_pod: Option<PodPlace>,
    owner_uid: u32,
    /// What it asks for: another one under its name that asks for something else has that.
    asked: Request,
    to: LeaseUpdate,
    /// When it was changed or started last, Unix time.
    used_unix_ms: u64,
}

impl Change {
    fn is_of(&self, container: &ContainerId, in_pod: Option<&PodPlace>, uid: u32) -> bool {
        let is_next_attempt = in_pod.is_some() && self.in_pod.as_ref() == in_pod;
        self.owner_uid == uid && (self.container_id == *container || is_next_attempt)
    }

    /// What the container asks for with what was changed.
    fn changed(&self) -> Request {
        let (asked, to) = (self.asked.clone(), &self.to);
        Request {
            fraction_permille: to.fraction_permille.unwrap_or(asked.fraction_permille),
            limit_permille: if to.no_limit { None } else { to.limit_permille.or(asked.limit_permille) },
            memory: to.memory_bytes.map(MemoryCap::Bytes).or(asked.memory),
            spill_bytes: to.spill_bytes.or(asked.spill_bytes).filter(|bytes| *bytes > 0),
            class: to.class.unwrap_or(asked.class),
            p99_ns: if to.no_p99 { None } else { to.p99_ns.or(asked.p99_ns) },
            priority: to.priority.unwrap_or(asked.priority),
            ..asked
        }
    }
}

/// All that are remembered, the one that was changed last at the end.
#[derive(Debug)]
pub struct Changes(StateFile<Vec<Change>>);

impl Changes {
    /// What was written down in this directory, which need not be there.
    pub fn open(state_dir: &Path) -> Self {
        Self(StateFile::open(state_dir, NAME, "containers that are started anew have what they ask for"))
    }

    /// What a container asks for that was changed when it ran last, if it was; of whatever it waits for the same.
    pub fn of(&self, asked: &LeaseRequest, uid: u32) -> Option<LeaseRequest> {
        let all = self.0.lock();
        let change = all.iter().find(|its| its.is_of(&asked.container_id, asked.in_pod.as_ref(), uid))?;
        // A cap that was changed is of what can be had, whatever the first one was of.
        let memory_of_all = asked.memory_of_all && change.to.memory_bytes.is_none();
        let is_it = change.asked == without_seal(&asked.request);
        is_it.then(|| LeaseRequest { request: change.changed(), memory_of_all, ..asked.clone() })
    }

    /// What a container asks for by itself that is granted this.
    pub fn asked_first(&self, granted: &LeaseRequest, uid: u32) -> Request {
        let (all, request) = (self.0.lock(), without_seal(&granted.request));
        let change = all.iter().find(|its| its.is_of(&granted.container_id, granted.in_pod.as_ref(), uid));
        change.filter(|its| its.changed() == request).map_or(request, |its| its.asked.clone())
    }

    /// The lease has been changed, and is what `record` says now. What cannot be written down holds until its container ends.
    pub fn note(&self, record: &Record, change: &LeaseUpdate) {
        // Nobody is started again, or a cluster says what that one gets.
        let Some(asked) = record.asked.as_ref().filter(|_| !record.starts_once && record.resource.is_none()) else {
            return;
        };
        let now_ms = clock::unix_ms();
        let noted = self.0.change(|all| {
            let is_its = |its: &Change| its.is_of(&record.container_id, record.in_pod.as_ref(), record.owner_uid);
            let old = all.iter().position(is_its).map(|index| all.remove(index));
            let before = old.filter(|old| old.asked == *asked).map_or(LeaseUpdate::default(), |old| old.to);
            let new = Change {
                container_id: record.container_id.clone(),
                in_pod: record.in_pod.clone(),
                owner_uid: record.owner_uid,
                asked: asked.clone(),
                to: merged(before, change, record),
                used_unix_ms: now_ms,
            };
            if new.changed() != new.asked {
                all.push(new);
            }
            forget(all, now_ms);
        });
        if let Err(cause) = noted {
            log!(
                "what {} was changed to cannot be written down, and holds until it ends: {cause}",
                record.container_id.short()
            );
        }
    }

    /// It has been started.
    pub fn note_used(&self, asked: &LeaseRequest, uid: u32) {
        let now_ms = clock::unix_ms();
        let is_its = |its: &Change| its.is_of(&asked.container_id, asked.in_pod.as_ref(), uid);
        let is_late = |its: &Change| now_ms.saturating_sub(its.used_unix_ms) >= NOTED_MS;
        if !self.0.lock().iter().any(|its| is_its(its) && is_late(its)) {
            return;
        }
        let noted = self.0.change(|all| {
            all.iter_mut().filter(|its| is_its(its)).for_each(|its| its.used_unix_ms = now_ms);
        });
        if let Err(cause) = noted {
            log!("that {} was started cannot be written down: {cause}", asked.container_id.short());
        }
    }
}

impl Leases {
    /// What a container that was changed when it ran last is served as, with what `found` finds for that; none where there is nothing,
    /// and it has what it asks for.
    ///
    /// # Errors
    /// A container of its name that runs, or what took so long that whoever asks would not hear of a second look.
    pub fn as_changed<T>(
        &self,
        (asked, uid): (&LeaseRequest, u32),
        found: impl Fn(&LeaseRequest) -> Result<T, ErrorBody>,
    ) -> Result<Option<(LeaseRequest, T)>, ErrorBody> {
        let Some(changed) = self.changes.of(asked, uid) else { return Ok(None) };
        let begun = Instant::now();
        match found(&changed) {
            Ok(found) => Ok(Some((changed, found))),
            Err(refusal) if refusal.code == ErrorCode::LeaseConflict || begun.elapsed() > SECOND_LOOK => Err(refusal),
            Err(_) => Ok(None),
        }
    }
}

type Found<'a, 'b> = (Cow<'b, LeaseRequest>, (MutexGuard<'a, Book>, Place));

impl Leases {
    /// Finds room for a container as it was changed when it ran last, or where there is none as it asks; and which it is.
    ///
    /// # Errors
    /// As [`Leases::check_can_be`] and [`Leases::find_place`].
    pub fn find_as_changed<'a, 'b>(
        &'a self,
        asked: &'b LeaseRequest,
        requester: ProcessName,
        uid: u32,
    ) -> Result<Found<'a, 'b>, ErrorBody> {
        let found = |asked: &LeaseRequest| {
            self.check_can_be(asked)?;
            self.find_place(asked, requester, uid)
        };
        match self.as_changed((asked, uid), found)? {
            Some((changed, found)) => Ok((Cow::Owned(changed), found)),
            None => Ok((Cow::Borrowed(asked), found(asked)?)),
        }
    }
}

/// What a container asks for by itself, where it has something else since it was changed; as the end of a sentence.
pub fn told(record: &Record) -> String {
    let is_plain = record.mechanism == Mechanism::Slice && record.mig_profile.is_none() && record.resource.is_none();
    let Some(asked) = record.asked.as_ref().filter(|_| is_plain) else { return String::new() };
    let memory = match asked.memory {
        Some(MemoryCap::Bytes(bytes)) if bytes != record.memory_cap_bytes => format!(" and {}", format_bytes(bytes)),
        _ => String::new(),
    };
    let is_same = (asked.fraction_permille, asked.limit_permille, asked.class, asked.p99_ns)
        == (record.fraction_permille, record.limit_permille, record.class, record.p99_ns);
    if is_same && memory.is_empty() {
        return String::new();
    }
    format!(", as it was changed to: it asks for {}{memory}", format_permille(asked.fraction_permille.into()))
}

/// What was changed so far with what has been changed now.
fn merged(before: LeaseUpdate, change: &LeaseUpdate, record: &Record) -> LeaseUpdate {
    let takes_limit = change.no_limit || change.limit_permille.is_some();
    let takes_p99 = change.no_p99 || change.p99_ns.is_some();
    let fraction_permille = change.fraction_permille.or(before.fraction_permille);
    // Without one of its own a cap would follow the share, and it has stayed.
    let is_pinned = fraction_permille.is_some() && record.mechanism.has_shims();
    let memory_bytes = change.memory_bytes.or(before.memory_bytes);
    LeaseUpdate {
        fraction_permille,
        limit_permille: if takes_limit { change.limit_permille } else { before.limit_permille },
        no_limit: if takes_limit { change.no_limit } else { before.no_limit },
        memory_bytes: memory_bytes.or(is_pinned.then_some(record.memory_cap_bytes)),
        spill_bytes: change.spill_bytes.or(before.spill_bytes),
        class: change.class.or(before.class),
        p99_ns: if takes_p99 { change.p99_ns } else { before.p99_ns },
        no_p99: if takes_p99 { change.no_p99 } else { before.no_p99 },
        priority: change.priority.or(before.priority),
        // It begins anew with each start.
        run_seconds: None,
        no_run_time: false,
    }
}

/// Takes out what was not used for long, and of each user the oldest beyond as many as are remembered.
fn forget(all: &mut Vec<Change>, now_ms: u64) {
    all.retain(|its| now_ms.saturating_sub(its.used_unix_ms) < REMEMBERED_MS);
    let Some(uid) = all.last().map(|its| its.owner_uid) else { return };
    while all.iter().filter(|its| its.owner_uid == uid).count() > OF_USER {
        let of_user = all.iter().enumerate().filter(|(_, its)| its.owner_uid == uid);
        let Some((oldest, _)) = of_user.min_by_key(|(_, its)| its.used_unix_ms) else { return };
        all.remove(oldest);
    }
}

/// A request as it is kept.
fn without_seal(request: &Request) -> Request {
    Request { seal: None, ..request.clone() }
}

#[cfg(test)]
mod tests {
    use super::super::record::sample;
    use super::*;
    use gpool_protocol::Priority;

    fn asked(id: &str, request: &str) -> LeaseRequest {
        serde_json::from_str(&format!(r#"{{"container_id":"{id}","request":{request}}}"#)).unwrap()
    }

    fn update(text: &str) -> LeaseUpdate {
        serde_json::from_str(text).unwrap()
    }

    const PLAIN: &str = r#"{"fraction_permille":300,"limit_permille":600}"#;

    #[test]
    fn who_is_started_anew_has_what_it_was_changed_to_and_another_one_has_not() {
        let directory = tempfile::tempdir().unwrap();
        let (changes, its) = (Changes::open(directory.path()), asked("c", PLAIN));
        assert_eq!(changes.of(&its, 0), None);
        let record = Record { asked: Some(its.request.clone()), fraction_permille: 500, ..sample() };
        changes.note(&record, &update(r#"{"fraction_permille":500}"#));
        changes.note(&record, &update(r#"{"no_limit":true,"priority":"burst","run_seconds":60}"#));
        let again = Changes::open(directory.path());
        let changed = again.of(&its, 0).unwrap();
        let want = Request {
            fraction_permille: 500,
            limit_permille: None,
            memory: Some(MemoryCap::Bytes(record.memory_cap_bytes)),
            priority: Priority::Burst,
            ..its.request.clone()
        };
        assert_eq!(changed.request, want, "with the memory that it had, and a run time that begins anew");
        assert_eq!(again.asked_first(&changed, 0), its.request);
        assert_eq!(again.asked_first(&its, 0), its.request, "as it was asked for");
        assert_eq!(again.of(&its, 1000), None, "of another user");
        assert_eq!(again.of(&asked("d", PLAIN), 0), None);
        assert_eq!(again.of(&asked("c", r#"{"fraction_permille":300}"#), 0), None, "made anew under its name");
        let limited = r#"{"fraction_permille":300,"limit_permille":600,"memory_bytes":4294967296}"#;
        let whole = asked("e", r#"{"fraction_permille":300,"limit_permille":600,"memory":{"bytes":4294967296}}"#);
        let record =
            Record { asked: Some(whole.request.clone()), container_id: whole.container_id.clone(), ..sample() };
        changes.note(&record, &update(r#"{"fraction_permille":200}"#));
        assert!(changes.of(&whole, 0).is_some());
        changes.note(&record, &update(limited));
        assert_eq!(changes.of(&whole, 0), None, "it has what it asks for again");
    }

    #[test]
    fn nothing_is_remembered_of_who_does_not_come_back_or_is_a_clusters() {
        let directory = tempfile::tempdir().unwrap();
        let changes = Changes::open(directory.path());
        let its = asked("c", PLAIN);
        let plain = Record { asked: Some(its.request.clone()), ..sample() };
        let counted = Some(gpool_protocol::CountedResource::Percent(30));
        for record in [
            Record { asked: None, ..plain.clone() },
            Record { starts_once: true, ..plain.clone() },
            Record { resource: counted, ..plain.clone() },
        ] {
            changes.note(&record, &update(r#"{"fraction_permille":500}"#));
            assert_eq!(changes.of(&its, 0), None);
        }
        let place = |name: &str| Some(PodPlace { sandbox_id: "s".into(), container_name: name.into() });
        changes.note(&Record { in_pod: place("web"), ..plain }, &update(r#"{"fraction_permille":500}"#));
        let next = |name: &str| LeaseRequest { in_pod: place(name), ..asked("next", PLAIN) };
        assert!(changes.of(&next("web"), 0).is_some() && changes.of(&next("log"), 0).is_none());
    }

    #[test]
    fn the_oldest_of_a_user_are_forgotten_and_nobody_elses() {
        let change = |uid: u32, number: u64| Change {
            container_id: ContainerId(format!("{number}")),
            in_pod: None,
            owner_uid: uid,
            asked: asked("c", PLAIN).request,
            to: LeaseUpdate::default(),
            used_unix_ms: REMEMBERED_MS + number,
        };
        let mut all: Vec<Change> = vec![change(0, 1)];
        for number in 2..OF_USER as u64 + 4 {
            all.push(change(7, number));
            forget(&mut all, REMEMBERED_MS + number);
        }
        assert_eq!((all.len(), all[0].owner_uid, all[1].used_unix_ms), (OF_USER + 1, 0, REMEMBERED_MS + 4));
        forget(&mut all, 2 * REMEMBERED_MS + 10);
        assert_eq!(all.first().map(|its| its.used_unix_ms), Some(REMEMBERED_MS + 11));
    }
}
