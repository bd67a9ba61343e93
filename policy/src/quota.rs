//! Quotas: how much the leases of one team or of one user may reserve altogether, wherever there is room.
//!
//! A quota bounds what is promised, never what is left idle: who has reserved nothing of a GPU's time is bounded by its memory
//! and its number alone. What runs keeps what it has when a quota is lowered; it only gets no more.

/// What leases reserve, or what one asks for. In these three a quota is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Guaranteed share of all GPUs together, in thousandths of a GPU.
    pub share_permille: u64,
    /// Memory caps of all GPUs together.
    pub memory_bytes: u64,
    /// Number of leases.
    pub leases: u64,
}

impl Amounts {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            share_permille: self.share_permille.saturating_add(other.share_permille),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
            leases: self.leases.saturating_add(other.leases),
        }
    }

    /// What is left of it without the other.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            share_permille: self.share_permille.saturating_sub(other.share_permille),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
            leases: self.leases.saturating_sub(other.leases),
        }
    }

    /// Its amount of one thing.
    #[must_use]
    pub fn of(&self, what: Dimension) -> u64 {
        match what {
            Dimension::Share => self.share_permille,
            Dimension::Memory => self.memory_bytes,
            Dimension::Leases => self.leases,
        }
    }
}

/// What a quota bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// Guaranteed share, in thousandths of a GPU.
    Share,
    /// Memory, in bytes.
    Memory,
    /// Number of leases.
    Leases,
}

/// The most that somebody may have reserved at once; none: as much as there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ceiling {
    /// Guaranteed share of all GPUs together, in thousandths of a GPU.
    pub share_permille: Option<u64>,
    /// Memory caps of all GPUs together.
    pub memory_bytes: Option<u64>,
    /// Number of leases.
    pub leases: Option<u64>,
}

impl Ceiling {
    fn all(&self) -> [(Dimension, Option<u64>); 3] {
        [
            (Dimension::Leases, self.leases),
            (Dimension::Share, self.share_permille),
            (Dimension::Memory, self.memory_bytes),
        ]
    }
}

/// Why a quota does not let a request in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// What there is too much of.
    pub what: Dimension,
    /// What the other leases of the same team or user have reserved.
    pub held: u64,
    /// What is asked for.
    pub asked: u64,
    /// The quota.
    pub allowed: u64,
}

impl Excess {
    /// Whether it would be too much also if nothing else were held: no end of a lease helps.
    #[must_use]
    pub fn is_for_ever(&self) -> bool {
        self.asked > self.allowed
    }

    /// What could be asked for now.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.allowed.saturating_sub(self.held)
    }
}

