//! The decisions of gpool, and nothing but decisions.
//!
//! * [`mod@slice`]: who may launch on a GPU now, for how long, and who is next;
//! * [`time_slices`]: how long the hardware's own turns are, so that they come to shares;
//! * [`timeline`]: what a measured burst costs, also when bursts overlap;
//! * [`admission`]: whether a share fits, and on which GPUs;
//! * [`queue`]: who is next of those for whom there is no room, and what is kept for whom;
//! * [`fair_share`]: before whom owners stand who have had less than others;
//! * [`deadline`]: when and where those begin who have to be through by a moment;
//! * [`giving_way`]: which leases have to go so that somebody who waits has room;
//! * [`idleness`]: when a lease counts as idle, and what follows;
//! * [`preemption`]: which leases give way to one of a higher priority, and when;
//! * [`countable`]: what a cluster that drives this host may count on;
//! * [`latency`]: whether requests take as long as was promised, and what follows where they do not;
//! * [`request`]: how long the requests of a container take, and what of that is whose;
//! * [`overflow`]: whether a host is short of room;
//! * [`reservation`]: what is kept free of which GPUs for whom;
//! * [`quota`]: how much the leases of a team or of a user may reserve altogether;
//! * [`guard`]: whether a process came to the GPU past the shims, and whether a lease holds more than its cap;
//! * [`brief`]: programs past the shims that end too soon to be seen twice;
//! * [`health`]: what a GPU's own figures say of its faults, and whether they are known to whoever opened it again;
//! * [`mechanism`]: how a GPU is shared, or not;
//! * [`mig`]: what a GPU can be divided into, and where;
//! * [`honesty`]: whether a tenant reports all that the device has given it;
//! * [`overlap`]: how much is believed of what tenants report for the same time;
//! * [`chain`]: what makes a trail of which nothing can be changed or taken out unseen;
//! * [`energy`]: whose the energy is that a GPU draws;
//! * [`ledger`]: what a GPU's time went to, in sums that tie out;
//! * [`rates`]: what GPU time costs;
//! * [`forecast`]: how much will be asked for, from how much was;
//! * [`savings`]: how many GPUs sharing saves;
//! * [`lengths`]: how long things took, in buckets;
//! * [`levels`]: how much of something was enough for how much of the time;
//! * [`sizing`]: which request would have been enough for somebody who asked for none;
//! * [`repetition`]: how often that is told which goes on happening;
//! * [`xid`]: what a number says by which the driver tells of a fault;
//! * [`promise`]: what a share is worth beside the tenants that are there.
//!
//! Everything here is a pure function of its inputs: time is passed in, numbers are integers, and the same inputs
//! give the same outputs bit for bit.

#![forbid(unsafe_code)]

pub mod admission;
pub mod backfill;
pub mod brief;
pub mod budget;
pub mod chain;
pub mod countable;
pub mod deadline;
pub mod energy;
pub mod fair_share;
pub mod forecast;
pub mod giving_way;
pub mod guard;
pub mod health;
pub mod honesty;
pub mod identity;
pub mod idleness;
pub mod latency;
pub mod ledger;
pub mod lengths;
pub mod levels;
pub mod mechanism;
pub mod mig;
pub mod overflow;
pub mod overlap;
pub mod preemption;
pub mod promise;
pub mod queue;
pub mod quota;
pub mod rates;
pub mod repetition;
pub mod request;
pub mod reservation;
pub mod run_time;
pub mod savings;
pub mod sizing;
pub mod slice;
pub mod spill;
pub mod suspension;
pub mod time_slices;
pub mod timeline;
pub mod unpaid;
pub mod xid;

pub use identity::TenantId;
