//! The integration scenarios. Each starts what it needs and must leave nothing.

mod booted_systemd;
mod bypass;
mod call_steps;
mod catalog;
mod conmon_killed;
mod copies;
mod cuda_programs;
mod daemon_reload_vm;
mod display_contexts;
mod doctor;
mod documentation;
mod downloading;
mod engine_alone;
mod engines;
mod every_verb;
mod evicted;
mod frozen_holder;
mod garbage_control;
mod garbage_report;
mod gpu_suite;
mod host_containerd;
mod hostile;
mod hung_container;
mod isolation_matrix;
mod kill_matrix;
mod kill_storm;
mod killed_half_way;
mod latency_class;
mod limits;
mod loader_matrix;
mod main_job;
mod memory_beside;
mod memory_cap;
mod mig_instances;
mod mig_slices;
mod monitoring_programs;
mod mps_groups;
mod nvidia_smi;
mod odd_images;
mod one_slice_two_processes;
mod packages;
mod pass_through;
mod paused;
mod places_taken;
mod playground;
mod random_kills;
mod real_bundles;
mod real_driver;
mod run_command;
mod scenario;
pub(crate) mod seven_tenants;
mod several_gpus;
mod shared_memory;
mod shims;
mod silent_tenant;
mod simulated_gpu;
mod simulated_gpus;
mod static_data;
mod steps;
mod supervisor_hung;
mod supervisor_restart;
mod together;
mod truncated_report;
mod upgrade;
mod whole_images;
mod without_shims;

pub use catalog::scenarios;
pub use downloading::fetch_systems;
pub use scenario::{Place, Scenario};
pub use together::TOGETHER;

pub use steps::wait_until_running;
use steps::{
    finish, finish_found, is_refused, other_daemons_are_masked, said, start_tenants, wait_for,
    wait_until_account_agrees,
};
