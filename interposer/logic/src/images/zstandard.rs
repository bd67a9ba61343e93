//! Zstandard frames, by which the compiler of CUDA 13 compresses the entries of fat binaries if it is told nothing else.
//! Unpacked by the format's own library (RFC 8878), in memory that it is given.

use super::source::Image;
use crate::scratch::Scratch;
use zstd_sys::{ZSTD_decompressDCtx, ZSTD_estimateDCtxSize, ZSTD_initStaticDCtx, ZSTD_isError};

/// Unpacks `packed` into `to`: how many bytes there are. None where the frame makes no sense or is not there as a whole,
/// where it has more of them than `to` has room for, or without memory.
pub(super) fn unpack(packed: Image, to: &mut [u8]) -> Option<usize> {
    let mut frame = Scratch::new(usize::try_from(packed.bytes()).ok()?)?;
    packed.read(frame.all())?;
    // SAFETY: it computes.
    let mut workspace = Scratch::new(unsafe { ZSTD_estimateDCtxSize() })?;
    let (frame, workspace) = (frame.all(), workspace.all());
    // SAFETY: writable memory of that length at the beginning of a page, which stays until the context is not used any
    // more; the context is a part of it and has nothing to free.
    let context = unsafe { ZSTD_initStaticDCtx(workspace.as_mut_ptr().cast(), workspace.len()) };
    if context.is_null() {
        return None;
    }
    // SAFETY: both places are there for their lengths and apart from each other.
    let result =
        unsafe { ZSTD_decompressDCtx(context, to.as_mut_ptr().cast(), to.len(), frame.as_ptr().cast(), frame.len()) };
    // SAFETY: it computes.
    (unsafe { ZSTD_isError(result) } == 0).then_some(result)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use zstd_sys::{ZSTD_compress, ZSTD_compressBound};

    /// `content` as a frame that says how long the content is, as the compiler of CUDA makes them.
    pub(crate) fn packed(content: &[u8]) -> Vec<u8> {
        // SAFETY: it computes.
        let mut frame = vec![0; unsafe { ZSTD_compressBound(content.len()) }];
        // SAFETY: both are there for their lengths.
        let length =
            unsafe { ZSTD_compress(frame.as_mut_ptr().cast(), frame.len(), content.as_ptr().cast(), content.len(), 3) };
        frame.truncate(length);
        frame
    }

    #[test]
    fn what_was_packed_comes_out() {
        let noise: Vec<u8> = (0..300_000_u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 21) as u8).collect();
        for content in [&b""[..], b"a", &[7; 500_000], &noise] {
            let frame = packed(content);
            let mut room = vec![0xff; content.len() + 9];
            assert_eq!(unpack(Image::of(&frame), &mut room), Some(content.len()));
            assert_eq!(&room[..content.len()], content);
            assert!(room[content.len()..].iter().all(|byte| *byte == 0xff), "beyond the end");
        }
    }

    #[test]
    fn what_makes_no_sense_or_has_no_room_is_refused() {
        let frame = packed(&[7; 5000]);
        assert_eq!(unpack(Image::of(&frame), &mut [0; 4999]), None, "no room");
        assert_eq!(unpack(Image::of(&frame[..frame.len() - 1]), &mut [0; 5000]), None, "cut off");
        assert_eq!(unpack(Image::of(b"no frame at all"), &mut [0; 5000]), None);
        assert_eq!(unpack(Image::of(b""), &mut [0; 5000]), None, "nothing");
        assert_eq!(unpack(Image::at(4096).part(0, 100), &mut [0; 5000]), None, "nothing is mapped there");
    }
}
