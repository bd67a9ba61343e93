//! Which of the driver's calls a refusal is about.

macro_rules! calls {
    ($($(#[$note:meta])* $call:ident = $word:literal $name:literal;)*) => {
        /// A call that takes device memory: values of [`Slot::refused_call`](crate::Slot::refused_call). New ones are
        /// added at the end; 0 is a shim that does not say it.
        #[repr(u32)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)] // each is the driver's function of the name behind it, in all its variants
        pub enum Call { $($(#[$note])* $call = $word),* }

        impl Call {
            /// Beside the call's number: it was within the cap, and the driver had no memory left for it. A supervisor that does not know
            /// this knows no call of that number, and names none.
            pub const HAD_ROOM: u32 = 1 << 31;

            /// The function's name for the word that a tenant wrote, [`Call::HAD_ROOM`] or not; none for one that means nothing here.
            pub fn name_of(word: u32) -> Option<&'static str> {
                match word & !Self::HAD_ROOM {
                    $($word => Some($name),)*
                    _ => None,
                }
            }
        }
    };
}

calls! {
    MemAlloc = 1 "cuMemAlloc";
    MemAllocPitch = 2 "cuMemAllocPitch";
    MemAllocManaged = 3 "cuMemAllocManaged";
    MemCreate = 4 "cuMemCreate";
    MemImport = 5 "cuMemImportFromShareableHandle";
    MemMap = 6 "cuMemMap";
    MemAllocAsync = 7 "cuMemAllocAsync";
    MemAllocFromPool = 8 "cuMemAllocFromPoolAsync";
    PoolImport = 9 "cuMemPoolImportPointer";
    IpcOpen = 10 "cuIpcOpenMemHandle";
    ArrayCreate = 11 "cuArrayCreate";
    MipmappedArrayCreate = 12 "cuMipmappedArrayCreate";
    ImportExternal = 13 "cuImportExternalMemory";
    SetLimit = 14 "cuCtxSetLimit";
    Context = 15 "cuCtxCreate";
    ModuleLoad = 16 "cuModuleLoad";
    LibraryLoad = 17 "cuLibraryLoad";
    GraphLaunch = 18 "cuGraphLaunch";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_means_nothing_has_no_name() {
        assert_eq!(Call::name_of(Call::GraphLaunch as u32), Some("cuGraphLaunch"));
        assert_eq!(Call::name_of(Call::MemAlloc as u32 | Call::HAD_ROOM), Some("cuMemAlloc"));
        assert_eq!([0, 19, u32::MAX].map(Call::name_of), [None; 3]);
    }
}
