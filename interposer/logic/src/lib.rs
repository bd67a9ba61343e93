//! What the shims do, as a no_std library: find the lease's region, take a place in it, keep the memory account,
//! stand at the gate, and measure bursts of GPU work.
//!
//! Nothing here allocates. The hot path ([`Process::admit`]) takes no lock, uses no thread-local storage and makes
//! no system call. The slow path runs about once per millisecond of GPU work.
//!
//! Rooms: `region` (the files), `registration` (a place in them), `memory` (the account), `arrays`, `handles`, `images`,
//! `limits`, `physical` and `pools` (what is charged for things that the driver tells no size of), `contexts` (whose
//! memory and work it is), `gate` (the hot path and the slow one behind it), `credit` (what the hot path spends),
//! `estimates` and `learning` (what work is expected to cost), `copies` (how much a copy moves), `bursts` and `anchors`
//! (measuring), `lookup` (what a look-up by name may hand out), `exported_names` (what the real library has at all),
//! `watcher` (the thread that looks when the program is silent).
#![cfg_attr(not(test), no_std)]

mod activity;
pub mod anchors;
pub mod arrays;
pub mod bursts;
pub mod clock;
pub mod contexts;
pub mod copies;
pub mod credit;
pub mod driver;
pub mod estimates;
pub mod exported_names;
pub mod futex;
pub mod gate;
pub mod handles;
pub mod images;
pub mod learning;
pub mod limits;
pub mod lookup;
pub mod memory;
pub mod pause;
pub mod physical;
pub mod pools;
pub mod process;
pub mod region;
pub mod registration;
pub mod view;
pub mod watcher;

#[cfg(test)]
mod fake_driver;

pub use driver::Driver;
pub use estimates::{Bytes, Work};
pub use gate::Admission;
pub use process::Process;
pub use view::RegionView;
