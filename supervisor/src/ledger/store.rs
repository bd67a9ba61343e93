//! The ledger's file: SQLite, in WAL mode, so that a supervisor which is killed leaves a whole ledger, up to ten seconds old.

use super::balance::{Amounts, Batch, Before, LineKey, Moment};
use super::lives;
use super::tables::{APPLICATION_ID, VERSION, prepare};
use super::unleased::Unwritten;
use crate::lease::{Ending, Statement};
use gpool_protocol::{GpuUuid, LeaseId};
use rusqlite::{Connection, ErrorCode as Code, OptionalExtension, Transaction, params};
use std::collections::BTreeMap;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long somebody else may hold the file, such as a person with `sqlite3`.
const PATIENCE: Duration = Duration::from_secs(5);

/// What to do where SQLite says no.
pub fn remedy(cause: &rusqlite::Error) -> &'static str {
    match cause.sqlite_error_code() {
        Some(Code::DatabaseCorrupt | Code::NotADatabase) => {
            "move it and the files beside it away, or name another file in [ledger] path: a new one is begun"
        }
        Some(Code::DiskFull) => "make room on that disk",
        Some(Code::ReadOnly | Code::CannotOpen | Code::PermissionDenied) => {
            "let root write it, or name another file in [ledger] path"
        }
        _ => "it is tried again every ten seconds",
    }
}

/// A ledger that cannot be opened, read or written; the text names the file and what to do.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// SQLite says no.
    #[error("{path}: {cause}; {}", remedy(cause))]
    Database {
        /// The file.
        path: String,
        /// Why.
        cause: rusqlite::Error,
    },
    /// The file or its directory cannot be made.
    #[error("{path}: {cause}; let root make it, or name another file in [ledger] path")]
    Place {
        /// Which.
        path: String,
        /// Why.
        cause: std::io::Error,
    },
    /// The file is something else.
    #[error("{0} is a database of something else than gpool; move it away, or name another file in [ledger] path")]
    NotOurs(String),
    /// The file is a newer gpool's.
    #[error(
        "{path} was written by a newer gpool (tables of version {version}); install that one, or move the file away"
    )]
    Newer {
        /// The file.
        path: String,
        /// Of its tables.
        version: i32,
    },
}

/// A GPU as the ledger names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuFacts {
    /// The GPU or MIG instance.
    pub uuid: GpuUuid,
    /// Its model.
    pub name: String,
    /// The profile of an instance.
    pub profile: Option<String>,
    /// Its part of a GPU: compute slices, and how many a whole one has.
    pub slices: (u8, u8),
}

/// The open file.
#[derive(Debug)]
pub struct Store {
    pub(super) connection: Connection,
    path: PathBuf,
    /// Which file it is.
    file: FileName,
}

/// Device and inode of a file.
pub type FileName = (u64, u64);

impl Store {
    /// Opens the ledger, or makes a new one, and says how it was left.
    ///
    /// # Errors
    /// It cannot be opened, or is none of this version. It is left as it is then.
    pub fn open(path: &Path, boot_id: &str) -> Result<(Self, Before), LedgerError> {
        let named = |cause| LedgerError::Database { path: path.display().to_string(), cause };
        if let Some(directory) = path.parent() {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(directory);
            made.map_err(|cause| LedgerError::Place { path: directory.display().to_string(), cause })?;
        }
        // Who had what is for root to read, whatever the umask; SQLite's other files get the mode of this one.
        let made = std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        made.map_err(|cause| LedgerError::Place { path: path.display().to_string(), cause })?;
        let mut connection = Connection::open(path).map_err(named)?;
        connection.busy_timeout(PATIENCE).map_err(named)?;
        check_ours(&connection, path)?;
        prepare(&mut connection).map_err(named)?;
        let before = before(&connection, boot_id).map_err(named)?;
        let file = name_of(path).map_err(|cause| LedgerError::Place { path: path.display().to_string(), cause })?;
        Ok((Self { connection, path: path.to_owned(), file }, before))
    }

    /// Which file it is.
    pub fn file(&self) -> FileName {
        self.file
    }

