//! Memory that must keep what was written: each word of what is free, with two patterns of which one has every bit that the
//! other lacks. Pieces that were tried are kept until the end, so that no memory is tried twice, and then read once more: what was
//! written to another piece must not be there.

use crate::Verdict;
use crate::driver::{DriverError, Gpu, Kernel, Parameter, Piece};
use gpool_protocol::format_bytes;
use std::time::Instant;

const TEXT: &str = include_str!("kernels/memory.ptx");
const THREADS: u32 = 256;
const BLOCKS_EACH: u32 = 8;
/// About how large a piece is: more than any GPU keeps in its cache.
const PIECE_BYTES: u64 = 256 << 20;
/// In smaller ones what is free is not gone through: that would try the cache.
const LEAST_PIECE_BYTES: u64 = 64 << 20;
/// Left alone where nothing is said: what is made next to a context of a program that starts meanwhile.
const LEFT_BYTES: u64 = 512 << 20;
const WORD_BYTES: u64 = size_of::<u64>() as u64;
/// What words of the first piece are written with first; then with all of its bits turned. Those of others have others.
const KEY: u64 = 0x5AA5_C33C_0FF0_9669;
const NEXT_KEY: u64 = 0x9E37_79B9_7F4A_7C15;
/// Words of what a thread has found.
const FOUND: usize = 3;

/// What was found in all pieces.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    tried_bytes: u64,
    wrong: u64,
    bits: u64,
    /// Of the last wrong word: how far it is from the beginning of what was tried, in bytes.
    last: u64,
}

impl Tally {
    /// Takes what the threads have found in a piece that begins so far from the beginning of all.
    fn add(&mut self, begin_bytes: u64, found: &[u64]) {
        for its in found.chunks(FOUND) {
            if let [wrong, place, bits] = *its
                && wrong > 0
            {
                self.wrong += wrong;
                self.bits |= bits;
                self.last = begin_bytes + place * WORD_BYTES;
            }
        }
    }

    fn verdict(&self, wanted_bytes: u64) -> Verdict {
        let tried = format_bytes(self.tried_bytes);
        match (self.wrong, self.tried_bytes) {
            (0, 0) => Verdict::Untried(format!("{} of memory cannot be tried", format_bytes(wanted_bytes))),
            (0, _) => Verdict::Right(format!("{tried} keep what was written")),
            (wrong, _) => Verdict::Wrong(format!(
                "{wrong} word(s) of {tried} were not what was written, in bits {:#018x}, the last at byte {:#x} of them",
                self.bits, self.last
            )),
        }
    }
}

/// How a piece is gone through: so many blocks, each of whose threads has so many words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    blocks: u32,
    rounds: u32,
}

impl Shape {
    /// One that fills no more than this; none if that is less than one block has.
    fn within(bytes: u64, multiprocessors: u32) -> Option<Self> {
        let block_bytes = u64::from(THREADS) * WORD_BYTES;
        let blocks = (bytes / block_bytes).min(u64::from(multiprocessors * BLOCKS_EACH));
        let rounds = bytes.checked_div(blocks * block_bytes)?;
        Some(Self { blocks: u32::try_from(blocks).ok()?, rounds: u32::try_from(rounds).ok()? })
    }

    fn bytes(self) -> u64 {
        u64::from(self.blocks) * u64::from(self.rounds) * u64::from(THREADS) * WORD_BYTES
    }
}

/// A piece that was tried.
struct Tried<'a> {
    piece: Piece<'a>,
    shape: Shape,
    key: u64,
    /// How far it is from the beginning of all.
    begin_bytes: u64,
}

/// Tries memory until then, one piece at least.
///
/// # Errors
/// The driver's.
pub fn test(gpu: &Gpu<'_>, most: Option<u64>, until: Instant) -> Result<Verdict, DriverError> {
    let module = gpu.load(TEXT)?;
    let [fill, check] = [gpu.kernel(&module, c"exact_fill")?, gpu.kernel(&module, c"exact_check")?];
    let found_bytes = (gpu.multiprocessors * BLOCKS_EACH * THREADS) as usize * FOUND * size_of::<u64>();
    let found = gpu.allocate(found_bytes)?;
    let free = gpu.free_bytes()?;
    let wanted = most.map_or(free.saturating_sub(LEFT_BYTES), |most| most.min(free));
    let (mut tally, mut size) = (Tally::default(), PIECE_BYTES);
    let mut tried: Vec<Tried<'_>> = Vec::new();
    while let Some(shape) = Shape::within(size.min(wanted - tally.tried_bytes), gpu.multiprocessors) {
        let piece = match gpu.allocate(shape.bytes() as usize) {
            Ok(piece) => piece,
            Err(error) if error.is_out_of_memory() && size > LEAST_PIECE_BYTES => {
                size /= 2;
                continue;
            }
            Err(error) if error.is_out_of_memory() => break,
            Err(error) => return Err(error),
        };
        let key = key_of(tried.len() as u64);
        let its = Tried { piece, shape, key, begin_bytes: tally.tried_bytes };
        for key in [key, !key] {
            let parameters = [Parameter::Long(its.piece.address), Parameter::Long(key), Parameter::Word(shape.rounds)];
            gpu.run(&fill, [shape.blocks, THREADS], &parameters)?;
            read_back(gpu, &check, &its, key, &found, &mut tally)?;
        }
        tally.tried_bytes += shape.bytes();
        tried.push(its);
        if Instant::now() >= until || tally.wrong > 0 {
            break;
        }
    }
    // Of one that is wrong enough is known.
    for its in tried.iter().filter(|_| tally.wrong == 0) {
        let mut last = Tally::default();
        read_back(gpu, &check, its, !its.key, &found, &mut last)?;
        if last.wrong > 0 {
            tally = Tally { tried_bytes: tally.tried_bytes, ..last };
            break;
        }
    }
    Ok(tally.verdict(wanted))
}

