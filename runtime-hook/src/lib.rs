//! What a container engine executes.
//!
//! `gpool-runtime` stands in front of a low-level runtime such as runc. It reads `config.json` on `create`, `run`
//! and `restore`; if the container asks for a share of a GPU, it has the supervisor lease one, puts the lease's
//! edits into `config.json`, and then becomes the low-level runtime with the same pid, arguments and environment.
//! Everything else passes through at once.
//!
//! `gpool-hook` is the OCI hook of leased containers: it binds the lease to the container's init and refuses the
//! start if a shim is not on top. As podman's `precreate` hook it also does what `gpool-runtime` does to
//! `config.json`, for hosts whose podman keeps its runtime.
//!
//! `gpool-run` runs a command of the host under a lease, for people without containers, and further commands under that lease.
//!
//! A library with thin programs around it, so that tests can give it other paths.
#![forbid(unsafe_code)]

mod argv;
mod bundle;
mod compat;
mod confinement;
mod container_dir;
mod defaults;
mod devices;
mod edits;
mod fields;
mod hook;
mod image;
mod journal;
mod leasing;
mod libraries;
mod loader_cache;
mod low_level;
mod mount_table;
mod mounted;
mod nvidia_devices;
mod placed;
mod podman;
mod precreate;
mod privilege;
mod report;
mod run;
mod search_path;
mod spec;
mod sync_pipe;
mod system_calls;
mod toolkit_hooks;
mod visible_gpus;
mod waiting;
mod wrapper;

pub use hook::run_hook;
pub use low_level::Launch;
pub use privilege::keep_what_the_hook_needs;
pub use run::{End, FilterCalls, KernelCalls, run_command};
pub use system_calls::{FORBIDDEN, NotRestricted, restrict as restrict_system_calls};
pub use wrapper::{Installation, prepare, run};
