//! The atomics of the region and of what is shared around it: the processor's, or loom's under `cfg(loom)`, which tries
//! the orders in which threads may run and see each other's writes.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
