//! The slice scheduler with modelled clients on the modelled device, under a virtual clock.

mod client;
mod events;
mod failures;
mod fairness;
mod metamorphic;
mod random;
mod shares;
mod world;
