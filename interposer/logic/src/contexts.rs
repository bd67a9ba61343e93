//! The contexts of this process: on which of the lease's GPUs each one lives, what the region calls it, and how much
//! memory was allocated in it. A part of one, as a green context is, has its memory there. One that the driver is about to
//! make is there already, under a name that no handle has: what libraries that are loaded meanwhile take, it takes too.

use crate::driver::Driver;
use core::ptr::null_mut;
use core::sync::atomic::Ordering;
use gpool_driver_abi::cuda::{CUcontext, CUdevice};
use gpool_shared_region::{BurstTag, Control, GPUS};

/// Contexts that are told apart. What further ones hold is given back with the last context on their GPU.
const TABLE: usize = 64;

#[derive(Clone, Copy)]
struct Context {
    handle: CUcontext,
    tag: BurstTag,
    allocated_bytes: u64,
    /// What was allocated in it and lies in the host's memory.
    spilled_bytes: u64,
    /// Uses beyond the one that it was made with (cuCtxAttach).
    attached: u32,
    /// The context that it is a part of, and whose tag it has; null for a whole one.
    whole: CUcontext,
    /// What libraries take in it is charged. Not of one whose beginning was not seen, or that a tool's callback uses while
    /// it is being made: that is charged by the name of its beginning.
    has_libraries: bool,
    /// It was charged when it was met, not before it was made.
    is_met: bool,
    /// What the driver takes for managed memory beside what is asked for is charged in it.
    has_managed: bool,
}

const FREE: Context = Context {
    handle: null_mut(),
    tag: BurstTag(0),
    allocated_bytes: 0,
    spilled_bytes: 0,
    attached: 0,
    whole: null_mut(),
    has_libraries: false,
    is_met: false,
    has_managed: false,
};

/// The table of one process.
pub struct Contexts {
    table: [Context; TABLE],
    last_number: u32,
    /// What the libraries that there are take in each context.
    library_bytes: u64,
}

/// A context that is about to be made.
#[derive(Debug, Clone, Copy)]
pub struct Beginning {
    /// What it has in the place of a handle, which is no odd number.
    name: CUcontext,
    /// What libraries take in it, as far as they were there.
    pub library_bytes: u64,
}

impl Context {
    /// It has an account of its own.
    fn is_whole(&self) -> bool {
        !self.handle.is_null() && self.whole.is_null()
    }

    /// What was allocated in it, in the host's memory or on the device.
    fn account(&mut self, is_spilled: bool) -> &mut u64 {
        if is_spilled { &mut self.spilled_bytes } else { &mut self.allocated_bytes }
    }

    fn is_made(&self) -> bool {
        !self.handle.is_null() && (self.handle as usize).is_multiple_of(2)
    }
}

// SAFETY: opaque handles of the driver, valid on every thread.
unsafe impl Send for Contexts {}

impl Contexts {
    /// None yet. All zero.
    pub const fn new() -> Self {
        Self { table: [FREE; TABLE], last_number: 0, library_bytes: 0 }
    }

    /// The tag of `handle`, if it is known.
    pub fn tag(&self, handle: CUcontext) -> Option<BurstTag> {
        if handle.is_null() { None } else { self.place_of(handle).map(|place| self.table[place].tag) }
    }

    /// Enters `handle`, which lives on GPU `gpu` of the lease, or finds it; its tag.
    pub fn enter(&mut self, handle: CUcontext, gpu: usize) -> BurstTag {
        if let Some(tag) = self.tag(handle) {
            return tag;
        }
        self.last_number += 1;
        let tag = BurstTag::new(gpu as u8, self.last_number);
        if let Some(place) = self.place_of(null_mut()) {
            self.table[place] = Context { handle, tag, ..FREE };
        }
        tag
    }

    /// Enters `handle`, whose beginning was not seen, or finds it; its tag, and whether it is to be charged now. Where there is no room
    /// it is met again and again, and is not.
    pub fn meet(&mut self, handle: CUcontext, gpu: usize) -> (BurstTag, bool) {
        let is_new = self.tag(handle).is_none();
        let tag = self.enter(handle, gpu);
        let entered = self.find(handle).filter(|_| is_new);
        let is_charged = entered.map(|context| context.is_met = true).is_some();
        (tag, is_charged)
    }

