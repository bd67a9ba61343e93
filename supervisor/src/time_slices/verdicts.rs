//! What is known of each GPU: whether its hardware keeps shares by time slices.
//!
//! That it does is a matter of the GPU and the driver, and is believed after a boot as well: engines start their containers again before
//! anything could be tried, once, and others may be on the GPU by then. That it does not may have been chance, and holds for one boot.

use crate::bell::Bell;
use crate::device::{Gpu, Kind};
use crate::state_file::StateFile;
use gpool_protocol::{GpuUuid, TimeSlices};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// In `[paths] state_dir`. Earlier supervisors had one of this name in `[paths] run_dir`, of the boot that it is.
const NAME: &str = "time-slices.json";

/// A final verdict as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    gpu: GpuUuid,
    driver: String,
    /// In which boot that was seen.
    #[serde(default)]
    boot_id: String,
    verdict: TimeSlices,
}

/// What is known of each GPU, and a bell for the thread that keeps the slices. Its locks are taken last of all.
#[derive(Debug)]
pub struct Verdicts {
    by_gpu: Mutex<BTreeMap<GpuUuid, TimeSlices>>,
    kept: StateFile<Vec<Kept>>,
    boot_id: String,
    bell: Bell,
}

impl Verdicts {
    /// With what was written down in this directory, or in that of what runs by an earlier supervisor.
    pub fn open(state_dir: &Path, run_dir: &Path, boot_id: &str) -> Self {
        let kept: StateFile<Vec<Kept>> = StateFile::open(state_dir, NAME, "time slices are tried anew on each GPU");
        let of_this_boot = fs::read(run_dir.join(NAME)).ok();
        let of_this_boot: Option<Vec<Kept>> = of_this_boot.and_then(|text| serde_json::from_slice(&text).ok());
        let found = of_this_boot.unwrap_or_default();
        let enter = |all: &mut Vec<Kept>| {
            for its in &found {
                if !all.iter().any(|known| known.gpu == its.gpu && known.driver == its.driver) {
                    all.push(Kept { boot_id: boot_id.to_owned(), ..its.clone() });
                }
            }
        };
        if kept.change(enter).is_err() {
            kept.change_in_memory(enter);
        }
        Self { by_gpu: Mutex::default(), kept, boot_id: boot_id.to_owned(), bell: Bell::default() }
    }

    /// Writes down what could not be written before.
    pub fn catch_up(&self) {
        self.kept.catch_up();
    }

    fn by_gpu(&self) -> MutexGuard<'_, BTreeMap<GpuUuid, TimeSlices>> {
        self.by_gpu.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the test said of a GPU; none before it has ended, or where nobody wants it.
    pub fn of(&self, gpu: &GpuUuid) -> Option<TimeSlices> {
        self.by_gpu().get(gpu).cloned()
    }

    /// Whether the hardware of a GPU keeps shares.
    pub fn keeps(&self, gpu: &GpuUuid) -> bool {
        self.by_gpu().get(gpu).is_some_and(|verdict| verdict.kept)
    }

    /// Takes over what is written down of these GPUs. To be called before anybody asks for a share.
    pub fn take_over(&self, gpus: &[Gpu]) {
        for gpu in gpus.iter().filter(|gpu| gpu.kind == Kind::Whole) {
            self.take_over_one(gpu);
        }
    }

    /// Whether something final is known of a GPU, or is written down.
    pub(super) fn take_over_one(&self, gpu: &Gpu) -> bool {
        if self.of(&gpu.uuid).is_some_and(|verdict| verdict.is_final) {
            return true;
        }
        let is_its = |known: &&Kept| {
            known.gpu == gpu.uuid
                && known.driver == gpu.driver_version
                && (known.verdict.kept || known.boot_id == self.boot_id)
        };
        let known = self.kept.lock().iter().find(is_its).map(|known| known.verdict.clone());
        let is_known = known.is_some();
        if let Some(verdict) = known {
            self.by_gpu().insert(gpu.uuid.clone(), verdict);
        }
        is_known
    }

