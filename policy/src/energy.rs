//! Whose the energy is that a GPU has drawn: the device counts it for all together.
//!
//! What it draws with nobody on it belongs to whoever has it promised, used or not, and the rest of that to nobody. What it draws
//! beyond goes to whoever worked, by GPU time; in a moment without work, to those that keep a context on it, in equal parts:
//! a context alone keeps a board from its lowest power. Amounts are millijoules, and no one is given out twice.

/// One lease on the GPU over a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Part {
    /// What it is promised of the GPU, permille.
    pub reserved_permille: u16,
    /// GPU time that it was charged in the moment, nanoseconds.
    pub used_ns: u64,
    /// Whether it has work on the GPU: a long kernel is charged when it has ended.
    pub is_at_work: bool,
    /// Whether it has a context on the GPU.
    pub has_context: bool,
}

/// Over so much time the power is taken as a mean, nanoseconds.
const SPAN_NS: u64 = 10_000_000_000;

/// What a GPU draws with nobody on it: the lowest mean over ten seconds without a context that was ever seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Floor {
    lowest_milliwatts: Option<u64>,
    span_ns: u64,
    span_millijoules: u64,
}

impl Floor {
    /// Notes what was drawn in a moment, and whether anybody had a context.
    pub fn note(&mut self, millijoules: u64, elapsed_ns: u64, is_anybody_there: bool) {
        if is_anybody_there {
            (self.span_ns, self.span_millijoules) = (0, 0);
            return;
        }
        self.span_ns = self.span_ns.saturating_add(elapsed_ns);
        self.span_millijoules = self.span_millijoules.saturating_add(millijoules);
        if self.span_ns < SPAN_NS {
            return;
        }
        let mean = u128::from(self.span_millijoules) * 1_000_000_000 / u128::from(self.span_ns);
        let mean = u64::try_from(mean).unwrap_or(u64::MAX);
        self.lowest_milliwatts = Some(self.lowest_milliwatts.map_or(mean, |lowest| lowest.min(mean)));
        (self.span_ns, self.span_millijoules) = (0, 0);
    }

    /// What it draws in so much time at least, millijoules; 0 as long as nothing is known.
    #[must_use]
    pub fn over(&self, elapsed_ns: u64) -> u64 {
        let millijoules = u128::from(self.lowest_milliwatts.unwrap_or(0)) * u128::from(elapsed_ns) / 1_000_000_000;
        u64::try_from(millijoules).unwrap_or(u64::MAX)
    }
}

/// What was drawn in a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drawn {
    /// All of it.
    pub millijoules: u64,
    /// How much the GPU draws in that time with nobody on it.
    pub floor_millijoules: u64,
    /// How long the moment was.
    pub elapsed_ns: u64,
}

impl Drawn {
    /// What each of them has of it; together no more than all.
    #[must_use]
    pub fn divide(self, parts: &[Part]) -> Vec<u64> {
        let floor = self.floor_millijoules.min(self.millijoules);
        let rest = self.millijoules - floor;
        let sum = |of: &dyn Fn(&Part) -> u64| parts.iter().map(of).fold(0, u64::saturating_add);
        // More than all of a GPU is never promised, but for a moment in which one goes and another one comes.
        let reserved = sum(&|part| part.reserved_permille.into()).max(1000);
        // Those of whose work nothing was charged yet have had the time of which nothing is known.
        let is_uncharged = |part: &Part| part.used_ns == 0 && part.is_at_work;
        let unknown_ns = self.elapsed_ns.saturating_sub(sum(&|part| part.used_ns));
        let each_ns = unknown_ns.checked_div(sum(&|part| is_uncharged(part).into())).unwrap_or(0);
        let worked_ns = |part: &Part| if is_uncharged(part) { each_ns } else { part.used_ns };
        let (all_ns, contexts) = (sum(&worked_ns), sum(&|part| part.has_context.into()));
        let of = |part: &Part| {
            let dynamic = match all_ns {
                0 => share(rest, part.has_context.into(), contexts),
                _ => share(rest, worked_ns(part), all_ns),
            };
            share(floor, part.reserved_permille.into(), reserved) + dynamic
        };
        parts.iter().map(of).collect()
    }
}

