//! The configured layout, made again after a boot: instances do not outlive one.

use super::apply::{By, apply};
use super::{owner, view};
use crate::events::About;
use crate::lease::Leases;
use crate::service_manager;
use gpool_configuration::layouts::{self, Divisible, Goal};
use gpool_protocol::{EventKind, MigApply, MigGoal, MigGpuView};
use std::path::Path;
use std::time::Duration;

/// Says, below `[paths] run_dir`, that this boot's first start is over.
const MARK: &str = "mig-boot-id";
/// A driver may take seconds to divide a GPU, and a host may have many.
const PATIENCE: Duration = Duration::from_secs(300);

/// At the first start after a boot, makes the configured layout if nobody has divided or leased anything yet. What comes
/// of it is an event. With a board that does not answer the next start is the first one.
pub fn after_boot(leases: &Leases) {
    let configuration = leases.configuration();
    let mark = configuration.paths.run_dir.join(MARK);
    if std::fs::read_to_string(&mark).is_ok_and(|boot_id| boot_id == leases.boot_id) {
        return;
    }
    if let (Some(file), Some(board)) = (&configuration.mig.layout, leases.silence.left_out().first()) {
        let cause = format!("GPU {} does not answer; restart gpool-supervisor when it does", board.index);
        return tell(leases, file, &cause);
    }
    // Before anything is divided: who is ended half-way does not begin again.
    if let Err(cause) = std::fs::write(&mark, &leases.boot_id) {
        log!("{}: {cause}; no layout is made after this boot", mark.display());
        return;
    }
    let Some(file) = &configuration.mig.layout else { return };
    if let Some(cause) = owner::remembered().map(|name| remembered(&name)) {
        return tell(leases, file, &cause);
    }
    service_manager::starting_takes(PATIENCE);
    let done = make(leases, file, configuration.mig.config.as_deref());
    if let Err(cause) = done {
        tell(leases, file, &cause);
    }
}

fn remembered(name: &str) -> String {
    format!("{name} has divided the GPUs of this host, by {}; remove that file if it no longer does", owner::MEMORY)
}

fn tell(leases: &Leases, file: &Path, cause: &str) {
    let message = format!("the layout of {} was not made after the boot: {cause}", file.display());
    leases.events.note(EventKind::MigNotApplied, About::default(), message);
}

fn make(leases: &Leases, file: &Path, config: Option<&str>) -> Result<(), String> {
    let gpus = view(leases).map_err(|error| error.to_string())?;
    {
        let book = leases.book();
        if !book.leases.is_empty() || !book.stranded.is_empty() {
            return Err("there are leases already".to_owned());
        }
    }
    if let Some(gpu) = gpus.iter().find(|gpu| !gpu.instances.is_empty() || !gpu.parted.is_empty()) {
        return Err(format!("GPU {} has instances already", gpu.index));
    }
    let goals = read(file, config, &gpus)?;
    apply(leases, &MigApply { goals, drain: false }, By::Boot).map(drop).map_err(|error| error.to_string())
}

/// What the layout wants of these GPUs.
fn read(file: &Path, config: Option<&str>, gpus: &[MigGpuView]) -> Result<Vec<MigGoal>, String> {
    let read = layouts::load(file)?;
    let (name, entries) = read.named(config)?;
    let divisible: Vec<Divisible> =
        gpus.iter().map(|gpu| Divisible { index: gpu.index, pci_device_id: gpu.pci_device_id }).collect();
    let goals = layouts::goals(entries, &divisible).map_err(|cause| format!("mig-configs.{name}: {cause}"))?;
    let goal = |goal: Goal| {
        let gpu = gpus.iter().find(|gpu| gpu.index == goal.index)?;
        Some(MigGoal { uuid: gpu.uuid.clone(), enabled: goal.enabled, profiles: goal.profiles })
    };
    Ok(goals.into_iter().filter_map(goal).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::GpuUuid;

    #[test]
    fn a_layout_is_for_the_gpus_that_it_names() {
        let gpu = |index: u32| MigGpuView {
            index,
            uuid: GpuUuid(format!("GPU-{index}")),
            name: "a GPU".into(),
            pci_device_id: 0x20b2_10de,
            enabled: false,
            pending: false,
            owner: None,
            window_left_s: None,
            instances: Vec::new(),
            parted: Vec::new(),
            leases: 0,
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "version: v1\nmig-configs:\n  halves:\n    - devices: [1]\n      mig-enabled: true\n      \
                    mig-devices:\n        \"3g.40gb\": 2\n";
        std::fs::write(file.path(), text).unwrap();
        let goals = read(file.path(), None, &[gpu(0), gpu(1)]).unwrap();
        assert_eq!((goals.len(), goals[0].uuid.0.as_str(), goals[0].profiles.len()), (1, "GPU-1", 2));
        assert!(read(file.path(), None, &[gpu(0)]).unwrap_err().contains("mig-configs.halves: GPU 1"));
        assert!(read(file.path(), Some("thirds"), &[gpu(1)]).unwrap_err().contains("halves"));
    }
}
