//! Whether there is room in the host's memory for what containers may have there beside that of their GPUs. It is sold once, as theirs
//! is, since nobody could take back what the device uses.

/// The host's memory that is there for this, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostMemory {
    /// All of it.
    pub total_bytes: u64,
    /// What leases may have.
    pub sold_bytes: u64,
    /// What those who wait ask for and stand before the one in question.
    pub wanted_bytes: u64,
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// There is never so much.
    Never {
        /// There is this much, in bytes; 0 where nobody may have any.
        total_bytes: u64,
    },
    /// There is not now.
    Sold {
        /// So much is not sold.
        free_bytes: u64,
    },
    /// It is more than one user is to have.
    Part {
        /// What one user may have.
        part_bytes: u64,
        /// What of that is left.
        left_bytes: u64,
    },
    /// There would be, and others wait for it.
    Wanted {
        /// So much is left beside what they ask for.
        free_bytes: u64,
    },
}

/// What a user without root may have of it: as of the places in the queue, a quarter.
const USER_PART: u64 = 4;

impl HostMemory {
    /// Whether `bytes` more are within the part of a user without root who has `own_bytes`.
    ///
    /// # Errors
    /// They are not.
    pub fn check_user(&self, bytes: u64, own_bytes: u64) -> Result<(), Shortage> {
        let (part_bytes, left_bytes) = (self.total_bytes / USER_PART, self.left_to_user(own_bytes));
        if bytes <= left_bytes { Ok(()) } else { Err(Shortage::Part { part_bytes, left_bytes }) }
    }

    /// The most that a user may ever have: all of it, without root a part.
    #[must_use]
    pub fn most_of(&self, is_root: bool) -> u64 {
        if is_root { self.total_bytes } else { self.total_bytes / USER_PART }
    }

    /// What a user without root who has `own_bytes` may have beside them.
    #[must_use]
    pub fn left_to_user(&self, own_bytes: u64) -> u64 {
        (self.total_bytes / USER_PART).saturating_sub(own_bytes)
    }

    /// Whether `bytes` more can be sold. Of those before it in the queue each has what it asks for before it, also while what that one
    /// lacks is something else: it would wait for ever where those behind it come and go.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, bytes: u64) -> Result<(), Shortage> {
        let Self { total_bytes, sold_bytes, wanted_bytes } = *self;
        let free_bytes = total_bytes.saturating_sub(sold_bytes);
        let left_bytes = free_bytes.saturating_sub(wanted_bytes);
        match bytes {
            0 => Ok(()),
            _ if bytes > total_bytes => Err(Shortage::Never { total_bytes }),
            _ if bytes > free_bytes => Err(Shortage::Sold { free_bytes }),
            _ if bytes > left_bytes => Err(Shortage::Wanted { free_bytes: left_bytes }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_root_has_a_quarter_of_it() {
        let memory = HostMemory { total_bytes: 100, ..HostMemory::default() };
        assert_eq!((memory.check_user(25, 0), memory.check_user(5, 20)), (Ok(()), Ok(())));
        assert_eq!(memory.check_user(6, 20), Err(Shortage::Part { part_bytes: 25, left_bytes: 5 }));
        assert_eq!(memory.check_user(1, 40), Err(Shortage::Part { part_bytes: 25, left_bytes: 0 }));
    }

    #[test]
    fn it_is_sold_once_and_first_to_who_waits() {
        let memory = |sold_bytes, wanted_bytes| HostMemory { total_bytes: 100, sold_bytes, wanted_bytes };
        assert_eq!(memory(0, 0).check(100), Ok(()));
        assert_eq!(memory(0, 0).check(101), Err(Shortage::Never { total_bytes: 100 }));
        assert_eq!(memory(60, 0).check(41), Err(Shortage::Sold { free_bytes: 40 }));
        assert_eq!(memory(60, 30).check(40), Err(Shortage::Wanted { free_bytes: 10 }));
        assert_eq!(memory(60, 30).check(10), Ok(()));
        assert_eq!(memory(60, 500).check(0), Ok(()), "who wants none is in nobody's way");
        assert_eq!(memory(160, 0).check(1), Err(Shortage::Sold { free_bytes: 0 }), "less than was sold before");
        assert_eq!(HostMemory::default().check(1), Err(Shortage::Never { total_bytes: 0 }));
    }
}
