//! Shares that were changed while their containers ran. Who is started anew asks for what its container says, and has what it was
//! changed to, as with `docker update`: also after a restart of the supervisor and a boot.
//!
//! Only for containers of root's engines: what other users may ask for is looked at when they ask for it.

use super::book::Book;
use super::grant::Leases;
use super::placing::Place;
use super::record::Record;
use crate::clock;
use crate::events::About;
use crate::procfs::ProcessName;
use crate::state_file::StateFile;
use gpool_protocol::{
    ContainerId, ErrorBody, EventKind, LeaseId, LeaseRequest, Mechanism, MemoryCap, Mode, PodPlace, Request,
    format_bytes, format_permille,
};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::MutexGuard;
use std::time::Instant;

/// In `[paths] state_dir`.
const NAME: &str = "changes.json";
/// How many are remembered of containers that do not run, the last ones.
const REMEMBERED: usize = 512;

/// What a container asks for by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Without what is another each time that it asks.
    pub request: Request,
    /// Which memory cap it had with that.
    pub cap_bytes: u64,
}

impl Asked {
    /// Of one that is granted as it asks, with this cap.
    pub fn of(request: &Request, cap_bytes: u64) -> Self {
        Self { request: lasting(request), cap_bytes }
    }
}

/// What one container was changed to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Change {
    container_id: ContainerId,
    /// Which container of a pod it is, whose next attempt has another id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    in_pod: Option<PodPlace>,
    /// Another one under its name that asks for something else has that.
    asked: Asked,
    to: Request,
    /// When it was changed last, or ran when another one was, Unix time.
    used_unix_ms: u64,
}

impl Change {
    fn is_of(&self, container: &ContainerId, in_pod: Option<&PodPlace>) -> bool {
        let is_next_attempt = in_pod.is_some() && self.in_pod.as_ref() == in_pod;
        self.container_id == *container || is_next_attempt
    }
}

/// As it stands in the file, to which a newer supervisor may have written what this one cannot read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Entry {
    Known(Box<Change>),
    Unknown(serde_json::Value),
}

impl Entry {
    fn change(&self) -> Option<&Change> {
        match self {
            Self::Known(change) => Some(change),
            Self::Unknown(_) => None,
        }
    }
}

/// All that are remembered.
#[derive(Debug)]
pub struct Changes(StateFile<Vec<Entry>>);

impl Changes {
    /// What was written down in this directory, which need not be there.
    pub fn open(state_dir: &Path) -> Self {
        Self(StateFile::open(state_dir, NAME, "containers that are started anew have what they ask for"))
    }

    /// What a container asks for that was changed when it ran last, as it was changed, and by itself; none if it was not.
    pub fn of(&self, asked: &LeaseRequest, uid: u32) -> Option<(LeaseRequest, Asked)> {
        let (all, lasting) = (self.0.lock(), lasting(&asked.request));
        let is_its = |its: &&Change| uid == 0 && its.is_of(&asked.container_id, asked.in_pod.as_ref());
        let change = all.iter().filter_map(Entry::change).find(is_its).filter(|its| its.asked.request == lasting)?;
        let Request { wait_seconds, deadline, seal, .. } = asked.request.clone();
        let request = Request { wait_seconds, deadline, seal, ..change.to.clone() };
        Some((LeaseRequest { request, ..asked.clone() }, change.asked.clone()))
    }

    /// Has a lease's container be started again with what the lease has now; `with_book` has the book, so that what is written down last
    /// is what was changed last. What cannot be written down holds until the container ends.
    fn note<'a>(&self, id: &LeaseId, with_book: impl FnOnce() -> MutexGuard<'a, Book>) {
        let noted = self.0.change(|all| {
            let book = with_book();
            let records =
                book.leases.values().map(|lease| &lease.record).chain(book.held.iter().map(|its| &its.record));
            let there: Vec<&Record> = records.collect();
            // Its container may have ended meanwhile, and come back.
            if let Some(record) = there.iter().find(|record| record.lease_id == *id) {
                enter(all, record, &there, clock::unix_ms());
            }
        });
        if let Err(cause) = noted {
            log!("what lease {id} was changed to cannot be written down, and holds until its container ends: {cause}");
        }
    }
}

/// Enters what a lease has now beside what its container asks for; `there` are all that have a container, or are kept for one.
fn enter(all: &mut Vec<Entry>, record: &Record, there: &[&Record], now_ms: u64) {
    // Whoever may lease without root may name any container.
    if record.owner_uid != 0 {
        return;
    }
    let is_of = |its: &Change, record: &Record| its.is_of(&record.container_id, record.in_pod.as_ref());
    all.retain(|its| its.change().is_none_or(|its| !is_of(its, record)));
    let Some((asked, to)) = to_be_kept(record) else { return };
    if (Request { mode: asked.request.mode, ..to.clone() }) != asked.request {
        all.push(Entry::Known(Box::new(Change {
            container_id: record.container_id.clone(),
            in_pod: record.in_pod.clone(),
            asked,
            to,
            used_unix_ms: now_ms,
        })));
    }
    let mut gone = Vec::new();
    for (index, entry) in all.iter_mut().enumerate() {
        match entry {
            Entry::Known(its) if there.iter().any(|record| is_of(its, record)) => its.used_unix_ms = now_ms,
            Entry::Known(its) => gone.push((its.used_unix_ms, index)),
            Entry::Unknown(_) => {}
        }
    }
    gone.sort_unstable();
    let mut forgotten: Vec<usize> = gone.iter().rev().skip(REMEMBERED).map(|(_, index)| *index).collect();
    forgotten.sort_unstable_by(|one, next| next.cmp(one));
    forgotten.into_iter().for_each(|index| _ = all.remove(index));
}