    /// Takes what came of a test, and writes down what is final. What cannot be written is tried again by the next supervisor.
    pub(super) fn note(&self, gpu: &Gpu, verdict: TimeSlices) {
        self.by_gpu().insert(gpu.uuid.clone(), verdict.clone());
        if !verdict.is_final {
            return;
        }
        let (driver, boot_id) = (gpu.driver_version.clone(), self.boot_id.clone());
        let new = Kept { gpu: gpu.uuid.clone(), driver, boot_id, verdict };
        let enter = |all: &mut Vec<Kept>| {
            all.retain(|known| known.gpu != new.gpu);
            all.push(new.clone());
        };
        if let Err(cause) = self.kept.change(enter) {
            log!("{NAME} cannot be written: {cause}; time slices of {} are tried again after a restart", gpu.uuid);
        }
    }

    /// Shares have changed: look now.
    pub fn ring(&self) {
        self.bell.ring();
    }

    /// Waits until somebody rings, or for so long.
    pub(super) fn wait(&self, patience: Duration) {
        self.bell.wait(patience);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(kept: bool, is_final: bool) -> TimeSlices {
        TimeSlices { kept, is_final, told: "0.94".into() }
    }

    #[test]
    fn a_share_that_was_kept_is_believed_after_a_boot_and_one_that_was_not_is_tried_again() {
        let (state, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let open = |boot_id: &str| Verdicts::open(state.path(), run.path(), boot_id);
        let gpus = [0, 1, 2].map(Gpu::sample);
        let known = |verdicts: &Verdicts, gpus: &[Gpu]| {
            verdicts.take_over(gpus);
            gpus.iter().map(|gpu| verdicts.of(&gpu.uuid).map(|its| its.kept)).collect::<Vec<_>>()
        };
        let first = open("a");
        assert_eq!(known(&first, &gpus), [None; 3]);
        first.note(&gpus[0], verdict(true, true));
        first.note(&gpus[1], verdict(false, true));
        first.note(&gpus[2], verdict(false, false));
        assert!(first.take_over_one(&gpus[1]) && !first.take_over_one(&gpus[2]), "only that is tried again");
        assert_eq!(known(&open("a"), &gpus), [Some(true), Some(false), None], "after a restart");
        let booted = open("b");
        assert_eq!(known(&booted, &gpus), [Some(true), None, None], "after a boot");
        assert!(booted.keeps(&gpus[0].uuid));
        let replaced = gpus.clone().map(|gpu| Gpu { driver_version: "2".into(), ..gpu });
        assert_eq!(known(&open("a"), &replaced), [None; 3], "with another driver");
        let divided = [Gpu { kind: Kind::Divided, ..Gpu::sample(0) }];
        assert_eq!(known(&open("a"), &divided), [None], "it is not there as a whole");
        fs::write(state.path().join(NAME), "{").unwrap();
        assert_eq!(known(&open("a"), &gpus), [None; 3], "what cannot be read is no verdict");
    }

    #[test]
    fn what_an_earlier_supervisor_has_seen_in_this_boot_holds() {
        let (state, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let text = r#"[{"gpu":"GPU-0","driver":"1","verdict":{"kept":true,"is_final":true,"told":"0.94"}},
                       {"gpu":"GPU-1","driver":"1","verdict":{"kept":false,"is_final":true,"told":"0.5"}}]"#;
        fs::write(run.path().join(NAME), text).unwrap();
        let verdicts = Verdicts::open(state.path(), run.path(), "a");
        verdicts.take_over(&[0, 1].map(Gpu::sample));
        assert!(verdicts.keeps(&Gpu::sample(0).uuid) && verdicts.of(&Gpu::sample(1).uuid).is_some());
        // A boot empties that directory.
        fs::remove_file(run.path().join(NAME)).unwrap();
        let booted = Verdicts::open(state.path(), run.path(), "b");
        booted.take_over(&[0, 1].map(Gpu::sample));
        assert!(booted.keeps(&Gpu::sample(0).uuid) && booted.of(&Gpu::sample(1).uuid).is_none());
    }
}
