//! The words for how a container gets its part of a GPU.

use crate::class::word;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a container asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Whatever the host's table of mechanisms gives.
    Auto,
    /// Turns on the GPU and a memory cap.
    #[default]
    Slice,
    /// Whole GPUs.
    Exclusive,
    /// The driver's own time slices, without limits.
    TimeSlice,
    /// A MIG instance that is there.
    Mig,
    /// A part of a GPU beside others of the same team, under an MPS server.
    Mps,
}

impl Mode {
    /// All modes, as they are listed to people.
    pub const ALL: [Mode; 6] = [Mode::Auto, Mode::Slice, Mode::Exclusive, Mode::TimeSlice, Mode::Mig, Mode::Mps];

    /// The mode as it is written.
    pub fn text(self) -> &'static str {
        match self {
            Mode::Auto => "auto",
            Mode::Slice => "slice",
            Mode::Exclusive => "exclusive",
            Mode::TimeSlice => "timeslice",
            Mode::Mig => "mig",
            Mode::Mps => "mps",
        }
    }

    /// Reads a mode.
    ///
    /// # Errors
    /// The words there are.
    pub fn parse(text: &str) -> Result<Self, String> {
        word(text, &Self::ALL, Self::text)
    }
}

/// What has to keep a container's neighbours apart from it, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// Anything will do.
    Shared,
    /// Limits that programs keep to.
    Software,
    /// The hardware.
    Hardware,
    /// No neighbours at all.
    Exclusive,
}

impl Isolation {
    /// All of them, as they are listed to people.
    pub const ALL: [Isolation; 4] = [Isolation::Shared, Isolation::Software, Isolation::Hardware, Isolation::Exclusive];

    /// As it is written.
    pub fn text(self) -> &'static str {
        match self {
            Isolation::Shared => "shared",
            Isolation::Software => "software",
            Isolation::Hardware => "hardware",
            Isolation::Exclusive => "exclusive",
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// The words there are.
    pub fn parse(text: &str) -> Result<Self, String> {
        word(text, &Self::ALL, Self::text)
    }
}

/// What a lease is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mechanism {
    /// A share of GPUs, by the shims.
    #[default]
    Slice,
    /// Whole GPUs, without shims.
    Exclusive,
    /// A place among the driver's time slices, without shims and limits.
    TimeSlice,
    /// A MIG instance, without shims.
    Mig,
    /// A part of GPUs by an MPS server, without shims.
    Mps,
}

impl Mechanism {
    /// Whether the container's programs come to the driver through the shims.
    pub fn has_shims(self) -> bool {
        self == Mechanism::Slice
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mechanism::Slice => "slice",
            Mechanism::Exclusive => "exclusive",
            Mechanism::TimeSlice => "timeslice",
            Mechanism::Mig => "mig",
            Mechanism::Mps => "mps",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_that_is_read_is_the_word_on_the_wire() {
        for mode in Mode::ALL {
            assert_eq!(Mode::parse(mode.text()), Ok(mode));
            assert_eq!(serde_json::to_string(&mode).unwrap(), format!("\"{}\"", mode.text()));
        }
        for isolation in Isolation::ALL {
            assert_eq!(Isolation::parse(isolation.text()), Ok(isolation));
            assert_eq!(serde_json::to_string(&isolation).unwrap(), format!("\"{}\"", isolation.text()));
        }
        let others = [Mechanism::Exclusive, Mechanism::TimeSlice, Mechanism::Mig, Mechanism::Mps];
        for mechanism in others.into_iter().chain([Mechanism::Slice]) {
            assert_eq!(serde_json::to_string(&mechanism).unwrap(), format!("\"{mechanism}\""));
            assert_eq!(mechanism.has_shims(), mechanism == Mechanism::default());
        }
    }
}
