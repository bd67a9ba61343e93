//! Reading what is written down of all leases, by this supervisor, an older or a newer one. A lease of which something cannot
//! be read has its share and its memory all the same.

use super::record::{LEASES_DIR, RECORD_FILE, Record, RecordError, failed};
use gpool_protocol::LeaseId;
use serde_json::{Map, Value};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// What is written down of all leases.
#[derive(Debug, Default)]
pub struct Written {
    /// By id.
    pub records: Vec<Record>,
    /// Of those that say nothing about a lease.
    pub errors: Vec<RecordError>,
    /// Directories without a record: of leases that were just being made or taken away when the supervisor was killed.
    pub remains: Vec<LeaseId>,
}

/// What is written down in `run_dir`.
///
/// # Errors
/// Names the file or directory that is there and cannot be read now. Whoever went on without it would sell what was promised.
pub fn read_all(run_dir: &Path) -> Result<Written, RecordError> {
    let mut written = Written::default();
    let leases = run_dir.join(LEASES_DIR);
    for entry in fs::read_dir(&leases).map_err(failed(&leases))? {
        let dir = entry.map_err(failed(&leases))?.path();
        let path = dir.join(RECORD_FILE);
        match fs::read(&path) {
            Ok(text) => match read(&text) {
                Ok(record) => written.records.push(record),
                Err(error) => written.errors.push(failed(&path)(error)),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => written.remains.extend(named(&dir)),
            // What no supervisor has made.
            Err(error) if matches!(error.kind(), ErrorKind::NotADirectory | ErrorKind::IsADirectory) => {
                written.errors.push(failed(&path)(error));
            }
            Err(error) => return Err(failed(&path)(error)),
        }
    }
    written.records.sort_by(|one, other| one.lease_id.cmp(&other.lease_id));
    Ok(written)
}

/// The lease whose directory this is.
fn named(dir: &Path) -> Option<LeaseId> {
    Some(LeaseId(dir.file_name()?.to_str()?.to_owned()))
}

/// A record, or all of one that can be read, with a default in place of what cannot.
fn read(text: &[u8]) -> serde_json::Result<Record> {
    let cause = match serde_json::from_slice(text) {
        Ok(record) => return Ok(record),
        Err(cause) => cause,
    };
    let all: Map<String, Value> = serde_json::from_slice(text)?;
    let (mut known, others): (Map<String, Value>, Map<String, Value>) =
        all.into_iter().partition(|(name, _)| NEEDED.contains(&name.as_str()));
    serde_json::from_value::<Record>(known.clone().into())?;
    for (name, value) in others {
        known.insert(name.clone(), value);
        if serde_json::from_value::<Record>(known.clone().into()).is_err() {
            known.remove(&name);
        }
    }
    Ok(Record { unread: Some(cause.to_string()), ..serde_json::from_value(known.into())? })
}

/// What has no default, all its GPUs, and who lives of it: those must not be taken for nobody by a guess.
const NEEDED: [&str; 12] = [
    "boot_id",
    "lease_id",
    "container_id",
    "gpu_uuid",
    "gpu_uuids",
    "fraction_permille",
    "memory_cap_bytes",
    "owner_uid",
    "created_unix_ms",
    "requester",
    "init",
    "cgroup",
];

#[cfg(test)]
mod tests {
    use super::super::record::*;
    use super::super::taken::{RevocationRecord, Taking};
    use super::*;
    use gpool_protocol::{Class, GpuUuid, Mechanism, Priority};
    use std::collections::BTreeSet;

    fn sample_with(name: &str, value: Value) -> Vec<u8> {
        let Value::Object(mut all) = serde_json::to_value(sample()).unwrap() else { panic!("no object") };
        all.insert(name.to_owned(), value);
        serde_json::to_vec(&all).unwrap()
    }

    #[test]
    fn a_word_of_a_newer_supervisor_costs_a_lease_neither_its_share_nor_its_memory() {
        for name in ["mechanism", "class", "priority", "fault", "standing"] {
            let record = read(&sample_with(name, "of-tomorrow".into())).unwrap();
            assert!(record.unread.as_ref().unwrap().contains("of-tomorrow"), "{name}: {record:?}");
            assert_eq!(Record { unread: None, ..record }, sample(), "{name}");
        }
        let text = sample_with("class", "of-tomorrow".into());
        let Value::Object(mut all) = serde_json::from_slice(&text).unwrap() else { panic!("no object") };
        all.insert("mechanism".into(), "exclusive".into());
        let record = read(&serde_json::to_vec(&all).unwrap()).unwrap();
        assert_eq!((record.mechanism, record.class), (Mechanism::Exclusive, Class::Batch), "the rest is as it says");
        assert_eq!(record.priority, Priority::Guaranteed);
        assert!(read(&sample_with("init", "of-tomorrow".into())).is_err(), "nobody may be taken for dead by a guess");
    }

    #[test]
    fn what_a_newer_supervisor_has_written_beside_is_written_again() {
        let record = read(&sample_with("of_tomorrow", 7.into())).unwrap();
        assert_eq!((record.unread.clone(), record.others["of_tomorrow"].as_u64()), (None, Some(7)));
        let again = read(&serde_json::to_vec(&record).unwrap()).unwrap();
        assert_eq!(again, record);
    }

    #[test]
    fn what_cannot_be_read_now_is_an_error_and_not_an_empty_host() {
        let run_dir = tempfile::tempdir().unwrap();
        let error = read_all(run_dir.path()).unwrap_err().to_string();
        assert!(error.contains(LEASES_DIR), "{error}");
    }

    #[test]
    fn a_record_reads_back_and_rubbish_is_passed_over() {
        let run_dir = tempfile::tempdir().unwrap();
        prepare(run_dir.path()).unwrap();
        let mut record = sample();
        record.gpu_uuids = vec![GpuUuid("GPU-1".into()), GpuUuid("GPU-2".into())];
        record.class = Class::Latency;
        record.standing = Some(StandingRecord {
            at_ns: 5,
            gpus: vec![GpuStanding { charged_ns: 6, debt_ns: 7, seen_until_us: 8 }; 2],
            counted: None,
            used_ns: Some(4),
        });
        let devices = BTreeSet::from([(195, 0)]);
        record.revocation = Some(RevocationRecord { devices, is_denied: true, is_settled: false, by: Taking::Asked });
        record.write(run_dir.path()).unwrap();
        let rubbish = run_dir.path().join(LEASES_DIR).join("02");
        fs::create_dir(&rubbish).unwrap();
        fs::write(rubbish.join(RECORD_FILE), "{").unwrap();
        let killed = LeaseId("03".into());
        fs::create_dir_all(region_dir_of(run_dir.path(), &killed)).unwrap();
        let Written { records, errors, remains } = read_all(run_dir.path()).unwrap();
        assert_eq!((records, errors.len(), remains), (vec![record.clone()], 1, vec![killed.clone()]));
        [&record.lease_id, &killed].into_iter().for_each(|id| Record::remove(run_dir.path(), id).unwrap());
        let left = read_all(run_dir.path()).unwrap();
        assert!(left.records.is_empty() && left.remains.is_empty() && left.errors.len() == 1);
    }
}
