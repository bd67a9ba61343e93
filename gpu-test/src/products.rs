//! Products of matrices on tensor cores, of integers that are so small that each sum is exact in single precision, in whatever
//! order it is made. Source of who holds which element: PTX ISA 8.7, "Matrix Fragments for mma.m16n8k16 with floating point type".

use crate::Verdict;
use crate::answers::{self, MULTIPLIER, THREADS};
use crate::driver::{DriverError, Gpu, Parameter};
use std::time::Instant;

const TEXT: &str = include_str!("kernels/products.ptx");
/// The first compute capability that has this product.
pub const CAPABILITY: i32 = 8;

const LANES: usize = 32;
const PAIRS: usize = 4;
const ROWS: usize = 16;
const COLUMNS: usize = 8;
const DEPTH: usize = 16;
/// Elements lie between this and its negative: with 4 pairs no sum of 16 products of two is beyond 4,161,600, and up to 16,777,216
/// every integer is a number of single precision.
const LARGEST: i32 = 255;

/// One pair of matrices.
struct Pair {
    left: [[i32; DEPTH]; ROWS],
    right: [[i32; COLUMNS]; DEPTH],
}

/// Tries it until then.
///
/// # Errors
/// The driver's.
pub fn test(gpu: &Gpu<'_>, until: Instant) -> Result<Verdict, DriverError> {
    let pairs = pairs();
    let module = gpu.load(TEXT)?;
    let kernel = gpu.kernel(&module, c"exact_products")?;
    let words = operands(&pairs);
    let operands = gpu.allocate(size_of_val(words.as_slice()))?;
    operands.put(&words)?;
    answers::compare(gpu, &kernel, &[Parameter::Long(operands.address)], |rounds| known(&pairs, rounds), until)
}

/// Four pairs, always the same.
fn pairs() -> [Pair; PAIRS] {
    let mut state = 1_u64;
    let mut element = || {
        state = state.wrapping_mul(MULTIPLIER).wrapping_add(1);
        // The upper bits; the lower ones repeat soon.
        (state >> 33) as i32 % (2 * LARGEST + 1) - LARGEST
    };
    std::array::from_fn(|_| Pair {
        left: std::array::from_fn(|_| std::array::from_fn(|_| element())),
        right: std::array::from_fn(|_| std::array::from_fn(|_| element())),
    })
}

/// An integer of up to eleven bits as a number of half precision.
fn half(integer: i32) -> u16 {
    let size = integer.unsigned_abs() as u16;
    let sign = if integer < 0 { 0x8000 } else { 0 };
    match size.checked_ilog2() {
        None => sign,
        Some(exponent) => sign | ((exponent as u16 + 15) << 10) | ((size << (10 - exponent)) & 0x3ff),
    }
}

fn halves([first, second]: [i32; 2]) -> u32 {
    u32::from(half(first)) | u32::from(half(second)) << 16
}

/// What each lane is to hold of each pair: four registers of the left matrix, two of the right one.
fn operands(pairs: &[Pair; PAIRS]) -> Vec<u32> {
    let of_lane = |pair: &Pair, lane: usize| {
        let (group, within) = (lane >> 2, lane % 4 * 2);
        let left = |row: usize, column: usize| halves([pair.left[row][column], pair.left[row][column + 1]]);
        let right = |row: usize| halves([pair.right[row][group], pair.right[row + 1][group]]);
        [
            left(group, within),
            left(group + 8, within),
            left(group, within + 8),
            left(group + 8, within + 8),
            right(within),
            right(within + 8),
        ]
    };
    pairs.iter().flat_map(|pair| (0..LANES).flat_map(move |lane| of_lane(pair, lane))).collect()
}

