//! What a burst's record does not say itself.

/// Where a burst ran: the GPU's index in the lease in the lowest byte, above it the number of the context in its
/// process, 32 bits, and in the highest 24 for how long it stood before the device, in units of 1024 ns; zero from a shim that does not
/// say that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BurstTag(pub u64);

impl BurstTag {
    /// The tag of a burst of context number `context` on GPU `gpu` of the lease.
    pub fn new(gpu: u8, context: u32) -> Self {
        Self(u64::from(context) << 8 | u64::from(gpu))
    }

    /// The GPU's index in the lease, as claimed.
    pub fn gpu(self) -> usize {
        (self.0 & 0xff) as usize
    }

    /// The context's number in its process, as claimed.
    pub fn context(self) -> u32 {
        (self.0 >> 8) as u32
    }

    /// The same of a burst of which the first `ns` nanoseconds passed before it came onto the device, where that has not been said.
    #[must_use]
    pub fn after_queue(self, ns: u64) -> Self {
        Self(self.0 | (ns >> QUEUED_UNIT).min(QUEUED_MOST) << QUEUED_SHIFT)
    }

    /// For how long the burst stood before the device from its start on, as claimed. Nanoseconds, rounded down.
    pub fn queued_ns(self) -> u64 {
        self.0 >> QUEUED_SHIFT << QUEUED_UNIT
    }
}

const QUEUED_SHIFT: u32 = 40;
const QUEUED_UNIT: u32 = 10;
const QUEUED_MOST: u64 = 0xff_ffff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_says_how_long_its_burst_stood_before_the_device() {
        let tag = BurstTag::new(7, u32::MAX);
        assert_eq!(tag.queued_ns(), 0);
        let queued = tag.after_queue(1_000_000);
        assert_eq!((queued.gpu(), queued.context(), queued.queued_ns()), (7, u32::MAX, 976 << 10));
        assert_eq!(tag.after_queue(1023), tag, "rounded down");
        assert_eq!(tag.after_queue(u64::MAX).queued_ns(), 0xff_ffff << 10);
    }
}
