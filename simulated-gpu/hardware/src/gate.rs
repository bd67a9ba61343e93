//! The gate of a process's driver: one page that the process has in common with the server. Each call of the driver counts
//! itself in and out; while the server has closed the gate, calls wait in front of it.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const PAGE_BYTES: usize = 4096;

/// What lies at the page's start; a page of zeroes is an open gate.
#[repr(C)]
struct Words {
    is_closed: AtomicU32,
    /// Calls in the driver.
    inside: AtomicU32,
    /// Pieces of memory that cannot leave the device.
    unmovable: AtomicU32,
    /// Set for a process that cannot be suspended at all.
    is_barred: AtomicU32,
}

/// The page, mapped. The process writes to all of it, and so the server believes nothing that would hurt it.
#[derive(Debug)]
pub struct Gate(*mut Words);

// SAFETY: the page is used through atomic operations alone, and stays mapped until this value is dropped.
unsafe impl Send for Gate {}
// SAFETY: as above.
unsafe impl Sync for Gate {}

impl Gate {
    /// A new gate, open, and the file whose page it is, for the process.
    pub(crate) fn create() -> io::Result<(Self, OwnedFd)> {
        let file = memfd_create("gpool-simulated-gate", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, PAGE_BYTES as u64)?;
        // Nobody takes the page from under the other one.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map(&file)?, file))
    }

    /// Maps the gate that lies in a file of [`Gate::create`].
    pub(crate) fn map(file: impl AsFd) -> io::Result<Self> {
        let (protection, sharing) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at no address in particular.
        let page = unsafe { mmap(std::ptr::null_mut(), PAGE_BYTES, protection, sharing, file, 0) }?;
        Ok(Self(page.cast()))
    }

    fn words(&self) -> &Words {
        // SAFETY: the page is aligned, as long as the words, valid as any words, and mapped as long as `self` lives.
        unsafe { &*self.0 }
    }

    /// Lets a call in, which is inside until what this gives is dropped. Waits while the gate is closed.
    pub fn enter(&self) -> Inside<'_> {
        let words = self.words();
        loop {
            words.inside.fetch_add(1, Ordering::SeqCst);
            let inside = Inside(self);
            if words.is_closed.load(Ordering::SeqCst) == 0 {
                return inside;
            }
            drop(inside);
            while words.is_closed.load(Ordering::SeqCst) != 0 {
                // A signal, and a gate that has been opened meanwhile, end the wait early.
                let _ = futex::wait(&words.is_closed, futex::Flags::empty(), 1, None);
            }
        }
    }

    /// Closes the gate, or opens it for all who wait.
    pub(crate) fn set_closed(&self, is_closed: bool) {
        let word = &self.words().is_closed;
        if word.swap(is_closed.into(), Ordering::SeqCst) != u32::from(is_closed) && !is_closed {
            // It fails for no address that is mapped.
            let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Whether no call is inside.
    pub(crate) fn is_empty(&self) -> bool {
        self.words().inside.load(Ordering::SeqCst) == 0
    }

    /// From now on this process cannot be suspended, as no client or server of MPS can.
    pub fn bar(&self) {
        self.words().is_barred.store(1, Ordering::SeqCst);
    }

    pub(crate) fn is_barred(&self) -> bool {
        self.words().is_barred.load(Ordering::SeqCst) != 0
    }

    pub(crate) fn has_unmovable(&self) -> bool {
        self.words().unmovable.load(Ordering::SeqCst) != 0
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, to which nobody has a reference any more. It cannot fail.
        let _ = unsafe { munmap(self.0.cast(), PAGE_BYTES) };
    }
}

/// A call inside the driver.
#[derive(Debug)]
pub struct Inside<'a>(&'a Gate);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.words().inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A piece of memory that cannot leave the device, while this value is there.
#[derive(Debug)]
pub struct Unmovable(Arc<Gate>);

impl Unmovable {
    /// One more such piece of the process whose gate this is.
    pub fn new(gate: &Arc<Gate>) -> Self {
        gate.words().unmovable.fetch_add(1, Ordering::SeqCst);
        Self(gate.clone())
    }
}

impl Drop for Unmovable {
    fn drop(&mut self) {
        self.0.words().unmovable.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn who_is_inside_is_counted_and_nobody_enters_a_closed_gate() {
        let (gate, file) = Gate::create().unwrap();
        let other = Gate::map(&file).unwrap();
        let inside = other.enter();
        gate.set_closed(true);
        assert!(!gate.is_empty());
        std::thread::scope(|scope| {
            let late = scope.spawn(|| drop(other.enter()));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!late.is_finished());
            drop(inside);
            // Whoever knocked has gone back to wait.
            assert!(gate.is_empty());
            gate.set_closed(false);
        });
        assert!(gate.is_empty());
    }

    #[test]
    fn what_cannot_move_is_counted_while_it_is_there() {
        let (gate, file) = Gate::create().unwrap();
        let other = Arc::new(Gate::map(&file).unwrap());
        let pieces = [Unmovable::new(&other), Unmovable::new(&other)];
        assert!(gate.has_unmovable() && !gate.is_barred());
        drop(pieces);
        assert!(!gate.has_unmovable());
        other.bar();
        assert!(gate.is_barred());
    }

    #[test]
    fn a_process_cannot_shorten_the_page() {
        let (_gate, file) = Gate::create().unwrap();
        assert!(ftruncate(&file, 0).is_err());
    }
}
