//! Sets of entry points that a run calls through one library.

/// Defines `Entries`, with a field for each entry point, and how it is found in a library.
macro_rules! entry_points {
    ($($field:ident: $kind:ty = $name:literal;)*) => {
        /// What is called here.
        #[derive(Clone, Copy)]
        struct Entries { $($field: $kind),* }

        impl Entries {
            fn of(library: &Library) -> Result<Self> {
                Ok(Self { $($field: library.function($name)?),* })
            }
        }
    };
}

pub(super) use entry_points;
