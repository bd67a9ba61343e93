//! Which build of the shim is mapped in each process that uses a GPU in a leased container.

use super::{Outcome, Surroundings};
use gpool_protocol::GuardedProcess;
use std::collections::BTreeMap;

pub fn check(host: &Surroundings) -> Outcome {
    let Ok(processes) = &host.guarded else { return Outcome::skip("the supervisor knows, which does not answer") };
    let past: Vec<String> = processes.iter().filter_map(in_words).collect();
    if !past.is_empty() {
        return Outcome::fail(
            past.join("; "),
            "stop the container, or set [class.NAME] bypass_action to \"freeze\" or \"kill\"",
        );
    }
    let mut builds: BTreeMap<&str, usize> = BTreeMap::new();
    let shims = |process: &GuardedProcess| {
        let its = process.libraries.clone().into_iter().filter(|library| library.is_shim);
        its.filter_map(|library| library.build_id).map(|id| id.0).collect::<Vec<_>>()
    };
    let all: Vec<String> = processes.iter().flat_map(shims).collect();
    all.iter().for_each(|id| *builds.entry(id.as_str()).or_default() += 1);
    let listed: Vec<String> =
        builds.iter().map(|(id, count)| format!("{} in {count}", id.get(..12).unwrap_or(id))).collect();
    match processes.len() {
        0 => Outcome::ok("no process of a leased container uses a GPU"),
        count => Outcome::ok(format!("{count} process(es) came through the shims; builds: {}", listed.join(", "))),
    }
}

/// The process that goes past the shims, and how; none of any other.
fn in_words(process: &GuardedProcess) -> Option<String> {
    let finding = process.finding.as_ref()?;
    Some(format!("process {} ({}) of {}: {finding}", process.pid, process.name, process.container_id.short()))
}