    /// Enters `handle` as a part of `whole`; false if that is not known, or there is no room.
    pub fn enter_part(&mut self, handle: CUcontext, whole: CUcontext) -> bool {
        let known = self.find(whole).map(|whole| whole.tag);
        let (Some(tag), None, Some(place)) = (known, self.tag(handle), self.place_of(null_mut())) else { return false };
        if !handle.is_null() {
            self.table[place] = Context { handle, tag, whole, ..FREE };
        }
        !handle.is_null()
    }

    /// The context that has the memory of `handle`, itself where it is a whole one; none if it is not known.
    pub fn whole(&self, handle: CUcontext) -> Option<CUcontext> {
        let context = self.table[self.place_of(handle).filter(|_| !handle.is_null())?];
        Some(if context.is_whole() { handle } else { context.whole })
    }

    /// Whether what goes along with managed memory is charged in the context that has the memory of `handle`; none if that is not
    /// known.
    pub fn has_managed(&mut self, handle: CUcontext) -> Option<bool> {
        let whole = self.whole(handle)?;
        self.find(whole).map(|context| context.has_managed)
    }

    /// It is charged there; false if it was before, or the context is not known.
    pub fn note_managed(&mut self, handle: CUcontext) -> bool {
        let whole = self.whole(handle);
        let context = whole.and_then(|whole| self.find(whole));
        context.is_some_and(|context| !core::mem::replace(&mut context.has_managed, true))
    }

    /// What the libraries that there are take in each context.
    pub fn library_bytes(&self) -> u64 {
        self.library_bytes
    }

    /// A context is about to be made on GPU `gpu` of the lease, and the libraries in it.
    pub fn begin(&mut self, gpu: usize) -> Beginning {
        self.last_number += 1;
        let (tag, library_bytes) = (BurstTag::new(gpu as u8, self.last_number), self.library_bytes);
        let name = (self.last_number as usize * 2 + 1) as CUcontext;
        if let Some(place) = self.place_of(null_mut()) {
            self.table[place] =
                Context { handle: name, tag, allocated_bytes: library_bytes, has_libraries: true, ..FREE };
        }
        Beginning { name, library_bytes }
    }

    /// It has been made: its tag, and whether another thread has met it meanwhile and charged it, too.
    pub fn made(&mut self, begun: Beginning, handle: CUcontext, gpu: usize) -> (BurstTag, bool) {
        let allocated_bytes = self.leave(begun.name).unwrap_or(0);
        let tag = self.enter(handle, gpu);
        let was_met = self.find(handle).is_some_and(|context| core::mem::take(&mut context.is_met));
        if let Some(context) = self.find(handle) {
            context.has_libraries = true;
            context.allocated_bytes = context.allocated_bytes.saturating_add(allocated_bytes);
        }
        (tag, was_met)
    }

    /// It has not: what was allocated in it.
    pub fn refused(&mut self, begun: Beginning) -> u64 {
        self.leave(begun.name).unwrap_or(begun.library_bytes)
    }

    /// Forgets `handle` and its parts: how much was allocated in it.
    pub fn leave(&mut self, handle: CUcontext) -> Option<u64> {
        let context = self.find(handle)?;
        let allocated_bytes = context.allocated_bytes;
        *context = FREE;
        self.table.iter_mut().filter(|context| context.whole == handle).for_each(|part| *part = FREE);
        Some(allocated_bytes)
    }

    /// `handle` has one use more.
    pub fn attach(&mut self, handle: CUcontext) {
        if let Some(context) = self.find(handle) {
            context.attached = context.attached.saturating_add(1);
        }
    }

    /// `handle` has one use less; false if that was its last, which is not taken away.
    pub fn detach(&mut self, handle: CUcontext) -> bool {
        let left = self.find(handle).and_then(|context| {
            context.attached = context.attached.checked_sub(1)?;
            Some(context.attached)
        });
        left.is_some()
    }

    /// `bytes` more were allocated in `handle`, in the host's memory if they are spilled: its tag, if it is known.
    #[inline(never)]
    pub fn add(&mut self, handle: CUcontext, bytes: u64, are_spilled: bool) -> Option<BurstTag> {
        let whole = self.whole(handle)?;
        let context = self.find(whole)?;
        let account = context.account(are_spilled);
        *account = account.saturating_add(bytes);
        Some(context.tag)
    }

