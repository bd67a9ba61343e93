//! The slice scheduler with modelled clients on the modelled device, under a virtual clock.

mod exchanges;
mod failures;
mod fairness;
mod metamorphic;
mod plans;
mod shares;
