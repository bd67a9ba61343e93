//! MIG: which instances a GPU can be divided into, and where.
//!
//! * [`Model`] and [`Profile`] are NVIDIA's products as data;
//! * [`Layout`] is instances that are there together, and where another one could start;
//! * [`layouts`] and [`multisets`] enumerate what a model can be divided into;
//! * [`plan`] finds a layout for a list of profiles, or says why there is none and what comes near.
//!
//! A host's own NVML is asked wherever there is one: this is for plans, simulations and comparisons.

mod enumerate;
mod layout;
mod model;
mod nearest;
mod plan;

pub use enumerate::{layouts, maximal_layouts, multisets};
pub use layout::{Instance, Layout, Placement, StartChoice, counted};
pub use model::{DriverProfile, MODELS, Model, Profile, ProfileKind};
pub use plan::{PlanRefusal, plan, profiles_named};
