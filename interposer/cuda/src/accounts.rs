//! Memory of this process, between the exports and the lease's account.
//!
//! What is charged for a thing is given back when it leaves the table of handles, and at no other moment: that happens
//! once, however many threads race to free it, and what the table does not know gives nothing back.

use crate::{HANDLES, PROCESS};
use crate::{graph_memory, pool_accounts, pools, spill};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};
use gpool_driver_abi::cuda::{
    CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, CUdeviceptr,
    CUresult, CuArrayDestroy,
};
use gpool_interposer_logic::handles::{BurstTag, CAPACITY, Handles, Held, Kind};
use gpool_interposer_logic::memory::Call;
use gpool_interposer_logic::memory::{self, Charge};
use gpool_interposer_logic::pieces::Taken;
use gpool_interposer_logic::process::{Change, Place};

/// Charges on GPU `gpu` before the driver is asked, if need be after pools have given back what they keep without
/// need; what to answer if there is no room, or [`spill::INSTEAD`] where the call has another place for it.
#[inline(never)]
pub fn charge(place: &Place, gpu: usize, charge: Charge, call: Call) -> Result<(), CUresult> {
    if !PROCESS.may_be_charged(place) {
        return Err(CUDA_ERROR_OPERATING_SYSTEM);
    }
    let reserve = || memory::try_reserve(&place.region, place.slot(), gpu, charge);
    if reserve() || pool_accounts::give_back(place, true) && reserve() {
        return Ok(());
    }
    Err(if spill::takes(place, call) { spill::INSTEAD } else { refused(place, gpu, charge, call) })
}

/// The cause goes out of band; the program gets what the driver would say.
#[cold]
#[inline(never)]
pub fn refused(place: &Place, gpu: usize, charge: Charge, call: Call) -> CUresult {
    told(place, gpu, charge, call as u32)
}

#[cold]
#[inline(never)]
fn told(place: &Place, gpu: usize, charge: Charge, call: u32) -> CUresult {
    memory::refuse(&place.region, place.slot(), gpu, charge, call);
    place.ring();
    CUDA_ERROR_OUT_OF_MEMORY
}

/// What to answer where the driver has answered `result` to what had room within the cap, and the charge was taken back: if the GPU
/// itself had none left, that is told, too, unless the call has another place for it, as for [`charge`].
#[inline(never)]
pub fn answered(place: &Place, gpu: usize, charge: Charge, call: Call, result: CUresult) -> CUresult {
    match result {
        CUDA_ERROR_OUT_OF_MEMORY if spill::takes(place, call) => spill::INSTEAD,
        CUDA_ERROR_OUT_OF_MEMORY => told(place, gpu, charge, call as u32 | Call::HAD_ROOM),
        result => result,
    }
}

/// An allocation that is charged and not made yet. The two halves around the driver's call are no generics, so that
/// each allocator adds only its call to the library.
pub struct Reserved {
    place: &'static Place,
    gpu: usize,
    bytes: u64,
    call: Call,
    _change: Change,
}

impl Reserved {
    /// Charges `bytes` in the current context, or says what to answer.
    #[inline(never)]
    pub fn new(call: Call, bytes: u64) -> Result<Self, CUresult> {
        let place = PROCESS.place().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
        let (gpu, bytes) = (PROCESS.current_gpu(place), memory::rounded_bytes(bytes));
        let change = place.change();
        charge(place, gpu, Charge::Bytes(bytes), call)?;
        Ok(Self { place, gpu, bytes, call, _change: change })
    }

    /// Keeps the charge if the driver allocated, with the context; takes it back if it refused.
    #[inline(never)]
    pub fn settle(&self, result: CUresult) -> Option<Held> {
        if result == CUDA_SUCCESS {
            let owner = PROCESS.allocated(self.place, self.bytes).0;
            return Some(Held { owner, ..Held::new(Kind::Memory, 0, self.bytes) });
        }
        memory::release(self.place.slot(), self.gpu, Charge::Bytes(self.bytes));
        None
    }

    /// As [`answered`], once it is settled.
    #[inline(never)]
    pub fn answered(&self, result: CUresult) -> CUresult {
        answered(self.place, self.gpu, Charge::Bytes(self.bytes), self.call, result)
    }

