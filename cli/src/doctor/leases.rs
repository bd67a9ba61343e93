//! Leases whose container is gone, or never came.

use super::{Outcome, Surroundings};
use gpool_protocol::{LeaseState, LeaseView};

pub fn check(host: &Surroundings) -> Outcome {
    let Ok(leases) = &host.leases else { return Outcome::skip("the supervisor knows, which does not answer") };
    let has_process = |lease: &LeaseView| {
        let alive = lease.init_pid.is_some_and(|pid| host.path(&format!("/proc/{pid}")).is_dir());
        alive || lease.processes > 0 || lease.state == LeaseState::Held
    };
    let (with, without): (Vec<&LeaseView>, Vec<&LeaseView>) = leases.iter().partition(|lease| has_process(lease));
    let held = with.iter().filter(|lease| lease.state == LeaseState::Held).count();
    // How many processes of others use a GPU nobody knows: without shims nothing is reported.
    let is_idle =
        |lease: &&&LeaseView| lease.state == LeaseState::Active && lease.processes == 0 && lease.mechanism.has_shims();
    let idle = with.iter().filter(is_idle).count();
    if without.is_empty() {
        let running = with.len() - held;
        return Outcome::ok(format!(
            "{running} of running containers, {idle} of them without a process on a GPU; {held} held"
        ));
    }
    let names: Vec<String> = without.iter().map(|lease| lease.container_id.short().to_owned()).collect();
    Outcome::warn(
        format!("no process is left of, or has come for: {}", super::first_of(&names)),
        "look again in a few seconds: such leases end by themselves; if they do not, restart the supervisor",
    )
}
