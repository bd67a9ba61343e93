//! The live table of the demo: what the supervisor says, with the hardware meter's figure for what was received.

use crate::failure::Result;
use crate::host::{Container, Host};
use crate::meter::{MeterReader, usage_of};
use gpool_cli::live::LiveBlock;
use gpool_cli::table::{GateWait, LeaseRow, render};
use gpool_device_model::Meter;
use gpool_protocol::LeaseView;
use std::time::{Duration, Instant};

/// Between two drawings.
const TICK: Duration = Duration::from_secs(1);

/// The table, drawn again and again.
#[derive(Debug)]
pub struct Board {
    live: LiveBlock,
    reader: MeterReader,
}

struct Look {
    meter: Meter,
    leases: Vec<LeaseView>,
}

impl Board {
    /// A board for the GPU of `reader`.
    pub fn new(reader: MeterReader) -> Self {
        Self { live: LiveBlock::on_stdout(), reader }
    }

    /// Shows the table for so long, and leaves its last state on the screen.
    pub fn show(&mut self, host: &Host, containers: &[&Container], duration: Duration) -> Result<()> {
        let start = Instant::now();
        let mut last = self.look(host)?;
        while start.elapsed() < duration {
            std::thread::sleep(TICK.min(duration.saturating_sub(start.elapsed())));
            let now = self.look(host)?;
            let text = render(&rows(containers, &last, &now));
            self.live.draw(&mut std::io::stdout().lock(), &text)?;
            last = now;
        }
        self.live.leave();
        Ok(())
    }

    fn look(&self, host: &Host) -> Result<Look> {
        Ok(Look { meter: self.reader.read()?, leases: host.leases()? })
    }
}

fn rows(containers: &[&Container], last: &Look, now: &Look) -> Vec<LeaseRow> {
    let elapsed_ns = now.meter.now_ns.saturating_sub(last.meter.now_ns).max(1);
    let row = |container: &&Container| {
        let of = |look: &Look| look.leases.iter().find(|lease| lease.container_id.0 == container.id).cloned();
        let lease = of(now)?;
        let mut row = LeaseRow::from(&lease);
        let busy_ns = |look: &Look| usage_of(&look.meter, &container.id).busy_ns;
        row.container = container.name.clone();
        row.received_permille = permille(busy_ns(now).saturating_sub(busy_ns(last)), elapsed_ns);
        let waited_ns = of(last).map_or(0, |before| lease.gate_wait_ns.saturating_sub(before.gate_wait_ns));
        row.gate_wait = GateWait::Permille(permille(waited_ns, elapsed_ns));
        Some(row)
    };
    containers.iter().filter_map(row).collect()
}

/// Rounded, so that a share of 0.2999 reads 30.0 %.
fn permille(part_ns: u64, whole_ns: u64) -> u64 {
    ((u128::from(part_ns) * 1000 + u128::from(whole_ns) / 2) / u128::from(whole_ns)) as u64
}