    /// As `settle`, and what was made is remembered by the handle that the driver has written to `handle`. What the table
    /// has no room for stays charged until its context goes. What to answer.
    #[inline(never)]
    pub fn hold(self, result: CUresult, kind: Kind, handle: *const u64) -> CUresult {
        let place = self.place;
        let Some(held) = self.settle(result) else { return self.answered(result) };
        if kind == Kind::Module {
            place.add_image_bytes(held.bytes);
        }
        // SAFETY: the driver succeeded, so `handle` is valid and holds the handle.
        remember(place, Held { kind, handle: unsafe { *handle }, ..held });
        result
    }
}

/// Remembers what has been made and charged. What had its handle before has gone with nobody noticing.
#[inline(never)]
pub fn remember(place: &Place, held: Held) {
    let before = HANDLES.lock().hold(held);
    if let Some(before) = before {
        PROCESS.give_back(place, &before);
    }
}

/// The account may show more than is held from now on. Said before the charge, so that nobody takes that for exact.
#[inline(never)]
pub fn inexact() {
    if let Some(place) = PROCESS.place() {
        place.note_inexact();
    }
}

/// Makes a thing of `bytes` in the current context through `driver`, charged, and remembers it by the handle of eight
/// bytes that the driver writes to `handle`.
pub fn held<T>(kind: Kind, call: Call, handle: *mut T, bytes: u64, driver: impl FnOnce() -> CUresult) -> CUresult {
    const { assert!(size_of::<T>() == size_of::<u64>()) };
    if bytes == 0 {
        let result = driver();
        if result == CUDA_SUCCESS {
            // SAFETY: the driver succeeded, so `handle` is valid and holds the handle.
            forget(kind, unsafe { *handle.cast() });
        }
        return result;
    }
    match Reserved::new(call, bytes) {
        Ok(reserved) => reserved.hold(driver(), kind, handle.cast()),
        Err(refused) => refused,
    }
}

/// `handle` means something that takes nothing; what it meant before went with its context.
#[inline(never)]
pub fn forget(kind: Kind, handle: u64) {
    let before = HANDLES.lock().take(kind, handle);
    if let (Some(before), Some(place)) = (before, PROCESS.place()) {
        PROCESS.give_back(place, &before);
    }
}

/// What has gone is no longer charged.
pub fn gone(held: &Held) {
    if let Some(place) = PROCESS.place() {
        PROCESS.give_back(place, held);
    }
}

/// What is known of a handle that is about to be let go of, until [`left`].
pub struct Known {
    /// Nothing, if nothing is charged for it.
    pub held: Option<Held>,
    place: &'static Place,
    _change: Change,
}

/// What is known of `handle` before it is let go of, with which its entry points begin; or what to answer instead of that.
#[inline(never)]
pub fn known(kind: Kind, handle: u64) -> Result<Known, CUresult> {
    let place = PROCESS.touched_place().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
    let change = place.change();
    Ok(Known { held: HANDLES.lock().leaving(kind, handle), place, _change: change })
}

/// The driver has let go of what was `known`: its charge is taken back.
#[inline(never)]
pub fn left(known: Known, result: CUresult) -> CUresult {
    if let Some(held) = &known.held {
        let held = HANDLES.lock().let_go(held, result == CUDA_SUCCESS);
        if let Some(held) = held {
            PROCESS.give_back(known.place, &held);
        }
    }
    result
}

/// Lets go of what [`held`] has made through `driver`, then takes its charge back.
#[inline(never)]
pub fn let_go(kind: Kind, handle: *mut c_void, driver: CuArrayDestroy) -> CUresult {
    match known(kind, handle as u64) {
        // SAFETY: the driver's function of this type, which checks the handle.
        Ok(known) => left(known, unsafe { driver(handle) }),
        Err(refused) => refused,
    }
}

/// Allocates `bytes` that belong to GPU `gpu` of the lease and to no context through `driver`, charged.
pub fn allocated_on(place: &Place, gpu: usize, bytes: u64, call: Call, driver: impl FnOnce() -> CUresult) -> CUresult {
    let _change = place.change();
    if let Err(refused) = charge_device(place, gpu, bytes, call) {
        return refused;
    }
    let result = driver();
    if result == CUDA_SUCCESS {
        return result;
    }
    PROCESS.release_on_device(place, gpu, bytes);
    answered(place, gpu, Charge::Bytes(bytes), call, result)
}

/// Charges `bytes` that belong to GPU `gpu` of the lease and to no context.
#[inline(never)]
pub fn charge_device(place: &Place, gpu: usize, bytes: u64, call: Call) -> Result<(), CUresult> {
    if !PROCESS.may_be_charged(place) {
        return Err(CUDA_ERROR_OPERATING_SYSTEM);
    }
    let reserve = || PROCESS.reserve_on_device(place, gpu, bytes);
    if reserve() || pool_accounts::give_back(place, true) && reserve() {
        return Ok(());
    }
    Err(refused(place, gpu, Charge::Bytes(bytes), call))
}

