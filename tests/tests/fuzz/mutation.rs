//! Small changes to real inputs, the same ones in every run.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Nothing that is fed in takes longer; a machine that is busy with other things has room in this.
const NO_HANG: Duration = Duration::from_secs(20);
/// What a search may make its process grow by.
const GROWTH_KIB: u64 = 256 << 10;

/// Words that mean something somewhere.
const WORDS: [&str; 24] = [
    "null",
    "-1",
    "18446744073709551616",
    "1e999",
    "\"\"",
    "[]",
    "{}",
    "true",
    "GPOOL_",
    "gpool.io/",
    "..",
    "/",
    "\0",
    "\u{feff}",
    "\\ud800",
    "[[[[[[[[[[[[[[[[",
    "{\"a\":",
    "--bundle",
    "create",
    "--",
    "=",
    "Content-Length: ",
    "\r\n\r\n",
    "%",
];

/// xorshift64*.
pub struct Random(u64);

impl Random {
    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as usize % limit
    }
}

/// Feeds `times` mutations of the corpus `name` to `eat`, after every file of it as it is.
pub fn feed(name: &str, times: usize, mut eat: impl FnMut(&[u8])) {
    let corpus = corpus(name);
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let current = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}-current"));
    let mut before_kib = 0;
    for turn in 0..corpus.len() + times {
        let input = match corpus.get(turn) {
            Some(plain) => plain.clone(),
            None => mutated(&corpus, &mut random),
        };
        fs::write(&current, &input).unwrap();
        let begun = Instant::now();
        eat(&input);
        let elapsed = begun.elapsed();
        assert!(elapsed < NO_HANG, "{elapsed:?} for {}", current.display());
        // What is allocated once is there after the first part.
        if turn == corpus.len() + times / 10 {
            before_kib = resident_kib();
        }
    }
    let after_kib = resident_kib();
    assert!(after_kib <= before_kib + GROWTH_KIB, "grew from {before_kib} to {after_kib} KiB");
    fs::remove_file(&current).unwrap();
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut files: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn mutated(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let end = (at + random.below(16)).min(bytes.len());
        match random.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 => drop(bytes.drain(at..end)),
            2 => {
                let twice = bytes[at..end].repeat(1 + random.below(40));
                bytes.splice(at..at, twice);
            }
            3 => bytes.truncate(at),
            4 => drop(bytes.splice(at..at, [random.below(256) as u8])),
            5 => {
                let other = &corpus[random.below(corpus.len())];
                let from = random.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            6 => {
                // A value in the place of another.
                let end =
                    bytes[at..].iter().position(|byte| b",}]\" \n".contains(byte)).map_or(end, |length| at + length);
                bytes.splice(at..end, WORDS[random.below(WORDS.len())].bytes());
            }
            _ => drop(bytes.splice(at..at, WORDS[random.below(WORDS.len())].bytes())),
        }
    }
    bytes
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
