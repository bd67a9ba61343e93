//! What the images of modules and libraries take of the device, read from the image before the driver gets it.
//!
//! The driver says nowhere how much memory a module takes. Static data, which can be as large as the device, is named in
//! the image: allocated sections of a cubin, `.global` and `.const` variables of a PTX text, the largest of each in a fat
//! binary, of which the driver chooses one. Images are untrusted: what is not there, or makes no sense, ends the reading
//! and is said by [`Need::is_whole`].

mod architectures;
mod elf;
mod fatbin;
mod lz4;
mod ptx;
mod source;
mod zstandard;

pub use architectures::Architectures;
pub use source::Image;
use source::Window;

/// What an image takes of the device at most, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Need {
    /// Variables and constants.
    pub data: u64,
    /// Machine code; of a PTX text, which the driver compiles, none is known.
    pub code: u64,
    /// The image has been understood as a whole. Otherwise it may take more.
    pub is_whole: bool,
    /// The driver chooses one of several, and may load its code as late as at the first launch.
    pub is_choice: bool,
}

impl Need {
    const UNKNOWN: Self = Self { data: 0, code: 0, is_whole: false, is_choice: false };
}

/// First bytes, as a little-endian word: of a cubin, of a fat binary, and of what the compiler wraps one into.
const ELF: u32 = 0x464c_457f;
const FAT_BINARY: u32 = 0xba55_ed50;
const WRAPPER: u32 = 0x4662_43b1;

/// What `image` takes on one of `devices`.
pub fn need(image: Image, devices: Architectures) -> Need {
    let mut window = Window::new(image);
    match window.u32_at(0) {
        Some(ELF) => elf::need(image),
        Some(FAT_BINARY) => fatbin::need(image, devices),
        // The address of the fat binary comes behind the magic and the version. Source: fatbinary_section.h of CUDA.
        Some(WRAPPER) if window.u32_at(4) == Some(1) => match window.u64_at(8) {
            Some(address) => fatbin::need(Image::at(address as usize), devices),
            None => Need::UNKNOWN,
        },
        Some(WRAPPER) => Need::UNKNOWN,
        _ => ptx::need(image),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(image: Image) -> Need {
        super::need(image, Architectures::ANY)
    }

    /// xorshift64*.
    fn random(state: &mut u64) -> u64 {
        *state ^= *state >> 12;
        *state ^= *state << 25;
        *state ^= *state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    #[test]
    fn whatever_an_image_holds_it_is_read_to_an_end() {
        let mut seed = 0x9e37_79b9_7f4a_7c15;
        let texts: &[&[u8]] = &[b".version 8.0\n.global .b8 hog[6442450944];", b".const .v4 .f32 x[] = {1,", b"/*"];
        let mut images: Vec<Vec<u8>> = texts.iter().map(|text| text.to_vec()).collect();
        images.push(elf::tests::cubin(&[(elf::tests::DATA, 4096, b".nv.global")]));
        images.push(fatbin::tests::fat_binary(&[(2, &elf::tests::cubin(&[(elf::tests::CODE, 99, b".text.a")]))]));
        let variables =
            elf::tests::cubin(&[(elf::tests::DATA, 4096, b".nv.global"), (elf::tests::CODE, 99, b".text.a")]);
        images
            .extend(fatbin::tests::BOTH.map(|packer| fatbin::tests::packed(packer, &[(2, &variables), (1, texts[0])])));
        for round in 0..20_000 {
            let mut image = images[round % images.len()].clone();
            for _ in 0..random(&mut seed) % 8 {
                let place = random(&mut seed) as usize % image.len();
                image[place] = random(&mut seed) as u8;
            }
            image.truncate(random(&mut seed) as usize % (image.len() + 1));
            let _ = need(Image::of(&image));
        }
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        assert_eq!(need(Image::at(1)), Need::UNKNOWN, "nothing is mapped there");
        assert_eq!(need(Image::of(b"")), Need::UNKNOWN);
        assert!(!need(Image::of(b"\xedCN\x7f a compiler's representation")).is_whole);
        let wrapper: Vec<u8> = [WRAPPER.to_le_bytes(), 2u32.to_le_bytes()].concat();
        assert!(!need(Image::of(&wrapper)).is_whole, "several that are linked");
    }

    #[test]
    fn a_wrapped_fat_binary_is_followed() {
        let fat = fatbin::tests::fat_binary(&[(1, b".version 7.0\n.global .u64 x[1024];")]);
        let mut wrapper = [WRAPPER.to_le_bytes(), 1u32.to_le_bytes()].concat();
        wrapper.extend((fat.as_ptr() as u64).to_le_bytes());
        assert_eq!(need(Image::of(&wrapper)), Need { data: 8192, code: 0, is_whole: true, is_choice: true });
    }
}
