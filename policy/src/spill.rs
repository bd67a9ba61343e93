//! Whether there is room in the host's memory for what containers may have there beside that of their GPUs. It is sold once, as theirs
//! is, since nobody could take back what the device uses.

use std::collections::BTreeMap;

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

    /// Whether `bytes` more can be sold, beside what is kept for those before it in the queue ([`wanted`]).
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

/// Bytes by the user who has them or wants them; one user may stand there more than once.
pub type ByUser = [(u32, u64)];

/// Whether `more_bytes` of `total_bytes` can be sold to the user `uid`, who then has `all_bytes` with one lease, beside what is sold to
/// and wanted by users.
///
/// # Errors
/// Why not.
pub fn check(
    (more_bytes, all_bytes): (u64, u64),
    (sold, wanted): (&ByUser, &ByUser),
    uid: u32,
    total_bytes: u64,
) -> Result<(), Shortage> {
    HostMemory { total_bytes, ..HostMemory::default() }.check(all_bytes)?;
    let (all, own) = (|_| true, |owner| owner == uid);
    let memory = HostMemory { total_bytes, sold_bytes: bytes_of(sold, all), wanted_bytes: bytes_of(wanted, all) };
    if uid != 0 {
        memory.check_user(more_bytes, bytes_of(sold, own).saturating_add(bytes_of(wanted, own)))?;
    }
    memory.check(more_bytes)
}

/// One that waits and asks for some of the host's memory.
#[derive(Debug, Clone, Copy)]
pub struct Wanting {
    /// Who starts it.
    pub uid: u32,
    /// What it asks for beyond what is kept for it with its place, in bytes.
    pub bytes: u64,
    /// Whether that is all that it lacks.
    pub lacks_that_alone: bool,
    /// Whether something is kept for it still: it has not waited for longer than room is kept, or has room on a GPU.
    pub is_kept: bool,
}

/// What of the host's memory those who wait ask for, the first of the queue first, as far as they may have it, by user. As room on a GPU
/// it is kept for nobody for ever who cannot begin; but for the first that lacks nothing else, or smaller ones would have it before it
/// again and again.
#[must_use]
pub fn wanted(waiting: &[Wanting], sold: &ByUser, total_bytes: u64) -> Vec<(u32, u64)> {
    let memory = HostMemory { total_bytes, ..HostMemory::default() };
    let mut all: BTreeMap<u32, u64> = BTreeMap::new();
    let mut is_first = true;
    for one in waiting.iter().filter(|one| one.bytes <= memory.most_of(one.uid == 0)) {
        let is_head = one.lacks_that_alone && std::mem::take(&mut is_first);
        if one.is_kept || is_head {
            let its = all.entry(one.uid).or_default();
            *its = its.saturating_add(one.bytes);
        }
    }
    let of_user = |(uid, bytes): (u32, u64)| match uid {
        0 => (uid, bytes),
        _ => (uid, bytes.min(memory.left_to_user(bytes_of(sold, |owner| owner == uid)))),
    };
    all.into_iter().map(of_user).collect()
}

/// The sum of what those have whom it is about.
fn bytes_of(bytes: &ByUser, is_meant: impl Fn(u32) -> bool) -> u64 {
    let meant = bytes.iter().filter(|(owner, _)| is_meant(*owner)).map(|(_, bytes)| *bytes);
    meant.fold(0, u64::saturating_add)
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
    fn a_user_without_root_has_a_quarter_with_all_that_he_has_and_waits_for() {
        let sold = [(0, 50), (7, 20), (8, 10)];
        let of = |uid, more, wanted: &[(u32, u64)]| check((more, more), (&sold, wanted), uid, 100);
        assert_eq!((of(0, 20, &[]), of(7, 5, &[]), of(8, 15, &[])), (Ok(()), Ok(()), Ok(())));
        assert_eq!(of(7, 6, &[]), Err(Shortage::Part { part_bytes: 25, left_bytes: 5 }));
        assert_eq!(
            of(8, 6, &[(8, 10)]),
            Err(Shortage::Part { part_bytes: 25, left_bytes: 5 }),
            "his own stand before it"
        );
        assert_eq!(of(0, 11, &[(8, 10)]), Err(Shortage::Wanted { free_bytes: 10 }));
        assert_eq!(of(0, 21, &[]), Err(Shortage::Sold { free_bytes: 20 }));
        assert_eq!(
            check((6, 101), (&sold, &[]), 0, 100),
            Err(Shortage::Never { total_bytes: 100 }),
            "with what it has"
        );
    }

    #[test]
    fn who_waits_wants_what_he_may_have_and_for_a_while() {
        let one = |uid, bytes| Wanting { uid, bytes, lacks_that_alone: false, is_kept: true };
        let of = |waiting: &[Wanting], sold: &ByUser| bytes_of(&wanted(waiting, sold, 100), |_| true);
        assert_eq!(of(&[one(0, 30), one(0, 40)], &[]), 70);
        assert_eq!((of(&[one(0, 101)], &[]), of(&[one(7, 26)], &[])), (0, 0), "there is never so much for them");
        let four = [one(7, 25); 4];
        assert_eq!((of(&four, &[]), of(&four, &[(7, 20)])), (25, 5), "a user has his part however often he asks");
        let old = |bytes| Wanting { is_kept: false, ..one(0, bytes) };
        assert_eq!(of(&[old(30)], &[]), 0, "it waits for something else, for longer than room is kept");
        let lacks = |bytes| Wanting { lacks_that_alone: true, ..old(bytes) };
        assert_eq!(of(&[old(10), lacks(30), lacks(40)], &[]), 30, "the first that lacks nothing else");
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
