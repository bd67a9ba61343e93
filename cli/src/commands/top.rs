//! `gpool top`

use super::ps;
use crate::arguments::Format;
use crate::exit::Failure;
use crate::live::LiveBlock;
use crate::table::{GateWait, LeaseRow, render, render_wide};
use gpool_protocol::{Client, LeaseId, LeaseView};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Watches the leases until the reader goes away or a signal ends the program.
pub fn run(client: &Client, once: bool, interval: Duration, format: Format) -> Result<(), Failure> {
    let mut live = LiveBlock::on_stdout();
    let mut last: Option<Look> = None;
    loop {
        let look = Look { at: Instant::now(), leases: client.get("/v1/leases")? };
        match format {
            Format::Table => live.draw(&mut std::io::stdout().lock(), &render(&rows(&look, last.as_ref())))?,
            Format::Wide => live.draw(&mut std::io::stdout().lock(), &render_wide(&rows(&look, last.as_ref())))?,
            other => ps::print(&look.leases, other)?,
        }
        if once {
            return Ok(());
        }
        std::thread::sleep(interval.saturating_sub(look.at.elapsed()));
        last = Some(look);
    }
}

struct Look {
    at: Instant,
    leases: Vec<LeaseView>,
}

/// The first look shows the supervisor's own averages, each later one what happened since the look before.
fn rows(look: &Look, last: Option<&Look>) -> Vec<LeaseRow> {
    let Some(last) = last else { return look.leases.iter().map(LeaseRow::from).collect() };
    let elapsed_ns = look.at.duration_since(last.at).as_nanos().max(1);
    let before: HashMap<&LeaseId, &LeaseView> = last.leases.iter().map(|lease| (&lease.lease_id, lease)).collect();
    let since = |lease: &LeaseView| {
        let mut row = LeaseRow::from(lease);
        if let Some(before) = before.get(&lease.lease_id) {
            let gpus = lease.gpus.len().max(1) as u128;
            row.received_permille = permille(lease.charged_gpu_ns, before.charged_gpu_ns, elapsed_ns * gpus);
            row.gate_wait = GateWait::Permille(permille(lease.gate_wait_ns, before.gate_wait_ns, elapsed_ns));
        }
        row
    };
    look.leases.iter().map(since).collect()
}

fn permille(now_ns: u64, before_ns: u64, elapsed_ns: u128) -> u64 {
    (u128::from(now_ns.saturating_sub(before_ns)) * 1000 / elapsed_ns) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_the_growth_over_the_time_between_two_looks() {
        assert_eq!(permille(1_300, 1_000, 1_000), 300);
        assert_eq!(permille(1_000, 1_300, 1_000), 0, "a counter that restarted is no negative share");
    }
}