    /// `bytes` of what was allocated in the context with this tag were freed; false if it has gone, and they with it.
    #[inline(never)]
    pub fn subtract(&mut self, tag: BurstTag, bytes: u64, are_spilled: bool) -> bool {
        let found = self.table.iter_mut().find(|context| context.is_whole() && context.tag == tag);
        let account = found.map(|context| context.account(are_spilled));
        account.map(|account| *account = account.saturating_sub(bytes)).is_some()
    }

    /// Whether the context with this tag is there.
    pub fn has(&self, tag: BurstTag) -> bool {
        self.table.iter().any(|context| context.is_whole() && context.tag == tag)
    }

    /// What was allocated in `handle` and lies in the host's memory.
    #[cold]
    #[inline(never)]
    pub fn spilled_bytes(&self, handle: CUcontext) -> u64 {
        self.place_of(handle).filter(|_| !handle.is_null()).map_or(0, |place| self.table[place].spilled_bytes)
    }

    /// Adds `bytes` of a library to each context that there is or comes, if `charge` allows it for all that there are; those
    /// before the first for which it does not are `undo`ne.
    pub fn add_to_all(&mut self, bytes: u64, mut charge: impl FnMut(usize) -> bool, undo: impl FnMut(usize)) -> bool {
        for place in 0..TABLE {
            let context = &mut self.table[place];
            if !context.has_libraries {
                continue;
            }
            if !charge(context.tag.gpu()) {
                self.subtract_from(place, bytes, undo);
                return false;
            }
            context.allocated_bytes = context.allocated_bytes.saturating_add(bytes);
        }
        self.library_bytes = self.library_bytes.saturating_add(bytes);
        true
    }

    /// Takes `bytes` of a library from each context that there is or comes.
    pub fn subtract_from_all(&mut self, bytes: u64, undo: impl FnMut(usize)) {
        self.library_bytes = self.library_bytes.saturating_sub(bytes);
        self.subtract_from(TABLE, bytes, undo);
    }

    fn subtract_from(&mut self, end: usize, bytes: u64, mut undo: impl FnMut(usize)) {
        for context in self.table.iter_mut().take(end).filter(|context| context.has_libraries) {
            context.allocated_bytes = context.allocated_bytes.saturating_sub(bytes);
            undo(context.tag.gpu());
        }
    }

    /// Contexts that are there, parts included.
    pub fn count(&self) -> usize {
        self.table.iter().filter(|context| context.is_made()).count()
    }

    /// None is there or about to be made.
    pub fn is_empty(&self) -> bool {
        self.table.iter().all(|context| context.handle.is_null())
    }

    fn find(&mut self, handle: CUcontext) -> Option<&mut Context> {
        if handle.is_null() { None } else { self.place_of(handle).map(|place| &mut self.table[place]) }
    }

    /// Where `handle` is; of null, where there is room.
    #[inline(never)] // many call it, and the compiler would unroll it for each
    fn place_of(&self, handle: CUcontext) -> Option<usize> {
        self.table.iter().position(|context| context.handle == handle)
    }
}

impl Default for Contexts {
    fn default() -> Self {
        Self::new()
    }
}

/// GPUs of the lease; a supervisor of version 1 does not say, and leases one.
pub fn gpus(control: &Control) -> usize {
    (control.gpus.load(Ordering::Relaxed) as usize).clamp(1, GPUS)
}

/// The index in the lease of the GPU with `uuid`, as cuDeviceGetUuid gives it. None if it is not of the lease; of one
/// GPU every device is taken to be it.
pub fn gpu_of_uuid(control: &Control, uuid: &[u8; 16]) -> Option<usize> {
    let gpus = gpus(control);
    if gpus == 1 {
        return Some(0);
    }
    let is_it = |index: &usize| {
        let known = &control.gpu_uuids[*index];
        known.iter().zip(uuid).all(|(known, byte)| known.load(Ordering::Relaxed) == *byte)
    };
    (0..gpus).find(is_it)
}

