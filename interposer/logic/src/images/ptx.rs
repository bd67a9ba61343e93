//! PTX texts: variables in global and constant memory. Source: PTX ISA, "State Spaces, Types, and Variables".
//!
//! A declaration is read from `.global` or `.const` to the end of its statement. In an instruction, as in
//! `ld.global.u32`, such a word follows on the one before it, and in a parameter's attributes no type follows it.

use super::Need;
use super::source::{Image, Window};

/// Bytes of an element whose type is not understood: no type has more.
const WIDEST: u64 = 16;
/// Variables are taken to begin at multiples of this, or of their alignment.
const PIECE_BYTES: u64 = 16;
/// The beginning of a word that is kept; those that matter are shorter.
const WORD_BYTES: usize = 12;

/// What the variables of a text take.
pub(super) fn need(image: Image) -> Need {
    let mut reader = Reader { window: Window::new(image), at: 0, need: Need::UNKNOWN, is_odd: false };
    while let Some(word) = reader.next() {
        match word {
            Word::Directive(name) if name.is(b".version") => reader.need.is_whole = true,
            Word::Directive(name) if name.is(b".global") || name.is(b".const") => reader.declaration(),
            _ => {}
        }
    }
    reader.need.is_whole &= !reader.is_odd;
    reader.need
}

/// The first bytes of a word.
#[derive(Clone, Copy)]
struct Name {
    bytes: [u8; WORD_BYTES],
    length: usize,
}

impl Name {
    fn is(&self, text: &[u8]) -> bool {
        self.length == text.len() && self.bytes.starts_with(text)
    }

    /// Bytes of a type: what its digits say in bits, twice as many if there are two of them in one.
    fn type_bytes(&self) -> u64 {
        let is_digit = |byte: &&u8| byte.is_ascii_digit();
        let after_letters = || self.bytes.iter().skip(1).skip_while(|byte| byte.is_ascii_alphabetic());
        let digits = || after_letters().take_while(is_digit);
        let bits = digits().fold(0u64, |bits, digit| bits.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
        match (bits, after_letters().nth(digits().count()).copied()) {
            (8 | 16 | 32 | 64 | 128, Some(0)) => bits / 8,
            _ => WIDEST,
        }
    }
}

enum Word {
    /// One that begins with a dot, and does not follow on a word that begins otherwise.
    Directive(Name),
    /// Any other name.
    Name,
    Number(u64),
    Mark(u8),
}

struct Reader {
    window: Window,
    at: u64,
    need: Need,
    /// Something in a declaration has not been understood.
    is_odd: bool,
}

impl Reader {
    fn peek(&mut self) -> Option<u8> {
        self.window.byte(self.at).filter(|byte| *byte != 0)
    }

    fn skip_until(&mut self, is_end: impl Fn(u8) -> bool) {
        while self.peek().is_some_and(|byte| !is_end(byte)) {
            self.at += 1;
        }
    }

    /// The next word that is no comment and no string.
    fn next(&mut self) -> Option<Word> {
        loop {
            let byte = self.peek()?;
            self.at += 1;
            match (byte, byte == b'/', self.window.byte(self.at)) {
                (b' ' | b'\t'..=b'\r', ..) => {}
                (_, true, Some(b'/')) => self.skip_until(|byte| byte == b'\n'),
                (_, true, Some(b'*')) => {
                    self.at += 1;
                    while self.peek().is_some() && !self.window.is_at(self.at, b"*/") {
                        self.at += 1;
                    }
                    self.at += 2;
                }
                (b'"', ..) => {
                    self.skip_until(|byte| byte == b'"');
                    self.at += 1;
                }
                (b'0'..=b'9', ..) => return Some(Word::Number(self.number(byte))),
                (b'.', ..) => return Some(Word::Directive(self.name(byte))),
                (b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'$' | b'%', ..) => {
                    // What follows on it with dots belongs to it.
                    self.skip_until(|byte| !is_letter(byte) && byte != b'.');
                    return Some(Word::Name);
                }
                _ => return Some(Word::Mark(byte)),
            }
        }
    }

