//! How long the driver's time slices must be so that tenants whose work the hardware serves by turns get their shares.
//!
//! The hardware goes round over the channel groups that have work and gives each its own time slice. With slices in the
//! ratio of the weights, backlogged tenants get time in that ratio; who has no work takes no turn, and its time is the
//! others'. Seen on an H100 with 580.159.04: 16 ms to 1 ms gave 0.943 and 0.057 of the kernels, 1 ms to 16 ms the reverse.

/// What all tenants that have work take together in one round.
const ROUND_US: u64 = 32_000;
/// The shortest part of a tenant in a round: an exchange of contexts costs about 0.2 ms.
const SHORTEST_US: u64 = 1_000;
/// What an exchange of contexts takes of everybody's time. An H100 loses 9 % to slices of 2 ms.
const EXCHANGE_US: u64 = 200;
/// The part of a round that may go to exchanges beyond one for each tenant; with more, shares are not what was promised.
const MOST_EXCHANGED_PERMILLE: u64 = 50;
/// The longest slice: somebody else waits for so long.
const LONGEST_US: u64 = 50_000;
/// What those that were promised nothing have together at least, in millionths of a GPU.
const LEAST_PPM: u64 = 10_000;
/// What each of them has at least, however many they are.
const LEAST_EACH_PPM: u64 = 1_000;
/// A whole GPU, in permille.
const WHOLE_PERMILLE: u64 = 1000;
const PPM_PER_PERMILLE: u64 = 1000;

/// One tenant of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// What it was promised of the GPU's time, in permille; 0 for one that was promised nothing.
    pub share_permille: u16,
    /// How many channel groups its contexts that compute have; each gets a turn. 0 is taken as 1.
    pub groups: u32,
}

/// The weight of each tenant in a round, in millionths of a GPU. What nobody was promised is divided among those that were promised
/// nothing. Where all was promised they have a hundredth together, and more only when there are more than ten of them.
fn weights(tenants: &[Tenant]) -> Vec<u64> {
    let unpromised = tenants.iter().filter(|tenant| tenant.share_permille == 0).count() as u64;
    let promised: u64 = tenants.iter().map(|tenant| u64::from(tenant.share_permille)).sum();
    let rest = (WHOLE_PERMILLE.saturating_sub(promised) * PPM_PER_PERMILLE).max(LEAST_PPM);
    let each = rest.checked_div(unpromised).unwrap_or(0).max(LEAST_EACH_PPM);
    let weight = |tenant: &Tenant| match tenant.share_permille {
        0 => each,
        permille => u64::from(permille) * PPM_PER_PERMILLE,
    };
    tenants.iter().map(weight).collect()
}

/// The time slice of each channel group of each tenant, in microseconds, in their order.
///
/// What nobody was promised is divided among those that were promised nothing, so a promise holds whoever else is there.
#[must_use]
pub fn time_slices_us(tenants: &[Tenant]) -> Vec<u64> {
    let weights = weights(tenants);
    let (Some(least), Some(most)) = (weights.iter().min(), weights.iter().max()) else { return Vec::new() };
    let sum: u64 = weights.iter().sum();
    // A round is longer where the least tenant's part of the usual one would be too short. How many groups it has is its own
    // matter: they share its part, however short that makes their slices, and lengthen nobody's round.
    let stretched_us = (SHORTEST_US * sum).div_ceil(*least);
    let round_us = stretched_us.min(LONGEST_US * sum / most).max(ROUND_US);
    let slice_us = |(weight, tenant): (&u64, &Tenant)| {
        (round_us * weight / sum / u64::from(tenant.groups.max(1))).clamp(1, LONGEST_US)
    };
    weights.iter().zip(tenants).map(slice_us).collect()
}

