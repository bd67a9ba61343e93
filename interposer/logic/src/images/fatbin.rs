//! Fat binaries: images for several architectures, one behind the other. The driver takes one of them. Source of the
//! layout: fatbinary_section.h of CUDA, and files that its compiler made.

use super::source::{Image, Window};
use super::{Architectures, Need, elf, lz4, ptx, zstandard};
use crate::scratch::Scratch;

/// Kinds of an entry: PTX text, cubin.
const TEXT: u16 = 1;
const CUBIN: u16 = 2;
/// Offsets in an entry's header: its length, that of what follows, that of what is compressed therein, the architecture
/// that it is for, the flags, and how long it is when it is unpacked.
const HEADER_BYTES: u64 = 4;
const PAYLOAD_BYTES: u64 = 8;
const PACKED_BYTES: u64 = 16;
const ARCHITECTURE: u64 = 28;
const FLAGS: u64 = 40;
const UNPACKED_BYTES: u64 = 56;
/// Flags of an entry that is compressed: as a block of LZ4 (by the compilers of CUDA 12 and older), or as a frame of
/// Zstandard (by those from 12.8 on, if they are told so, and from 13 on if they are told nothing else).
const LZ4: u64 = 0x2000;
const ZSTANDARD: u64 = 0x8000;
/// All entries of an image are unpacked up to this size, which takes some tenths of a second.
const MOST_UNPACKED: u64 = 64 << 20;
/// More entries than there are architectures and kinds of them.
const ENTRIES: u32 = 1 << 12;

/// What the largest of its entries takes, of those that `devices` can run.
pub(super) fn need(image: Image, devices: Architectures) -> Need {
    Need { is_choice: true, ..read(image, devices).unwrap_or(Need::UNKNOWN) }
}

fn read(image: Image, devices: Architectures) -> Option<Need> {
    let mut window = Window::new(image);
    let mut at = u64::from(window.u16_at(6)?);
    let end = at.checked_add(window.u64_at(8)?)?;
    let mut most = Need { is_whole: true, ..Need::UNKNOWN };
    let mut room = MOST_UNPACKED;
    for _ in 0..ENTRIES {
        if at >= end {
            return Some(most);
        }
        let kind = window.u16_at(at)?;
        let payload = at.checked_add(u64::from(window.u32_at(at.checked_add(HEADER_BYTES)?)?))?;
        let bytes = window.u64_at(at.checked_add(PAYLOAD_BYTES)?)?;
        let architecture = window.u32_at(at.checked_add(ARCHITECTURE)?)?;
        let is_of_use = match kind {
            CUBIN => devices.run_code(architecture),
            TEXT => devices.compile_text(architecture),
            _ => true,
        };
        if is_of_use {
            let one = entry(&mut window, at, kind, image.part(payload, bytes), &mut room)?;
            most.data = most.data.max(one.data);
            most.code = most.code.max(one.code);
            most.is_whole &= one.is_whole;
        }
        let next = payload.checked_add(bytes)?;
        if next <= at {
            return None;
        }
        at = next;
    }
    None
}

/// What the entry takes whose header is at `at` and which holds `part`.
fn entry(window: &mut Window, at: u64, kind: u16, part: Image, room: &mut u64) -> Option<Need> {
    let unpacker = match window.u64_at(at.checked_add(FLAGS)?)? & (LZ4 | ZSTANDARD) {
        0 => return Some(plain(kind, part)),
        LZ4 => lz4::unpack,
        ZSTANDARD => zstandard::unpack,
        _ => return Some(Need::UNKNOWN),
    };
    if kind != CUBIN && kind != TEXT {
        return Some(Need::UNKNOWN);
    }
    let packed = part.part(0, u64::from(window.u32_at(at.checked_add(PACKED_BYTES)?)?));
    let unpacked = window.u64_at(at.checked_add(UNPACKED_BYTES)?)?;
    let content = unpack(packed, unpacked, room, unpacker);
    Some(content.map_or(Need::UNKNOWN, |(scratch, bytes)| plain(kind, Image::of(scratch.first(bytes)))))
}

fn plain(kind: u16, part: Image) -> Need {
    match kind {
        CUBIN => elf::need(part),
        TEXT => ptx::need(part),
        _ => Need::UNKNOWN,
    }
}

