//! MIG: what a GPU may be divided into, and what it is divided into.
//!
//! One compute instance to a GPU instance, over all of it; the driver knows smaller ones, which are left out. Numbers
//! of instances are given out by place, as boards show them: 0 the whole, 1 and 2 its halves, and so on.

mod models;
mod state;

pub use models::{MIG_MODELS, MigModel, MigProfile};
pub use state::{GpuInstance, MigRefusal, MigState};
