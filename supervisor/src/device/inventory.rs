//! GPUs through NVML.

use super::first_answers::{Answer, Boards, RETRY_PERIOD, StartPatience, first_answers};
use super::inventory_error::InventoryError;
use super::kept_nvml::KeptNvml;
use super::memory::allocatable;
use super::memory_limits::Calls;
use super::mig::Board;
use super::questions::{Asked, NoAnswer, Questions};
use super::served::Served;
use gpool_policy::honesty::Sample;
use gpool_protocol::GpuUuid;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::GpuVirtualizationMode;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub(super) fn unanswered(query: &'static str) -> impl FnOnce(NvmlError) -> InventoryError {
    move |error| match error {
        NvmlError::GpuLost => InventoryError::Lost { query, cause: error.to_string() },
        _ => InventoryError::Unanswered { query, cause: error.to_string() },
    }
}

/// A GPU, as it stays while the driver is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// NVML's index.
    pub index: u32,
    /// Stable identity.
    pub uuid: GpuUuid,
    /// Product name.
    pub name: String,
    /// N of /dev/nvidiaN; not the index.
    pub minor: u32,
    /// All memory that leases can have.
    pub memory_total_bytes: u64,
    /// What the driver keeps for itself beside that; NVML's total is both.
    pub memory_reserved_bytes: u64,
    /// What is sold to nobody besides.
    pub memory_headroom_bytes: u64,
    /// Version of the driver.
    pub driver_version: String,
    /// It is a virtual one: a part of a GPU that another host gives to this virtual machine.
    pub is_virtual: bool,
    /// What it is to those who lease it.
    pub kind: Kind,
}

/// What can be leased of a board.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Kind {
    /// All of it, by slices, whole or in time slices.
    #[default]
    Whole,
    /// Nothing: MIG is on, and its instances are GPUs of their own.
    Divided,
    /// A MIG instance; index and minor number are the board's.
    Instance(MigInstance),
    /// A MIG instance that was there.
    Gone,
}

/// Where a MIG instance is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigInstance {
    /// The board.
    pub board: GpuUuid,
    /// NVIDIA's name of its profile.
    pub profile: String,
    /// Number of the GPU instance on the board.
    pub gpu_instance: u32,
    /// Number of the compute instance in the GPU instance.
    pub compute_instance: u32,
    /// The first of its memory slices.
    pub start: u8,
    /// How many.
    pub size: u8,
}

impl Gpu {
    /// The MIG instance that it is, if it is one.
    pub fn instance(&self) -> Option<&MigInstance> {
        match &self.kind {
            Kind::Instance(instance) => Some(instance),
            Kind::Whole | Kind::Divided | Kind::Gone => None,
        }
    }

    /// The board that it is, or that it is a part of; none of an instance that is gone.
    pub fn board(&self) -> Option<&GpuUuid> {
        match &self.kind {
            Kind::Instance(instance) => Some(&instance.board),
            Kind::Whole | Kind::Divided => Some(&self.uuid),
            Kind::Gone => None,
        }
    }
}

/// What a board may take for an answer. A driver that is merely busy takes less.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// What NVML may take to start: it initialises the GPUs of the host for that, one after the other.
const LIBRARY_PATIENCE: Duration = Duration::from_secs(90);

/// What NVML shows, and the boards for which it does not answer.
#[derive(Debug)]
pub struct Found {
    /// All that can be leased, and boards that are divided: boards by index, then the instances of each.
    pub gpus: Vec<Gpu>,
    /// The others.
    pub silent: Vec<SilentBoard>,
    /// UUIDs that the configuration names and no board that answers has.
    pub absent: Vec<String>,
}

/// A board for which NVML does not answer, as one that has fallen off its bus.
#[derive(Debug)]
pub struct SilentBoard {
    /// NVML's index.
    pub index: u32,
    /// The query, and NVML's own words.
    pub cause: InventoryError,
}

/// What `ask` says of each board. Those that do not answer are set aside, so that they take the others away from nobody.
///
/// # Errors
/// The first board's, if none answers.
pub fn answering<T>(
    boards: impl Iterator<Item = u32>,
    ask: impl Fn(u32) -> Result<T, InventoryError>,
) -> Result<(Vec<T>, Vec<SilentBoard>), InventoryError> {
    let (mut answers, mut silent) = (Vec::new(), Vec::new());
    for index in boards {
        match ask(index) {
            Ok(answer) => answers.push(answer),
            Err(cause) => silent.push(SilentBoard { index, cause }),
        }
    }
    if answers.is_empty() && !silent.is_empty() {
        return Err(silent.swap_remove(0).cause);
    }
    Ok((answers, silent))
}

