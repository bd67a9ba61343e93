//! What an Xid says: the number by which NVIDIA's driver tells that something went wrong on a GPU.
//!
//! Sources: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors), the driver's nverror.h, and the numbers that its device
//! plugin for Kubernetes takes for a program's own fault (13, 31, 43, 45, 68, 109).

/// Whose fault it is, as far as the number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A program's: its work is ended, and the GPU goes on.
    Program,
    /// Memory that has failed, of which only the program that had it is ended.
    Contained,
    /// The GPU's: what runs on it has failed or will, until it is reset or repaired.
    Device,
    /// It may be either, or none at all.
    Unknown,
}

/// What is known of an Xid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// Whose fault it is.
    pub fault: Fault,
    /// In words, as the end of a sentence.
    pub words: &'static str,
}

/// All that have words, by number.
const KNOWN: &[(u64, Fault, &str)] = &[
    (13, Fault::Program, "an exception in a program's kernel"),
    (31, Fault::Program, "a program has used an address that is not its"),
    (32, Fault::Program, "a program's commands were not valid"),
    (43, Fault::Program, "a program's work was stopped"),
    (44, Fault::Program, "a fault while a program's context was exchanged"),
    (45, Fault::Program, "a program's work was taken away, as a rule after another fault"),
    (46, Fault::Device, "the GPU has stopped working"),
    (48, Fault::Device, "memory has failed beyond repair (double bit error)"),
    (62, Fault::Device, "its microcontroller has stopped"),
    (63, Fault::Device, "memory is to be replaced by spare memory at the next reset"),
    (64, Fault::Device, "memory could not be replaced by spare memory"),
    (68, Fault::Program, "an exception in a program's video work"),
    (69, Fault::Program, "a program's commands were not valid for the engine"),
    (74, Fault::Device, "an error of NVLink"),
    (79, Fault::Device, "it has fallen off its bus"),
    (92, Fault::Device, "memory has too many errors that were repaired"),
    (94, Fault::Contained, "memory has failed, and only the program that had it is ended"),
    (95, Fault::Device, "memory has failed, and any program may have wrong data"),
    (109, Fault::Program, "a program's context was not exchanged in time"),
    (119, Fault::Device, "its firmware does not answer"),
    (120, Fault::Device, "its firmware has failed"),
    (140, Fault::Device, "an error in memory was not repaired"),
    (154, Fault::Unknown, "the driver says otherwise than before whether a reset or a repair is needed"),
    (158, Fault::Device, "a timeout that nothing recovers from"),
];

/// What the Xid `number` says.
#[must_use]
pub fn meaning(number: u64) -> Meaning {
    let known = KNOWN.iter().find(|(its, ..)| *its == number);
    let (fault, words) =
        known.map_or((Fault::Unknown, "NVIDIA's list of Xids says what that is"), |(_, fault, words)| (*fault, *words));
    Meaning { fault, words }
}

/// Whether the Xid `number` says of a program under an MPS server that the work of all under it is lost: as NVIDIA's documentation of
/// MPS has it, the clients on a GPU share a fatal fault. What follows another fault says that of none.
#[must_use]
pub fn ends_all_of_its_server(number: u64) -> bool {
    matches!(meaning(number).fault, Fault::Program | Fault::Contained) && !follows(number)
}

/// What the Xid `number` says of a GPU whose programs are under an MPS server.
#[must_use]
pub fn words_under_mps(number: u64) -> String {
    let its = meaning(number);
    if !ends_all_of_its_server(number) {
        return its.words.to_owned();
    }
    // Nobody is ended alone there.
    let cause = if its.fault == Fault::Contained { "memory has failed" } else { its.words };
    format!("{cause}, which ends the work of all under its MPS server")
}

/// The numbers after which a GPU takes no new leases where nothing else is said: those of the device's own faults.
pub fn of_the_device() -> impl Iterator<Item = u64> {
    KNOWN.iter().filter(|(_, fault, _)| *fault == Fault::Device).map(|(number, ..)| *number)
}

/// Whether the Xid `number` mostly follows another one: work was taken away or stopped, for whatever happened before.
#[must_use]
pub fn follows(number: u64) -> bool {
    matches!(number, 43 | 45)
}

