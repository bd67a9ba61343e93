//! Kernels of which each thread must come to a number that the host knows. All blocks compute the same, so that what one
//! multiprocessor does wrong stands out.

use crate::Verdict;
use crate::driver::{DriverError, Gpu, Kernel, Parameter};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Threads of a block: four warps, one for each part of a multiprocessor.
pub const THREADS: u32 = 128;
/// Blocks that a multiprocessor is given at a time.
const BLOCKS_EACH: u32 = 4;
/// Rounds of the first launch. Later ones have more, until one takes about this long ...
const FIRST_ROUNDS: u32 = 16;
const LAUNCH: Duration = Duration::from_millis(20);
/// ... or has so many, which the host's processor computes in less than a second.
const MOST_ROUNDS: u32 = 8192;
const MORE: u32 = 4;
/// At most so many multiprocessors are named.
const NAMED: usize = 8;
/// What a thread's sum is multiplied by before the next number is added: Knuth's multiplier of MMIX, as in the kernels.
pub const MULTIPLIER: u64 = 6_364_136_223_846_793_005;

/// What was compared.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    answers: u64,
    /// Wrong ones by multiprocessor.
    wrong: BTreeMap<u32, u64>,
    seen: BTreeSet<u32>,
}

impl Tally {
    /// Takes the answers of all blocks; `places` says where each has run.
    fn add(&mut self, expected: &[u64], answers: &[u64], places: &[u32]) {
        for (block, place) in answers.chunks(expected.len()).zip(places) {
            self.answers += block.len() as u64;
            self.seen.insert(*place);
            let wrong = block.iter().zip(expected).filter(|(its, known)| its != known).count() as u64;
            if wrong > 0 {
                *self.wrong.entry(*place).or_default() += wrong;
            }
        }
    }

    fn verdict(&self, multiprocessors: u32) -> Verdict {
        let (answers, seen) = (self.answers, self.seen.len());
        if self.wrong.is_empty() {
            return Verdict::Right(format!(
                "{answers} answers of {seen} of {multiprocessors} multiprocessors are right"
            ));
        }
        let all: u64 = self.wrong.values().sum();
        let named = self.wrong.iter().take(NAMED).map(|(place, count)| format!("{count} of multiprocessor {place}"));
        let more = self.wrong.len().saturating_sub(NAMED);
        let rest = (more > 0).then(|| format!("those of {more} more"));
        let named: Vec<String> = named.chain(rest).collect();
        Verdict::Wrong(format!("{all} of {answers} answers are wrong: {}", named.join(", ")))
    }
}

/// Runs a kernel again and again until the time is over or an answer is wrong, once at least. Its parameters are where answers and places go,
/// the rounds, and `more`. `known` says what the threads of a block come to after so many rounds.
///
/// # Errors
/// The driver's.
pub fn compare(
    gpu: &Gpu<'_>,
    kernel: &Kernel,
    more: &[Parameter],
    known: impl Fn(u32) -> Vec<u64>,
    until: Instant,
) -> Result<Verdict, DriverError> {
    let blocks = gpu.multiprocessors * BLOCKS_EACH;
    let answers = gpu.allocate(blocks as usize * THREADS as usize * size_of::<u64>())?;
    let places = gpu.allocate(blocks as usize * size_of::<u32>())?;
    let mut tally = Tally::default();
    let mut rounds = FIRST_ROUNDS;
    let mut expected = known(rounds);
    loop {
        let mut parameters =
            vec![Parameter::Long(answers.address), Parameter::Long(places.address), Parameter::Word(rounds)];
        parameters.extend(more);
        let begun = Instant::now();
        gpu.run(kernel, [blocks, THREADS], &parameters)?;
        let took = begun.elapsed();
        tally.add(&expected, &answers.read()?, &places.read()?);
        if Instant::now() >= until || !tally.wrong.is_empty() {
            return Ok(tally.verdict(gpu.multiprocessors));
        }
        if took < LAUNCH && rounds < MOST_ROUNDS {
            rounds *= MORE;
            expected = known(rounds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(verdict: &Verdict) -> String {
        match verdict {
            Verdict::Right(told) => format!("right: {told}"),
            Verdict::Wrong(told) => format!("wrong: {told}"),
            Verdict::Untried(told) => format!("untried: {told}"),
        }
    }

    #[test]
    fn wrong_answers_are_those_of_their_multiprocessor() {
        let mut tally = Tally::default();
        tally.add(&[1, 2], &[1, 2, 1, 2, 1, 2], &[0, 1, 1]);
        assert_eq!(told(&tally.verdict(3)), "right: 6 answers of 2 of 3 multiprocessors are right");
        tally.add(&[1, 2], &[1, 3, 0, 0, 1, 2], &[1, 0, 2]);
        let want = "wrong: 3 of 12 answers are wrong: 2 of multiprocessor 0, 1 of multiprocessor 1";
        assert_eq!(told(&tally.verdict(3)), want);
    }

    #[test]
    fn of_many_multiprocessors_some_are_named() {
        let mut tally = Tally::default();
        tally.add(&[1], &[0; 10], &(0..10).collect::<Vec<_>>());
        assert!(told(&tally.verdict(10)).ends_with("1 of multiprocessor 7, those of 2 more"));
    }
}