/// The answers of boards that are served; the others answered none.
///
/// # Errors
/// The first silent board's, if there are none: it may be one that is served, and nobody would ask it again.
fn of_served<T>(
    answers: Vec<Option<T>>,
    mut silent: Vec<SilentBoard>,
) -> Result<(Vec<T>, Vec<SilentBoard>), InventoryError> {
    let answers: Vec<T> = answers.into_iter().flatten().collect();
    if answers.is_empty() && !silent.is_empty() {
        return Err(silent.swap_remove(0).cause);
    }
    Ok((answers, silent))
}

/// What the configuration names and is not among `gpus`.
fn absent(served: &Served, gpus: &[Gpu]) -> Vec<String> {
    let is_there = |uuid: &&String| gpus.iter().any(|gpu| gpu.uuid.0 == **uuid);
    served.named().iter().filter(|uuid| !is_there(uuid)).cloned().collect()
}

/// The NVML library, loaded by an explicit path so that it can never be our own shim.
pub struct NvmlInventory {
    library: Loaded,
    /// Which boards are served; of the others nothing is shown.
    pub(super) served: Served,
    /// What is known of boards since the start.
    boards: OnceLock<Boards>,
    questions: Questions,
}

/// NVML, with what stays the same for as long as it is loaded: nobody waits for that again.
struct Loaded {
    nvml: Nvml,
    driver_version: String,
    boards: u32,
    limits: Option<Calls>,
}

fn load(library: &Path) -> Result<Loaded, InventoryError> {
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init();
    let nvml = nvml.map_err(|cause| match cause {
        NvmlError::LibRmVersionMismatch => InventoryError::Replaced { library: library.display().to_string() },
        other => unusable(library, other.to_string()),
    })?;
    let driver_version = nvml.sys_driver_version().map_err(unanswered("the driver's version"))?;
    let boards = nvml.device_count().map_err(unanswered("the number of GPUs"))?;
    Ok(Loaded { nvml, driver_version, boards, limits: Calls::load(library) })
}

fn unusable(library: &Path, cause: String) -> InventoryError {
    InventoryError::Unusable { library: library.display().to_string(), cause }
}

/// What `load` loads, on a thread: where the first task of a process stands in the driver and cannot be killed, nobody can tell
/// that the process has ended, and no other supervisor would start.
fn loaded<T: Send + 'static>(
    questions: &Questions,
    (library, patience): (&Path, Duration),
    load: impl FnOnce(&Path) -> Result<T, InventoryError> + Send + 'static,
) -> Result<T, InventoryError> {
    let path = library.to_owned();
    questions.ask(Asked::Library, patience, move || load(&path)).map_err(|why| match why {
        NoAnswer::Hangs { .. } => unusable(library, format!("a call has not come back for {} s", patience.as_secs())),
        NoAnswer::NoThread(cause) => unusable(library, format!("no thread can be started: {cause}")),
    })?
}

/// How busy processes kept a GPU.
#[derive(Debug, Clone, Default)]
pub struct ProcessUse {
    /// By its multiprocessors.
    pub samples: Vec<Sample>,
    /// Processes that used anything of it, those that only move or code video included.
    pub users: BTreeSet<u32>,
    /// Whether NVML has such figures of it at all.
    pub is_known: bool,
}

impl NvmlInventory {
    /// Loads and starts NVML, to show of it what is in `served`, and waits so long for boards to say what they are. Where the
    /// driver was replaced while it was in use, that is NVML as it was before, if it is `kept`.
    ///
    /// # Errors
    /// [`InventoryError::Unusable`], [`InventoryError::Replaced`], and NVML does not answer what is asked of no board.
    pub fn open(
        library: &Path,
        kept: &KeptNvml,
        served: Served,
        patience: &StartPatience,
    ) -> Result<Arc<Self>, InventoryError> {
        let (boards, questions) = (OnceLock::new(), Questions::default());
        let library = match (loaded(&questions, (library, LIBRARY_PATIENCE), load), kept.library()) {
            (Err(replaced @ InventoryError::Replaced { .. }), Some(kept)) => {
                log!(
                    "{replaced}; until then containers that run are paced and none are started, with NVML as it was before"
                );
                loaded(&questions, (kept, LIBRARY_PATIENCE), load)?
            }
            (Err(other), _) => return Err(other),
            (Ok(started), _) => {
                if let Err(cause) = kept.keep(library) {
                    log!("NVML is not kept for when the driver is replaced while it is in use ({cause})");
                }
                started
            }
        };
        let inventory = Arc::new(Self { library, served, boards, questions });
        let boards = first_answers(inventory.library.boards, patience, |index| {
            inventory.within(patience.to_answer, index, move |its| its.first_answer(index))
        });
        // Set here and nowhere else.
        let _ = inventory.boards.set(boards);
        Ok(inventory)
    }

