//! Memory that is read without trust in its being there.

/// A page: a window never lies across two, so that the second one need not be mapped.
const PAGE_BYTES: usize = 4096;

/// An image in this process's memory.
#[derive(Debug, Clone, Copy)]
pub struct Image {
    start: usize,
    bytes: u64,
}

impl Image {
    /// The one at `address`, which says itself where it ends.
    pub fn at(address: usize) -> Self {
        Self { start: address, bytes: u64::MAX }
    }

    /// One of known length.
    pub fn of(bytes: &[u8]) -> Self {
        Self { start: bytes.as_ptr() as usize, bytes: bytes.len() as u64 }
    }

    /// How long it is, if it is of known length.
    pub(super) fn bytes(self) -> u64 {
        self.bytes
    }

    /// The `bytes` from `offset` on, as far as they are there.
    pub(super) fn part(self, offset: u64, bytes: u64) -> Self {
        let left = self.bytes.saturating_sub(offset);
        Self { start: self.start.saturating_add(offset as usize), bytes: left.min(bytes) }
    }

    /// Copies it from its beginning until `to` is full; none where that much cannot be read.
    pub(super) fn read(self, to: &mut [u8]) -> Option<()> {
        if (to.len() as u64) > self.bytes {
            return None;
        }
        let (mut address, mut left) = (self.start, to);
        while !left.is_empty() {
            let length = left.len().min(PAGE_BYTES - address % PAGE_BYTES);
            let (piece, rest) = left.split_at_mut_checked(length)?;
            copy(address, piece).then_some(())?;
            (address, left) = (address.checked_add(length)?, rest);
        }
        Some(())
    }
}

/// One piece of an image at a time.
pub(super) struct Window {
    image: Image,
    /// Offset of the piece.
    at: u64,
    length: usize,
    piece: [u8; PAGE_BYTES],
}

impl Window {
    pub(super) fn new(image: Image) -> Self {
        Self { image, at: 0, length: 0, piece: [0; PAGE_BYTES] }
    }

    /// The byte at `offset`; none where nothing can be read.
    pub(super) fn byte(&mut self, offset: u64) -> Option<u8> {
        let inside = offset.wrapping_sub(self.at);
        if inside < self.length as u64 {
            return self.piece.get(inside as usize).copied();
        }
        self.fetch(offset)?;
        self.piece.first().copied()
    }

    #[inline(never)]
    fn fetch(&mut self, offset: u64) -> Option<()> {
        let address = self.image.start.checked_add(usize::try_from(offset).ok()?)?;
        let left = self.image.bytes.checked_sub(offset).filter(|left| *left > 0)?;
        let to_end_of_page = PAGE_BYTES - address % PAGE_BYTES;
        self.length = 0;
        let length = left.min(to_end_of_page as u64) as usize;
        if !copy(address, self.piece.get_mut(..length)?) {
            return None;
        }
        (self.at, self.length) = (offset, length);
        Some(())
    }

    fn word<const BYTES: usize>(&mut self, offset: u64) -> Option<[u8; BYTES]> {
        let mut word = [0; BYTES];
        for (place, offset) in word.iter_mut().zip(offset..) {
            *place = self.byte(offset)?;
        }
        Some(word)
    }

    #[inline(never)]
    pub(super) fn u16_at(&mut self, offset: u64) -> Option<u16> {
        self.word(offset).map(u16::from_le_bytes)
    }

    #[inline(never)]
    pub(super) fn u32_at(&mut self, offset: u64) -> Option<u32> {
        self.word(offset).map(u32::from_le_bytes)
    }

    #[inline(never)]
    pub(super) fn u64_at(&mut self, offset: u64) -> Option<u64> {
        self.word(offset).map(u64::from_le_bytes)
    }

    /// Whether `text` stands at `offset`.
    pub(super) fn is_at(&mut self, offset: u64, text: &[u8]) -> bool {
        (offset..).zip(text).all(|(offset, byte)| self.byte(offset) == Some(*byte))
    }
}

/// Copies from `address`; false if nothing is mapped there. The kernel looks, because a fault would end the program
/// where the driver alone might have told it that its image is broken.
fn copy(address: usize, to: &mut [u8]) -> bool {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: to.len() };
    // By glibc's function (since 2.15), which has types: through `syscall` a seventh argument goes over the stack, where
    // a literal fills half of the kernel's word and the flags are what lay there before.
    // SAFETY: `to` is writable for its length; what lies at `address` is the kernel's to check.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    if copied >= 0 {
        return copied as usize == to.len();
    }
    // SAFETY: glibc's errno of this thread.
    if !matches!(unsafe { *libc::__errno_location() }, libc::EPERM | libc::ENOSYS) {
        return false;
    }
    // The container forbids the call: read as the driver will.
    // SAFETY: the caller of the driver promises an image there, and a piece never leaves a page that it begins in.
    unsafe { core::ptr::copy_nonoverlapping(address as *const u8, to.as_mut_ptr(), to.len()) };
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leaves ones where the next call's frame will lie.
    #[inline(never)]
    fn soil_the_stack() {
        let mut soil = [u64::MAX; 1024];
        core::hint::black_box(&mut soil);
    }

    #[test]
    fn what_is_mapped_is_read_whatever_lay_on_the_stack() {
        let (from, mut to) = ([7u8; 64], [0u8; 64]);
        soil_the_stack();
        assert!(copy(from.as_ptr() as usize, &mut to), "the kernel was asked for something else");
        assert_eq!(to, from);
    }
}
