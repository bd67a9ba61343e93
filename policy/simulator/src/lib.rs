//! The slice scheduler under a virtual clock: a modelled GPU, clients that behave as the shim does, the delays of a
//! host between them, and other published designs in the scheduler's place.
//!
//! * [`scenario`] is read from a file;
//! * [`run`](run()) runs one under a [`Design`](designs::Design) and answers with figures;
//! * [`world`] is what runs: clients, device and a [`Gatekeeper`], from event to event;
//! * [`mig_arrivals`]: MIG instances that come in random order, without time;
//! * [`plot`] draws shares over time;
//! * [`record`] keeps what the device's own meter shows, and [`measure`] is computed from nothing else.
//!
//! A run is a pure function of its inputs and its seed.

#![forbid(unsafe_code)]

mod agenda;
pub mod client;
pub mod delays;
pub mod designs;
mod gatekeeper;
pub mod measure;
pub mod mig_arrivals;
pub mod pause;
pub mod plot;
pub mod random;
pub mod record;
mod run;
pub mod scenario;
pub mod work;
pub mod world;

pub use gatekeeper::Gatekeeper;
pub use run::{Outcome, PLOT_WINDOW_NS, TenantOutcome, run, world as world_of};
pub use world::World;