    /// What a board is.
    fn first_answer(&self, index: u32) -> Result<Answer, InventoryError> {
        let is_served = self.is_served(index)?;
        Ok(Answer { is_served, divisible: if is_served { self.board(index)? } else { None } })
    }

    /// Whether a board, by who it says that it is, is served.
    fn is_served(&self, index: u32) -> Result<bool, InventoryError> {
        Ok(self.served.serve(&self.whole_gpu(index)?))
    }

    /// The first of `boards` that answers and is served.
    pub fn late_board(self: &Arc<Self>, mut boards: impl Iterator<Item = u32>) -> Option<u32> {
        boards.find(|index| {
            let index = *index;
            self.ask(index, move |its| its.is_served(index)).unwrap_or(false)
        })
    }

    /// Since when the board `index` has not answered.
    pub fn hangs_since(&self, index: u32) -> Option<Instant> {
        self.questions.hangs_since(Asked::Board(index))
    }

    /// Whether a board has not answered, so that a thread of this process may stand in the driver.
    pub fn any_hangs(&self) -> bool {
        self.questions.any_hangs()
    }

    /// Whether NVML has been asked something since then, or is being asked: it opens devices for that.
    pub fn has_asked_since(&self, at: Instant) -> bool {
        self.questions.were_under_way_since(at)
    }

