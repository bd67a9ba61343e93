//! `gpool update ID`

use crate::arguments::Change;
use crate::exit::Failure;
use crate::output;
use gpool_protocol::{Client, LeaseUpdate, LeaseView};

/// Changes a lease and prints the container's id, as docker does.
pub fn run(client: &Client, change: &Change) -> Result<(), Failure> {
    let update = LeaseUpdate { fraction_permille: change.fraction, memory_bytes: change.memory };
    let lease: LeaseView = client.patch(&format!("/v1/leases/{}", change.id), &update)?;
    output::print(&format!("{}\n", lease.container_id))
}
