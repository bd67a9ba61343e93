//! The main job end to end, its demo, its measurements and its integration tests, with real parts: a real dockerd,
//! real containers, the real shims, on a simulated GPU.
//!
//! Everything runs in namespaces of its own ([`namespaces`]), so that nothing is left on the machine, also after a
//! SIGKILL. Figures come from the simulated hardware's own meter ([`meter`]), never from what gpool says about itself.

pub mod bench;
pub mod booted;
pub mod c_program;
pub mod census;
pub mod cgroups;
pub mod demo;
pub mod downloads;
pub mod exports;
pub mod failure;
pub mod host;
pub mod image;
pub mod janitor;
pub mod last_words;
pub mod library;
pub mod manual;
pub mod measure;
pub mod meter;
pub mod namespaces;
pub mod processor_time;
pub mod python;
pub mod runner;
pub mod scenarios;
pub mod stage;
pub mod stand;
pub mod tenant;
pub mod trace;
pub mod virtual_machine;
pub mod workload;