/// Whether all that runs on a GPU is lost, or will not end, after the Xid `number`, until the GPU is reset or the host boots: what NVIDIA's
/// catalogue (docs.nvidia.com/deploy/xid-errors) asks for at once after these, whoever is on it. After others of the device's own
/// faults work may go on.
#[must_use]
pub fn ends_all(number: u64) -> bool {
    matches!(number, 46 | 62 | 79 | 95 | 119 | 120 | 158)
}

/// Faults of memory that ended one program alone count together for so long, in nanoseconds: a day.
const TOGETHER_NS: u64 = 86_400 * 1_000_000_000;

/// What comes within so long may be one, told of each place that it was in, in nanoseconds.
const ONE_NS: u64 = 1_000_000_000;
/// More of them are not remembered.
const CONTAINED_MOST: usize = 100;

/// Such faults of one GPU. One may be chance; more say that its memory fails.
#[derive(Clone, Debug, Default)]
pub struct Contained(Vec<u64>);

impl Contained {
    /// Those that are remembered, by their times.
    #[must_use]
    pub fn of(times_ns: Vec<u64>) -> Self {
        Self(times_ns)
    }

    /// Their times.
    #[must_use]
    pub fn times(&self) -> &[u64] {
        &self.0
    }

    /// Another one at `now_ns`, by whatever clock all of them are: one that is later than this is of a clock that was set back since, and
    /// is forgotten. Whether those of a day are `most` with it, 0 for never; then it begins anew, since somebody has to look at
    /// the GPU and may say that it is well.
    pub fn note(&mut self, most: u32, now_ns: u64) -> bool {
        self.0.retain(|at_ns| now_ns.checked_sub(*at_ns).is_some_and(|age_ns| age_ns < TOGETHER_NS));
        if self.0.last().is_some_and(|at_ns| now_ns.saturating_sub(*at_ns) < ONE_NS) {
            return false;
        }
        self.0.push(now_ns);
        let is_enough = most > 0 && self.0.len() >= most as usize;
        if is_enough || self.0.len() >= CONTAINED_MOST {
            self.0.clear();
        }
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contained_faults_of_a_day_count_together() {
        let hour_ns = TOGETHER_NS / 24;
        let mut its = Contained::default();
        assert!(!its.note(2, hour_ns) && its.note(2, 24 * hour_ns), "the second one within a day");
        assert!(!its.note(2, 25 * hour_ns) && !its.note(2, 25 * hour_ns + 1), "it began anew, and one is told twice");
        assert!(!its.note(2, 49 * hour_ns) && its.note(2, 72 * hour_ns), "a day later the one before is forgotten");
        assert!(Contained::default().note(1, 0));
        let mut its = Contained::of(vec![30 * hour_ns]);
        assert!(!its.note(2, 20 * hour_ns) && its.times() == [20 * hour_ns], "the clock was set back");
        let mut its = Contained::default();
        assert!(
            (0..500).all(|at_s| !its.note(0, at_s * ONE_NS)) && its.0.len() < CONTAINED_MOST,
            "never, and not for ever more"
        );
    }

    #[test]
    fn under_an_mps_server_no_fault_of_a_program_is_said_to_end_that_one_alone() {
        assert_eq!(
            words_under_mps(31),
            "a program has used an address that is not its, which ends the work of all under its MPS server"
        );
        assert_eq!(words_under_mps(94), "memory has failed, which ends the work of all under its MPS server");
        assert_eq!([45, 79].map(words_under_mps), [45, 79].map(|number| meaning(number).words.to_owned()));
        assert!([43, 45, 79, 4711].iter().all(|number| !ends_all_of_its_server(*number)));
    }

    #[test]
    fn a_program_s_fault_is_not_the_device_s_and_each_number_is_there_once() {
        for number in [13, 31, 43, 45, 68, 109] {
            assert_eq!(meaning(number).fault, Fault::Program, "{number}");
        }
        assert_eq!([48, 79, 95].map(|number| meaning(number).fault), [Fault::Device; 3]);
        assert_eq!((meaning(94).fault, meaning(4711).fault), (Fault::Contained, Fault::Unknown));
        assert!(KNOWN.windows(2).all(|pair| pair[0].0 < pair[1].0), "in order, each once");
        assert!(of_the_device().all(|number| meaning(number).fault == Fault::Device));
        let ending: Vec<u64> = (0..1000).filter(|number| ends_all(*number)).collect();
        assert_eq!(ending, [46, 62, 79, 95, 119, 120, 158], "a GPU's own faults, and none of a program's");
        assert!(ending.iter().all(|number| meaning(*number).fault == Fault::Device));
    }
}
