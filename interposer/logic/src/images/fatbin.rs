//! Fat binaries: images for several architectures, one behind the other. The driver takes one of them. Source of the
//! layout: fatbinary_section.h of CUDA, and files that its compiler made.

use super::source::{Image, Window};
use super::{Need, elf, lz4, ptx};

/// Kinds of an entry: PTX text, cubin.
const TEXT: u16 = 1;
const CUBIN: u16 = 2;
/// Offsets in an entry's header: its length, that of what follows, that of what is compressed therein, the flags, and how
/// long it is when it is unpacked.
const HEADER_BYTES: u64 = 4;
const PAYLOAD_BYTES: u64 = 8;
const PACKED_BYTES: u64 = 16;
const FLAGS: u64 = 40;
const UNPACKED_BYTES: u64 = 56;
/// Flags of an entry that is compressed: as a block of LZ4, and by Zstandard, which is not unpacked here.
const LZ4: u64 = 0x2000;
const ZSTANDARD: u64 = 0x8000;
/// All entries of an image are unpacked up to this size, which takes some tenths of a second.
const MOST_UNPACKED: u64 = 64 << 20;
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
    let mut room = MOST_UNPACKED;
    for _ in 0..ENTRIES {
        if at >= end {
            return Some(most);
        }
        let kind = window.u16_at(at)?;
        let payload = at.checked_add(u64::from(window.u32_at(at.checked_add(HEADER_BYTES)?)?))?;
        let bytes = window.u64_at(at.checked_add(PAYLOAD_BYTES)?)?;
        let compression = window.u64_at(at.checked_add(FLAGS)?)? & (LZ4 | ZSTANDARD);
        let part = image.part(payload, bytes);
        let one = match compression {
            0 => plain(kind, part),
            LZ4 => {
                let packed = u64::from(window.u32_at(at.checked_add(PACKED_BYTES)?)?);
                let unpacked = window.u64_at(at.checked_add(UNPACKED_BYTES)?)?;
                let scratch =
                    if kind == CUBIN || kind == TEXT { unpack(part, packed, unpacked, &mut room) } else { None };
                scratch.map_or(Need::UNKNOWN, |scratch| plain(kind, scratch.image()))
            }
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

fn plain(kind: u16, part: Image) -> Need {
    match kind {
        CUBIN => elf::need(part),
        TEXT => ptx::need(part),
        _ => Need::UNKNOWN,
    }
}

/// Unpacks the first `packed` bytes of `part` to `unpacked`; none where that makes no sense or takes more than `room`.
fn unpack(part: Image, packed: u64, unpacked: u64, room: &mut u64) -> Option<Scratch> {
    let block = part.part(0, packed);
    if unpacked > block.bytes().saturating_mul(lz4::MOST_RATIO) {
        return None;
    }
    *room = room.checked_sub(unpacked)?;
    let mut scratch = Scratch::new(usize::try_from(unpacked).ok()?)?;
    scratch.used = lz4::unpack(block, scratch.all())?;
    Some(scratch)
}

/// Memory of the kernel's, since the program's allocator is not ours to use.
struct Scratch {
    start: *mut u8,
    room: usize,
    used: usize,
}

impl Scratch {
    fn new(room: usize) -> Option<Self> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, unmapped when this is dropped; of no length there is none.
        let start = unsafe { libc::mmap(core::ptr::null_mut(), room, access, kind, -1, 0) };
        (start != libc::MAP_FAILED).then_some(Self { start: start.cast(), room, used: 0 })
    }

    fn all(&mut self) -> &mut [u8] {
        // SAFETY: mapped, zeroed and nobody else's.
        unsafe { core::slice::from_raw_parts_mut(self.start, self.room) }
    }

    fn image(&self) -> Image {
        // SAFETY: as above, and `used` is no more than was written.
        Image::of(unsafe { core::slice::from_raw_parts(self.start, self.used) })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`.
        unsafe { libc::munmap(self.start.cast(), self.room) };
    }
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

    /// The same with its entries compressed, and some bytes behind each as the compiler pads them.
    pub(crate) fn packed(entries: &[(u16, &[u8])]) -> Vec<u8> {
        let blocks: Vec<Vec<u8>> =
            entries.iter().map(|(_, content)| [super::lz4::tests::packed(content), vec![0; 5]].concat()).collect();
        let plain: Vec<(u16, &[u8])> =
            entries.iter().zip(&blocks).map(|((kind, _), block)| (*kind, &block[..])).collect();
        let mut file = fat_binary(&plain);
        let mut at = 16;
        for ((_, content), block) in entries.iter().zip(&blocks) {
            file[at + 16..at + 20].copy_from_slice(&(block.len() as u32 - 5).to_le_bytes());
            file[at + 41] = 0x20;
            file[at + 56..at + 64].copy_from_slice(&(content.len() as u64).to_le_bytes());
            at += 64 + block.len();
        }
        file
    }

    #[test]
    fn what_lz4_has_compressed_is_read() {
        let one = cubin(&[(DATA, 3 << 30, b".nv.global"), (CODE, 8192, b".text.a")]);
        let file = packed(&[(2, &one), (1, b".version 8.0\n.global .b8 a[512];\0\0\0\0\0\0\0\0\0\0\0\0\0\0")]);
        assert_eq!(need(Image::of(&file)), Need { data: 3 << 30, code: 8192, is_whole: true, is_choice: true });
        let mut broken = file.clone();
        broken[16 + 56] ^= 1;
        assert!(need(Image::of(&broken)).data <= 3 << 30, "whatever it says of its size");
        for unpacked in [0, u64::MAX, MOST_UNPACKED + 1] {
            let mut absurd = file.clone();
            absurd[16 + 56..16 + 64].copy_from_slice(&unpacked.to_le_bytes());
            assert!(!need(Image::of(&absurd)).is_whole, "{unpacked} bytes");
        }
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
        file[16 + 41] = 0x80;
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