/// What each thread of a block comes to: its four elements of the sum of all products after each odd round, and 0 after each
/// even one, in one number.
fn known(pairs: &[Pair; PAIRS], rounds: u32) -> Vec<u64> {
    let element = |row: usize, column: usize| -> i32 {
        let of_pair =
            |pair: &Pair| (0..DEPTH).map(|depth| pair.left[row][depth] * pair.right[depth][column]).sum::<i32>();
        pairs.iter().map(of_pair).sum()
    };
    let of_lane = |lane: usize| {
        let (group, within) = (lane >> 2, lane % 4 * 2);
        let elements = [
            element(group, within),
            element(group, within + 1),
            element(group + 8, within),
            element(group + 8, within + 1),
        ];
        (0..rounds).fold(0_u64, |sum, round| {
            let now = if round % 2 == 0 { elements } else { [0; 4] };
            now.iter().fold(sum, |sum, its| sum.wrapping_mul(MULTIPLIER).wrapping_add((*its as u32).into()))
        })
    };
    let warp: Vec<u64> = (0..LANES).map(of_lane).collect();
    warp.repeat(THREADS as usize / LANES)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use gpool_simulated_ptx::{Hardware, Launch, Memory, Program};
    use std::collections::HashMap;

    /// Where answers, places and operands lie.
    const PLACES: [u64; 3] = [1 << 20, 2 << 20, 3 << 20];
    const BLOCKS: u32 = 3;

    struct Words(HashMap<u64, u64>);

    impl Memory for Words {
        fn load(&mut self, address: u64, _bytes: usize) -> Option<u64> {
            self.0.get(&address).copied()
        }

        fn store(&mut self, address: u64, _bytes: usize, value: u64) -> Option<()> {
            self.0.insert(address, value);
            Some(())
        }
    }

    /// The answers and places of three blocks of a kernel, executed as its text says.
    pub fn executed(text: &str, kernel: &str, rounds: u32, hardware: Option<Hardware>) -> (Vec<u64>, Vec<u64>) {
        let program = Program::read(text, kernel).unwrap();
        let operands = operands(&pairs());
        let mut memory = Words((0..).zip(operands).map(|(place, word)| (PLACES[2] + 4 * place, word.into())).collect());
        let mut parameters = vec![PLACES[0], PLACES[1], rounds.into(), PLACES[2]];
        parameters.truncate(program.parameters().len());
        let hardware = hardware.unwrap_or(Hardware { multiprocessors: 2, wrong: None });
        program.run(&Launch { blocks: BLOCKS, threads: THREADS, parameters }, hardware, &mut memory).unwrap();
        let read = |place: u64, count: u32, bytes: u64| {
            (0..u64::from(count)).map(|number| memory.0[&(place + bytes * number)]).collect()
        };
        (read(PLACES[0], BLOCKS * THREADS, 8), read(PLACES[1], BLOCKS, 4))
    }

    #[test]
    fn the_kernel_comes_to_what_the_host_knows() {
        for rounds in [1, 2, 3, 64] {
            let (answers, places) = executed(TEXT, "exact_products", rounds, None);
            for block in answers.chunks(THREADS as usize) {
                assert_eq!(block, known(&pairs(), rounds), "{rounds} rounds");
            }
            assert_eq!(places, [0, 1, 0]);
        }
    }

    #[test]
    fn a_sum_that_errs_by_one_is_seen() {
        let hardware = Hardware { multiprocessors: 3, wrong: Some(2) };
        let (answers, _) = executed(TEXT, "exact_products", 16, Some(hardware));
        let known = known(&pairs(), 16);
        let wrong: Vec<usize> =
            (0..answers.len()).filter(|place| answers[*place] != known[place % known.len()]).collect();
        assert_eq!(wrong, [2 * 128 + 5, 2 * 128 + 37, 2 * 128 + 69, 2 * 128 + 101]);
    }

    #[test]
    fn every_sum_is_exact_in_single_precision() {
        assert!(PAIRS as i32 * DEPTH as i32 * LARGEST * LARGEST < 1 << 24);
        let elements = pairs().map(|pair| pair.left.into_iter().flatten().collect::<Vec<_>>()).concat();
        assert!(elements.iter().all(|element| element.abs() <= LARGEST));
        assert!(elements.contains(&0) || elements.iter().any(|its| its % 2 != 0), "odd numbers need all of their bits");
        assert!(elements.iter().any(|its| *its > 250) && elements.iter().any(|its| *its < -250));
    }

    #[test]
    fn integers_are_what_half_precision_says() {
        let numbers = [0, 1, -2, 3, 255, -255, 1024, 2047].map(half);
        assert_eq!(numbers, [0, 0x3c00, 0xc000, 0x4200, 0x5bf8, 0xdbf8, 0x6400, 0x67ff]);
    }
}
