//! GPU time that ended leases owed: kept a while, so that nobody gets rid of a debt by starting anew.

use super::Leases;
use super::book::Book;
use super::record::{Record, RecordError, write_whole};
use gpool_protocol::{GpuUuid, PodPlace};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// How long a debt is kept, as long as the scheduler keeps that of a tenant which sleeps.
pub const KEPT_NS: u64 = 10_000_000_000;
const DEBTS_FILE: &str = "debts.json";

/// A debt that its lease has left behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Debt {
    /// The team, or the container where there is none; of a pod, which of its containers.
    debtor: String,
    /// Where.
    gpu_uuid: GpuUuid,
    /// How much, in GPU time.
    debt_ns: u64,
    /// Since when, CLOCK_MONOTONIC.
    at_ns: u64,
}

/// All debts of ended leases.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Debts(Vec<Debt>);

/// Whose debts a lease inherits: its team's, or those of its container where it has no team, which in a pod is known by its
/// name, because each attempt has another id. Users may give their containers each other's ids.
fn debtor(record: &Record) -> String {
    match (&record.team, &record.in_pod) {
        (Some(team), _) => format!("team:{team}"),
        (None, Some(PodPlace { sandbox_id, container_name })) => {
            format!("pod:{}:{sandbox_id}/{container_name}", record.owner_uid)
        }
        (None, None) => format!("container:{}:{}", record.owner_uid, record.container_id),
    }
}

impl Debts {
    /// Keeps what an ended lease owed on one GPU.
    pub fn keep(&mut self, record: &Record, gpu_uuid: &GpuUuid, debt_ns: u64, now_ns: u64) {
        self.drop_old(now_ns);
        if debt_ns > 0 {
            self.0.push(Debt { debtor: debtor(record), gpu_uuid: gpu_uuid.clone(), debt_ns, at_ns: now_ns });
        }
    }

    /// What a new lease owes from before: on several GPUs the most of any, because they are served together.
    pub fn owed_ns(&self, record: &Record, now_ns: u64) -> u64 {
        let debtor = debtor(record);
        let owed = |gpu: &GpuUuid| {
            let its = self.0.iter().filter(|debt| debt.debtor == debtor && debt.gpu_uuid == *gpu);
            its.filter(|debt| debt.is_recent(now_ns)).fold(0u64, |sum, debt| sum.saturating_add(debt.debt_ns))
        };
        record.gpus().iter().map(owed).max().unwrap_or(0)
    }

    /// The new lease has taken its debts over. False if there were none.
    pub fn hand_over(&mut self, record: &Record) -> bool {
        let (debtor, before) = (debtor(record), self.0.len());
        self.0.retain(|debt| debt.debtor != debtor || !record.gpus().contains(&debt.gpu_uuid));
        self.0.len() < before
    }

    fn drop_old(&mut self, now_ns: u64) {
        self.0.retain(|debt| debt.is_recent(now_ns));
    }

    /// Writes all of them down.
    ///
    /// # Errors
    /// Names the file.
    pub fn write(&self, run_dir: &Path) -> Result<(), RecordError> {
        write_whole(&run_dir.join(DEBTS_FILE), self)
    }

    /// What an earlier supervisor wrote down; nothing if that cannot be read.
    pub fn read(run_dir: &Path) -> Self {
        let text = std::fs::read(run_dir.join(DEBTS_FILE)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }
}

impl Leases {
    /// Writes down what ended leases owed. A debt that cannot be is lost with this supervisor, and nothing else.
    pub fn write_debts(&self, book: &Book) {
        if let Err(error) = book.debts.write(&self.configuration().paths.run_dir) {
            log!("{error}");
        }
    }
}

impl Debt {
    /// Not too old, and not of another boot's clock.
    fn is_recent(&self, now_ns: u64) -> bool {
        now_ns.checked_sub(self.at_ns).is_some_and(|age_ns| age_ns <= KEPT_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::sample;
    use super::*;

    const S: u64 = 1_000_000_000;

    fn gpu(name: &str) -> GpuUuid {
        GpuUuid(name.into())
    }

    fn of_team(team: &str, gpus: &[&str]) -> Record {
        let mut record = sample();
        record.team = Some(team.into());
        record.gpu_uuids = gpus.iter().map(|name| gpu(name)).collect();
        record
    }

    #[test]
    fn a_debt_follows_its_team_for_ten_seconds() {
        let mut debts = Debts::default();
        debts.keep(&of_team("a", &["GPU-1"]), &gpu("GPU-1"), 5, S);
        debts.keep(&of_team("a", &["GPU-1"]), &gpu("GPU-1"), 4, 2 * S);
        debts.keep(&of_team("a", &["GPU-2"]), &gpu("GPU-2"), 7, 2 * S);
        assert_eq!(debts.owed_ns(&of_team("a", &["GPU-1"]), 11 * S), 9);
        assert_eq!(debts.owed_ns(&of_team("a", &["GPU-1"]), 11 * S + 1), 4, "the first is too old now");
        assert_eq!(debts.owed_ns(&of_team("a", &["GPU-1", "GPU-2"]), 3 * S), 9, "the most of any");
        assert_eq!(debts.owed_ns(&of_team("b", &["GPU-1"]), 3 * S), 0);
        assert_eq!(debts.owed_ns(&sample(), 3 * S), 0, "a container of no team is no debtor of it");
        assert_eq!(debts.owed_ns(&of_team("a", &["GPU-1"]), 0), 0, "a time to come is another boot's");
    }

    #[test]
    fn a_debt_is_handed_over_once() {
        let mut debts = Debts::default();
        let record = sample();
        debts.keep(&record, &record.gpu_uuid, 5, S);
        assert_eq!(debts.owed_ns(&record, 2 * S), 5);
        assert!(debts.hand_over(&record));
        assert_eq!(debts.owed_ns(&record, 2 * S), 0);
        assert!(!debts.hand_over(&record));
    }

    #[test]
    fn the_next_attempt_in_a_pod_owes_what_the_last_one_did() {
        let attempt = |id: &str, name: &str| {
            let mut record = sample();
            record.container_id = gpool_protocol::ContainerId(id.into());
            record.in_pod = Some(PodPlace { sandbox_id: "s".into(), container_name: name.into() });
            record
        };
        let mut debts = Debts::default();
        debts.keep(&attempt("one", "web"), &gpu("GPU-1"), 5, S);
        assert_eq!(debts.owed_ns(&attempt("two", "web"), 2 * S), 5);
        assert_eq!(debts.owed_ns(&attempt("three", "log"), 2 * S), 0);
    }

    #[test]
    fn nobody_owes_what_another_user_s_container_of_the_same_id_did() {
        let of = |owner_uid: u32| Record { owner_uid, ..sample() };
        let mut debts = Debts::default();
        debts.keep(&of(1000), &sample().gpu_uuid, 5, S);
        assert_eq!([debts.owed_ns(&of(0), 2 * S), debts.owed_ns(&of(1000), 2 * S)], [0, 5]);
    }

    #[test]
    fn debts_outlive_the_supervisor() {
        let run_dir = tempfile::tempdir().unwrap();
        assert_eq!(Debts::read(run_dir.path()), Debts::default());
        let mut debts = Debts::default();
        debts.keep(&of_team("a", &["GPU-1"]), &gpu("GPU-1"), 5, S);
        debts.write(run_dir.path()).unwrap();
        assert_eq!(Debts::read(run_dir.path()), debts);
        std::fs::write(run_dir.path().join(DEBTS_FILE), "{").unwrap();
        assert_eq!(Debts::read(run_dir.path()), Debts::default());
    }
}
