//! Scenarios that come with the program.

use super::{Scenario, ScenarioError};

/// Name and text of each.
pub const SHIPPED: [(&str, &str); 9] = [
    ("mix", include_str!("../../scenarios/mix.toml")),
    ("coarse", include_str!("../../scenarios/coarse.toml")),
    ("many", include_str!("../../scenarios/many.toml")),
    ("heavy", include_str!("../../scenarios/heavy.toml")),
    ("long", include_str!("../../scenarios/long.toml")),
    ("over", include_str!("../../scenarios/over.toml")),
    ("cap", include_str!("../../scenarios/cap.toml")),
    ("stalls", include_str!("../../scenarios/stalls.toml")),
    ("services", include_str!("../../scenarios/services.toml")),
];

/// The shipped scenario of this name; none if there is no such one.
#[must_use]
pub fn shipped(name: &str) -> Option<Result<Scenario, ScenarioError>> {
    let found = SHIPPED.iter().find(|(shipped, _)| *shipped == name);
    found.map(|(name, text)| Scenario::parse(&format!("{name}.toml"), text))
}
