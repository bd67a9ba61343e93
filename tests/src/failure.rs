//! Why a test, a measurement or the demo stopped: one sentence with its cause.

use std::fmt;

/// A sentence for the person who ran the test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(String);

/// What everything here returns.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure with its sentence.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<gpool_protocol::ErrorBody> for Failure {
    fn from(refusal: gpool_protocol::ErrorBody) -> Self {
        Self(refusal.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

/// Says what was being done when something failed.
pub trait Context<T> {
    /// Puts `doing` in front of the cause.
    fn context(self, doing: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, doing: impl fmt::Display) -> Result<T> {
        self.map_err(|cause| Failure(format!("{doing}: {cause}")))
    }
}

/// Fails with `sentence` unless `holds`.
pub fn ensure(holds: bool, sentence: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Failure(sentence())) }
}
