//! The host's memory that leases may have beside that of their GPUs: who may have how much of it, and what is told of it.

use super::book::{Book, Held, Lease};
use super::figures::Figures;
use super::grant::Leases;
use crate::clock;
use crate::queue::Waiter;
use crate::region::Report;
use gpool_policy::spill::{ByUser, HostMemory, Shortage, Wanting, check, wanted};
use gpool_protocol::{ErrorBody, ErrorCode, LeaseId, LeaseRequest, Mechanism, Request, format_bytes};
use std::time::Duration;

impl Lease {
    /// What lies there, where `figures` are its own. Its processes may claim what they like: no more is believed than it was ever allowed
    /// by this supervisor or the one before.
    pub fn spilled_bytes(&self, figures: &Figures) -> u64 {
        figures.spilled_bytes.min(self.record.most_spilled_bytes())
    }

    /// What of the host's memory is its own: what it may have, or what it holds where that is more. Whose GPUs were taken has none.
    fn sold_bytes(&self) -> u64 {
        if self.record.most_spilled_bytes() <= self.record.spill_bytes {
            return self.record.spill_bytes;
        }
        let figures = self.figures(&mut Report::new());
        self.record.spill_bytes.max(self.spilled_bytes(&figures))
    }

    /// What of its own it has not taken yet, so that the host shows it as available.
    fn unspilled_bytes(&self) -> u64 {
        match self.record.spill_bytes {
            0 => 0,
            bytes => bytes.saturating_sub(self.spilled_bytes(&self.figures(&mut Report::new()))),
        }
    }
}

/// What of the host's memory is leases' own and not taken yet, in bytes: it is sold, and nothing of the host's shows it. Of places that are
/// kept and of leases that wait to be taken over that is all.
pub fn unspilled_bytes(book: &Book) -> u64 {
    let leases = book.leases.values().map(Lease::unspilled_bytes);
    leases.chain(held_and_stranded(book, None).map(|(_, bytes)| bytes)).fold(0, u64::saturating_add)
}

impl Leases {
    /// Whether there is room in the host's memory for what a request may have there, beside those who stand before it. Leases that are
    /// thought of as gone have what is theirs: what is suspended keeps it, and nobody is made to go for it.
    ///
    /// # Errors
    /// There is none.
    pub fn check_spill(&self, asked: &LeaseRequest, uid: u32, book: &Book) -> Result<(), ErrorBody> {
        let Some(bytes) = asked.request.spill_bytes else { return Ok(()) };
        let home = home(book, asked, uid);
        // What it had and is kept for it is its own.
        if home.is_some_and(|held| bytes <= held.record.spill_bytes) {
            return Ok(());
        }
        let sold = sold(book, home.map(|held| &held.record.lease_id));
        let wanted = self.wanted(&book.queue.ahead_of(asked, uid), book, &sold);
        self.check_host_memory((bytes, bytes), (&sold, &wanted), uid)
    }

    /// Whether a lease can have `bytes` of the host's memory in place of what it has.
    ///
    /// # Errors
    /// It cannot.
    pub fn check_spill_change(&self, book: &Book, lease: &LeaseId, bytes: u64) -> Result<(), ErrorBody> {
        let Some(lease) = book.leases.get(lease) else { return Ok(()) };
        let more_bytes = bytes.saturating_sub(lease.sold_bytes());
        if more_bytes == 0 {
            return Ok(());
        }
        let sold = sold(book, None);
        let wanted = self.wanted(&book.queue.before_lease(&lease.record, lease.record.priority), book, &sold);
        self.check_host_memory((more_bytes, bytes), (&sold, &wanted), lease.record.owner_uid)
    }

    /// Whether what is asked for is more than a user may have at any time.
    pub fn is_too_much_spill(&self, asked: &LeaseRequest, uid: u32) -> bool {
        let memory = HostMemory { total_bytes: self.configuration().spill.bytes(), ..HostMemory::default() };
        asked.request.spill_bytes.is_some_and(|bytes| bytes > memory.most_of(uid == 0))
    }