    /// What `question` answers, which asks the board `index` and nothing else.
    ///
    /// # Errors
    /// Its own; and one that has not answered for [`PATIENCE`], or not an earlier question.
    pub fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        index: u32,
        question: impl FnOnce(&Self) -> Result<T, InventoryError> + Send + 'static,
    ) -> Result<T, InventoryError> {
        self.within(PATIENCE, index, question)
    }

    /// The same, for what may take `patience`.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn within<T: Send + 'static>(
        self: &Arc<Self>,
        patience: Duration,
        index: u32,
        question: impl FnOnce(&Self) -> Result<T, InventoryError> + Send + 'static,
    ) -> Result<T, InventoryError> {
        let inventory = self.clone();
        self.questions.ask(Asked::Board(index), patience, move || question(&inventory))?
    }

    pub(super) fn questions(&self) -> &Questions {
        &self.questions
    }

    pub(super) fn nvml(&self) -> &Nvml {
        &self.library.nvml
    }

    pub(super) fn limit_calls(&self) -> Option<&Calls> {
        self.library.limits.as_ref()
    }

    /// The boards that can be divided, by NVML's index.
    pub fn boards(&self) -> &BTreeMap<u32, Board> {
        &self.boards.get_or_init(Boards::default).divisible
    }

    /// Why a board is left out that did not say what it is when the supervisor started.
    fn left_out(&self, index: u32) -> Option<InventoryError> {
        let boards = self.boards.get()?;
        let hung = boards.hung.get(&index).map(|since| InventoryError::Hung { since: *since });
        hung.or_else(|| boards.failed.get(&index).map(InventoryError::as_before))
    }

    /// All that NVML shows, for a supervisor that starts: a board that does not answer is asked again for a while. One that
    /// is being reset or divided answers then, and what is left out now is so until the next start. One that has not said what it is
    /// has been waited for already.
    ///
    /// # Errors
    /// As [`Self::gpus`].
    pub fn gpus_at_start(self: &Arc<Self>, patience: Duration) -> Result<Found, InventoryError> {
        let deadline = Instant::now() + patience;
        loop {
            let found = self.gpus()?;
            let may_come_back = found.silent.iter().any(|board| self.left_out(board.index).is_none());
            if !may_come_back || Instant::now() >= deadline {
                return Ok(found);
            }
            std::thread::sleep(RETRY_PERIOD);
        }
    }

    /// All that NVML shows now of what is served.
    ///
    /// # Errors
    /// Names the query that failed, if NVML itself or no board that is served answers.
    pub fn gpus(self: &Arc<Self>) -> Result<Found, InventoryError> {
        let boards = 0..self.library.boards;
        let (answers, silent) = answering(boards, |index| self.ask(index, move |its| its.board_with_instances(index)))?;
        let (answers, silent) = of_served(answers, silent)?;
        let (mut gpus, instances): (Vec<Gpu>, Vec<Vec<Gpu>>) = answers.into_iter().unzip();
        gpus.extend(instances.into_iter().flatten());
        let absent = absent(&self.served, &gpus);
        // A board that does not answer has no UUID to be known by. It is nobody's concern here if all that are named answer.
        let silent = if absent.is_empty() && !self.served.named().is_empty() { Vec::new() } else { silent };
        Ok(Found { gpus, silent, absent })
    }

    /// A board, and its instances if it is divided; none if it is not served.
    fn board_with_instances(&self, index: u32) -> Result<Option<(Gpu, Vec<Gpu>)>, InventoryError> {
        if let Some(cause) = self.left_out(index) {
            return Err(cause);
        }
        let gpu = self.whole_gpu(index)?;
        if !self.served.serve(&gpu) {
            return Ok(None);
        }
        match self.boards().get(&index) {
            Some(board) if self.mig_mode(index)?.is_on => {
                let instances = self.instances(&gpu, board)?;
                Ok(Some((Gpu { kind: Kind::Divided, ..gpu }, instances)))
            }
            // Of one that is divided into what its driver does not name, nothing can be leased.
            None if self.has_mig_on(index)? => Ok(Some((Gpu { kind: Kind::Divided, ..gpu }, Vec::new()))),
            Some(_) | None => Ok(Some((gpu, Vec::new()))),
        }
    }

    fn whole_gpu(&self, index: u32) -> Result<Gpu, InventoryError> {
        let device = self.nvml().device_by_index(index).map_err(unanswered("a GPU by its index"))?;
        let memory = device.memory_info().map_err(unanswered("a GPU's memory"))?;
        Ok(Gpu {
            index,
            uuid: GpuUuid(device.uuid().map_err(unanswered("a GPU's UUID"))?),
            name: device.name().map_err(unanswered("a GPU's name"))?,
            minor: device.minor_number().map_err(unanswered("a GPU's minor number"))?,
            memory_total_bytes: allocatable(&memory) - self.served.headroom_of(&memory),
            memory_reserved_bytes: memory.reserved,
            memory_headroom_bytes: self.served.headroom_of(&memory),
            driver_version: self.library.driver_version.clone(),
            // Drivers without virtual GPUs do not know the question.
            is_virtual: device.virtualization_mode().is_ok_and(|mode| mode == GpuVirtualizationMode::Vgpu),
            kind: Kind::Whole,
        })
    }

    /// How busy each process kept a GPU on average since `since_us` of NVML's clock, which is wall time.
    /// Nothing where NVML has no such figures: on MIG instances, on old GPUs, and while nobody works.
    pub fn process_use(&self, gpu: &Gpu, since_us: u64) -> ProcessUse {
        if gpu.kind != Kind::Whole {
            return ProcessUse::default();
        }
        let device = self.nvml().device_by_index(gpu.index);
        let answer = device.and_then(|device| device.process_utilization_stats(since_us));
        // So it says that there is none, too.
        let is_known = matches!(answer, Ok(_) | Err(NvmlError::NotFound));
        let told = answer.unwrap_or_default();
        let sample = |sample: &ProcessUtilizationSample| Sample {
            process: sample.pid,
            at_us: sample.timestamp,
            busy_percent: sample.sm_util,
        };
        let is_used = |its: &&ProcessUtilizationSample| its.sm_util + its.mem_util + its.enc_util + its.dec_util > 0;
        ProcessUse {
            samples: told.iter().map(sample).collect(),
            users: told.iter().filter(is_used).map(|its| its.pid).collect(),
            is_known,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_that_is_lost_takes_no_other_away() {
        let ask = |index: u32| match index {
            1 => Err(unanswered("a GPU by its index")(NvmlError::GpuLost)),
            _ => Ok(index),
        };
        let (answers, silent) = answering(0..4, ask).unwrap();
        assert_eq!(answers, [0, 2, 3], "the others keep their indices");
        assert_eq!(silent.iter().map(|board| board.index).collect::<Vec<_>>(), [1]);
        assert!(silent[0].cause.to_string().starts_with("NVML does not answer a GPU by its index: "));
        assert!(answering(1..2, ask).is_err(), "without any GPU there is nothing to serve");
        assert!(answering(0..0, ask).unwrap().0.is_empty());
    }

    #[test]
    fn a_library_that_hangs_is_named_and_holds_nobody_up() {
        let (go_on, waits) = std::sync::mpsc::channel::<()>();
        let (library, patience) = (Path::new("/lib/nvml.so"), Duration::from_millis(20));
        let hangs = move |_: &Path| Ok(waits.recv().is_ok());
        let error = loaded(&Questions::default(), (library, patience), hangs).unwrap_err().to_string();
        assert!(error.starts_with("NVML (/lib/nvml.so) cannot be used: a call has not come back"), "{error}");
        drop(go_on);
    }

    #[test]
    fn a_board_that_is_not_served_is_no_answer_for_one_that_is_lost() {
        let lost = || vec![SilentBoard { index: 1, cause: unanswered("a GPU's UUID")(NvmlError::GpuLost) }];
        assert!(of_served::<u32>(vec![None], lost()).is_err());
        let (answers, silent) = of_served(vec![None, Some(2)], lost()).unwrap();
        assert_eq!((answers, silent.len()), (vec![2], 1));
        assert!(of_served::<u32>(vec![None], Vec::new()).unwrap().0.is_empty(), "they are absent, and told so");
    }
}