/// Unpacks `packed` to `unpacked` bytes; none where that makes no sense or takes more than `room`.
fn unpack(
    packed: Image,
    unpacked: u64,
    room: &mut u64,
    unpacker: fn(Image, &mut [u8]) -> Option<usize>,
) -> Option<(Scratch, usize)> {
    *room = room.checked_sub(unpacked.max(packed.bytes()))?;
    let mut scratch = Scratch::new(usize::try_from(unpacked).ok()?)?;
    let bytes = unpacker(packed, scratch.all())?;
    Some((scratch, bytes))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::elf::tests::{CODE, DATA, cubin};
    use super::*;

    fn need(image: Image) -> Need {
        super::need(image, Architectures::ANY)
    }

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

    /// How entries are compressed, and the flag that says so.
    type Packer = (u64, fn(&[u8]) -> Vec<u8>);
    pub(crate) const BOTH: [Packer; 2] = [(LZ4, lz4::tests::packed), (ZSTANDARD, zstandard::tests::packed)];

    /// The same with its entries compressed, and some bytes behind each as the compiler pads them.
    pub(crate) fn packed((flag, pack): Packer, entries: &[(u16, &[u8])]) -> Vec<u8> {
        let blocks: Vec<Vec<u8>> = entries.iter().map(|(_, content)| [pack(content), vec![0; 5]].concat()).collect();
        let plain: Vec<(u16, &[u8])> =
            entries.iter().zip(&blocks).map(|((kind, _), block)| (*kind, &block[..])).collect();
        let mut file = fat_binary(&plain);
        let mut at = 16;
        for ((_, content), block) in entries.iter().zip(&blocks) {
            file[at + 16..at + 20].copy_from_slice(&(block.len() as u32 - 5).to_le_bytes());
            file[at + 40..at + 48].copy_from_slice(&flag.to_le_bytes());
            file[at + 56..at + 64].copy_from_slice(&(content.len() as u64).to_le_bytes());
            at += 64 + block.len();
        }
        file
    }

    #[test]
    fn what_is_compressed_is_read() {
        let one = cubin(&[(DATA, 3 << 30, b".nv.global"), (CODE, 8192, b".text.a")]);
        let text = b".version 8.0\n.global .b8 a[512];\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        for packer in BOTH {
            let file = packed(packer, &[(2, &one), (1, text)]);
            assert_eq!(need(Image::of(&file)), Need { data: 3 << 30, code: 8192, is_whole: true, is_choice: true });
            let mut broken = file.clone();
            broken[16 + 56] ^= 1;
            assert!(need(Image::of(&broken)).data <= 3 << 30, "whatever it says of its size");
            for unpacked in [0, u64::MAX, MOST_UNPACKED + 1] {
                let mut absurd = file.clone();
                absurd[16 + 56..16 + 64].copy_from_slice(&unpacked.to_le_bytes());
                assert!(!need(Image::of(&absurd)).is_whole, "{unpacked} bytes");
            }
            let mut far = file.clone();
            far[16 + 16..16 + 20].fill(0xff);
            assert!(need(Image::of(&far)).data <= 3 << 30, "more is packed than there is");
        }
    }

    #[test]
    fn all_entries_together_have_room() {
        let mut text = vec![b' '; MOST_UNPACKED as usize / 2 + 1];
        text[..12].copy_from_slice(b".version 8.0");
        let [_, packer] = BOTH;
        assert!(need(Image::of(&packed(packer, &[(1, &text)]))).is_whole);
        assert!(!need(Image::of(&packed(packer, &[(1, &text), (1, &text)]))).is_whole);
    }

    #[test]
    fn the_largest_counts_since_the_driver_takes_one() {
        let (one, two) = (cubin(&[(DATA, 4096, b".nv.global")]), cubin(&[(CODE, 8192, b".text.a")]));
        let file = fat_binary(&[(2, &one), (2, &two), (1, b".version 8.0\n.global .b8 a[512];\0\0\0")]);
        assert_eq!(need(Image::of(&file)), Need { data: 4096, code: 8192, is_whole: true, is_choice: true });
    }

    #[test]
    fn what_no_device_can_run_is_not_unpacked() {
        let (one, two) = (cubin(&[(DATA, 4096, b".nv.global")]), cubin(&[(DATA, 1 << 30, b".nv.global")]));
        let text = b".version 8.0\n.global .b8 a[8192];";
        for (architectures, devices, want) in [
            ([90, 100, 90], Architectures::NONE.with(9, 0), 8192),
            ([90, 100, 100], Architectures::NONE.with(9, 0), 4096),
            ([90, 100, 100], Architectures::NONE.with(9, 0).with(10, 3), 1 << 30),
            ([90, 100, 100], Architectures::ANY, 1 << 30),
            ([90, 0, 100], Architectures::NONE.with(9, 0), 1 << 30),
        ] {
            for packer in BOTH {
                let mut file = packed(packer, &[(2, &one), (2, &two), (1, text)]);
                let mut at = 16;
                for architecture in architectures {
                    file[at + 28..at + 32].copy_from_slice(&u32::to_le_bytes(architecture));
                    at += 64 + u64::from_le_bytes(file[at + 8..at + 16].try_into().unwrap()) as usize;
                }
                let need = super::need(Image::of(&file), devices);
                assert_eq!((need.data, need.is_whole), (want, true), "{architectures:?} on {devices:?}");
            }
        }
    }

    #[test]
    fn what_is_of_another_kind_is_not_whole() {
        let one = cubin(&[(DATA, 4096, b".nv.global")]);
        let mut file = fat_binary(&[(2, &one)]);
        assert!(need(Image::of(&file)).is_whole);
        for both in [LZ4 | ZSTANDARD, ZSTANDARD] {
            file[16 + 40..16 + 48].copy_from_slice(&both.to_le_bytes());
            assert!(!need(Image::of(&file)).is_whole, "it says that it is compressed and is not");
        }
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
