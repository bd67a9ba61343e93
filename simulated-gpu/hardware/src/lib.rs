//! What NVIDIA GPUs and their kernel driver are to a process, without either: a state that all processes share, a
//! server that learns who they are and cleans up after them, and device nodes.
//!
//! The state lies in a file that is advanced by whoever asks; see [`Store`]. Nothing executes: time is computed.

mod capabilities;
pub mod checkpoint;
mod clock;
mod credentials;
mod driver_version;
mod gate;
mod handshake;
mod health;
mod image;
mod instances;
mod layout;
mod limits;
pub mod mps;
mod nodes;
mod owner;
mod pids;
pub mod program;
mod selection;
mod server;
mod site;
mod store;
mod wall_clock;

pub use capabilities::{may_monitor_instances, may_use_instance};
pub use clock::now_ns;
pub use driver_version::DriverVersion;
pub use gate::{Gate, Inside, Unmovable};
pub use gpool_device_model as model;
pub use handshake::{Connection, Identity};
pub use health::Health;
pub use instances::{Board, DivideError};
pub use layout::{DEFAULT_DIRECTORY, Layout, MAX_DEVICES};
pub use limits::{LimitError, Limits};
pub use nodes::is_visible;
pub use pids::visible_pids;
pub use selection::selected;
pub use server::{Host, ServeError, note_compute_mode, note_hung, note_lost, note_whole_maps, note_xid, serve};
pub use site::Site;
pub use store::{Store, StoreError};
pub use wall_clock::{means_since, wall_clock_offset_ns};
