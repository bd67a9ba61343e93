//! `gpool inspect ID...`

use crate::exit::Failure;
use crate::output;
use gpool_protocol::{Client, LeaseView, lease_path};
use serde_json::Value;

/// Prints one JSON array. Ids that are found are printed even when another is not, as docker does.
pub fn run(client: &Client, ids: &[String]) -> Result<(), Failure> {
    let mut found = Vec::new();
    let mut refused = Vec::new();
    for id in ids {
        match lease_path(id).and_then(|path| client.get::<LeaseView>(&path)) {
            Ok(lease) => found.push(output::to_value(&lease)),
            Err(refusal) => refused.push(refusal),
        }
    }
    output::print(&format!("{:#}\n", Value::Array(found)))?;
    Failure::of_all(&refused)
}
