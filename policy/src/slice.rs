//! Who may launch on a GPU now, and until when.
//!
//! A post-charged EEVDF (earliest eligible virtual deadline first, Stoica & Abdel-Wahab 1995) in integers, one
//! [`SliceScheduler`] per GPU. Launched work cannot be called back, so the only lever is the gate in front of the
//! launch, and the only currency is GPU time that was measured after it was used.
//!
//! The course of a slice: a tenant that wants is opened with a host time `until`; it issues work while what it has
//! issued is expected to end before that; then it announces when its queued work will end. One hand-off before that
//! end the scheduler decides who is next. If it is the same tenant, its `until` grows and nothing drains; if not, its
//! gate closes and the next one opens, so that the first launch arrives when the device falls idle.

mod account;
mod arrears;
mod arrival;
mod at_work;
mod ceiling;
mod decide;
mod explain;
mod gang;
mod habits;
mod handoff;
mod host;
mod lead;
mod message;
mod overdraft;
mod own_time;
mod parameters;
mod pauses;
mod queue;
mod ready;
mod returns;
mod scheduler;
mod server_set;
mod share;
mod silence;
mod turn;
mod unmeasured;
mod virtual_clock;

pub use crate::TenantId;
pub use arrival::QUEUED_LEAST_NS;
pub use explain::{Explanation, State, WaitCause};
pub use host::HostScheduler;
pub use message::{Command, Input};
pub use parameters::Parameters;
pub use scheduler::SliceScheduler;
pub use server_set::ServerSet;
pub use share::{Class, HangAfter, Priority, Share};
