//! GPUs that take no new leases, because somebody said so, before a repair for example, or because of a fault of their own. Those
//! that they have go on, and may be changed. What was said is written down, since it should outlive the supervisor and a boot.
//!
//! A drained GPU is a board, with all of its instances.

use crate::clock;
use crate::device::{Gpu, Kind};
use crate::events::About;
use crate::lease::{Leases, failed};
use crate::state_file::StateFile;
use gpool_protocol::{Drain, DrainRequest, DrainedGpu, ErrorBody, ErrorCode, EventKind, GpuUuid, UndrainRequest};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::MutexGuard;

/// What is told of one GPU's faults becomes no longer than about this.
const FAULTS_BYTES: usize = 400;
/// In `[paths] state_dir`.
const NAME: &str = "drained.json";

/// Boards by UUID, those included that are not there now.
type Drained = BTreeMap<GpuUuid, Drain>;

/// What is said of all GPUs.
#[derive(Debug)]
pub struct Drains(StateFile<Drained>);

impl Drains {
    /// What was written down in this directory, which need not be there.
    pub fn open(state_dir: &Path) -> Self {
        Self(StateFile::open(state_dir, NAME, "no GPU is drained"))
    }

    fn lock(&self) -> MutexGuard<'_, Drained> {
        self.0.lock()
    }

    /// What was said of a GPU, or of the board that an instance is of.
    pub fn of(&self, gpu: &Gpu) -> Option<Drain> {
        self.lock().get(gpu.board()?).cloned()
    }

    /// The GPUs as who looks for room may have them: a drained one is as gone.
    pub fn without_drained(&self, gpus: Vec<Gpu>) -> Vec<Gpu> {
        let drained = self.lock();
        let is_drained = |gpu: &Gpu| gpu.board().is_some_and(|board| drained.contains_key(board));
        gpus.into_iter().map(|gpu| if is_drained(&gpu) { Gpu { kind: Kind::Gone, ..gpu } } else { gpu }).collect()
    }

    /// The same for who comes back to the GPUs `own`, from the host's memory: it was there before they were drained.
    pub fn without_drained_but(&self, gpus: Vec<Gpu>, own: &[GpuUuid]) -> Vec<Gpu> {
        let back = |gpu: Gpu, there: &Gpu| if own.contains(&gpu.uuid) { there.clone() } else { gpu };
        self.without_drained(gpus.clone()).into_iter().zip(&gpus).map(|(gpu, there)| back(gpu, there)).collect()
    }

    /// Each drained GPU of `gpus` in a sentence, `GPU-1 is drained by user 0: new fans`.
    pub fn sentences(&self, gpus: &[Gpu]) -> Vec<String> {
        let drained = self.lock();
        let boards = gpus.iter().filter(|gpu| matches!(gpu.kind, Kind::Whole | Kind::Divided));
        boards.filter_map(|gpu| Some(format!("{} is drained {}", gpu.uuid, drained.get(&gpu.uuid)?.cause()))).collect()
    }

    /// The same of those of `own` that have a fault.
    pub fn with_fault(&self, own: &[GpuUuid]) -> Vec<String> {
        let drained = self.lock();
        let faulty =
            own.iter().filter_map(|uuid| drained.get(uuid).filter(|its| its.fault.is_some()).map(|its| (uuid, its)));
        faulty.map(|(uuid, drain)| format!("{uuid} is drained {}", drain.cause())).collect()
    }

    /// Writes down what could not be written before.
    pub fn catch_up(&self) {
        self.0.catch_up();
    }

    /// Writes a change down, then makes it. Gives whether it was one.
    ///
    /// # Errors
    /// It cannot be written, and nothing has changed.
    fn change(&self, make: impl FnOnce(&mut Drained)) -> io::Result<bool> {
        self.0.change(make).map(|((), is_one)| is_one)
    }
}

