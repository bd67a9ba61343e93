//! `mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32`: how a warp holds its matrices. Source: PTX ISA 8.7, "Matrix Fragments for
//! mma.m16n8k16 with floating point type".

use crate::LANES;

const ROWS: usize = 16;
const COLUMNS: usize = 8;
const DEPTH: usize = 16;

/// A number of 16 bits as one of 32, which every one has.
pub(crate) fn half(bits: u16) -> f32 {
    let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    match exponent {
        0 => sign * fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15),
    }
}

/// The two halves of a register, the lower one first.
fn halves(register: u64) -> [f32; 2] {
    [half(register as u16), half((register >> 16) as u16)]
}

/// D of A, B and C, each by register and lane. Sums are made in double precision and rounded once: exact where the hardware's
/// are, for integers that are small enough.
pub(crate) fn product(
    left: [[u64; LANES]; 4],
    right: [[u64; LANES]; 2],
    addends: [[u64; LANES]; 4],
) -> [[u64; LANES]; 4] {
    let (mut a, mut b) = ([[0f32; DEPTH]; ROWS], [[0f32; COLUMNS]; DEPTH]);
    for lane in 0..LANES {
        let (group, within) = (lane >> 2, lane % 4);
        for (register, its) in left.iter().enumerate() {
            let (row, column) = (group + 8 * (register % 2), within * 2 + 8 * (register / 2));
            [a[row][column], a[row][column + 1]] = halves(its[lane]);
        }
        for (register, its) in right.iter().enumerate() {
            let row = within * 2 + 8 * register;
            [b[row][group], b[row + 1][group]] = halves(its[lane]);
        }
    }
    let mut sums = addends;
    for lane in 0..LANES {
        let (group, within) = (lane >> 2, lane % 4);
        for (register, its) in sums.iter_mut().enumerate() {
            let (row, column) = (group + 8 * (register / 2), within * 2 + register % 2);
            let products = (0..DEPTH).map(|depth| f64::from(a[row][depth]) * f64::from(b[depth][column]));
            let sum = f64::from(f32::from_bits(its[lane] as u32)) + products.sum::<f64>();
            its[lane] = u64::from((sum as f32).to_bits());
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_the_numbers_that_their_bits_mean() {
        let numbers = [0x3c00, 0xc000, 0x3555, 0x7bff, 0x0001, 0x0400, 0x5bf8].map(half);
        assert_eq!(numbers, [1.0, -2.0, 0.333_251_95, 65504.0, 5.960_464_5e-8, 6.103_515_6e-5, 255.0]);
        assert!(half(0x7c00).is_infinite() && half(0x7e00).is_nan());
    }

    /// With the unit matrix on the left, so that each element of B is seen to come out where D has it.
    #[test]
    fn a_product_with_the_unit_matrix_is_the_other_matrix() {
        let (one, number) = (0x3c00_u64, |value: usize| u64::from((0x6400 + value) as u16));
        let (mut left, mut right) = ([[0; LANES]; 4], [[0; LANES]; 2]);
        for lane in 0..LANES {
            let (group, within) = (lane >> 2, lane % 4);
            for (register, its) in left.iter_mut().enumerate() {
                let (row, column) = (group + 8 * (register % 2), within * 2 + 8 * (register / 2));
                its[lane] = if row == column {
                    one
                } else if row == column + 1 {
                    one << 16
                } else {
                    0
                };
            }
            for (register, its) in right.iter_mut().enumerate() {
                let row = within * 2 + 8 * register;
                its[lane] = number(row * 8 + group) | number((row + 1) * 8 + group) << 16;
            }
        }
        let sums = product(left, right, [[u64::from(1f32.to_bits()); LANES]; 4]);
        for (register, its) in sums.iter().enumerate() {
            for (lane, bits) in its.iter().enumerate() {
                let (row, column) = ((lane >> 2) + 8 * (register / 2), lane % 4 * 2 + register % 2);
                // 0x6400 is 1024, and the next ones go up by one.
                assert_eq!(f32::from_bits(*bits as u32), (1025 + row * 8 + column) as f32);
            }
        }
    }
}
