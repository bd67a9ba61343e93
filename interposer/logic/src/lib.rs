//! What the shims do, as a no_std library: find the lease's region, take a place in it, keep the memory account,
//! stand at the gate, and measure bursts of GPU work.
//!
//! Nothing here allocates. The hot path ([`Process::admit`]) takes no lock, uses no thread-local storage and makes
//! no system call. The slow path runs about once per millisecond of GPU work.
//!
//! Rooms: `region` (the files), `registration` and `ended` (a place in them, and whose is free), `memory` (the account), `arrays`, `graphs`, `handles`, `images`,
//! `limits`, `physical` and `pools` (what is charged for things that the driver tells no size of), `pieces`, `sharing` and
//! `names` (what several processes hold, and how they know it), `contexts` (whose memory and work it is), `gate` (the hot
//! path and the slow one behind it), `credit` (what the hot path spends), `estimates` and `learning` (what work is expected
//! to cost), `standing`, `suspension` and `stuck` (at a closed gate, before a lease that is in the host's memory, and where the driver
//! does not return), `copies` (how much a copy moves), `bursts` and `anchors` (measuring), `waits` and `records` (of programs for their work, and for which),
//! `announce` (what is written into the slot about it), `faults` (answers after which a context is lost), `lookup` (what a look-up by name may hand out), `exported_names` (what the real library has at all),
//! `watcher` and `parking` (the thread that looks when the program is silent).
//!
//! Under `cfg(loom)` what models try is built and no more: see `tests/models`.
#![cfg_attr(not(any(test, loom)), no_std)]
#![cfg_attr(loom, allow(dead_code, clippy::modulo_one))]

mod activity;
pub mod anchors;
pub mod announce;
pub mod arrays;
pub mod bursts;
pub mod clock;
pub mod contexts;
pub mod copies;
pub mod credit;
pub mod driver;
#[cfg(not(loom))]
pub mod ended;
pub mod estimates;
pub mod exported_names;
pub mod faults;
pub mod futex;
#[cfg(loom)]
mod futex_model;
#[cfg(not(loom))]
pub mod gate;
pub mod graphs;
pub mod handles;
pub mod images;
pub mod learning;
pub mod limits;
pub mod lookup;
pub mod memory;
#[cfg(not(loom))]
pub mod names;
pub mod parking;
pub mod pause;
pub mod physical;
pub mod pieces;
mod place;
pub mod pools;
#[cfg(not(loom))]
pub mod process;
pub mod records;
pub mod region;
pub mod registration;
pub mod scratch;
#[cfg(not(loom))]
mod sharing;
#[cfg(not(loom))]
pub mod spill;
#[cfg(not(loom))]
mod standing;
#[cfg(not(loom))]
mod stuck;
#[cfg(not(loom))]
mod suspension;
pub mod view;
#[cfg(not(loom))]
pub mod waits;
#[cfg(not(loom))]
pub mod watcher;

#[cfg(test)]
mod fake_driver;

pub use driver::Driver;
pub use estimates::{Bytes, Work};
#[cfg(not(loom))]
pub use gate::Admission;
#[cfg(not(loom))]
pub use process::Process;
pub use view::RegionView;