/// The one GPU that `text` means: NVML's index of a board, its UUID or the beginning of that, or the UUID of a drained one that
/// is not there.
fn named(gpus: &[Gpu], drained: &Drained, text: &str) -> Result<GpuUuid, ErrorBody> {
    let remedy = "name a GPU by its index or by its UUID, as gpool gpu ls --format wide shows them";
    let wrong = |message: String| Err(ErrorBody::new(ErrorCode::RequestInvalid, message, remedy));
    if let Some(instance) = gpus.iter().find(|gpu| gpu.instance().is_some() && gpu.uuid.0 == text) {
        let board = instance.board().map_or_else(String::new, ToString::to_string);
        return wrong(format!(
            "{text} is an instance of {board}: a GPU is drained as a whole, with all of its instances"
        ));
    }
    let boards = gpus.iter().filter(|gpu| matches!(gpu.kind, Kind::Whole | Kind::Divided));
    let is_meant = |gpu: &&Gpu| text.parse() == Ok(gpu.index) || gpu.uuid.0.starts_with(text);
    let mut found: Vec<&GpuUuid> = boards.filter(is_meant).map(|gpu| &gpu.uuid).collect();
    found.extend(drained.keys().filter(|uuid| uuid.0.starts_with(text)));
    found.sort();
    found.dedup();
    match (text, found.as_slice()) {
        ("", _) | (_, []) => wrong(format!("this host has no GPU {text:?}")),
        (_, [one]) => Ok((*one).clone()),
        (_, several) => {
            let all: Vec<&str> = several.iter().map(|uuid| uuid.0.as_str()).collect();
            wrong(format!("{text:?} means {}", all.join(" and ")))
        }
    }
}

/// The board that `text` means, as for [`drain`].
///
/// # Errors
/// None or several are meant.
pub fn board(leases: &Leases, text: &str) -> Result<GpuUuid, ErrorBody> {
    named(&leases.gpus(), &leases.drains.lock(), text)
}

/// All GPUs that are drained, those included that are not there.
pub fn views(leases: &Leases) -> Vec<DrainedGpu> {
    let (gpus, book) = (leases.gpus(), leases.book());
    let its_leases = |uuid: &GpuUuid| {
        let is_its = |place: usize| gpus.get(place).is_some_and(|gpu| gpu.board() == Some(uuid));
        let running = book.leases.values().filter(|lease| lease.gpus().any(is_its) && !lease.record.has_lost_share());
        let is_on_it =
            |its: &GpuUuid| its == uuid || gpus.iter().any(|gpu| gpu.uuid == *its && gpu.board() == Some(uuid));
        let stranded =
            book.stranded.iter().filter(|record| record.gpus().iter().any(is_on_it) && !record.has_lost_share());
        (running.count() + stranded.count()) as u32
    };
    let index_of = |uuid: &GpuUuid| gpus.iter().find(|gpu| gpu.uuid == *uuid).map(|gpu| gpu.index);
    let view = |(uuid, drain): (&GpuUuid, &Drain)| DrainedGpu {
        uuid: uuid.clone(),
        index: index_of(uuid),
        drain: drain.clone(),
        leases: its_leases(uuid),
    };
    leases.drains.lock().iter().map(view).collect()
}

fn view_of(leases: &Leases, uuid: &GpuUuid) -> Result<DrainedGpu, ErrorBody> {
    let found = views(leases).into_iter().find(|gpu| gpu.uuid == *uuid);
    found.ok_or_else(|| is_not_drained(uuid))
}

fn is_not_drained(uuid: &GpuUuid) -> ErrorBody {
    let message = format!("{uuid} is not drained");
    ErrorBody::new(ErrorCode::RequestInvalid, message, "gpool gpu ls shows which GPUs are")
}

/// Lets the GPU that `text` means take no new leases: none is granted there after this has returned. Said again, it may have
/// another reason.
///
/// # Errors
/// An unknown GPU, a reason that cannot be kept, or a disk that does not take it: nothing has changed then.
pub fn drain(leases: &Leases, text: &str, asked: DrainRequest, uid: u32) -> Result<DrainedGpu, ErrorBody> {
    asked.check()?;
    let uuid = named(&leases.gpus(), &leases.drains.lock(), text)?;
    let (since_unix_ms, uid) = (clock::unix_ms(), Some(uid));
    let new = Drain { since_unix_ms, uid, reason: asked.reason, fault: None };
    let changed = leases.drains.change(|drained| match drained.get_mut(&uuid) {
        // Perhaps it is only waited for.
        Some(old) if new.reason.is_empty() && old.uid.is_some() => {}
        // What is wrong with it is not said otherwise by a person.
        Some(old) => (old.uid, old.reason) = (new.uid, new.reason.clone()),
        None => drop(drained.insert(uuid.clone(), new.clone())),
    });
    let changed = changed.map_err(|cause| failed("the GPU is as it was: what is drained cannot be written", cause))?;
    // Takes the book, which whoever looks for room holds until the lease is in it: who was before this is counted.
    let view = view_of(leases, &uuid)?;
    if changed {
        let left = match view.leases {
            0 => "no lease is on it".to_owned(),
            1 => "1 lease is on it, and goes on".to_owned(),
            count => format!("{count} leases are on it, and go on"),
        };
        let message = format!("GPU {} takes no new leases: drained {}; {left}", called(&view), view.drain.cause());
        let about = About { uid, ..About::default() };
        leases.events.note(EventKind::GpuDrained, about, message);
    }
    Ok(view)
}