/// The index in the lease of `device`; what cannot be told is the first.
pub fn gpu_of_device(control: &Control, driver: &Driver, device: Option<CUdevice>) -> usize {
    if gpus(control) == 1 {
        return 0;
    }
    device.and_then(|device| driver.uuid(device)).and_then(|uuid| gpu_of_uuid(control, &uuid)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_driver::region;

    fn make(contexts: &mut Contexts, handle: CUcontext, gpu: usize) -> BurstTag {
        let begun = contexts.begin(gpu);
        contexts.made(begun, handle, gpu).0
    }

    #[test]
    fn contexts_keep_their_number_and_their_bytes() {
        let mut contexts = Contexts::new();
        let [a, b] = [16 as CUcontext, 32 as CUcontext];
        assert_eq!(contexts.enter(a, 0), BurstTag::new(0, 1));
        assert_eq!(contexts.enter(b, 3), BurstTag::new(3, 2));
        assert_eq!((contexts.enter(a, 0), contexts.count()), (BurstTag::new(0, 1), 2));
        contexts.add(a, 100, false);
        contexts.add(b, 7, false);
        assert!(
            contexts.subtract(BurstTag::new(0, 1), 40, false) && !contexts.subtract(BurstTag::new(1, 1), 40, false)
        );
        assert_eq!((contexts.leave(a), contexts.leave(a), contexts.count()), (Some(60), None, 1));
        assert_eq!(contexts.enter(a, 1).context(), 3, "a handle that comes back is another context");
        assert_eq!(contexts.tag(null_mut()), None);
    }

    #[test]
    fn what_goes_along_with_managed_memory_is_charged_once_for_each_whole_context() {
        let mut contexts = Contexts::new();
        let [a, part, b, unknown] = [16, 32, 48, 64].map(|handle: usize| handle as CUcontext);
        contexts.enter(a, 0);
        contexts.enter(b, 0);
        assert!(contexts.enter_part(part, a));
        assert_eq!([part, b, unknown].map(|handle| contexts.has_managed(handle)), [Some(false), Some(false), None]);
        assert!(contexts.note_managed(part) && !contexts.note_managed(a), "a part has its memory in the whole");
        assert!(contexts.note_managed(b) && !contexts.note_managed(unknown));
        assert_eq!([a, part].map(|handle| contexts.has_managed(handle)), [Some(true); 2]);
        contexts.leave(a);
        contexts.enter(a, 0);
        assert_eq!(contexts.has_managed(a), Some(false), "a handle that comes back is another context");
    }

    #[test]
    fn what_each_context_takes_is_charged_in_all_or_none() {
        let mut contexts = Contexts::new();
        let handles = [16 as CUcontext, 32 as CUcontext, 48 as CUcontext];
        let tags: Vec<BurstTag> = (0..3).map(|gpu| make(&mut contexts, handles[gpu], gpu)).collect();
        assert_eq!(tags[2].gpu(), 2);
        let mut charged = [0; 3];
        assert!(contexts.add_to_all(
            5,
            |gpu| {
                charged[gpu] += 5;
                true
            },
            |_| panic!("all have room")
        ));
        let undone = std::cell::RefCell::new(Vec::new());
        assert!(!contexts.add_to_all(7, |gpu| gpu < 2, |gpu| undone.borrow_mut().push(gpu)));
        assert_eq!((charged, undone.take()), ([5; 3], vec![0, 1]));
        assert!(contexts.leave(handles[0]) == Some(5) && contexts.leave(handles[2]) == Some(5));
        contexts.subtract_from_all(5, |gpu| undone.borrow_mut().push(gpu));
        assert_eq!((undone.take(), contexts.leave(handles[1])), (vec![1], Some(0)));
    }

    #[test]
    fn a_context_that_is_about_to_be_made_takes_what_others_take_meanwhile() {
        let mut contexts = Contexts::new();
        let [made, never] = [contexts.begin(1), contexts.begin(0)];
        assert_eq!((contexts.count(), contexts.is_empty()), (0, false));
        assert!(contexts.add_to_all(5, |_| true, |_| panic!("all have room")));
        assert_eq!((contexts.refused(never), contexts.library_bytes()), (5, 5));
        let handle = 16 as CUcontext;
        let (tag, was_met) = contexts.made(made, handle, 1);
        assert_eq!((tag.gpu(), was_met), (1, false));
        let next = contexts.begin(0);
        assert_eq!((next.library_bytes, contexts.count()), (5, 1));
        let mut gpus = Vec::new();
        contexts.subtract_from_all(5, |gpu| gpus.push(gpu));
        assert_eq!((contexts.refused(next), contexts.leave(handle), gpus.len()), (0, Some(0), 2));
        assert!(contexts.is_empty());
    }

    /// As a tool's callback does, which allocates in a context while the driver makes it.
    #[test]
    fn a_context_that_is_used_while_it_is_made_has_its_libraries_once() {
        let mut contexts = Contexts::new();
        assert!(contexts.add_to_all(5, |_| panic!("there is none"), |_| panic!("there is room")));
        let (begun, handle) = (contexts.begin(0), 16 as CUcontext);
        assert!(contexts.meet(handle, 0).1 && !contexts.meet(handle, 0).1);
        contexts.add(handle, 100, false);
        let (mut charged, mut given_back) = (0, 0);
        let mut charge = |_: usize| {
            charged += 1;
            true
        };
        assert!(contexts.add_to_all(7, &mut charge, |_| panic!("there is room")));
        contexts.subtract_from_all(5, |_| given_back += 1);
        assert_eq!((charged, given_back), (1, 1));
        assert!(contexts.made(begun, handle, 0).1, "it has been met");
        contexts.subtract_from_all(7, |_| given_back += 1);
        assert_eq!((given_back, contexts.leave(handle)), (2, Some(100)));
    }

    #[test]
    fn a_part_has_its_memory_in_the_whole_and_goes_with_it() {
        let mut contexts = Contexts::new();
        let [whole, part, other, unknown] = [16, 32, 48, 64].map(|handle: usize| handle as CUcontext);
        let tag = make(&mut contexts, whole, 3);
        assert!(contexts.enter_part(part, whole) && contexts.enter_part(other, whole));
        assert!(!contexts.enter_part(part, whole) && !contexts.enter_part(unknown, unknown));
        assert_eq!((contexts.tag(part), contexts.count()), (Some(tag), 3));
        assert_eq!([whole, part, unknown].map(|handle| contexts.whole(handle)), [Some(whole), Some(whole), None]);
        contexts.add(whole, 100, false);
        assert_eq!(contexts.add(part, 10, false), Some(tag));
        let mut charged = 0;
        let mut charge = |_: usize| {
            charged += 1;
            true
        };
        assert!(contexts.add_to_all(5, &mut charge, |_| panic!("there is room")));
        assert_eq!(charged, 1, "a library is there once");
        assert_eq!((contexts.leave(part), contexts.leave(part)), (Some(0), None));
        assert!(contexts.subtract(tag, 10, false), "what was allocated in it is still there");
        assert_eq!((contexts.leave(whole), contexts.is_empty()), (Some(105), true));
    }

    #[test]
    fn a_gpu_is_known_by_its_uuid_where_there_are_several() {
        let region = region();
        let control = region.control();
        assert_eq!(gpu_of_uuid(control, &[9; 16]), Some(0), "of one GPU every device is it");
        control.gpus.store(2, Ordering::Relaxed);
        control.gpu_uuids[1].iter().for_each(|byte| byte.store(9, Ordering::Relaxed));
        assert_eq!((gpu_of_uuid(control, &[9; 16]), gpu_of_uuid(control, &[8; 16])), (Some(1), None));
        control.gpus.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(gpus(control), GPUS, "an absurd number is bounded");
    }

    #[test]
    fn a_context_goes_with_its_last_use() {
        let mut contexts = Contexts::new();
        let [one, other] = [64, 128].map(|handle: usize| handle as CUcontext);
        contexts.enter(one, 0);
        (0..2).for_each(|_| contexts.attach(one));
        contexts.attach(other);
        assert!(contexts.detach(one) && contexts.detach(one) && !contexts.detach(one));
        assert!(!contexts.detach(other), "unknown ones have no uses");
        contexts.attach(one);
        contexts.leave(one);
        contexts.enter(one, 0);
        assert!(!contexts.detach(one), "another one of this name");
    }
}
