//! `gpool ps --processes`

use clap::ValueEnum;

/// By what the processes stand one below the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProcessSort {
    /// Memory held, the most first
    Memory,
    /// Their containers' ids, of each those with the most memory first; last those without a lease
    Container,
}
