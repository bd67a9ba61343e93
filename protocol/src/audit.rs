//! What stands in the files of the audit, between the supervisor that writes them and the command line that reads them: a
//! [`Beginning`], then an [`Event`](crate::Event) a line, each sealed by `gpool_policy::chain`.

use serde::{Deserialize, Serialize};

/// The form that is written today.
pub const AUDIT_FORM: u32 = 1;

/// The first line of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beginning {
    /// Of which form it is, [`AUDIT_FORM`].
    pub audit: u32,
    /// The number of the first event in it.
    pub begins: u64,
    /// When it was begun, Unix milliseconds.
    pub unix_ms: u64,
    /// The link before it, of the last line of the file before, in hexadecimal digits.
    pub previous: String,
}

/// What is read of an event to go on behind it, whatever else a newer version has written into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Numbered {
    /// Its number in the audit.
    pub sequence: u64,
    /// When it was, Unix milliseconds.
    pub unix_ms: u64,
}