/// What words of a piece are written with first, by how many were before it.
fn key_of(before: u64) -> u64 {
    KEY ^ before.wrapping_mul(NEXT_KEY)
}

fn read_back(
    gpu: &Gpu<'_>,
    check: &Kernel,
    its: &Tried<'_>,
    key: u64,
    found: &Piece<'_>,
    tally: &mut Tally,
) -> Result<(), DriverError> {
    let Tried { piece, shape, .. } = its;
    let parameters = [
        Parameter::Long(piece.address),
        Parameter::Long(key),
        Parameter::Word(shape.rounds),
        Parameter::Long(found.address),
    ];
    gpu.run(check, [shape.blocks, THREADS], &parameters)?;
    let threads = (shape.blocks * THREADS) as usize;
    tally.add(its.begin_bytes, &found.read()?[..threads * FOUND]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_simulated_ptx::{Hardware, Launch, Memory, Program};

    const WORDS: u64 = 1 << 20;
    const FOUND_AT: u64 = 1 << 30;

    /// In which one word lacks a bit.
    struct Page {
        words: Vec<u64>,
        found: Vec<u64>,
        bad: Option<(usize, u64)>,
    }

    impl Page {
        fn word(&mut self, address: u64) -> Option<&mut u64> {
            let (words, from) = if address < FOUND_AT { (&mut self.words, WORDS) } else { (&mut self.found, FOUND_AT) };
            words.get_mut(((address - from) / WORD_BYTES) as usize)
        }
    }

    impl Memory for Page {
        fn load(&mut self, address: u64, _bytes: usize) -> Option<u64> {
            let bad = self.bad.filter(|(place, _)| address == WORDS + WORD_BYTES * *place as u64);
            self.word(address).map(|word| *word & !bad.map_or(0, |(_, bits)| bits))
        }

        fn store(&mut self, address: u64, _bytes: usize, value: u64) -> Option<()> {
            *self.word(address)? = value;
            Some(())
        }
    }

    fn tried(shape: Shape, bad: Option<(usize, u64)>) -> Tally {
        let [fill, check] = ["exact_fill", "exact_check"].map(|name| Program::read(TEXT, name).unwrap());
        let threads = (shape.blocks * THREADS) as usize;
        let words = vec![0; (shape.bytes() / WORD_BYTES) as usize];
        let mut page = Page { words, found: vec![9; threads * FOUND], bad };
        let hardware = Hardware { multiprocessors: 4, wrong: None };
        let mut tally = Tally::default();
        for key in [KEY, !KEY] {
            let launch = |more: &[u64]| Launch {
                blocks: shape.blocks,
                threads: THREADS,
                parameters: [&[WORDS, key, shape.rounds.into()], more].concat(),
            };
            fill.run(&launch(&[]), hardware, &mut page).unwrap();
            check.run(&launch(&[FOUND_AT]), hardware, &mut page).unwrap();
            tally.add(0, &page.found);
        }
        tally.tried_bytes += shape.bytes();
        tally
    }

    #[test]
    fn every_word_is_written_and_read_with_each_bit_set_and_not() {
        let shape = Shape { blocks: 3, rounds: 5 };
        assert_eq!(tried(shape, None), Tally { tried_bytes: shape.bytes(), ..Tally::default() });
        for place in [0, 767, 768, (shape.bytes() / WORD_BYTES) as usize - 1] {
            for bit in [0, 17, 63] {
                let found = tried(shape, Some((place, 1 << bit)));
                // The bit is set with one of both patterns.
                assert_eq!((found.wrong, found.bits, found.last), (1, 1 << bit, place as u64 * WORD_BYTES));
            }
        }
    }

    #[test]
    fn what_was_wrong_is_told_with_its_bits_and_its_place() {
        let mut tally = Tally { tried_bytes: 1 << 30, ..Tally::default() };
        tally.add(1 << 30, &[0, 7, 7, 2, 131_072, 1 << 4]);
        let Verdict::Wrong(told) = tally.verdict(1 << 31) else { panic!("nothing was wrong") };
        assert_eq!(
            told,
            "2 word(s) of 1GiB were not what was written, in bits 0x0000000000000010, the last at byte 0x40100000 of them"
        );
        assert!(matches!(Tally::default().verdict(4096), Verdict::Untried(_)));
    }

    #[test]
    fn every_piece_is_written_with_something_else() {
        let keys: std::collections::BTreeSet<u64> =
            (0..4096).flat_map(|before| [key_of(before), !key_of(before)]).collect();
        assert_eq!(keys.len(), 2 * 4096);
    }

    #[test]
    fn pieces_fill_what_there_is_as_far_as_whole_blocks_do() {
        assert_eq!(Shape::within(256 << 20, 132), Some(Shape { blocks: 1056, rounds: 124 }));
        assert_eq!(Shape::within(4096, 132), Some(Shape { blocks: 2, rounds: 1 }));
        assert_eq!(Shape::within(2047, 132), None);
    }
}
