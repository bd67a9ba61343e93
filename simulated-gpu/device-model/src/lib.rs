//! A model of one NVIDIA GPU: memory, per-process contexts, in-order queues and round-robin time slices.
//!
//! Nothing here runs, sleeps or reads a clock. Callers pass the time in as nanoseconds (CLOCK_MONOTONIC outside,
//! a virtual clock in tests) and the model computes, analytically, what a GPU would have done up to then. The
//! result depends only on the operations and their times, never on how often somebody asked.
//!
//! A MIG instance is a device of its own, with a part of the board's memory and speed; the board knows which there are.
//!
//! The clients of an MPS server execute side by side; their contexts have their turns together.
//!
//! What it leaves out: concurrent kernels of one context, copy engines, and what kernels compute.

mod context;
mod device;
mod engine;
mod limits;
mod memory;
mod meter;
mod mig;
mod mps;
mod parameters;
mod process;
mod queue;
mod sharing;
mod suspension;

pub use context::{ContextId, Ticket};
pub use device::{Device, QUEUE_LIMIT};
pub use limits::MemoryLimit;
pub use memory::{OutOfMemory, rounded_bytes};
pub use meter::{Meter, OwnerUsage};
pub use mig::{GpuInstance, MIG_MODELS, MigModel, MigProfile, MigRefusal, MigState};
pub use mps::{ClientLimits, ClientRefusal, Loss};
pub use parameters::DeviceParameters;
pub use process::{ProcessSample, ProcessUsage, SAMPLE_PERIOD_NS, SAMPLES_KEPT};
pub use sharing::ShareId;
