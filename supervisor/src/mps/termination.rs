//! Clients of a server that are about to be killed. One that is killed while its kernels run can take the work of the others
//! with it; told by its daemon, the server ends that client's work and nobody else's (`terminate_client` of
//! nvidia-cuda-mps-control(1)).

use super::control::Control;
use crate::cgroup;
use crate::lease::Leases;
use gpool_protocol::HostPid;
use std::collections::BTreeSet;

/// Has the server of the group `id` end its clients in the cgroup, as far as the daemon answers within a second for each of two
/// questions; those that it was told of. Their processes live on. Nothing may be locked meanwhile.
pub fn terminate_clients(leases: &Leases, id: &str, cgroup: &str) -> BTreeSet<HostPid> {
    let server = leases.groups.all().iter().find(|group| group.record.id == id).and_then(|group| group.record.server);
    let (Some(server), Ok(program)) = (server, leases.mps_program()) else { return BTreeSet::new() };
    let control = Control::of(&program, &leases.configuration().paths.run_dir, id).hasty();
    let ended = control.clients_of(server.pid).and_then(|clients| {
        let clients: BTreeSet<HostPid> = clients.into_iter().filter(|pid| cgroup::has(cgroup, *pid)).collect();
        control.terminate(server.pid, &clients).map(|()| clients)
    });
    // They are killed all the same.
    ended
        .inspect_err(|error| log!("the MPS clients in {cgroup} are not ended by their server ({error})"))
        .unwrap_or_default()
}