    /// Whether the file is still where it was: what is written to one that was moved away is lost.
    pub fn is_in_place(&self) -> bool {
        name_of(&self.path).is_ok_and(|file| file == self.file)
    }

    /// Puts the file before the cause.
    pub(super) fn failed(&self, cause: rusqlite::Error) -> LedgerError {
        LedgerError::Database { path: self.path.display().to_string(), cause }
    }

    /// Writes all of `batch` and `unwritten`, or nothing. Instances that are gone by now are taken to have been on boards like `product`.
    ///
    /// # Errors
    /// SQLite cannot write, on a full disk for example.
    pub fn write(
        &mut self,
        (batch, unwritten): (&Batch<'_>, &Unwritten),
        (gpus, product): (&[GpuFacts], &str),
        moment: Moment,
        boot_id: &str,
    ) -> Result<(), LedgerError> {
        let written = self.connection.transaction().and_then(|transaction| {
            write_all(&transaction, batch, (gpus, product))?;
            unwritten.write(&transaction)?;
            note_entered(&transaction, moment, boot_id)?;
            transaction.commit()
        });
        written.map_err(|cause| self.failed(cause))
    }
}

fn name_of(path: &Path) -> std::io::Result<FileName> {
    std::fs::metadata(path).map(|found| (found.dev(), found.ino()))
}

/// # Errors
/// The file is a database of something else, or of a newer version.
fn check_ours(connection: &Connection, path: &Path) -> Result<(), LedgerError> {
    let path = path.display().to_string();
    let number = |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get::<_, i32>(0));
    let named = |cause| match cause {
        rusqlite::Error::SqliteFailure(error, _) if error.code == rusqlite::ErrorCode::NotADatabase => {
            LedgerError::NotOurs(path.clone())
        }
        cause => LedgerError::Database { path: path.clone(), cause },
    };
    let (application, version) = (number("application_id").map_err(named)?, number("user_version").map_err(named)?);
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(named)?;
    match (application, tables) {
        (APPLICATION_ID, _) if version > VERSION => Err(LedgerError::Newer { path, version }),
        (APPLICATION_ID, _) | (0, 0) => Ok(()),
        _ => Err(LedgerError::NotOurs(path)),
    }
}

/// How the ledger was left.
fn before(connection: &Connection, boot_id: &str) -> rusqlite::Result<Before> {
    let entered = connection
        .query_row("SELECT boot_id, monotonic_ns, unix_ms FROM entered", [], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
        })
        .optional()?;
    let mut before = Before {
        entered_unix_ms: entered.as_ref().map(|(_, _, unix_ms)| unix_ms.cast_unsigned()),
        entered_ns: entered.filter(|(boot, ..)| boot == boot_id).map(|(_, ns, _)| ns.cast_unsigned()),
        open: BTreeMap::new(),
    };
    let mut open = connection.prepare(
        "SELECT lease.lease_id, gpu.uuid, charged.ns FROM lease LEFT JOIN charged ON charged.lease = lease.id
         LEFT JOIN gpu ON gpu.id = charged.gpu WHERE lease.ended_unix_ms IS NULL",
    )?;
    let mut rows = open.query([])?;
    while let Some(row) = rows.next()? {
        let charged = before.open.entry(LeaseId(row.get(0)?)).or_default();
        if let (Some(uuid), Some(ns)) = (row.get::<_, Option<String>>(1)?, row.get::<_, Option<i64>>(2)?) {
            charged.insert(GpuUuid(uuid), ns.cast_unsigned());
        }
    }
    drop(rows);
    drop(open);
    Ok(before)
}

