//! What the driver takes for managed memory beside what programs ask for.

use crate::PROCESS;
use crate::accounts::Reserved;
use core::sync::atomic::{AtomicU64, Ordering};
use gpool_driver_abi::cuda::{CUDA_SUCCESS, CUresult};
use gpool_interposer_logic::memory::Call;

/// The driver takes device memory for all managed memory together in pieces of this size, at the first use of a byte of it; its tables
/// for 7.5 GiB took 2 MiB of the last one. Measured on an H200 with driver 580.159.04.
const PIECE_BYTES: u64 = 128 << 20;
/// Contexts whose piece may be known to have been charged; of more than these one is charged once more.
const CONTEXTS: usize = 64;

/// The tags of contexts whose last piece has been charged, by the number of each.
static CHARGED: [AtomicU64; CONTEXTS] = [const { AtomicU64::new(0) }; CONTEXTS];

/// Makes managed memory through `driver`, with a piece of the driver's charged in full if it is the first of its context: so much the
/// last piece may be longer than what is used of it. It stays charged until the context goes.
pub fn with_piece(driver: impl FnOnce() -> CUresult) -> CUresult {
    let piece = match first_piece() {
        Ok(piece) => piece,
        Err(refused) => return refused,
    };
    let result = driver();
    if let Some((place, reserved)) = piece {
        if result != CUDA_SUCCESS {
            place.store(0, Ordering::Relaxed);
        }
        reserved.settle(result);
    }
    result
}

/// The charge of the current context's last piece, if it has none yet, and where that is noted; what to answer if there is no room.
#[inline(never)]
fn first_piece() -> Result<Option<(&'static AtomicU64, Reserved)>, CUresult> {
    let tag = PROCESS.current_tag();
    let place = &CHARGED[tag.context() as usize % CONTEXTS];
    if tag.0 == 0 || place.swap(tag.0, Ordering::Relaxed) == tag.0 {
        return Ok(None);
    }
    match Reserved::new(Call::MemAllocManaged, PIECE_BYTES) {
        Ok(reserved) => Ok(Some((place, reserved))),
        Err(refused) => {
            place.store(0, Ordering::Relaxed);
            Err(refused)
        }
    }
}