/// Whether a lease may have `asked` where the others of its team or user hold `held`. `had` is what it has itself, before a
/// change or a restart: what does not grow is always allowed, also above a quota that was lowered since.
///
/// # Errors
/// The first thing of which it would be too much.
pub fn check(ceiling: &Ceiling, held: Amounts, had: Amounts, asked: Amounts) -> Result<(), Excess> {
    for (what, allowed) in ceiling.all() {
        let Some(allowed) = allowed else { continue };
        let (held, had, asked) = (held.of(what), had.of(what), asked.of(what));
        if asked > had && held.saturating_add(asked) > allowed {
            return Err(Excess { what, held, asked, allowed });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;
    const NOTHING: Amounts = Amounts { share_permille: 0, memory_bytes: 0, leases: 0 };

    fn amounts(share_permille: u64, gib: u64, leases: u64) -> Amounts {
        Amounts { share_permille, memory_bytes: gib * GIB, leases }
    }

    const TWO_GPUS: Ceiling = Ceiling { share_permille: Some(2000), memory_bytes: Some(40 * GIB), leases: Some(3) };

    #[test]
    fn each_of_the_three_is_bounded_by_itself_and_to_the_last_thousandth() {
        for (held, asked, over) in [
            (amounts(1500, 20, 2), amounts(500, 20, 1), None),
            (amounts(1500, 20, 2), amounts(501, 1, 1), Some((Dimension::Share, 500))),
            (amounts(1500, 20, 2), amounts(100, 21, 1), Some((Dimension::Memory, 20 * GIB))),
            (amounts(100, 1, 3), amounts(1, 1, 1), Some((Dimension::Leases, 0))),
            // Who reserves no share needs no quota of it.
            (amounts(2000, 20, 2), amounts(0, 20, 1), None),
            // Nor does a quota that was lowered below what is held.
            (amounts(9000, 20, 2), amounts(0, 20, 1), None),
            (amounts(9000, 20, 2), amounts(1, 20, 1), Some((Dimension::Share, 0))),
        ] {
            let found = check(&TWO_GPUS, held, NOTHING, asked).err().map(|excess| (excess.what, excess.left()));
            assert_eq!(found, over, "{held:?} {asked:?}");
        }
        let most = Amounts { share_permille: u64::MAX, memory_bytes: u64::MAX, leases: u64::MAX };
        assert_eq!(check(&Ceiling::default(), most, NOTHING, most), Ok(()));
        assert!(check(&TWO_GPUS, most, NOTHING, amounts(1, 1, 1)).is_err(), "sums do not wrap");
    }

    #[test]
    fn what_is_larger_than_the_quota_fits_at_no_time() {
        let over = |held, asked| check(&TWO_GPUS, held, NOTHING, asked).unwrap_err().is_for_ever();
        assert!(over(NOTHING, amounts(2001, 1, 1)));
        assert!(!over(amounts(1, 0, 1), amounts(2000, 1, 1)));
        let nobody = Ceiling { leases: Some(0), ..Ceiling::default() };
        assert!(check(&nobody, NOTHING, NOTHING, amounts(1, 1, 1)).unwrap_err().is_for_ever());
    }

    #[test]
    fn what_does_not_grow_is_allowed_above_a_quota_that_was_lowered() {
        let (others, had) = (amounts(3000, 100, 9), amounts(800, 10, 1));
        for asked in [had, amounts(100, 10, 1), amounts(800, 1, 1)] {
            assert_eq!(check(&TWO_GPUS, others, had, asked), Ok(()), "{asked:?}");
        }
        for (asked, what) in [(amounts(801, 10, 1), Dimension::Share), (amounts(1, 11, 1), Dimension::Memory)] {
            assert_eq!(check(&TWO_GPUS, others, had, asked).unwrap_err().what, what);
        }
    }

    /// What happens to one of some leases: it is asked for or changed, it ends, or the quota becomes another.
    #[derive(Clone, Debug)]
    enum Step {
        Ask(usize, Amounts),
        End(usize),
        Lower(Ceiling),
    }

    fn some_amounts() -> impl Strategy<Value = Amounts> {
        (0u64..1500, 0u64..9).prop_map(|(share_permille, gib)| amounts(share_permille, gib, 1))
    }

    fn some_step() -> impl Strategy<Value = Step> {
        let bound = |most: u64| proptest::option::of(0..most);
        prop_oneof![
            6 => (0usize..6, some_amounts()).prop_map(|(which, asked)| Step::Ask(which, asked)),
            2 => (0usize..6).prop_map(Step::End),
            1 => (bound(4000), bound(30), bound(5)).prop_map(|(share_permille, gib, leases)| {
                Step::Lower(Ceiling { share_permille, memory_bytes: gib.map(|gib| gib * GIB), leases })
            }),
        ]
    }

    proptest! {
        /// Whatever is asked for, changed, ended or lowered: nothing is ever above the quota but what was there before it.
        #[test]
        fn the_sum_is_never_above_the_quota(steps in proptest::collection::vec(some_step(), 1..60)) {
            let (mut leases, mut ceiling) = ([NOTHING; 6], TWO_GPUS);
            let sum = |leases: &[Amounts; 6]| leases.iter().fold(NOTHING, |sum, its| sum.plus(*its));
            for step in steps {
                let before = sum(&leases);
                match step {
                    Step::Ask(which, asked) => {
                        let had = leases[which];
                        if check(&ceiling, before.minus(had), had, asked).is_ok() {
                            leases[which] = asked;
                        }
                    }
                    Step::End(which) => leases[which] = NOTHING,
                    Step::Lower(lower) => ceiling = lower,
                }
                for (what, allowed) in ceiling.all() {
                    let most = allowed.map_or(u64::MAX, |allowed| allowed.max(before.of(what)));
                    prop_assert!(sum(&leases).of(what) <= most, "{what:?} of {leases:?} under {ceiling:?}");
                }
            }
        }
    }
}
