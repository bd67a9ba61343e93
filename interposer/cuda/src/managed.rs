//! What the driver takes for managed memory beside what programs ask for.

use crate::PROCESS;
use crate::accounts::Reserved;
use gpool_driver_abi::cuda::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, CUresult};
use gpool_interposer_logic::memory::Call;

/// The driver takes device memory for all managed memory together in pieces of this size, at the first use of a byte of it; its tables
/// for 7.5 GiB took 2 MiB of the last one. Measured on an H200 with driver 580.159.04.
const PIECE_BYTES: u64 = 128 << 20;

/// Makes `bytes` of managed memory through `driver`, with a piece of the driver's charged in full if they are the first of their context:
/// so much the last piece may be longer than what is used of it. It stays charged until the context goes.
pub fn with_piece(bytes: usize, driver: impl FnOnce() -> CUresult) -> CUresult {
    // The driver refuses none.
    let is_first = bytes > 0 && PROCESS.lacks_managed();
    let piece = match is_first.then(|| Reserved::new(Call::MemAllocManaged, PIECE_BYTES)).transpose() {
        Ok(piece) => piece,
        Err(refused) => return refused,
    };
    let result = driver();
    if let Some(piece) = piece {
        // Two threads may have charged one each.
        let is_kept = result == CUDA_SUCCESS && PROCESS.note_managed();
        piece.settle(if is_kept { CUDA_SUCCESS } else { CUDA_ERROR_OUT_OF_MEMORY });
    }
    result
}