/// Lets a GPU take no new leases because of a fault of its own, which is told with what was said of it before. If that cannot be
/// written down it holds all the same, and is written later.
pub fn drain_for_fault(leases: &Leases, uuid: &GpuUuid, fault: &str) {
    let now = Drain { since_unix_ms: clock::unix_ms(), uid: None, reason: String::new(), fault: None };
    let add = |drained: &mut Drained| {
        let faults = &mut drained.entry(uuid.clone()).or_insert_with(|| now.clone()).fault;
        *faults = match faults.take() {
            None => Some(fault.to_owned()),
            Some(faults) if faults.contains(fault) || faults.len() > FAULTS_BYTES => Some(faults),
            Some(faults) => Some(format!("{faults}; {fault}")),
        };
    };
    match leases.drains.change(add) {
        Ok(false) => return,
        Ok(true) => {}
        Err(cause) => {
            log!(
                "{NAME} cannot be written: {cause}; until it can be, a restart of the supervisor has {uuid} take leases again"
            );
            leases.drains.0.change_in_memory(add);
        }
    }
    if let Ok(view) = view_of(leases, uuid) {
        let message = format!(
            "GPU {} takes no new leases: drained {}; when it is repaired or reset, or may serve as it is: {}",
            called(&view),
            view.drain.cause(),
            view.drain.ended_by()
        );
        leases.events.note_failure(EventKind::GpuDrained, About::default(), message);
    }
}

/// Lets it take leases again. Gives how it was drained. For what its own figures show now it is not drained again until that becomes
/// more or comes back: who says so knows of it.
///
/// # Errors
/// A GPU that is unknown or not drained, or has a fault that nobody has named; or a disk that does not take it.
pub fn undrain(leases: &Leases, text: &str, asked: &UndrainRequest, uid: u32) -> Result<DrainedGpu, ErrorBody> {
    let uuid = named(&leases.gpus(), &leases.drains.lock(), text)?;
    let _turn = leases.healths.decide();
    let view = view_of(leases, &uuid)?;
    let opened = leases.drains.0.change(|drained| open(drained, &view, asked));
    let (drain, _) =
        opened.map_err(|cause| failed("the GPU is as it was: what is drained cannot be written", cause))?;
    let view = DrainedGpu { drain: drain?, ..view };
    let accepted = match leases.healths.accept(&uuid) {
        found if found.is_empty() => String::new(),
        found => format!(", although it shows {}", found.join(", ")),
    };
    let dropped = view.drain.fault.as_ref().map_or_else(String::new, |fault| format!("; it was drained for {fault}"));
    let message = format!("GPU {} takes leases again{accepted}{dropped}", called(&view));
    leases.events.note(EventKind::GpuUndrained, About { uid: Some(uid), ..About::default() }, message);
    Ok(view)
}

/// Takes a GPU out of those that are drained. Gives how it was.
///
/// # Errors
/// It is not drained, or has a fault, perhaps since somebody drained it for something else, and it is not said that this is known.
fn open(drained: &mut Drained, gpu: &DrainedGpu, asked: &UndrainRequest) -> Result<Drain, ErrorBody> {
    let Some(its) = drained.get(&gpu.uuid) else { return Err(is_not_drained(&gpu.uuid)) };
    if let Some(fault) = its.fault.as_ref().filter(|_| !asked.fault) {
        return Err(ErrorBody::new(
            ErrorCode::LeaseConflict,
            format!("GPU {} is drained for a fault of its own: {fault}", called(gpu)),
            "when it is repaired or reset (Resetting a GPU in the administrator's guide), or may serve as it is: gpool gpu undrain \
             --fault",
        ));
    }
    drained.remove(&gpu.uuid).ok_or_else(|| is_not_drained(&gpu.uuid))
}

