//! Leases without containers: how many a second, and what the supervisor keeps of each. The low-level runtime is
//! `/bin/true`, so a `create` is what gpool-runtime and the supervisor do.

use super::bundle::Bundle;
use super::process_cost::resident_mib;
use super::sheet::Sheet;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::Host;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Made one after the other, and all there at the end.
const LEASES: usize = 80;
const REQUEST: [&str; 2] = ["GPOOL_FRACTION=0.01", "GPOOL_MEMORY=64MiB"];
const ROOM_PERMILLE: u16 = 850;
const CONFIGURATION: &str = "/etc/gpool/config.toml";
/// A lease whose container never starts ends 2 s after its runtime.
const PATIENCE: Duration = Duration::from_secs(30);

/// Adds one round.
pub fn measure(host: &Host, cgroup_parent: &str, sheet: &mut Sheet) -> Result<()> {
    super::wait_for_room(host, ROOM_PERMILLE)?;
    let before = fs::read_to_string(CONFIGURATION).context(CONFIGURATION)?;
    let nothing = "[runtime]\nlow_level = [\"/bin/true\"]\n";
    fs::write(CONFIGURATION, format!("{before}\n{nothing}")).context(CONFIGURATION)?;
    let measured = lease(host, cgroup_parent, sheet);
    fs::write(CONFIGURATION, before).context(CONFIGURATION)?;
    measured?;
    let deadline = Instant::now() + PATIENCE;
    while !host.leases()?.is_empty() {
        ensure(Instant::now() < deadline, || "leases of containers that never started stay".to_owned())?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn lease(host: &Host, cgroup_parent: &str, sheet: &mut Sheet) -> Result<()> {
    let supervisor = host.supervisor_pid().ok_or_else(|| Failure::new("no supervisor runs"))?;
    let wrapper = host.stage.program("gpool-runtime");
    let bundle = Bundle::new(host, "leases", &wrapper, Path::new("/bin/true"), cgroup_parent, &REQUEST)?;
    let before_mib = resident_mib(supervisor)?;
    let mut elapsed = Duration::ZERO;
    for index in 0..LEASES {
        let id = format!("lease-{index}");
        bundle.renew(&id, &["true"])?;
        elapsed += bundle.time("create", &id)?;
    }
    let (there, after_mib) = (host.leases()?.len(), resident_mib(supervisor)?);
    sheet.add("lease.rate", &[LEASES as f64 / elapsed.as_secs_f64()], &[])?;
    let kib = (after_mib - before_mib).max(0.0) * 1024.0 / there.max(1) as f64;
    sheet.add("lease.memory", &[kib], &[])
}