/// What of `all` belongs to `part` of `whole`.
fn share(all: u64, part: u64, whole: u64) -> u64 {
    (u128::from(all) * u128::from(part) / u128::from(whole.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: u64 = 1_000_000_000;

    fn part(reserved_permille: u16, used_ns: u64, has_context: bool) -> Part {
        Part { reserved_permille, used_ns, is_at_work: false, has_context }
    }

    fn divide(millijoules: u64, floor_millijoules: u64, parts: &[Part]) -> Vec<u64> {
        Drawn { millijoules, floor_millijoules, elapsed_ns: S }.divide(parts)
    }

    #[test]
    fn the_floor_is_who_has_it_promised_and_the_rest_who_works() {
        let parts = [part(300, S / 2, true), part(600, S / 4, true), part(0, 0, true)];
        assert_eq!(divide(400_000, 100_000, &parts), [30_000 + 200_000, 60_000 + 100_000, 0]);
        let asleep = [part(300, 0, true), part(600, 0, false), part(0, 0, true)];
        assert_eq!(
            divide(160_000, 100_000, &asleep),
            [30_000 + 30_000, 60_000, 30_000],
            "contexts have what they cost"
        );
        assert_eq!(divide(160_000, 100_000, &[part(500, 0, false)]), [50_000], "others, or nobody, have the rest");
        assert_eq!(divide(70, 100, &[part(1000, S, true)]), [70], "a floor that was too high");
        assert_eq!(divide(100, 0, &[]), [0; 0]);
    }

    #[test]
    fn who_is_in_the_middle_of_long_work_has_the_time_that_nobody_was_charged() {
        let long = Part { is_at_work: true, ..part(0, 0, true) };
        let (short, idle) = (part(0, S / 10, true), part(0, 0, true));
        assert_eq!(divide(100_000, 0, &[long, short, idle]), [90_000, 10_000, 0]);
        assert_eq!(divide(100_000, 0, &[long, long, idle]), [50_000, 50_000, 0]);
        assert_eq!(divide(100_000, 0, &[long, part(0, S, true)]), [0, 100_000], "there was no time left");
        let ended = Part { is_at_work: true, ..part(0, 9 * S, true) };
        assert_eq!(divide(100_000, 0, &[ended, part(0, S, true)]), [90_000, 10_000]);
    }

    #[test]
    fn the_floor_is_the_lowest_mean_that_was_seen_with_nobody_there() {
        let mut floor = Floor::default();
        (0..20).for_each(|_| floor.note(60_000, S, true));
        (0..9).for_each(|_| floor.note(80_000, S, false));
        floor.note(90_000, S, true);
        assert_eq!(floor.over(S), 0, "nothing is known yet");
        (0..10).for_each(|_| floor.note(100_000, S, false));
        assert_eq!(floor.over(2 * S), 200_000);
        (0..9).for_each(|_| floor.note(70_000, S, false));
        floor.note(170_000, S, false);
        assert_eq!(floor.over(S), 80_000);
        (0..20).for_each(|_| floor.note(300_000, S, false));
        assert_eq!(floor.over(S), 80_000);
    }

    proptest! {
        #[test]
        fn no_energy_is_given_out_twice(
            millijoules in 0..2_000_000u64,
            floor in 0..2_000_000u64,
            parts in prop::collection::vec((0..=1000u16, prop_oneof![Just(0), 0..2 * S], any::<[bool; 2]>()), 0..12),
        ) {
            let of = |(reserved, used, [is_at_work, on]): (u16, u64, [bool; 2])| Part { is_at_work, ..part(reserved, used, on) };
            let parts: Vec<Part> = parts.into_iter().map(of).collect();
            let given = divide(millijoules, floor, &parts);
            let sum: u64 = given.iter().sum();
            prop_assert!(sum <= millijoules);
            // What nobody has is of the floor, or there is nobody.
            let is_anybody = parts.iter().any(|part| part.used_ns > 0 || part.has_context);
            let rest = millijoules - floor.min(millijoules);
            prop_assert!(!is_anybody || sum + parts.len() as u64 >= rest);
        }
    }
}
