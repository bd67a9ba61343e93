//! LZ4 blocks, by which entries of fat binaries are compressed. Source of the format: "LZ4 Block Format Description" of
//! the LZ4 project.

use super::source::{Image, Window};

/// Matches are at least so long.
const LEAST_MATCH: usize = 4;
/// A length that begins with this goes on in the bytes that follow.
const LONG: u8 = 15;
/// No sequence makes more of a byte.
const MOST_RATIO: u64 = 255;

/// Unpacks `block` into `to`: how many bytes there are. None where the block makes no sense, or has more of them than
/// `to` has room for. The last sequence has no match, and is the one with which the block ends or `to` is full.
pub(super) fn unpack(block: Image, to: &mut [u8]) -> Option<usize> {
    if to.len() as u64 > block.bytes().saturating_mul(MOST_RATIO) {
        return None;
    }
    let (mut from, mut at, mut written) = (Window::new(block), 0, 0_usize);
    loop {
        let token = next(&mut from, &mut at)?;
        let literals = length(&mut from, &mut at, token >> 4)?;
        for place in to.get_mut(written..written.checked_add(literals)?)? {
            *place = next(&mut from, &mut at)?;
        }
        written += literals;
        if at >= block.bytes() || written == to.len() {
            return Some(written);
        }
        let distance = usize::from(u16::from_le_bytes([next(&mut from, &mut at)?, next(&mut from, &mut at)?]));
        let start = written.checked_sub(distance).filter(|_| distance > 0)?;
        let end = length(&mut from, &mut at, token & LONG)?.checked_add(LEAST_MATCH + written)?;
        // What is copied may overlap what it is copied to, and repeats then.
        let place = to.get_mut(start..end)?;
        for offset in distance..place.len() {
            *place.get_mut(offset)? = *place.get(offset - distance)?;
        }
        written = end;
        if written == to.len() {
            return Some(written);
        }
    }
}

fn next(from: &mut Window, at: &mut u64) -> Option<u8> {
    let byte = from.byte(*at)?;
    *at += 1;
    Some(byte)
}

fn length(from: &mut Window, at: &mut u64, first: u8) -> Option<usize> {
    let mut sum = usize::from(first);
    if first == LONG {
        loop {
            let more = next(from, at)?;
            sum = sum.checked_add(usize::from(more))?;
            if more != u8::MAX {
                break;
            }
        }
    }
    Some(sum)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::HashMap;

    /// A block as a plain compressor makes it: the last place where the next four bytes stood, if there is one.
    pub(crate) fn packed(text: &[u8]) -> Vec<u8> {
        let (mut block, mut seen, mut at, mut literals) = (Vec::new(), HashMap::new(), 0, 0);
        // The format wants the last five bytes to be literals.
        while at + 12 < text.len() {
            let known = seen.insert(text[at..at + 4].to_vec(), at).filter(|known| at - known < 1 << 16);
            let Some(known) = known else {
                at += 1;
                continue;
            };
            let most = text.len() - 5 - at;
            let length = (0..most).take_while(|offset| text[at + offset] == text[known + offset]).count();
            sequence(&mut block, &text[literals..at], Some((at - known, length)));
            at += length;
            literals = at;
        }
        sequence(&mut block, &text[literals..], None);
        block
    }

    fn sequence(block: &mut Vec<u8>, literals: &[u8], copied: Option<(usize, usize)>) {
        let copy = copied.map_or(0, |(_, length)| length - LEAST_MATCH);
        block.push((literals.len().min(15) << 4 | copy.min(15)) as u8);
        rest_of(block, literals.len());
        block.extend(literals);
        if let Some((distance, _)) = copied {
            block.extend((distance as u16).to_le_bytes());
            rest_of(block, copy);
        }
    }

    fn rest_of(block: &mut Vec<u8>, length: usize) {
        if let Some(rest) = length.checked_sub(15) {
            block.extend(std::iter::repeat_n(255, rest / 255));
            block.push((rest % 255) as u8);
        }
    }

    fn unpacked(block: &[u8], room: usize) -> Option<Vec<u8>> {
        let mut to = vec![0; room];
        let length = unpack(Image::of(block), &mut to)?;
        to.truncate(length);
        Some(to)
    }

    #[test]
    fn what_was_packed_comes_out() {
        let mut state = 1_u64;
        for round in 0..300_usize {
            // From all alike to all random, and longer than a page.
            let text: Vec<u8> = (0..round * 37)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    if (state >> 33) as usize % 300 < round { (state >> 40) as u8 } else { 7 }
                })
                .collect();
            assert_eq!(unpacked(&packed(&text), text.len()).as_deref(), Some(&text[..]), "round {round}");
        }
    }

    #[test]
    fn a_block_of_the_lz4_program_is_read() {
        // "gpool " eight times and a full stop: six literals, a match of 38 that overlaps itself, five literals.
        let block = *b"\x6fgpool \x06\x00\x13\x50ool .";
        assert_eq!(unpacked(&block, 49).unwrap(), [b"gpool ".repeat(8).as_slice(), b"."].concat());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for block in
            [&b""[..], b"\x10", b"\x00\x00\x00", b"\x10a\x00\x00", b"\x10a\x02\x00", b"\xf0\xff", b"\x1fa\x01\x00"]
        {
            assert_eq!(unpacked(block, 100), None, "{block:?}");
        }
        assert_eq!(unpacked(&packed(&[7; 1000]), 999), None, "there is more than was said");
    }
}
