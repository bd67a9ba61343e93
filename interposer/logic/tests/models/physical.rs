//! Physical memory, whose calls are noted before and after the driver's, by threads that meet in it.

use gpool_interposer_logic::futex::Mutex;
use gpool_interposer_logic::handles::{Handles, Held};
use gpool_shared_region::PieceSize;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use std::sync::Arc;

/// The one handle that the driver has, and gives again as soon as it can.
const HANDLE: u64 = 7;
const ADDRESS: u64 = 4 << 20;

/// What lives under the handle; nothing without references and mappings.
#[derive(Default)]
struct Memory {
    bytes: u64,
    references: u32,
    /// Whether it shows at the address.
    is_mapped: bool,
}

/// A process with its table, what it is charged, and its driver.
struct Process {
    handles: Mutex<Handles<8>>,
    charged_bytes: AtomicU64,
    driver: Mutex<Memory>,
}

impl Process {
    fn new() -> Arc<Self> {
        let (handles, driver) = (Mutex::new(Handles::new()), Mutex::new(Memory::default()));
        Arc::new(Self { handles, charged_bytes: AtomicU64::new(0), driver })
    }

    /// A driver's call, which changes what there is or is refused. At no moment is there more than is charged.
    fn call(&self, change: impl FnOnce(&mut Memory) -> bool) -> bool {
        let mut memory = self.driver.lock();
        let is_done = change(&mut memory);
        self.check(&memory);
        is_done
    }

    fn check(&self, memory: &Memory) {
        let alive = if memory.references > 0 || memory.is_mapped { memory.bytes } else { 0 };
        let charged = self.charged_bytes.load(Ordering::Acquire);
        assert!(charged >= alive && charged < 1 << 32, "{charged} bytes are charged for {alive} that are held");
    }

    fn give_back(&self, held: &Held) {
        self.charged_bytes.fetch_sub(held.bytes, Ordering::AcqRel);
        self.check(&self.driver.lock());
    }

    /// Notes something, and gives back afterwards what went with it.
    fn note<T>(&self, work: impl FnOnce(&mut Handles<8>, &mut dyn FnMut(&Held)) -> T) -> T {
        let mut all = Vec::new();
        let said = work(&mut self.handles.lock(), &mut |held| all.push(*held));
        all.iter().for_each(|held| self.give_back(held));
        said
    }

    fn create(&self, bytes: u64) -> bool {
        self.charged_bytes.fetch_add(bytes, Ordering::AcqRel);
        let is_made = self.call(|memory| {
            let is_free = memory.references == 0 && !memory.is_mapped;
            if is_free {
                *memory = Memory { bytes, references: 1, is_mapped: false };
            }
            is_free
        });
        match is_made {
            true => self.note(|handles, gone| handles.created(HANDLE, 0, bytes, gone)),
            false => drop(self.charged_bytes.fetch_sub(bytes, Ordering::AcqRel)),
        }
        is_made
    }

    /// Imports what another process has made: the piece that is there or a new one, as long; or if `is_other` one that is
    /// longer, which gets another handle, and is not followed here, while the first one is there.
    fn import(&self, is_other: bool) {
        let bytes = if is_other { 3 * PIECE } else { 2 * PIECE };
        let size = PieceSize::new(0, bytes).expect("it is whole pages");
        self.charged_bytes.fetch_add(bytes, Ordering::AcqRel);
        let is_here = self.call(|memory| {
            if memory.references == 0 && !memory.is_mapped {
                memory.bytes = bytes;
            } else if is_other {
                return false;
            }
            memory.references += 1;
            true
        });
        if !is_here || !self.note(|handles, gone| handles.imported_piece(HANDLE, 0, size, gone)) {
            self.charged_bytes.fetch_sub(bytes, Ordering::AcqRel);
            self.check(&self.driver.lock());
        }
    }

    fn release(&self) -> bool {
        let known = self.handles.lock().releasing(HANDLE);
        let is_released = self.call(|memory| {
            let had = memory.references;
            memory.references = had.saturating_sub(1);
            had > 0
        });
        if let Some(known) = known {
            self.note(|handles, gone| handles.released(known, is_released, gone));
        }
        is_released
    }