/// `0 (GPU-5ca1)`, or the UUID alone of one that is not there.
fn called(gpu: &DrainedGpu) -> String {
    gpu.index.map_or_else(|| gpu.uuid.to_string(), |index| format!("{index} ({})", gpu.uuid))
}

/// The refusal of who found no room, with the GPUs that are drained.
pub fn with_drained(refusal: ErrorBody, sentences: &[String]) -> ErrorBody {
    let is_about_room = matches!(
        refusal.code,
        ErrorCode::ShareNotFree | ErrorCode::MemoryNotFree | ErrorCode::NoGpu | ErrorCode::NoMechanism
    );
    match is_about_room && !sentences.is_empty() {
        true => ErrorBody { message: format!("{}; {}", refusal.message, sentences.join(", ")), ..refusal },
        false => refusal,
    }
}

/// The refusal of who would have room on GPUs that are drained.
pub fn is_drained(sentences: &[String]) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::ShareNotFree,
        format!("GPUs that would do take no new leases: {}", sentences.join(", ")),
        "wait until that is over, or end it with gpool gpu undrain, that of a fault with --fault",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MigInstance;
    use std::fs;

    fn by(uid: u32) -> Drain {
        Drain { since_unix_ms: 5, uid: Some(uid), reason: "new fans".into(), fault: None }
    }

    fn instance(board: &str) -> Gpu {
        let its = MigInstance {
            board: GpuUuid(board.into()),
            profile: "1g.10gb".into(),
            gpu_instance: 7,
            compute_instance: 0,
            start: 0,
            size: 1,
        };
        Gpu { uuid: GpuUuid("MIG-1".into()), kind: Kind::Instance(its), ..Gpu::sample(0) }
    }

    #[test]
    fn what_was_said_is_there_after_a_restart_and_a_board_has_its_instances() {
        let directory = tempfile::tempdir().unwrap();
        let state_dir = directory.path().join("not/made");
        let drains = Drains::open(&state_dir);
        let uuid = Gpu::sample(0).uuid;
        assert!(drains.change(|drained| drop(drained.insert(uuid.clone(), by(7)))).unwrap());
        assert!(!drains.change(|drained| drop(drained.insert(uuid.clone(), by(7)))).unwrap(), "no change");
        let again = Drains::open(&state_dir);
        let divided = Gpu { kind: Kind::Divided, ..Gpu::sample(0) };
        let seen = again.without_drained(vec![divided.clone(), instance("GPU-0"), Gpu::sample(1)]);
        let kinds: Vec<&Kind> = seen.iter().map(|gpu| &gpu.kind).collect();
        assert_eq!(kinds, [&Kind::Gone, &Kind::Gone, &Kind::Whole]);
        let drained = || vec![Gpu::sample(0), Gpu::sample(1)];
        let kinds = |own: &[GpuUuid]| again.without_drained_but(drained(), own).into_iter().map(|gpu| gpu.kind);
        assert!(kinds(&[Gpu::sample(1).uuid]).eq([Kind::Gone, Kind::Whole]), "who has nothing there");
        assert!(kinds(std::slice::from_ref(&uuid)).eq([Kind::Whole, Kind::Whole]), "who comes back to it");
        assert_eq!(again.of(&instance("GPU-0")), Some(by(7)));
        assert_eq!(again.sentences(&[divided, instance("GPU-0")]), ["GPU-0 is drained by user 7: new fans"]);
        assert!(again.change(|drained| drop(drained.remove(&uuid))).unwrap());
        assert_eq!(Drains::open(&state_dir).of(&Gpu::sample(0)), None);
    }

    #[test]
    fn what_cannot_be_written_has_not_changed_and_what_cannot_be_read_is_set_aside() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(NAME), "{\"GPU-0\":").unwrap();
        let drains = Drains::open(directory.path());
        assert_eq!(drains.of(&Gpu::sample(0)), None);
        let aside = fs::read_to_string(directory.path().join("drained.json.unreadable")).unwrap();
        assert_eq!(aside, "{\"GPU-0\":");
        // Nobody can write below a file.
        let drains = Drains::open(&directory.path().join("drained.json.unreadable"));
        assert!(drains.change(|drained| drop(drained.insert(Gpu::sample(0).uuid, by(7)))).is_err());
        assert_eq!(drains.of(&Gpu::sample(0)), None);
    }

    #[test]
    fn a_gpu_is_named_by_index_or_uuid_and_an_instance_is_none() {
        let second = Gpu { uuid: GpuUuid("GPU-0b".into()), ..Gpu::sample(1) };
        let gpus = [Gpu { uuid: GpuUuid("GPU-0a".into()), ..Gpu::sample(0) }, second, instance("GPU-0a")];
        let drained = Drained::from([(GpuUuid("GPU-9".into()), by(1)), (GpuUuid("GPU-0a".into()), by(1))]);
        let found = |text: &str| named(&gpus, &drained, text).map(|uuid| uuid.0);
        assert_eq!(found("1").unwrap(), "GPU-0b");
        assert_eq!(found("GPU-0a").unwrap(), "GPU-0a");
        assert_eq!(found("GPU-9").unwrap(), "GPU-9", "it is drained and not there");
        for (text, part) in [
            ("GPU-0", "\"GPU-0\" means GPU-0a and GPU-0b"),
            ("7", "no GPU \"7\""),
            ("", "no GPU \"\""),
            ("MIG-1", "MIG-1 is an instance of GPU-0a"),
        ] {
            let error = found(text).unwrap_err();
            assert!(error.message.contains(part) && error.remedy.contains("gpool gpu ls"), "{text}: {error}");
        }
    }

    #[test]
    fn a_fault_that_came_after_a_person_s_word_is_not_forgotten_with_that() {
        let uuid = Gpu::sample(0).uuid;
        let mut drained = Drained::from([(uuid.clone(), Drain { fault: Some("Xid 79".into()), ..by(7) })]);
        let gpu = DrainedGpu { uuid: uuid.clone(), index: Some(0), drain: by(7), leases: 0 };
        let refused = open(&mut drained, &gpu, &UndrainRequest::default()).unwrap_err();
        assert!(refused.message.contains("GPU 0 (GPU-0)") && refused.message.ends_with("its own: Xid 79"), "{refused}");
        assert!(refused.remedy.contains("gpool gpu undrain --fault") && drained.contains_key(&uuid), "{refused}");
        let known = UndrainRequest { fault: true };
        assert_eq!(open(&mut drained, &gpu, &known).unwrap().fault.as_deref(), Some("Xid 79"), "as it is told");
        assert!(open(&mut drained, &gpu, &known).unwrap_err().message.contains("is not drained"));
        drained.insert(uuid, by(7));
        assert_eq!(open(&mut drained, &gpu, &UndrainRequest::default()), Ok(by(7)), "it has none");
    }

    #[test]
    fn who_is_in_the_host_s_memory_does_not_come_back_to_a_fault() {
        let directory = tempfile::tempdir().unwrap();
        let (drains, own) = (Drains::open(directory.path()), [Gpu::sample(0).uuid, Gpu::sample(1).uuid]);
        drains.change(|drained| drop(drained.insert(own[0].clone(), by(7)))).unwrap();
        assert!(drains.with_fault(&own).is_empty(), "it was there before it was drained");
        let faulty = Drain { fault: Some("Xid 79".into()), uid: None, ..by(7) };
        drains.change(|drained| drop(drained.insert(own[1].clone(), faulty))).unwrap();
        assert_eq!(drains.with_fault(&own), ["GPU-1 is drained by the supervisor: Xid 79"]);
        assert!(drains.with_fault(&own[..1]).is_empty(), "another's GPU");
    }

    #[test]
    fn a_refusal_for_want_of_room_names_who_is_drained() {
        let refusal = |code| ErrorBody::new(code, "no room", "wait");
        let sentences = ["GPU-0 is drained by user 0".to_owned()];
        let told = with_drained(refusal(ErrorCode::MemoryNotFree), &sentences);
        assert_eq!(told.message, "no room; GPU-0 is drained by user 0");
        assert_eq!(with_drained(refusal(ErrorCode::LeaseConflict), &sentences).message, "no room");
        assert_eq!(with_drained(refusal(ErrorCode::ShareNotFree), &[]).message, "no room");
        assert_eq!(is_drained(&sentences).code, ErrorCode::ShareNotFree);
    }
}
