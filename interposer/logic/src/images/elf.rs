//! Cubins: ELF files whose allocated sections the driver loads. Sources: the ELF-64 object file format; the names of
//! sections as `cuobjdump -elf` shows them.

use super::Need;
use super::source::{Image, Window};

/// Offsets in the file's header: where section headers are, how long each is and how many, and which one has names.
const SECTIONS: u64 = 40;
const SECTION_BYTES: u64 = 58;
const SECTION_COUNT: u64 = 60;
const NAMES: u64 = 62;
/// The class of 64-bit files, and where it stands.
const CLASS: u64 = 4;
const CLASS_64: u8 = 2;
/// Section flags: takes memory; is machine code.
const ALLOCATED: u64 = 2;
const CODE: u64 = 4;
/// Each section may begin at a multiple of this.
const PIECE_BYTES: u64 = 512;
/// Static shared memory lies on the multiprocessor.
const ON_CHIP: &[u8] = b".nv.shared";

/// What a cubin takes.
pub(super) fn need(image: Image) -> Need {
    read(image).unwrap_or(Need::UNKNOWN)
}

fn read(image: Image) -> Option<Need> {
    // Names lie elsewhere than headers, so each has a window.
    let (mut headers, mut names) = (Window::new(image), Window::new(image));
    if headers.byte(CLASS) != Some(CLASS_64) {
        return None;
    }
    let start = headers.u64_at(SECTIONS)?;
    let length = u64::from(headers.u16_at(SECTION_BYTES)?);
    let names_section = u64::from(headers.u16_at(NAMES)?);
    let mut count = u64::from(headers.u16_at(SECTION_COUNT)?);
    let header = |index: u64| index.checked_mul(length)?.checked_add(start);
    if count == 0 && start != 0 {
        // More than fit the field: the first section's size says how many.
        count = headers.u64_at(start.checked_add(32)?)?.min(u64::from(u32::MAX));
    }
    let names_start = headers.u64_at(header(names_section)?.checked_add(24)?)?;
    let mut need = Need { is_whole: true, ..Need::UNKNOWN };
    for index in 0..count {
        let at = header(index)?;
        let name = names_start.checked_add(u64::from(headers.u32_at(at)?))?;
        let flags = headers.u64_at(at.checked_add(8)?)?;
        let size = headers.u64_at(at.checked_add(32)?)?;
        if flags & ALLOCATED == 0 || names.is_at(name, ON_CHIP) {
            continue;
        }
        let size = size.saturating_add(PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
        let sum = if flags & CODE != 0 { &mut need.code } else { &mut need.data };
        *sum = sum.saturating_add(size);
    }
    Some(need)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) const DATA: u64 = 3;
    pub(crate) const CODE: u64 = 6;

    /// A file with these sections (flags, size, name) behind the empty first one, and with their names.
    pub(crate) fn cubin(sections: &[(u64, u64, &[u8])]) -> Vec<u8> {
        let mut names = vec![0u8];
        let mut headers = vec![[0u8; 64]];
        let mut add = |flags: u64, size: u64, name: &[u8]| {
            let mut header = [0u8; 64];
            header[..4].copy_from_slice(&(names.len() as u32).to_le_bytes());
            header[8..16].copy_from_slice(&flags.to_le_bytes());
            header[32..40].copy_from_slice(&size.to_le_bytes());
            names.extend(name);
            names.push(0);
            headers.push(header);
        };
        sections.iter().for_each(|(flags, size, name)| add(*flags, *size, name));
        add(0, 0, b".shstrtab");
        let last = headers.len() - 1;
        headers[last][24..32].copy_from_slice(&64u64.to_le_bytes());
        let mut file = vec![0u8; 64];
        file[..5].copy_from_slice(b"\x7fELF\x02");
        file[40..48].copy_from_slice(&(64 + names.len() as u64).to_le_bytes());
        file[58..60].copy_from_slice(&64u16.to_le_bytes());
        file[60..62].copy_from_slice(&(headers.len() as u16).to_le_bytes());
        file[62..64].copy_from_slice(&(last as u16).to_le_bytes());
        file.extend(names);
        headers.iter().for_each(|header| file.extend(header));
        file
    }

    #[test]
    fn allocated_sections_count_and_shared_memory_does_not() {
        let file = cubin(&[
            (DATA, 6 << 30, b".nv.global"),
            (2, 100, b".nv.constant3"),
            (CODE, 5000, b".text.kernel"),
            (DATA, 48 << 10, b".nv.shared.kernel"),
            (0, 1 << 40, b".debug_info"),
        ]);
        let expected = Need { data: (6 << 30) + 512, code: 5120, is_whole: true, is_choice: false };
        assert_eq!(need(Image::of(&file)), expected);
        assert_eq!(need(Image::at(file.as_ptr() as usize)), expected, "also without a known length");
    }

    #[test]
    fn a_size_beyond_all_bounds_stays_one() {
        let file = cubin(&[(DATA, u64::MAX, b".nv.global"), (DATA, u64::MAX - 5, b".nv.global.init")]);
        assert_eq!(need(Image::of(&file)).data, u64::MAX);
    }

    #[test]
    fn more_sections_than_the_field_holds_are_counted_by_the_first() {
        let mut file = cubin(&[(DATA, 1024, b".nv.global")]);
        let headers = u64::from_le_bytes(file[40..48].try_into().unwrap()) as usize;
        file[60..62].copy_from_slice(&[0, 0]);
        file[headers + 32..headers + 40].copy_from_slice(&3u64.to_le_bytes());
        assert_eq!(need(Image::of(&file)).data, 1024);
    }

    #[test]
    fn what_is_cut_off_or_of_another_class_is_not_whole() {
        let file = cubin(&[(DATA, 1024, b".nv.global")]);
        assert!(!need(Image::of(&file[..file.len() - 40])).is_whole);
        let mut narrow = file;
        narrow[4] = 1;
        assert!(!need(Image::of(&narrow)).is_whole);
    }
}