/// Times of centuries fit, and nothing above them does.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn write_all(
    transaction: &Transaction<'_>,
    batch: &Batch<'_>,
    (gpus, product): (&[GpuFacts], &str),
) -> rusqlite::Result<()> {
    let mut numbers = BTreeMap::new();
    for gpu in gpus {
        let mut statement = transaction.prepare_cached(
            "INSERT INTO gpu (uuid, name, profile, slices, of_slices) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (uuid) DO UPDATE SET name = ?2, profile = ?3, slices = ?4, of_slices = ?5 RETURNING id",
        )?;
        let values = params![gpu.uuid.0, gpu.name, gpu.profile, gpu.slices.0, gpu.slices.1];
        numbers.insert(gpu.uuid.clone(), statement.query_row(values, |row| row.get::<_, i64>(0))?);
    }
    let mut leases = BTreeMap::new();
    for statement in &batch.leases {
        let lease = write_lease(transaction, statement)?;
        leases.insert(&statement.facts.lease_id, lease);
        for its in &statement.gpus {
            let gpu = match numbers.get(&its.uuid) {
                Some(number) => *number,
                None => *numbers.entry(its.uuid.clone()).or_insert(gone(transaction, (&its.uuid, product), statement)?),
            };
            write_charged(transaction, lease, gpu, statement.end.is_none().then_some(its.charged_ns))?;
        }
    }
    for (key, amounts) in &batch.lines {
        // What is taken back may be of a lease or a GPU that is not there now.
        if let (Some(lease), Some(gpu)) = (leases.get(&key.lease), numbers.get(&key.gpu)) {
            write_line(transaction, key, amounts, *lease, *gpu)?;
            lives::add(transaction, (*lease, *gpu), amounts)?;
        }
    }
    for (when, uuid, amounts) in &batch.pool {
        let gpu = match numbers.get(uuid) {
            Some(number) => Some(*number),
            None => number_of(transaction, uuid)?,
        };
        let mut pool = transaction.prepare_cached(
            "INSERT INTO pool (slot, seconds, gpu, ns, energy_millijoules) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT DO UPDATE SET ns = ns + ?4, energy_millijoules = energy_millijoules + ?5",
        )?;
        if let Some(gpu) = gpu {
            let slot = (signed(when.slot.0), signed(when.seconds));
            pool.execute(params![slot.0, slot.1, gpu, amounts.ns, amounts.energy_millijoules])?;
        }
    }
    for lost in &batch.lost {
        // Until when it ran nobody knows; that it did when the ledger was written last is known.
        let mut end = transaction.prepare_cached(
            "UPDATE lease SET is_end_seen = 0, ending = ?2, ended_unix_ms = (SELECT unix_ms FROM entered)
             WHERE lease_id = ?1 AND ended_unix_ms IS NULL",
        )?;
        end.execute(params![lost.0, Ending::Unseen.word()])?;
    }
    Ok(())
}

/// The ledger's number of a GPU or instance; none of one that has never been written down.
pub fn number_of(transaction: &Transaction<'_>, gpu: &GpuUuid) -> rusqlite::Result<Option<i64>> {
    let mut statement = transaction.prepare_cached("SELECT id FROM gpu WHERE uuid = ?1")?;
    statement.query_row([&gpu.0], |row| row.get(0)).optional()
}

/// The number of a GPU that is there no more, such as an instance that came and went since the ledger was written last.
fn gone(
    transaction: &Transaction<'_>,
    (gpu, product): (&GpuUuid, &str),
    statement: &Statement,
) -> rusqlite::Result<i64> {
    if let Some(number) = number_of(transaction, gpu)? {
        return Ok(number);
    }
    let profile = &statement.facts.mig_profile;
    let (slices, of_slices) = super::parts(product, profile.as_deref());
    let mut insert = transaction.prepare_cached(
        "INSERT INTO gpu (uuid, name, profile, slices, of_slices) VALUES (?1, ?5, ?2, ?3, ?4) RETURNING id",
    )?;
    insert.query_row(params![gpu.0, profile, slices, of_slices, product], |row| row.get(0))
}

/// What was charged to a lease on a GPU until now, for the next life of the supervisor; of one that is over nothing.
fn write_charged(transaction: &Transaction<'_>, lease: i64, gpu: i64, charged_ns: Option<u64>) -> rusqlite::Result<()> {
    match charged_ns {
        Some(ns) => {
            let mut write = transaction.prepare_cached(
                "INSERT INTO charged (lease, gpu, ns) VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET ns = ?3",
            )?;
            write.execute(params![lease, gpu, signed(ns)]).map(drop)
        }
        None => {
            let mut forget = transaction.prepare_cached("DELETE FROM charged WHERE lease = ?1 AND gpu = ?2")?;
            forget.execute(params![lease, gpu]).map(drop)
        }
    }
}

