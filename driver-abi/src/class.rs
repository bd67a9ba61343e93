//! What each entry point of libcuda does to what a lease counts.

use crate::CUDA_CLASSES;

/// What an entry point does to what a lease counts; `symbols/cuda-classes.txt` says it for each, and explains the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Takes device memory.
    Allocates,
    /// Gives it back.
    Frees,
    /// Starts kernels or graphs.
    Launches,
    /// Copies within or between devices, or fills.
    Copies,
    /// Answers with the lease's figures.
    Shows,
    /// Something of which the shim takes note.
    Watched,
    /// Not supported in a lease.
    Refused,
    /// Takes nothing that a lease counts, and has to do with what is on a GPU.
    Touches,
    /// Changes nothing.
    Queries,
    /// Takes nothing that a lease counts, and nothing of a GPU.
    Passes,
}

impl Class {
    /// The class that `word` names.
    pub fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "allocates" => Self::Allocates,
            "frees" => Self::Frees,
            "launches" => Self::Launches,
            "copies" => Self::Copies,
            "shows" => Self::Shows,
            "watched" => Self::Watched,
            "refused" => Self::Refused,
            "touches" => Self::Touches,
            "queries" => Self::Queries,
            "passes" => Self::Passes,
            _ => return None,
        })
    }

    /// Whether the shim must answer such calls itself, as they take part in what a lease counts.
    pub fn is_intercepted(self) -> bool {
        !matches!(self, Self::Touches | Self::Queries | Self::Passes)
    }
}

/// Each line of [`CUDA_CLASSES`] that is no comment: the name, and its class if the line gives one.
pub fn cuda_classes() -> impl Iterator<Item = (&'static str, Option<Class>)> {
    CUDA_CLASSES.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (name, word) = line.split_once(' ').unwrap_or((line, ""));
        (name, Class::from_word(word))
    })
}
