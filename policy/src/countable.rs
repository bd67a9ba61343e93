//! What a cluster may count on. Its scheduler takes off what it has given to its own containers, and knows of nobody else on a
//! host.

use crate::admission::{GpuCapacity, WHOLE_PERMILLE};

/// Permille of a share in a hundredth.
const PERMILLE_OF_A_HUNDREDTH: u16 = 10;

/// How much of `all` a cluster may have given out: what it has `counted` for its own already, and what is `free`. What is left
/// when it has taken off the first is then the second, whatever others have.
#[must_use]
pub fn available(all: u32, counted: u32, free: u32) -> u32 {
    counted.saturating_add(free).min(all)
}

impl GpuCapacity {
    /// Whole hundredths of its share that are not promised, for whoever can be beside those on it.
    #[must_use]
    pub fn hundredths_free(&self) -> u32 {
        let is_full = self.users.whole > 0 || self.memory_free_bytes() == 0;
        let free = WHOLE_PERMILLE.saturating_sub(self.fraction_leased_permille);
        if is_full { 0 } else { u32::from(free / PERMILLE_OF_A_HUNDREDTH) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::{Site, Users};
    use proptest::prelude::*;

    #[test]
    fn what_is_promised_is_not_free() {
        let gpu = GpuCapacity {
            key: "GPU-0".into(),
            memory_total_bytes: 8,
            memory_foreign_bytes: 0,
            fraction_leased_permille: 0,
            memory_leased_bytes: 0,
            users: Users::default(),
            site: Site::default(),
        };
        assert_eq!(gpu.hundredths_free(), 100);
        assert_eq!(GpuCapacity { fraction_leased_permille: 305, ..gpu.clone() }.hundredths_free(), 69);
        assert_eq!(GpuCapacity { fraction_leased_permille: 1000, ..gpu.clone() }.hundredths_free(), 0);
        let whole = Users { whole: 1, ..Users::default() };
        assert_eq!(GpuCapacity { users: whole, ..gpu.clone() }.hundredths_free(), 0);
        assert_eq!(GpuCapacity { memory_foreign_bytes: 8, ..gpu }.hundredths_free(), 0, "nobody starts without memory");
    }

    proptest! {
        /// Of one host: what the cluster's containers have, what others have, and what is promised to nobody. What the scheduler
        /// takes for free is that.
        #[test]
        fn what_a_scheduler_takes_for_free_is(own in 0u32..800, others in 0u32..800, free in 0u32..800) {
            prop_assert_eq!(available(own + others + free, own, free) - own, free);
        }

        /// A container that was given more since, or nothing of its share: more is never offered than there is.
        #[test]
        fn no_more_is_offered_than_there_is(all in 0u32..1600, counted in 0u32..3000, free in 0u32..1600) {
            let available = available(all, counted, free);
            prop_assert!(available <= all && available.saturating_sub(counted) <= free);
        }
    }
}