    fn wanted(&self, waiting: &[&Waiter], book: &Book, sold: &ByUser) -> Vec<(u32, u64)> {
        let configuration = self.configuration();
        let keep = Duration::from_secs(configuration.queue.keep_seconds);
        let asks = |waiter: &&&Waiter| waiter.asked.request.spill_bytes.is_some() && !waiter.is_over_quota;
        let asks: Vec<Wanting> =
            waiting.iter().filter(asks).map(|waiter| wanting(waiter, book, (keep, clock::now_ns()))).collect();
        wanted(&asks, sold, configuration.spill.bytes())
    }

    fn check_host_memory(&self, bytes: (u64, u64), by_users: (&ByUser, &ByUser), uid: u32) -> Result<(), ErrorBody> {
        let checked = check(bytes, by_users, uid, self.configuration().spill.bytes());
        checked.map_err(|shortage| worded(shortage, bytes.0))
    }
}

/// What one that waits wants of the host's memory beyond what is kept for it with its place.
fn wanting(waiter: &Waiter, book: &Book, (keep, now_ns): (Duration, u64)) -> Wanting {
    let kept_bytes = home(book, &waiter.asked, waiter.uid).map_or(0, |held| held.record.spill_bytes);
    Wanting {
        uid: waiter.uid,
        bytes: waiter.asked.request.spill_bytes.unwrap_or(0).saturating_sub(kept_bytes),
        lacks_that_alone: waiter.lacks_host_memory,
        is_kept: waiter.waited(now_ns) <= keep || waiter.has_room_kept(),
    }
}

/// The place that is kept for who asks.
fn home<'a>(book: &'a Book, asked: &LeaseRequest, uid: u32) -> Option<&'a Held> {
    book.held.iter().find(|held| held.record.is_started_anew_by(asked, uid))
}

/// Who has how much of the host's memory, in bytes, by the user who started the container, places that are kept and leases that wait to be
/// taken over included; without the kept place `own`.
fn sold(book: &Book, own: Option<&LeaseId>) -> Vec<(u32, u64)> {
    let leases = book.leases.values().map(|lease| (lease.record.owner_uid, lease.sold_bytes()));
    leases.chain(held_and_stranded(book, own)).collect()
}

/// The same of those alone that are no leases of this supervisor.
fn held_and_stranded<'a>(book: &'a Book, own: Option<&'a LeaseId>) -> impl Iterator<Item = (u32, u64)> + 'a {
    let held = book.held.iter().filter(move |held| Some(&held.record.lease_id) != own);
    let held = held.map(|held| (held.record.owner_uid, held.record.spill_bytes));
    // What they hold nobody reads. One that is just taken over is in both.
    let stranded = book.stranded.iter().filter(|record| !book.leases.contains_key(&record.lease_id));
    held.chain(stranded.map(|record| (record.owner_uid, record.most_spilled_bytes())))
}

/// Whether what serves a request that may have memory of the host can have any go there.
///
/// # Errors
/// It has no shims.
pub fn check_can_spill(request: &Request, mechanism: Mechanism) -> Result<(), ErrorBody> {
    if request.spill_bytes.is_none() || mechanism.has_shims() {
        return Ok(());
    }
    Err(ErrorBody::new(
        ErrorCode::NoMechanism,
        format!("spill does not go with mode={mechanism}, which is what serves this request here"),
        "leave spill out, or ask for mode=slice",
    ))
}

