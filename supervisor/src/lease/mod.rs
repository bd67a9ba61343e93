//! Leases: a share granted to a container, from the request to the end.

mod book;
mod capacity;
mod edits;
mod grant;
mod record;
mod refusal;
mod takeover;
mod view;

pub use book::{Figures, Lease, Process};
pub use grant::{BIND_GRACE, Leases, about};
pub use record::prepare;
pub use takeover::{take_over, take_over_stranded};
