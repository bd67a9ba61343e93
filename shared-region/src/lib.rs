//! The layout that supervisor and interposer share. It is a wire format: a container may run for weeks with
//! the shim it started with, so fields are only ever added in reserved space, and [`VERSION`] says which are there.
//!
//! Each lease has three files, bind-mounted into its container at `/dev/gpool/`:
//!
//! * `control`, one page, mounted read-only: [`Control`]. Only the supervisor writes it.
//! * `report`, read-write for everybody in the container: [`SLOTS`] times [`Slot`], and a [`Roster`]. The supervisor
//!   reads them with pread, through [`SlotSnapshot`] and [`PiecesSnapshot`], and believes nothing in them without a bound.
//! * `bell`, a FIFO: a process writes one byte, its slot's number, whenever the supervisor should look.
//!
//! All times are nanoseconds of CLOCK_MONOTONIC, which containers share with the host.
#![cfg_attr(not(loom), no_std)]
#![forbid(unsafe_code)]

pub mod atomic;
mod burst_tag;
mod call;
mod control;
mod gate_word;
mod pieces;
mod roster;
mod slot;

pub use burst_tag::BurstTag;
pub use call::Call;
pub use control::{CONTROL_BYTES, Control, ControlSlot, Opening};
pub use gate_word::GateWord;
pub use pieces::{PIECE_WORDS, PIECES, Piece, PieceSize, PiecesSnapshot};
pub use roster::{ROSTER_BYTES, ROSTER_OFFSET, Roster};
pub use slot::{BURST_RING, BurstRecord, Demand, SLOT_BYTES, Slot, SlotSnapshot};

/// First eight bytes of `control`: "GPOOLRGN".
pub const MAGIC: u64 = u64::from_le_bytes(*b"GPOOLRGN");
/// Version of this layout.
pub const VERSION: u32 = 3;
/// From this [`Slot::shim_version`] on a process notices that its lease is [suspended](Control::is_suspended), and says when it
/// wants its GPU back. One of an older shim would wait within the driver, and nobody would hear of it.
pub const SUSPENDABLE_VERSION: u32 = 3;
/// Oldest layout that this version still understands, on both sides.
pub const OLDEST_VERSION: u32 = 1;
/// Processes that one lease can hold. A model has two, and one GPU.
pub const SLOTS: usize = if cfg!(loom) { 2 } else { 64 };
/// GPUs that one lease can hold.
pub const GPUS: usize = if cfg!(loom) { 1 } else { 16 };
/// Length of the report file in bytes: the slots and the roster. A supervisor that knew of no roster made it shorter.
pub const REPORT_BYTES: usize = ROSTER_OFFSET + ROSTER_BYTES;

/// Directory in the container; part of the ABI, because the shims carry these paths.
pub const REGION_DIR: &str = "/dev/gpool";
/// File names in the region, on the host and in the container.
pub const CONTROL_FILE: &str = "control";
/// See [`CONTROL_FILE`].
pub const REPORT_FILE: &str = "report";
/// See [`CONTROL_FILE`].
pub const BELL_FILE: &str = "bell";

/// A supervisor whose heartbeat is older than this is taken to be away.
pub const HEARTBEAT_STALE_NS: u64 = 2_000_000_000;
/// How often the supervisor renews its heartbeat.
pub const HEARTBEAT_PERIOD_NS: u64 = 100_000_000;
