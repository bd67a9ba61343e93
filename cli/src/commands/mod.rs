//! One file a command.

pub mod audit;
pub mod charges;
pub mod completion;
pub mod config;
pub mod doctor;
pub mod events;
pub mod explain;
pub mod gpu;
pub mod info;
pub mod inspect;
pub mod metrics;
pub mod mig;
pub mod mig_host;
pub mod pause;
pub mod ps;
pub mod queue;
pub mod quota;
pub mod run;
pub mod runtime;
pub mod savings;
pub mod simulate;
pub mod stats;
pub mod top;
pub mod update;
pub mod usage;
pub mod wait;
