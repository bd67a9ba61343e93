//! Identities that must not be confused with one another.

use crate::error::{ErrorBody, ErrorCode};
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

/// The longest id of a container. Low-level runtimes name directories by it, so none comes near.
const CONTAINER_ID_BYTES: usize = 1024;

impl ContainerId {
    /// Whether it is an id as low-level runtimes take them: it is kept in records and events, and shown in logs.
    ///
    /// # Errors
    /// Names the field. The id itself is not repeated.
    pub fn check(&self) -> Result<(), ErrorBody> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'+' | b'-' | b'.');
        if (1..=CONTAINER_ID_BYTES).contains(&self.0.len()) && self.0.bytes().all(plain) {
            return Ok(());
        }
        Err(ErrorBody::new(
            ErrorCode::MessageInvalid,
            format!("container_id is no id of a container ({} bytes)", self.0.len()),
            format!("give 1 to {CONTAINER_ID_BYTES} of the characters A-Z, a-z, 0-9, _, +, - and ."),
        ))
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_s_id_is_what_low_level_runtimes_take() {
        let check = |text: &str| ContainerId(text.to_owned()).check();
        let longest = "a".repeat(CONTAINER_ID_BYTES);
        for id in [&"9b2117a1dc85".repeat(5), "x", "run-81f3", "k8s_POD.web+1-0_default", &longest] {
            assert_eq!(check(id), Ok(()), "{id}");
        }
        for id in ["", "a b", "a/b", "a\ngpool-supervisor: ended", "\u{e9}", &format!("{longest}a")] {
            let refused = check(id).unwrap_err();
            assert!(refused.message.contains("container_id") && refused.code == ErrorCode::MessageInvalid, "{refused}");
            assert!(!refused.message.contains('\n') && refused.message.len() < 100, "{refused}");
        }
    }
}
