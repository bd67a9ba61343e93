//! `gpool update ID`

use crate::arguments::Change;
use crate::exit::Failure;
use crate::output;
use gpool_protocol::{Client, LeaseUpdate, LeaseView, lease_path};

/// Changes a lease and prints the container's id, as docker does.
pub fn run(client: &Client, change: &Change) -> Result<(), Failure> {
    let update = LeaseUpdate {
        fraction_permille: change.fraction,
        limit_permille: change.limit,
        no_limit: change.no_limit,
        memory_bytes: change.memory,
        class: change.class,
        priority: change.priority,
    };
    let lease: LeaseView = client.patch(&lease_path(&change.id)?, &update)?;
    output::print(&format!("{}\n", lease.container_id))
}
