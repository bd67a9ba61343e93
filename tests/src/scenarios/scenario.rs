//! What a scenario is.

use crate::failure::Result;
use crate::namespaces::Inside;

/// One scenario.
#[derive(Debug)]
pub struct Scenario {
    /// What a person types to run it alone.
    pub name: &'static str,
    /// What it shows, in one line.
    pub what: &'static str,
    /// It fails when it runs longer, in seconds.
    pub limit_s: u64,
    /// The scenario itself.
    pub run: Place,
}

/// Where a scenario runs.
#[derive(Debug, Clone, Copy)]
pub enum Place {
    /// In namespaces of its own.
    Inside(fn(&Inside) -> Result<()>),
    /// Where the runner is, in a process of its own: it starts and kills runs.
    Outside(fn() -> Result<()>),
    /// The same, but only when a person asks for it by its name.
    OutsideWhenAsked(fn() -> Result<()>),
    /// In namespaces of its own, but only when another scenario or a person asks for it by its name.
    PartOfAnother(fn(&Inside) -> Result<()>),
}