/// What the container of a lease asks for by itself, and what it would ask for to have what the lease has now; none where nobody is
/// started again, where a cluster says what it gets, or where the share is a part of something else each time.
fn to_be_kept(record: &Record) -> Option<(Asked, Request)> {
    let asked = record.asked.as_ref()?;
    let is_remembered = record.owner_uid == 0 && !record.starts_once && record.resource.is_none();
    let is_of_gpus =
        record.mig_profile.is_none() && asked.request.mig_profile.is_none() && asked.request.isolation.is_none();
    let mode = match record.mechanism {
        Mechanism::Slice => Mode::Slice,
        Mechanism::TimeSlice => Mode::TimeSlice,
        Mechanism::Exclusive | Mechanism::Mig | Mechanism::Mps => return None,
    };
    let has_other_cap = record.cap_bytes() > 0 && record.cap_bytes() != asked.cap_bytes;
    let had = asked.request.clone();
    let to = Request {
        mode,
        fraction_permille: record.fraction_permille,
        limit_permille: if record.mechanism.has_shims() { record.limit_permille } else { had.limit_permille },
        // One that follows the share has stayed when that was changed.
        memory: if has_other_cap || record.fraction_permille != had.fraction_permille && record.cap_bytes() > 0 {
            Some(MemoryCap::Bytes(record.memory_cap_bytes))
        } else {
            had.memory
        },
        spill_bytes: Some(record.spill_bytes).filter(|bytes| *bytes > 0),
        class: record.class,
        p99_ns: record.p99_ns,
        priority: record.with_its_promise().priority,
        ..had
    };
    (is_remembered && is_of_gpus).then(|| (asked.clone(), to))
}

impl Leases {
    /// A lease has been changed.
    pub fn note_changed(&self, id: &LeaseId) {
        self.changes.note(id, || self.book());
    }

    /// A container has what it asks for, and not what it was changed to, because of this.
    pub fn tell_as_asked(&self, changed: &LeaseRequest, cause: &ErrorBody) {
        let LeaseRequest { request, container_id, .. } = changed;
        let share = format_permille(request.fraction_permille.into());
        let memory = match request.memory {
            Some(MemoryCap::Bytes(bytes)) => format!(" and {}", format_bytes(bytes)),
            _ => String::new(),
        };
        let message = format!(
            "{} has what it asks for, and not {share}{memory}, which it was changed to: {}",
            container_id.short(),
            cause.message
        );
        let of = About { container_id: Some(container_id.clone()), ..About::default() };
        self.events.note(EventKind::LeaseUpdated, of, message);
    }

    /// Room for a container as it was changed when it ran last.
    ///
    /// # Errors
    /// There is none now, or it can be no more.
    pub fn place_as(
        &self,
        changed: &LeaseRequest,
        requester: ProcessName,
        uid: u32,
        deadline: Instant,
    ) -> Result<(MutexGuard<'_, Book>, Place), ErrorBody> {
        self.check_can_be(changed)?;
        self.find_place(changed, requester, uid, deadline)
    }
}

/// Whether there is room for what a container was changed to wherever there is for what it asks for by itself.
pub fn is_no_more(changed: &Request, asked: &Asked) -> bool {
    let its = &asked.request;
    let is_no_more_memory = match changed.memory {
        Some(MemoryCap::Bytes(bytes)) => bytes <= asked.cap_bytes,
        memory => memory == its.memory,
    };
    changed.fraction_permille <= its.fraction_permille
        && changed.spill_bytes <= its.spill_bytes
        && is_no_more_memory
        && (changed.class, changed.priority, changed.p99_ns) == (its.class, its.priority, its.p99_ns)
        && (changed.mode == its.mode || its.mode == Mode::Auto)
}

/// What a container asks for by itself, where it has something else since it was changed; as the end of a sentence.
pub fn told(record: &Record) -> String {
    let Some((asked, to)) = to_be_kept(record) else { return String::new() };
    let its = &asked.request;
    if (Request { mode: its.mode, ..to.clone() }) == *its {
        return String::new();
    }
    let memory = match to.memory != its.memory && record.memory_cap_bytes != asked.cap_bytes {
        true => format!(" and {}", format_bytes(asked.cap_bytes)),
        false => String::new(),
    };
    format!(", as it was changed to: it asks for {}{memory}", format_permille(its.fraction_permille.into()))
}

/// A request without what is another each time, or whose it is.
fn lasting(request: &Request) -> Request {
    Request { seal: None, wait_seconds: None, deadline: None, ..request.clone() }
}

#[cfg(test)]
mod tests;