/// Whether slices as [`time_slices_us`] gives them keep the shares. Each channel group takes a turn, and each turn an exchange:
/// a tenant with many of them takes that much more than its part from everybody. So do many that were promised nothing, by what each
/// of them has at least.
#[must_use]
pub fn are_kept(tenants: &[Tenant], slices_us: &[u64]) -> bool {
    let turns = || tenants.iter().map(|tenant| u64::from(tenant.groups.max(1)));
    let round_us: u64 = turns().zip(slices_us).map(|(groups, us)| groups * us).sum();
    let more: u64 = turns().map(|groups| groups - 1).sum();
    let has_promised = tenants.iter().any(|tenant| tenant.share_permille > 0);
    let sum: u64 = weights(tenants).iter().sum();
    let is_diluted = has_promised && sum > WHOLE_PERMILLE * PPM_PER_PERMILLE + LEAST_PPM;
    !is_diluted && more * EXCHANGE_US * WHOLE_PERMILLE <= round_us * MOST_EXCHANGED_PERMILLE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_turns_of_one_are_told_to_keep_nobodys_share() {
        let kept = |tenants: &[(u16, u32)]| {
            let tenants: Vec<Tenant> =
                tenants.iter().map(|&(share_permille, groups)| Tenant { share_permille, groups }).collect();
            are_kept(&tenants, &time_slices_us(&tenants))
        };
        assert!(kept(&[(300, 1), (600, 1), (100, 1)]) && kept(&[(500, 4), (500, 1)]));
        assert!(kept(&[(20, 1); 50]), "as many turns as tenants");
        // 16 turns of 0.2 ms, each with an exchange as long: nearly twice its part.
        assert!(!kept(&[(900, 1), (100, 16)]));
        assert!(kept(&[]));
    }

    fn slices(tenants: &[(u16, u32)]) -> Vec<u64> {
        let tenants: Vec<Tenant> =
            tenants.iter().map(|&(share_permille, groups)| Tenant { share_permille, groups }).collect();
        time_slices_us(&tenants)
    }

    #[test]
    fn slices_are_in_the_ratio_of_the_shares() {
        assert_eq!(slices(&[(300, 1), (600, 1), (100, 1)]), [9_600, 19_200, 3_200]);
        assert_eq!(slices(&[(500, 1), (500, 1)]), [16_000, 16_000]);
        // Not all was promised: the rest is lent in the same ratio.
        assert_eq!(slices(&[(200, 1), (200, 1)]), [16_000, 16_000]);
    }

    #[test]
    fn several_processes_share_their_tenants_time() {
        assert_eq!(slices(&[(500, 4), (500, 1)]), [4_000, 16_000]);
    }

    #[test]
    fn short_slices_stretch_the_round_as_far_as_the_longest_allows() {
        assert_eq!(slices(&[(20, 1), (980, 1)]), [1_000, 49_000]);
        assert_eq!(slices(&[(10, 1), (990, 1)]), [505, 49_999], "between the shortest and the longest");
        assert_eq!(slices(&[(10, 8), (990, 1)])[0], 63, "many groups have no more than one");
        let crowd: Vec<(u16, u32)> = [(10, 500)].into_iter().chain([(30, 1); 33]).collect();
        assert_eq!(slices(&crowd)[1], 3_000, "and lengthen nobody's round, 100 ms here");
    }

    #[test]
    fn who_was_promised_nothing_has_what_nobody_was() {
        assert_eq!(slices(&[(600, 1), (0, 1), (0, 1)]), [19_200, 6_400, 6_400]);
        let full = slices(&[(1000, 1), (0, 1)]);
        assert!(full[0] > 30 * full[1], "{full:?}");
        assert_eq!(slices(&[(0, 1), (0, 1)]), [16_000, 16_000]);
        assert!(slices(&[]).is_empty());
    }

    #[test]
    fn however_many_were_promised_nothing_they_take_next_to_nothing_of_what_was_promised() {
        let beside = |promised: u16, others: usize| -> (u64, bool) {
            let tenants = [promised].into_iter().chain(vec![0; others]);
            let tenants: Vec<Tenant> = tenants.map(|share_permille| Tenant { share_permille, groups: 1 }).collect();
            let slices_us = time_slices_us(&tenants);
            (slices_us[0] * 1000 / slices_us.iter().sum::<u64>(), are_kept(&tenants, &slices_us))
        };
        assert_eq!(
            [1, 10].map(|others| beside(1000, others)),
            [(990, true); 2],
            "a hundredth for all of them together"
        );
        assert_eq!(beside(1000, 50), (952, false), "a thousandth for each, and it is not said that shares are kept");
        assert_eq!(beside(900, 50), (900, true), "of a tenth each has its part");
        assert!(!beside(980, 40).1);
    }
}
