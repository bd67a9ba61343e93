//! Memory that several processes hold: it is there until the last of them lets go, whoever made it.

use crate::device::Device;
use serde::{Deserialize, Serialize};

/// The name of a piece of shared memory on its device; never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ShareId(pub u64);

/// A process that holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    process: u32,
    owner: String,
    /// How often it has taken hold of it.
    times: u32,
}

/// One piece. The device counts it with the first of its holders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Share {
    bytes: u64,
    holders: Vec<Holder>,
}

impl Share {
    /// Whether this process holds it.
    pub(crate) fn is_held_by(&self, process: u32) -> bool {
        self.holders.iter().any(|holder| holder.process == process)
    }

    /// The process that the device counts it with, and its bytes.
    pub(crate) fn counted(&self) -> Option<(u32, u64)> {
        self.holders.first().map(|holder| (holder.process, self.bytes))
    }
}

impl Device {
    /// Makes `bytes` of what a process holds outside its contexts a piece that others can take hold of. None if it does
    /// not hold as much.
    pub fn share(&mut self, now_ns: u64, process: u32, bytes: u64) -> Option<ShareId> {
        self.advance(now_ns);
        let (owner, bytes) = self.take_physical(process, bytes)?;
        self.last_share += 1;
        self.shares
            .insert(ShareId(self.last_share), Share { bytes, holders: vec![Holder { process, owner, times: 1 }] });
        Some(ShareId(self.last_share))
    }

    /// A process, which belongs to `owner`, takes hold of a piece. None if it is gone; else its bytes.
    pub fn hold_share(&mut self, now_ns: u64, share: ShareId, process: u32, owner: &str) -> Option<u64> {
        self.advance(now_ns);
        let share = self.shares.get_mut(&share)?;
        match share.holders.iter_mut().find(|holder| holder.process == process) {
            Some(holder) => holder.times += 1,
            None => share.holders.push(Holder { process, owner: owner.to_owned(), times: 1 }),
        }
        Some(share.bytes)
    }

    /// A process lets go of a piece, once for each time that it took hold of it. With the last it is gone.
    pub fn leave_share(&mut self, now_ns: u64, share: ShareId, process: u32) {
        self.advance(now_ns);
        let holders = self.shares.get_mut(&share).map(|share| &mut share.holders);
        let Some(holder) = holders.and_then(|all| all.iter_mut().find(|holder| holder.process == process)) else {
            return;
        };
        holder.times -= 1;
        if holder.times == 0 {
            self.drop_holder(share, process);
        }
    }

    /// A process is gone: it holds nothing any more.
    pub(crate) fn reap_shares(&mut self, process: u32) {
        for share in self.shares.keys().copied().collect::<Vec<_>>() {
            self.drop_holder(share, process);
        }
    }

    /// What was counted with `process` is counted with the next holder, or is free.
    fn drop_holder(&mut self, id: ShareId, process: u32) {
        let Some(share) = self.shares.get_mut(&id) else { return };
        let first = share.holders.first().cloned();
        share.holders.retain(|holder| holder.process != process);
        let (bytes, next) = (share.bytes, share.holders.first().cloned());
        if first == next {
            return;
        }
        if let Some(first) = first {
            self.uncount(&first.owner, bytes);
        }
        match next {
            Some(next) => self.count(&next.owner, bytes),
            None => {
                self.shares.remove(&id);
            }
        }
    }
}