/// What was taken from a lease stays as it was. Of an end that nobody has seen it is known when the lease was there last: by its record,
/// or when it was entered last, before this.
fn write_lease(transaction: &Transaction<'_>, statement: &Statement) -> rusqlite::Result<i64> {
    let facts = &statement.facts;
    let mut insert = transaction.prepare_cached(
        "INSERT INTO lease
         (lease_id, container_id, pod, team, uid, class, priority, mechanism, created_unix_ms, ended_unix_ms, is_end_seen,
          cap_bytes, peak_bytes, project, cost_center, fraction_permille, waited_ms, ending)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
         ON CONFLICT (lease_id) DO UPDATE SET class = ?6, priority = ?7, is_end_seen = ?11, ending = ?18,
         ended_unix_ms = CASE WHEN ?11 THEN ?10
             ELSE coalesce(ended_unix_ms, max(?10, coalesce((SELECT unix_ms FROM entered), 0))) END,
         fraction_permille = CASE WHEN ?16 > 0 THEN ?16 ELSE fraction_permille END,
         cap_bytes = CASE WHEN ?12 > 0 THEN ?12 ELSE cap_bytes END, peak_bytes = max(coalesce(peak_bytes, 0), ?13) RETURNING id",
    )?;
    let values = params![
        facts.lease_id.0,
        facts.container_id,
        facts.pod,
        facts.team,
        facts.uid,
        facts.class,
        facts.priority,
        facts.mechanism.to_string(),
        signed(facts.created_unix_ms),
        statement.end.map(|end| signed(end.unix_ms)),
        statement.end.is_none_or(|end| end.is_seen()),
        signed(facts.cap_bytes),
        signed(statement.peak_bytes),
        facts.project,
        facts.cost_center,
        facts.fraction_permille,
        facts.waited_ms.map(signed),
        statement.end.map(|end| end.how.word()),
    ];
    insert.query_row(values, |row| row.get(0))
}

fn write_line(
    transaction: &Transaction<'_>,
    key: &LineKey,
    amounts: &Amounts,
    lease: i64,
    gpu: i64,
) -> rusqlite::Result<()> {
    let mut insert = transaction.prepare_cached(
        "INSERT INTO line (slot, seconds, lease, gpu, within_ns, burst_ns, lent_ns, idle_ns, unmetered_ns, unwatched_ns,
         cap_kib_s, used_kib_s, low_ns, energy_millijoules)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
         ON CONFLICT DO UPDATE SET within_ns = within_ns + ?5, burst_ns = burst_ns + ?6, lent_ns = lent_ns + ?7,
         idle_ns = idle_ns + ?8, unmetered_ns = unmetered_ns + ?9, unwatched_ns = unwatched_ns + ?10,
         cap_kib_s = cap_kib_s + ?11, used_kib_s = used_kib_s + ?12, low_ns = low_ns + ?13,
         energy_millijoules = energy_millijoules + ?14",
    )?;
    let values = params![
        signed(key.when.slot.0),
        signed(key.when.seconds),
        lease,
        gpu,
        amounts.within_ns,
        amounts.burst_ns,
        amounts.lent_ns,
        amounts.idle_ns,
        amounts.unmetered_ns,
        amounts.unwatched_ns,
        amounts.cap_kib_s,
        amounts.used_kib_s,
        amounts.low_ns,
        amounts.energy_millijoules,
    ];
    insert.execute(values).map(drop)
}

fn note_entered(transaction: &Transaction<'_>, moment: Moment, boot_id: &str) -> rusqlite::Result<()> {
    let mut insert = transaction.prepare_cached(
        "INSERT INTO entered (only, boot_id, monotonic_ns, unix_ms, begins_unix_s) VALUES (1, ?1, ?2, ?3, ?3 / 1000)
         ON CONFLICT DO UPDATE SET boot_id = ?1, monotonic_ns = ?2, unix_ms = ?3",
    )?;
    insert.execute(params![boot_id, signed(moment.now_ns), signed(moment.unix_ms)]).map(drop)
}
