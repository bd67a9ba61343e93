//! Whether the device is busy while somebody without a limit has work.

use gpool_policy_simulator::client::Client;

use crate::observe::{Run, common_ns, length_ns, permille, union};

/// What a client that has fallen silent costs: it holds its gate for half a millisecond in case more comes, and the
/// hand-off after it cannot be prepared, nor can that to a client that begins: bell, decision, gate.
const SILENCE_NS: u64 = 500_000 + 2 * 60_000;

/// When a tenant without a limit had work: endless work, or a request that was not done.
fn uncapped_work(run: &Run) -> Vec<(u64, u64)> {
    let duration_ns = run.scenario.duration_ns;
    let requests = |client: &Client| -> Vec<(u64, u64)> {
        let over = client.served.iter().chain(&client.lost).map(|over| (over.arrived_ns, over.ended_ns));
        over.chain(client.unserved_since_ns().map(|since_ns| (since_ns, duration_ns))).collect()
    };
    let uncapped = (0..run.count()).filter(|&tenant| !run.is_limited(tenant));
    let spans = uncapped.flat_map(|tenant| [run.endless(tenant), requests(&run.world.clients[tenant])].concat());
    union(spans.collect())
}

/// How often a client's work ended: each time it falls silent, at most.
fn silences(run: &Run) -> u64 {
    let ended = |tenant: usize| run.endless(tenant).len() + run.world.clients[tenant].served.len();
    (0..run.count()).map(|tenant| ended(tenant) as u64).sum()
}

/// Idle time of the device while somebody without a limit had work, and how much of that there was.
fn idle_beside_work_ns(run: &Run) -> (u64, u64) {
    let work = uncapped_work(run);
    let work_ns = length_ns(&work);
    (work_ns - common_ns(&work, &run.device_busy()), work_ns)
}

/// In scenarios of all kinds: that idle time, in thousandths of 3 % of the work and [`SILENCE_NS`] for each time that a
/// client's work ended. More than 2 % is lost where slices are short, because tenants come, go and reach their limits,
/// and kernels so uneven that the end of a slice cannot be foreseen: then hand-offs cannot be prepared.
pub fn worst_permille(run: &Run) -> Option<u64> {
    let (idle_ns, work_ns) = idle_beside_work_ns(run);
    (work_ns > 0).then(|| permille(idle_ns, work_ns * 3 / 100 + silences(run) * SILENCE_NS))
}

/// Where all tenants always have work: the same in thousandths of 2 % alone. The device is busy for 98 % of the time.
pub fn backlogged_permille(run: &Run) -> Option<u64> {
    let (idle_ns, work_ns) = idle_beside_work_ns(run);
    (0..run.count()).all(|tenant| run.is_backlogged(tenant)).then(|| permille(idle_ns, work_ns / 50))
}
