//! Room for what is looked at and forgotten: images that are unpacked, the nodes of a graph.

/// Memory of the kernel's, since the program's allocator is not ours to use.
pub struct Scratch {
    start: *mut u8,
    room: usize,
}

impl Scratch {
    /// `room` zeros; none of no length, or where the kernel has no memory.
    pub fn new(room: usize) -> Option<Self> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, unmapped when this is dropped; of no length there is none.
        let start = unsafe { libc::mmap(core::ptr::null_mut(), room, access, kind, -1, 0) };
        (start != libc::MAP_FAILED).then_some(Self { start: start.cast(), room })
    }

    /// All of it, from the beginning of a page.
    pub fn all(&mut self) -> &mut [u8] {
        // SAFETY: mapped, and nobody else's.
        unsafe { core::slice::from_raw_parts_mut(self.start, self.room) }
    }

    /// The first `bytes`, as far as they are there.
    pub fn first(&self, bytes: usize) -> &[u8] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts(self.start, self.room.min(bytes)) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`.
        unsafe { libc::munmap(self.start.cast(), self.room) };
    }
}
