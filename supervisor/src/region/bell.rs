//! A lease's bell as the supervisor holds it.
//!
//! Who holds the pipe's lock keeps everybody waiting who opens, reads or closes it (see [`aside`](super::aside)); the kernel looks
//! whether it is readable without. So the gatekeeper waits for it and never reads it. What it holds is taken out aside, from
//! time to time, lest it be full.

use super::aside::{self, Errand, Owner};
use crate::clock;
use gpool_shared_region::SLOTS;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Bytes read at once, and how often for one errand: as much as a pipe holds.
const BYTES: usize = 4096;
const READS: usize = 16;

/// The FIFO of one lease.
#[derive(Debug)]
pub struct LeaseBell {
    owner: Owner,
    /// None before it could be opened.
    pipe: OnceLock<OwnedFd>,
    made_ns: u64,
    /// Slots below this have been rung from, as far as it has been read.
    slots: AtomicUsize,
    errand: Errand,
}

impl LeaseBell {
    /// One that has been opened.
    pub fn new(owner: Owner, pipe: OwnedFd) -> Self {
        let bell = Self::unopened(owner);
        bell.set(pipe);
        bell
    }

    /// One that has yet to be.
    pub fn unopened(owner: Owner) -> Self {
        let (pipe, slots, errand) = (OnceLock::new(), AtomicUsize::new(0), Errand::new(owner));
        Self { owner, pipe, made_ns: clock::now_ns(), slots, errand }
    }

    /// It has been opened, for reading and writing and without blocking.
    pub fn set(&self, pipe: OwnedFd) {
        // There is one who opens it.
        let _ = self.pipe.set(pipe);
    }

    /// For waiting, once it could be opened.
    pub fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.get().map(AsFd::as_fd)
    }

    /// Slots below this are known to have been rung from.
    pub fn slots(&self) -> usize {
        self.slots.load(Ordering::Relaxed)
    }

    /// Has what it holds taken out; `heard` is called if that was anything. Who rings at that moment may not be heard
    /// otherwise: the kernel says that a pipe is readable only while it is.
    pub fn empty_aside(self: &Arc<Self>, heard: impl Fn() + Send + 'static) {
        let empty = move |bell: &Self| {
            if bell.empty() {
                heard();
            }
        };
        Errand::ask(self, |bell| &bell.errand, empty);
    }

    /// Takes out what it holds, up to a bound; whether that was anything.
    pub fn empty(&self) -> bool {
        let Some(pipe) = self.pipe() else { return false };
        let (mut bytes, mut has_read) = ([0u8; BYTES], false);
        for _ in 0..READS {
            let Ok(count @ 1..) = rustix::io::read(pipe, &mut bytes) else { break };
            has_read = true;
            let highest = bytes[..count].iter().copied().max().unwrap_or(0);
            self.slots.fetch_max((usize::from(highest) + 1).min(SLOTS), Ordering::Relaxed);
            if count < BYTES {
                break;
            }
        }
        has_read
    }

    /// Whether it has kept a thread waiting for so long.
    pub fn keeps_waiting(&self, time: Duration) -> bool {
        let age = Duration::from_nanos(clock::now_ns().saturating_sub(self.made_ns));
        self.errand.takes(time) || (self.pipe.get().is_none() && age >= time)
    }
}

impl Drop for LeaseBell {
    fn drop(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            aside::ask(self.owner, move || drop(pipe));
        }
    }
}
