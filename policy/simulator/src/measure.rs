//! Figures of a run, all from the device's meter and the clients' own clocks, none from whoever decided.

pub mod ceiling;
pub mod fair;
pub mod latency;
pub mod share_error;
