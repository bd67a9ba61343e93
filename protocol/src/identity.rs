//! Identities that must not be confused with one another.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! text_identity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_identity!(
    /// The id that the container engine gave the container.
    ContainerId
);
text_identity!(
    /// A lease: one share granted to one container. Sorts by time of creation.
    LeaseId
);
text_identity!(
    /// A GPU as NVML names it (`GPU-…`), never its index, which changes after a reboot.
    GpuUuid
);

text_identity!(
    /// Which build of a library a file is: its GNU build id, in hexadecimal digits.
    BuildId
);

impl ContainerId {
    /// The first twelve characters, as docker shows an id.
    pub fn short(&self) -> &str {
        match self.0.char_indices().nth(12) {
            Some((end, _)) => &self.0[..end],
            None => &self.0,
        }
    }
}

/// A process id in the host's own PID namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostPid(pub u32);

impl fmt::Display for HostPid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