fn worded(shortage: Shortage, bytes: u64) -> ErrorBody {
    // Where both would read the same, in MiB.
    let text = |of: u64, other: u64| match format_bytes(of) == format_bytes(other) && of != other {
        true => format!("{}MiB", of >> 20),
        false => format_bytes(of),
    };
    let asked = |there: u64| text(bytes, there);
    match shortage {
        Shortage::Never { total_bytes: 0 } => ErrorBody::new(
            ErrorCode::RequestNotAllowed,
            format!("{} of the host's memory cannot be had: this host has none for containers", asked(0)),
            "leave spill out, or let [spill] memory in config.toml say how much containers may have and run gpool config reload",
        ),
        Shortage::Never { total_bytes } => ErrorBody::new(
            ErrorCode::RequestNotAllowed,
            format!(
                "{} of the host's memory cannot be had: all containers together may have {}",
                asked(total_bytes),
                text(total_bytes, bytes)
            ),
            "ask for less with spill, or raise [spill] memory in config.toml and run gpool config reload",
        ),
        Shortage::Part { part_bytes, left_bytes } => ErrorBody::new(
            ErrorCode::QuotaReached,
            format!(
                "{} more of the host's memory is asked for, and a user without root may have {} of it, of which {} is left",
                asked(left_bytes),
                format_bytes(part_bytes),
                text(left_bytes, bytes)
            ),
            "ask for less with spill, or stop a container of your own that has some (gpool ps --format wide)",
        ),
        Shortage::Sold { free_bytes } => ErrorBody::new(
            ErrorCode::MemoryNotFree,
            format!(
                "{} more of the host's memory is asked for, and {} is free",
                asked(free_bytes),
                text(free_bytes, bytes)
            ),
            "ask for less, lower that of another one with gpool update --spill, stop a container, or start it with wait",
        ),
        Shortage::Wanted { free_bytes } => ErrorBody::new(
            ErrorCode::MemoryNotFree,
            format!(
                "{} more of the host's memory is asked for, and {} is free beside what those ask for who wait",
                asked(free_bytes),
                text(free_bytes, bytes)
            ),
            "ask for less, or start it with wait (gpool queue ls shows who waits)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Record, sample};
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_shortage_says_what_there_is_and_what_to_do() {
        let told = |shortage| worded(shortage, 8 << 30);
        let none = told(Shortage::Never { total_bytes: 0 });
        assert!(none.message.contains("8GiB") && none.remedy.contains("[spill] memory"), "{none}");
        assert_eq!(none.code, ErrorCode::RequestNotAllowed, "nobody waits for it");
        let less = told(Shortage::Never { total_bytes: 4 << 30 });
        assert!(less.message.contains("may have 4GiB"), "{less}");
        for shortage in [Shortage::Sold { free_bytes: 1 << 30 }, Shortage::Wanted { free_bytes: 1 << 30 }] {
            let told = told(shortage);
            assert!(told.message.contains("1GiB is free"), "{told}");
            assert_eq!(told.code, ErrorCode::MemoryNotFree, "one may wait for it");
        }
        let little = worded(Shortage::Sold { free_bytes: 1 << 30 }, 1025 << 20);
        assert!(little.message.starts_with("1025MiB") && little.message.contains("1024MiB is free"), "{little}");
    }

    #[test]
    fn places_that_are_kept_and_leases_that_wait_to_be_taken_over_have_what_is_theirs() {
        let record = |id: &str, spill_bytes, highest| Record {
            lease_id: LeaseId(id.into()),
            owner_uid: 7,
            spill_bytes,
            highest_spill_bytes: Some(highest),
            ..sample()
        };
        let held = |record| Held { record, gpus: vec![0], until: Instant::now() };
        let mut gone = record("d", 16, 16);
        gone.give_share_up();
        let book = Book {
            held: vec![held(record("a", 1, 2)), held(record("b", 4, 4))],
            stranded: vec![record("c", 8, 32), gone],
            ..Book::default()
        };
        let bytes = |own: Option<&str>| sold(&book, own.map(|id| LeaseId(id.into())).as_ref());
        assert_eq!(bytes(None), [(7, 1), (7, 4), (7, 32), (7, 0)]);
        assert_eq!(bytes(Some("b")), [(7, 1), (7, 32), (7, 0)], "who comes back has its own");
        assert_eq!(unspilled_bytes(&book), 1 + 4 + 32, "none of which is for others to be moved into");
    }
}
