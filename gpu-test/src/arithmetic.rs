//! Integers, single and double precision. IEEE 754 says what each sum must come to, to the last bit, and the host's processor
//! follows it too. Source: PTX ISA 8.7, `fma.rn` ("IEEE 754-2008 compliant fused multiply-add").

use crate::Verdict;
use crate::answers::{self, MULTIPLIER, THREADS};
use crate::driver::{DriverError, Gpu};
use std::time::Instant;

const TEXT: &str = include_str!("kernels/arithmetic.ptx");

/// Tries it until then.
///
/// # Errors
/// The driver's.
pub fn test(gpu: &Gpu<'_>, until: Instant) -> Result<Verdict, DriverError> {
    let module = gpu.load(TEXT)?;
    let kernel = gpu.kernel(&module, c"exact_arithmetic")?;
    answers::compare(gpu, &kernel, &[], known, until)
}

/// What each thread of a block comes to: the kernel, once more.
fn known(rounds: u32) -> Vec<u64> {
    (0..THREADS).map(|thread| answer(thread, rounds)).collect()
}

fn answer(thread: u32, rounds: u32) -> u64 {
    let mut x = thread.wrapping_mul(747_796_405).wrapping_add(1_013_904_223);
    let (mut f, half) = (1.5_f32, f32::from_bits(0x3EFF_FFFD));
    let (mut d, half_double) = (1.5_f64, f64::from_bits(0x3FDF_FFFF_FFFF_FFFB));
    let mut sum = 0_u64;
    for _ in 0..rounds {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let g = f32::from_bits(x >> 9 | 0x3F80_0000);
        for [factor, addend] in [[None, Some(g)], [Some(g), None], [None, Some(g)]] {
            f = factor.unwrap_or(f).mul_add(half, addend.unwrap_or(f));
            sum = sum.wrapping_mul(MULTIPLIER).wrapping_add(f.to_bits().into());
        }
        d = d.mul_add(half_double, f64::from(g));
        sum ^= d.to_bits();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::products::tests::executed;

    #[test]
    fn the_kernel_comes_to_what_the_host_knows() {
        for rounds in [1, 2, 16, 333] {
            let (answers, places) = executed(TEXT, "exact_arithmetic", rounds, None);
            for block in answers.chunks(THREADS as usize) {
                assert_eq!(block, known(rounds), "{rounds} rounds");
            }
            assert_eq!(places, [0, 1, 0]);
        }
    }

    /// Computed once with fractions of integers, rounded as IEEE 754 says: no processor's arithmetic is in them.
    #[test]
    fn the_answers_are_always_the_same() {
        assert_eq!(
            (answer(0, 1), answer(1, 16), answer(127, 8192)),
            (13335553407175057736, 9819571808765049186, 6806228255095049934)
        );
    }

    #[test]
    fn one_sum_that_errs_in_its_last_place_is_seen_in_all_later_answers() {
        let hardware = gpool_simulated_ptx::Hardware { multiprocessors: 2, wrong: Some(1) };
        let (answers, _) = executed(TEXT, "exact_arithmetic", 300, Some(hardware));
        let known = known(300);
        let wrong = |block: usize| {
            let its = answers[block * THREADS as usize..][..THREADS as usize].iter().zip(&known);
            its.filter(|(its, known)| its != known).count()
        };
        assert_eq!([0, 1, 2].map(wrong), [0, 4, 0], "one lane of each of four warps");
    }
}
