//! A trail whose lines are chained: each ends with a hash over itself and the one before it, so that what was changed, taken out or
//! put in between is seen by whoever reads it again.
//!
//! A line is a JSON object whose last field is `"chain":"HEX"`. Its link is SHA-256 (FIPS 180-4) over the link of the line before it,
//! 32 bytes, and the object without that field. A file begins with a line that says which link is before it, so that it can be
//! read without the files before.
//!
//! There is no secret in it: who may write the files can make another trail from any line on. What shows that is a link that was kept
//! elsewhere, such as those that the supervisor says to the journal.

use sha2::{Digest, Sha256};
use std::fmt::{self, Display, Write};

/// What stands between the object and its link, and behind that.
const OPENING: &str = ",\"chain\":\"";
const CLOSING: &str = "\"}";
/// Digits of a link.
const DIGITS: usize = 64;

/// The end of a trail at one of its lines.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Link([u8; 32]);

impl Link {
    /// Before the first line of all.
    pub const FIRST: Link = Link([0; 32]);

    /// From its 64 hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_lower = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
        if text.len() != DIGITS || !text.bytes().all(is_lower) {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, at) in bytes.iter_mut().zip((0..DIGITS).step_by(2)) {
            *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    fn over(previous: Link, object: &str) -> Self {
        Self(Sha256::new().chain_update(previous.0).chain_update(object.as_bytes()).finalize().into())
    }
}

impl Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

/// The line that follows `previous` and holds `object`, which is a JSON object with a field at least, on one line; without a
/// newline. With its link.
#[must_use]
pub fn sealed(previous: Link, object: &str) -> (String, Link) {
    let link = Link::over(previous, object);
    let mut line = object.strip_suffix('}').unwrap_or(object).to_owned();
    // Writing into a text cannot fail.
    let _ = write!(line, "{OPENING}{link}{CLOSING}");
    (line, link)
}

/// The object of a line and the link that it says it has; none for what is no such line.
#[must_use]
pub fn opened(line: &str) -> Option<(String, Link)> {
    let tail = OPENING.len() + DIGITS + CLOSING.len();
    let (object, tail) = line.split_at_checked(line.len().checked_sub(tail)?)?;
    let digits = tail.strip_prefix(OPENING)?.strip_suffix(CLOSING)?;
    Some((format!("{object}}}"), Link::parse(digits)?))
}

/// Whether a line is the one that was written behind `previous`: its object and its own link then.
#[must_use]
pub fn follows(previous: Link, line: &str) -> Option<(String, Link)> {
    opened(line).filter(|(object, link)| Link::over(previous, object) == *link)
}

/// The name of the file that begins with the event of this number; they sort as they follow each other.
#[must_use]
pub fn file_name(first: u64) -> String {
    format!("audit-{first:016}.jsonl")
}

/// The number in such a name.
#[must_use]
pub fn first_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("audit-")?.strip_suffix(".jsonl")?;
    let is_one = digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn trail(objects: &[&str]) -> Vec<String> {
        let mut previous = Link::FIRST;
        let sealed = |object: &&str| {
            let (line, link) = sealed(previous, object);
            previous = link;
            line
        };
        objects.iter().map(sealed).collect()
    }

    /// How many lines from the first on are as they were written.
    fn sound(lines: &[String]) -> usize {
        let mut previous = Link::FIRST;
        let is_sound = |line: &&String| follows(previous, line).map(|(_, link)| previous = link).is_some();
        lines.iter().take_while(is_sound).count()
    }

    #[test]
    fn what_is_written_is_read_and_the_hash_is_the_one_of_the_standard() {
        let (line, link) = sealed(Link::FIRST, r#"{"a":1}"#);
        assert_eq!(line, format!(r#"{{"a":1,"chain":"{link}"}}"#));
        assert_eq!(follows(Link::FIRST, &line), Some((r#"{"a":1}"#.to_owned(), link)));
        assert_eq!(Link::parse(&link.to_string()), Some(link));
        // FIPS 180-4's example, "abc", whose digest every implementation has.
        let abc = Link(Sha256::digest(b"abc").into()).to_string();
        assert_eq!(abc, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        for no_line in ["", "{}", "{\"a\":1}", &line[1..], &line[..line.len() - 1], &line.replace("chain", "chian")] {
            assert!(follows(Link::FIRST, no_line).is_none(), "{no_line}");
        }
        assert!(Link::parse(&"A".repeat(64)).is_none() && Link::parse(&"\u{e9}".repeat(32)).is_none());
        assert_eq!(first_of(&file_name(17)), Some(17));
        assert!(["audit-17.jsonl", "audit-0000000000000017.json", "other"].iter().all(|name| first_of(name).is_none()));
    }

    #[test]
    fn what_is_changed_taken_out_or_put_in_is_seen() {
        let lines = trail(&[r#"{"n":1}"#, r#"{"n":2}"#, r#"{"n":3}"#, r#"{"n":4}"#]);
        assert_eq!(sound(&lines), 4);
        let with = |change: &dyn Fn(&mut Vec<String>)| {
            let mut changed = lines.clone();
            change(&mut changed);
            sound(&changed)
        };
        assert_eq!(with(&|all| drop(all.remove(1))), 1);
        assert_eq!(with(&|all| all.swap(1, 2)), 1);
        assert_eq!(with(&|all| all.insert(2, all[1].clone())), 2);
        assert_eq!(with(&|all| all[2] = all[2].replace("\"n\":3", "\"n\":9")), 2);
        assert_eq!(
            with(&|all| all[1] = sealed(Link::FIRST, r#"{"n":2}"#).0),
            1,
            "sealed anew by who does not seal the rest"
        );
    }

    proptest! {
        #[test]
        fn every_changed_byte_is_seen(texts in proptest::collection::vec("[a-z\"\\\\{},:0-9é ]{0,40}", 1..6), at in 0usize..10_000, by in 1u8..=127) {
            let objects: Vec<String> = texts.iter().map(|text| format!("{{\"m\":{text:?}}}")).collect();
            let lines = trail(&objects.iter().map(String::as_str).collect::<Vec<_>>());
            prop_assert_eq!(sound(&lines), lines.len());
            let number = at % lines.len();
            let mut bytes = lines[number].clone().into_bytes();
            let place = at % bytes.len();
            bytes[place] ^= by;
            // What is no text any more is seen by who reads it as such.
            if let Ok(changed) = String::from_utf8(bytes) {
                let mut all = lines.clone();
                all[number] = changed;
                prop_assert_eq!(sound(&all), number);
            }
        }
    }
}