    fn map(&self) -> bool {
        let mapping = self.handles.lock().mapping(HANDLE, 1);
        let is_mapped = self.call(|memory| {
            let can = memory.references > 0 && !memory.is_mapped;
            memory.is_mapped |= can;
            can
        });
        let memory = mapping.map(|mapping| mapping.memory);
        self.note(|handles, gone| match (is_mapped, memory) {
            (true, _) => handles.mapped(ADDRESS, 1, memory, gone),
            (false, Some(memory)) => handles.kept(memory, gone),
            (false, None) => {}
        });
        is_mapped
    }

    fn unmap(&self) -> bool {
        let range = self.handles.lock().unmapping(ADDRESS, 1);
        let is_unmapped = self.call(|memory| std::mem::take(&mut memory.is_mapped));
        self.note(|handles, gone| handles.unmapped(range, is_unmapped, gone));
        is_unmapped
    }

    fn retain(&self) -> bool {
        let kept = self.handles.lock().keep_at(ADDRESS);
        let is_retained = self.call(|memory| {
            memory.references += u32::from(memory.is_mapped);
            memory.is_mapped
        });
        match kept {
            Some(kept) if !is_retained => self.note(|handles, gone| handles.kept(kept, gone)),
            None if is_retained => drop(self.handles.lock().retained(HANDLE)),
            _ => {}
        }
        is_retained
    }

    /// Ends all that there is: nothing may stay charged.
    fn end(&self) {
        self.unmap();
        while self.release() {}
        assert_eq!(self.charged_bytes.load(Ordering::Acquire), 0, "all is given back");
    }
}

/// `before` happens, then `one` beside `other`, then all ends.
fn meet<T: 'static>(before: fn(&Process), one: fn(&Process), other: fn(&Process) -> T) {
    loom::model(move || {
        let process = Process::new();
        before(&process);
        let thread = {
            let process = process.clone();
            thread::spawn(move || {
                other(&process);
            })
        };
        one(&process);
        thread.join().unwrap();
        process.end();
    });
}

const PIECE: u64 = 2 << 20;

fn made(process: &Process) {
    assert!(process.create(2 * PIECE));
}

#[test]
fn a_handle_that_comes_again_while_its_release_is_noted_is_charged_as_what_it_is_now() {
    meet(made, |process| assert!(process.release()), |process| process.create(PIECE));
    meet(made, |process| assert!(process.release()), |process| process.create(3 * PIECE));
}

#[test]
fn of_two_who_let_go_the_last_one_gives_back() {
    let twice = |process: &Process| {
        made(process);
        assert!(process.map() && process.retain() && process.unmap());
    };
    meet(twice, |process| assert!(process.release()), |process| assert!(process.release()));
}

#[test]
fn what_is_released_while_it_is_mapped_stays_charged_as_long_as_it_shows() {
    meet(
        made,
        |process| assert!(process.release()),
        |process| {
            if process.map() {
                assert!(process.unmap());
            }
        },
    );
}

#[test]
fn what_is_retained_while_it_is_unmapped_stays_charged_if_that_came_first() {
    let shown = |process: &Process| {
        made(process);
        assert!(process.map() && process.release());
    };
    meet(shown, |process| assert!(process.unmap()), |process| process.retain());
}

#[test]
fn what_is_imported_while_it_is_let_go_of_is_charged_whether_it_is_the_same_or_another() {
    let shown = |process: &Process| {
        process.import(false);
        assert!(process.map() && process.release());
    };
    let (same, other): (fn(&Process), fn(&Process)) = (|process| process.import(false), |process| process.import(true));
    for import in [same, other] {
        meet(|process| process.import(false), |process| assert!(process.release()), import);
        meet(shown, |process| assert!(process.unmap()), import);
    }
}

#[test]
fn an_address_that_is_mapped_again_while_it_is_unmapped_shows_what_is_charged() {
    let shown = |process: &Process| {
        made(process);
        assert!(process.map());
    };
    meet(shown, |process| assert!(process.unmap()), |process| process.map());
}
