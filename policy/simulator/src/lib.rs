//! The slice scheduler under a virtual clock: a modelled GPU, clients that behave as the shim does, the delays of a
//! host between them, and other published designs in the scheduler's place.
//!
//! * [`world`] runs clients, device and a [`Gatekeeper`] from event to event;
//! * [`record`] keeps what the device's own meter shows, which is all that is measured.
//!
//! A run is a pure function of its inputs and its seed.

#![forbid(unsafe_code)]

mod agenda;
pub mod client;
pub mod delays;
mod gatekeeper;
pub mod random;
pub mod record;
pub mod work;
pub mod world;

pub use gatekeeper::Gatekeeper;
pub use world::World;