    fn name(&mut self, first: u8) -> Name {
        let mut name = Name { bytes: [0; WORD_BYTES], length: 0 };
        let mut next = Some(first);
        while let Some(byte) = next {
            if let Some(place) = name.bytes.get_mut(name.length) {
                *place = byte;
            }
            name.length += 1;
            next = self.peek().filter(|byte| is_letter(*byte));
            self.at += u64::from(next.is_some());
        }
        name
    }

    /// A whole number in one of the notations; the largest for one that is none.
    fn number(&mut self, first: u8) -> u64 {
        let mut value = u64::from(first - b'0');
        let mut base = 10;
        if first == b'0' {
            base = match self.peek() {
                Some(b'x' | b'X') => 16,
                Some(b'b' | b'B') => 2,
                _ => 8,
            };
            self.at += u64::from(base != 8);
        }
        while let Some(byte) = self.peek().filter(|byte| is_letter(*byte)) {
            self.at += 1;
            let digit = char::from(byte).to_digit(16).map_or(u64::MAX, u64::from);
            value = match digit < base {
                true => value.saturating_mul(base).saturating_add(digit),
                // 4U is an unsigned 4.
                false if byte == b'U' => value,
                false => u64::MAX,
            };
        }
        value
    }

    /// Adds what a declaration takes, from behind its state space to the end of its statement.
    fn declaration(&mut self) {
        let (mut element, mut vector, mut alignment) = (0u64, 1u64, PIECE_BYTES);
        // The variable under way: its elements, and whether its first side follows from what it is set to.
        let mut elements: Option<u64> = None;
        let mut is_open_ended = false;
        loop {
            let word = self.next();
            let is_end =
                !matches!(&word, Some(Word::Directive(_) | Word::Name | Word::Number(_) | Word::Mark(b'[' | b'=')));
            match word {
                Some(Word::Directive(name)) if name.is(b".align") => {
                    if let Some(Word::Number(bytes)) = self.next() {
                        alignment = alignment.max(bytes);
                    }
                }
                Some(Word::Directive(name)) if name.is(b".attribute") => {
                    self.skip_until(|byte| byte == b')');
                    self.at += 1;
                }
                Some(Word::Directive(name)) if name.is(b".v2") => vector = 2,
                Some(Word::Directive(name)) if name.is(b".v4") => vector = 4,
                Some(Word::Directive(name)) if name.is(b".v8") => vector = 8,
                Some(Word::Directive(name)) => element = name.type_bytes(),
                Some(Word::Name) => elements = Some(1),
                Some(Word::Mark(b'[')) => {
                    let side = self.side();
                    is_open_ended |= side == Some(0);
                    self.is_odd |= side.is_none();
                    elements = elements.map(|elements| elements.saturating_mul(side.unwrap_or(u64::MAX).max(1)));
                }
                Some(Word::Mark(b'=')) => {
                    let values = self.values();
                    if is_open_ended {
                        elements = elements.map(|elements| elements.saturating_mul(values));
                        is_open_ended = false;
                    }
                    self.add(elements.take(), element.saturating_mul(vector), alignment);
                }
                _ => {}
            }
            if is_end {
                // Without a size or a value it is declared here and lies elsewhere.
                self.add(elements.take().filter(|_| !is_open_ended), element.saturating_mul(vector), alignment);
                is_open_ended = false;
                // An attribute of a parameter has no type.
                if element == 0 || !matches!(word, Some(Word::Mark(b','))) {
                    return;
                }
            }
        }
    }

