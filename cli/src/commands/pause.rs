//! `gpool pause ID...`, `gpool resume ID...` and `gpool evict ID...`

use crate::exit::Failure;
use crate::output;
use gpool_protocol::{Client, LeaseView, lease_path};
use serde_json::{Value, json};

/// Pauses, resumes or evicts leases, as `verb` says, and prints the containers' ids. One that is refused does not keep the others
/// from it.
pub fn run(client: &Client, ids: &[String], verb: &str) -> Result<(), Failure> {
    let mut refused = Vec::new();
    for id in ids {
        let asked =
            lease_path(id).and_then(|path| client.post::<Value, LeaseView>(&format!("{path}/{verb}"), &json!({})));
        match asked {
            Ok(lease) => output::print(&format!("{}\n", lease.container_id))?,
            Err(refusal) => refused.push(refusal),
        }
    }
    Failure::of_all(&refused)
}
