//! The list of scenarios.

mod hosts;
mod tenants;

use super::Scenario;

/// All scenarios, in the order in which they run.
pub fn scenarios() -> impl Iterator<Item = &'static Scenario> {
    hosts::SCENARIOS.iter().chain(tenants::SCENARIOS)
}