    fn add(&mut self, elements: Option<u64>, element: u64, alignment: u64) {
        let bytes = elements.unwrap_or(0).saturating_mul(element);
        let pieces = bytes.saturating_add(PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
        let padding = if bytes > 0 && alignment > PIECE_BYTES { alignment } else { 0 };
        self.need.data = self.need.data.saturating_add(pieces).saturating_add(padding);
    }

    /// What stands in brackets: a number, 0 for nothing; none for anything else, as a sum.
    fn side(&mut self) -> Option<u64> {
        match self.next()? {
            Word::Mark(b']') => Some(0),
            Word::Number(side) => matches!(self.next()?, Word::Mark(b']')).then_some(side),
            _ => None,
        }
    }

    /// How many values stand behind the sign, each inner list counted as one more; ends before what follows them.
    fn values(&mut self) -> u64 {
        let (mut depth, mut count) = (0u64, 1u64);
        while let Some(byte) = self.peek() {
            match byte {
                b'{' => (depth, count) = (depth + 1, count + 1),
                b'}' => depth = depth.saturating_sub(1),
                b',' if depth == 0 => break,
                b',' => count += 1,
                b';' => break,
                _ => {}
            }
            self.at += 1;
        }
        count
    }
}

fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(text: &str) -> (u64, bool) {
        let need = need(Image::of(text.as_bytes()));
        assert_eq!(need.code, 0);
        (need.data, need.is_whole)
    }

    /// A text with these declarations.
    fn with(declarations: &str) -> (u64, bool) {
        data(&format!(".version 8.0\n.target sm_80\n.address_size 64\n{declarations}\n"))
    }

    #[test]
    fn variables_count_by_type_and_sides() {
        assert_eq!(with(".visible .global .align 8 .b8 hog[6442450944];"), (6 << 30, true));
        assert_eq!(with(".global .v4 .f32 field[3][1024];"), (48 << 10, true));
        assert_eq!(with(".const .u64 a, b[2], c = 5;.const .align 64 .b16 d[0x10];"), (16 * 3 + 32 + 64, true));
        assert_eq!(with(".global .attribute(.managed) .align 4 .b8 shared_with_host[1024];"), (1024, true));
        assert_eq!(with(".global.u32 close;.visible.const.u32 closer[8U];"), (16 + 32, true));
        assert_eq!(with(".global .texref picture;"), (16, true));
        assert_eq!(with("\t.weak .global .u32/* of four */ x\n[\n1024 // not 9999\n]\n;"), (4096, true));
    }

    #[test]
    fn open_ended_arrays_count_by_their_values() {
        assert_eq!(with(".const .f32 bias[] = {-1.0, 1.0, 0f3F800000};").0, 16);
        let rows = with(".global .u32 rows[][512] = {{1}, {2, 3}}; .global .u8 next[64];").0;
        assert!(rows >= 2 * 512 * 4 + 64, "{rows}");
        assert_eq!(with(".extern .global .align 4 .b8 elsewhere[];"), (0, true));
        assert_eq!(with(".global .u64 table[2] = {generic(x)+8, y}, more[4];"), (16 + 32, true));
    }

    #[test]
    fn instructions_and_attributes_declare_nothing() {
        let text = ".visible .entry a(.param .u64 .ptr .global .align 16 a_1, .param .u64 a_2) {
            .shared .align 16 .b8 tile[4096]; .local .b8 depot[64]; .reg .b64 %rd<9>;
            cvta.to.global.u64 %rd1, %rd2; ld.const.u32 %r1, [x+4]; st.global.v4.u32 [%rd1], {%r1, %r1, %r1, %r1};
            LABEL:ld.global.nc.u32 %r2, [%rd1]; ret; }
            .section .debug_str { .b8 71,76,79 }
            .file 1 \"/a/.global .b8 hog[99999].cu\" // .global .b8 hog[99999];";
        assert_eq!(with(text), (0, true));
    }

    #[test]
    fn what_is_not_understood_is_never_taken_for_little() {
        assert!(!with(".global .b8 hog[4*1024];").1, "a sum");
        assert!(with(".global .b8 hog[99999999999999999999999];").0 > 1 << 60);
        assert!(with(".global .b8 hog[4294967296][4294967296][4294967296];").0 > 1 << 60);
        assert!(with(".global .newtype hog[1024];").0 >= 16 << 10);
        assert!(!data("no text of the kind").1);
        assert_eq!(with(".global .b8 hog[1024]").0, 1024, "without an end");
    }

    #[test]
    fn a_text_without_a_known_length_ends_with_its_zero() {
        let text = b".version 8.0\n.global .b8 a[512];\0.global .b8 b[512];";
        assert_eq!(need(Image::at(text.as_ptr() as usize)).data, 512);
    }
}
