//! Why NVML does not answer.

use super::questions::NoAnswer;
use std::time::Instant;

/// NVML that cannot be used; the text names the library and the call.
#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    /// The library is not there or does not start.
    #[error("NVML ({library}) cannot be used: {cause}")]
    Unusable {
        /// The configured library.
        library: String,
        /// NVML's own words.
        cause: String,
    },
    /// The library is of another version than the driver's kernel module.
    #[error(
        "NVML ({library}) is of another version than the driver's kernel module: the driver was replaced while it was in use; \
         boot this host, or have everything that uses GPUs end and load the module anew"
    )]
    Replaced {
        /// The configured library.
        library: String,
    },
    /// A query failed.
    #[error("NVML does not answer {query}: {cause}")]
    Unanswered {
        /// What was asked.
        query: &'static str,
        /// NVML's own words.
        cause: String,
    },
    /// The same, because the GPU is lost, as one that has fallen off its bus.
    #[error("NVML does not answer {query}: {cause}")]
    Lost {
        /// What was asked.
        query: &'static str,
        /// NVML's own words.
        cause: String,
    },
    /// A call hangs.
    #[error("NVML does not answer for a GPU: a call has not come back for seconds")]
    Hung {
        /// When it was made.
        since: Instant,
    },
    /// Nothing could be asked, which says nothing about the GPU.
    #[error("NVML cannot be asked for a GPU, because no thread can be started: {0}")]
    Unasked(std::io::Error),
}

impl InventoryError {
    /// The same of a board that is not asked again.
    pub fn as_before(&self) -> Self {
        match self {
            Self::Unanswered { query, cause } => Self::Unanswered { query, cause: cause.clone() },
            Self::Lost { query, cause } => Self::Lost { query, cause: cause.clone() },
            other => Self::Unanswered { query: "what a GPU is", cause: other.to_string() },
        }
    }
}

impl From<NoAnswer> for InventoryError {
    fn from(why: NoAnswer) -> Self {
        match why {
            NoAnswer::Hangs { since } => Self::Hung { since },
            NoAnswer::NoThread(cause) => Self::Unasked(cause),
        }
    }
}
