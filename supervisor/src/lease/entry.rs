//! What a lease enters the book with.

use super::account::GpuAccount;
use super::record::Record;
use crate::procfs::WatchedProcess;
use crate::region::RegionHost;
use gpool_protocol::LeaseState;
use std::sync::Arc;

/// A lease on its way into the book.
pub struct Entry {
    pub record: Record,
    pub accounts: Vec<GpuAccount>,
    pub region: Arc<RegionHost>,
    pub requester: Option<WatchedProcess>,
    /// GPU time that it owes from an earlier life.
    pub debt_ns: u64,
    pub state: LeaseState,
    /// Whether an earlier supervisor had granted it.
    pub is_taken_over: bool,
}
