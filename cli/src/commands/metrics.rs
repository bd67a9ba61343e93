//! `gpool metrics`

use crate::exit::Failure;
use crate::output;
use gpool_protocol::Client;

/// Prints what the supervisor has for Prometheus.
pub fn run(client: &Client) -> Result<(), Failure> {
    let mut text = String::new();
    client.stream("/metrics", |line| {
        text.push_str(line);
        text.push('\n');
        true
    })?;
    // All of it or nothing: half a page would look like leases that have ended.
    output::print(&text)
}
