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

/// Says, below `[paths] run_dir`, how far this boot's first start has come.
const MARK: &str = "mig-boot-id";
/// A driver may take seconds to divide a GPU, and a host may have many.
const PATIENCE: Duration = Duration::from_secs(300);

/// How far the layout has come in this boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nobody has begun with it.
    New,
    /// Somebody has, and was ended meanwhile, unless he is at it still.
    Begun,
    /// There is nothing more to do in this boot.
    Done,
}

impl Stage {
    /// What is written of a boot.
    fn mark(self, boot_id: &str) -> String {
        match self {
            Stage::New => String::new(),
            Stage::Begun => format!("begun {boot_id}"),
            Stage::Done => boot_id.to_owned(),
        }
    }

    /// By what is written; what is of another boot is nothing.
    fn of(text: &str, boot_id: &str) -> Self {
        [Stage::Begun, Stage::Done].into_iter().find(|its| its.mark(boot_id) == text).unwrap_or(Stage::New)
    }
}

/// At the first start after a boot, makes the configured layout if nobody has divided or leased anything yet. What comes
/// of it is an event. With a board that does not answer the next start is the first one. One that was interrupted is not gone on with:
/// what was made so far may be in use.
pub fn after_boot(leases: &Leases) {
    let configuration = leases.configuration();
    let mark = configuration.paths.run_dir.join(MARK);
    let stage = std::fs::read_to_string(&mark).map_or(Stage::New, |text| Stage::of(&text, &leases.boot_id));
    if stage == Stage::Done {
        return;
    }
    let file = configuration.mig.layout.as_ref();
    if let (Stage::New, Some(file), Some(board)) = (stage, file, leases.silence.left_out().first()) {
        let cause = format!("GPU {} does not answer; restart gpool-supervisor when it does", board.index);
        return tell(leases, file, &cause);
    }
    let note = |stage: Stage| std::fs::write(&mark, stage.mark(&leases.boot_id));
    match (stage, file) {
        (Stage::Begun, Some(file)) => tell(leases, file, INTERRUPTED),
        (Stage::Begun, None) | (_, None) => {}
        (Stage::New | Stage::Done, Some(file)) => {
            // Before anything is divided: who is ended half-way does not begin again.
            if let Err(cause) = note(Stage::Begun) {
                log!("{}: {cause}; no layout is made after this boot", mark.display());
                return;
            }
            if let Err(cause) = make_unless_others_do(leases, file, configuration.mig.config.as_deref()) {
                tell(leases, file, &cause);
            }
        }
    }
    if let Err(cause) = note(Stage::Done) {
        log!("{}: {cause}", mark.display());
    }
}

/// Why the layout may be there in parts.
const INTERRUPTED: &str = "the supervisor was ended while it was being made, so that it may be there in parts: gpool mig show lists what \
                           there is, and gpool mig apply makes it whole";

fn make_unless_others_do(leases: &Leases, file: &Path, config: Option<&str>) -> Result<(), String> {
    if let Some(name) = owner::remembered() {
        return Err(remembered(&name));
    }
    service_manager::starting_takes(PATIENCE);
    make(leases, file, config)
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
    fn one_that_was_interrupted_in_this_boot_is_known() {
        let stage = |text: &str| Stage::of(text, "b1");
        assert_eq!(stage(&Stage::Begun.mark("b1")), Stage::Begun, "nobody was told how it ended");
        assert_eq!(stage(&Stage::Done.mark("b1")), Stage::Done);
        assert_eq!(stage("b1"), Stage::Done, "as earlier supervisors wrote it");
        assert_eq!(["b0", "begun b0", "begun", ""].map(stage), [Stage::New; 4]);
    }

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