/// Takes hold of the piece of the lease that has this name, for what is about to be imported; none where nobody knows it
/// as a piece, and it has to be charged when it is there. Or what to answer. The caller says that it changes what is held, once.
#[cold]
#[inline(never)]
pub fn taken(place: &Place, name: Option<u64>, call: Call) -> Result<Option<usize>, CUresult> {
    let Some(name) = name else { return Ok(None) };
    if !PROCESS.may_be_charged(place) {
        return Err(CUDA_ERROR_OPERATING_SYSTEM);
    }
    let take = || PROCESS.take_piece(place, name);
    let taken = match take() {
        Taken::Refused(_) if pool_accounts::give_back(place, true) => take(),
        taken => taken,
    };
    match taken {
        Taken::Held(piece) => Ok(Some(piece)),
        Taken::Unknown => Ok(None),
        Taken::Refused(size) => Err(refused(place, size.gpu(), Charge::Bytes(size.bytes()), call)),
    }
}

/// Memory that is charged apart from its context goes with it nevertheless. In most processes there is none.
static ARE_BOUND: AtomicBool = AtomicBool::new(false);

/// Whether there has been any.
pub fn are_bound() -> bool {
    ARE_BOUND.load(Ordering::Acquire)
}

/// There is some from now on.
pub fn note_bound() {
    ARE_BOUND.store(true, Ordering::Release);
}

/// Something is opened in the current context, with which it goes: its tag.
pub fn opening(place: &Place) -> BurstTag {
    note_bound();
    PROCESS.current_tag(place)
}

/// Imports through `driver` what is a piece of the lease of this name, of which this process takes hold first, and
/// remembers it by the handle that the driver writes to `handle`. None, with nothing done, where nobody knows it as one. As for
/// [`taken`], the caller says that it changes what is held.
#[cold]
#[inline(never)]
pub fn named(
    kind: Kind,
    call: Call,
    name: Option<u64>,
    handle: *const u64,
    driver: &dyn Fn() -> CUresult,
) -> Option<CUresult> {
    let place = PROCESS.place()?;
    let piece = match taken(place, name, call) {
        Ok(piece) => piece?,
        Err(refused) => return Some(refused),
    };
    let result = driver();
    // SAFETY: read if the driver succeeded, and then `handle` is valid and holds the handle.
    settled(place, piece, kind, (result == CUDA_SUCCESS).then(|| unsafe { *handle }));
    Some(result)
}

/// Whether `handle` is one of a piece of memory that this process has opened before and not closed as often: opened twice,
/// it has one address and is closed twice.
pub fn opened_again(handles: &mut Handles<CAPACITY>, kind: Kind, handle: u64) -> bool {
    let is_opened = |held: &&mut Held| (held.is_on_device() || held.piece().is_some()) && !held.is_ending();
    handles.find(kind, handle).filter(is_opened).map(|held| held.references += 1).is_some()
}

/// This process holds `piece`, for which it has taken hold of it, by `handle`; or not, if the driver gave none.
#[cold]
#[inline(never)]
fn settled(place: &Place, piece: usize, kind: Kind, handle: Option<u64>) {
    let Some(handle) = handle else { return PROCESS.leave_piece(place, piece) };
    place.note_inexact();
    let tag = opening(place);
    let mut handles = HANDLES.lock();
    if opened_again(&mut handles, kind, handle) {
        return PROCESS.leave_piece(place, piece);
    }
    let bytes = PROCESS.piece(place, piece).map_or(0, |(_, size)| size.bytes());
    let mut held = Held::new(kind, handle, bytes).opened_in(tag);
    held.charge_to_piece(piece);
    if let Some(before) = handles.hold(held) {
        PROCESS.give_back(place, &before);
    }
}

/// Frees through `driver`, then takes the charge of `pointer` back.
pub fn freed(pointer: CUdeviceptr, driver: impl FnOnce() -> CUresult) -> CUresult {
    match known(Kind::Memory, pointer) {
        Ok(Known { held: None, .. }) if pools::is_pooled(pointer) => pools::freed(driver),
        Ok(known) => {
            let is_known = known.held.is_some();
            let result = left(known, driver());
            if !is_known {
                graph_memory::freed();
            }
            result
        }
        Err(refused) => refused,
    }
}
