//! Leases: a share granted to a container, from the request to the end.

mod account;
mod book;
mod can_be;
mod capacity;
mod change;
mod debts;
mod described;
mod edits;
mod entitlement;
mod explain;
mod giving_way;
mod grant;
mod keeping;
mod leftovers;
mod living;
mod mechanism;
mod members;
mod meter;
mod naming;
mod outside;
mod over_quota;
mod ownership;
mod placing;
mod quota;
mod reading;
mod record;
mod refusal;
mod room;
mod seating;
mod statement;
mod stranded;
mod suitable;
mod takeover;
mod view;

pub use account::{Charges, GpuAccount};
pub use book::{Book, Dead, Figures, Holding, Lease, Process};
pub use capacity::{capacities, mps_groups_used, records_on};
pub use described::about;
pub use entitlement::{class_policy, fails_open, slice_priority};
pub use giving_way::MakingRoom;
pub use grant::{BIND_GRACE, BIND_PATIENCE, Leases, failed};
pub use leftovers::Leftovers;
pub use living::any_may_live;
pub use members::{GROUPS, Members, members};
pub use meter::promised_permille;
pub use ownership::let_search;
pub use placing::GRANT_PATIENCE;
pub use quota::{Holder, Standing};
#[cfg(test)]
pub use record::{GpuStanding, StandingRecord, sample};
pub use record::{Record, RevocationRecord, prepare, write_whole};
#[cfg(test)]
pub use statement::End;
pub use statement::{GpuStatement, Statement, kib_s, statements};
pub use takeover::{take_over, take_over_stranded};
