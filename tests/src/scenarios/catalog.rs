//! The list of scenarios.

mod hosts;
mod memory;
mod tenants;

use super::Scenario;

/// All scenarios, in the order in which they run.
pub fn scenarios() -> impl Iterator<Item = &'static Scenario> {
    hosts::SCENARIOS.iter().chain(memory::SCENARIOS).chain(tenants::SCENARIOS)
}
