//! Fat binaries: images for several architectures, one behind the other. The driver takes one of them. Source of the
//! layout: fatbinary_section.h of CUDA, and files that its compiler made.

use super::source::{Image, Window};
use super::{Need, elf, ptx};

/// Kinds of an entry: PTX text, cubin.
const TEXT: u16 = 1;
const CUBIN: u16 = 2;
/// Offsets in an entry's header: its length, that of what follows, and the flags.
const HEADER_BYTES: u64 = 4;
const PAYLOAD_BYTES: u64 = 8;
const FLAGS: u64 = 40;
/// Flags of a compressed entry, by two methods.
const COMPRESSED: u64 = 0x2000 | 0x8000;
/// More entries than there are architectures and kinds of them.
const ENTRIES: u32 = 1 << 12;

/// What the largest of its entries takes.
pub(super) fn need(image: Image) -> Need {
    Need { is_choice: true, ..read(image).unwrap_or(Need::UNKNOWN) }
}

fn read(image: Image) -> Option<Need> {
    let mut window = Window::new(image);
    let mut at = u64::from(window.u16_at(6)?);
    let end = at.checked_add(window.u64_at(8)?)?;
    let mut most = Need { is_whole: true, ..Need::UNKNOWN };
    for _ in 0..ENTRIES {
        if at >= end {
            return Some(most);
        }
        let kind = window.u16_at(at)?;
        let payload = at.checked_add(u64::from(window.u32_at(at.checked_add(HEADER_BYTES)?)?))?;
        let bytes = window.u64_at(at.checked_add(PAYLOAD_BYTES)?)?;
        let is_compressed = window.u64_at(at.checked_add(FLAGS)?)? & COMPRESSED != 0;
        let part = image.part(payload, bytes);
        let one = match kind {
            CUBIN if !is_compressed => elf::need(part),
            TEXT if !is_compressed => ptx::need(part),
            _ => Need::UNKNOWN,
        };
        most.data = most.data.max(one.data);
        most.code = most.code.max(one.code);
        most.is_whole &= one.is_whole;
        let next = payload.checked_add(bytes)?;
        if next <= at {
            return None;
        }
        at = next;
    }
    None
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::elf::tests::{CODE, DATA, cubin};
    use super::*;

    /// A fat binary with these entries (kind, content).
    pub(crate) fn fat_binary(entries: &[(u16, &[u8])]) -> Vec<u8> {
        let mut file = Vec::new();
        for (kind, content) in entries {
            let mut header = [0u8; 64];
            header[..2].copy_from_slice(&kind.to_le_bytes());
            header[4..8].copy_from_slice(&64u32.to_le_bytes());
            header[8..16].copy_from_slice(&(content.len() as u64).to_le_bytes());
            file.extend(header);
            file.extend(*content);
        }
        let mut start = 0xba55_ed50u32.to_le_bytes().to_vec();
        start.extend([1, 0, 16, 0]);
        start.extend((file.len() as u64).to_le_bytes());
        start.extend(file);
        start
    }

    #[test]
    fn the_largest_counts_since_the_driver_takes_one() {
        let (one, two) = (cubin(&[(DATA, 4096, b".nv.global")]), cubin(&[(CODE, 8192, b".text.a")]));
        let file = fat_binary(&[(2, &one), (2, &two), (1, b".version 8.0\n.global .b8 a[512];\0\0\0")]);
        assert_eq!(need(Image::of(&file)), Need { data: 4096, code: 8192, is_whole: true, is_choice: true });
    }

    #[test]
    fn what_is_compressed_or_of_another_kind_is_not_whole() {
        let one = cubin(&[(DATA, 4096, b".nv.global")]);
        let mut file = fat_binary(&[(2, &one)]);
        assert!(need(Image::of(&file)).is_whole);
        file[16 + 41] = 0x20;
        assert!(!need(Image::of(&file)).is_whole);
        let file = fat_binary(&[(8, b"a compiler's representation"), (2, &one)]);
        assert_eq!(need(Image::of(&file)), Need { data: 4096, code: 0, is_whole: false, is_choice: true });
    }

    #[test]
    fn entries_without_length_do_not_go_on_for_ever() {
        let mut file = fat_binary(&[(2, b"")]);
        file[20..24].fill(0);
        assert!(!need(Image::of(&file)).is_whole);
    }
}
