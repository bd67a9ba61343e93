//! The tables of the ledger, and the steps to them from those of older versions.

use super::lives;
use super::unleased;
use rusqlite::{Connection, ffi};

/// "gplg": that the file is a ledger of gpool.
pub const APPLICATION_ID: i32 = 0x6770_6c67;
/// Version of the tables.
pub const VERSION: i32 = 7;
/// What the file of changes beside the ledger is cut to.
const JOURNAL_BYTES: i64 = 16 << 20;
/// Times are nanoseconds of GPU time, `slot` is where a line's minute or hour begins, Unix seconds, and `seconds` which of them
/// it is. What a GPU had and nobody used is what is left of the pool.
const TABLES: &str = "
    CREATE TABLE entered (
        only INTEGER PRIMARY KEY CHECK (only = 1), boot_id TEXT NOT NULL, monotonic_ns INTEGER NOT NULL,
        unix_ms INTEGER NOT NULL, begins_unix_s INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE gpu (
        id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, name TEXT NOT NULL, profile TEXT,
        slices INTEGER NOT NULL CHECK (slices > 0), of_slices INTEGER NOT NULL CHECK (of_slices >= slices)
    ) STRICT;
    CREATE TABLE lease (
        id INTEGER PRIMARY KEY, lease_id TEXT NOT NULL UNIQUE, container_id TEXT NOT NULL, pod TEXT, team TEXT,
        uid INTEGER NOT NULL, class TEXT NOT NULL, priority TEXT NOT NULL, mechanism TEXT NOT NULL,
        created_unix_ms INTEGER NOT NULL, ended_unix_ms INTEGER, is_end_seen INTEGER NOT NULL,
        cap_bytes INTEGER, peak_bytes INTEGER, project TEXT, cost_center TEXT, fraction_permille INTEGER, waited_ms INTEGER,
        ending TEXT
    ) STRICT;
    CREATE TABLE charged (
        lease INTEGER NOT NULL REFERENCES lease ON DELETE CASCADE, gpu INTEGER NOT NULL REFERENCES gpu, ns INTEGER NOT NULL,
        PRIMARY KEY (lease, gpu)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE line (
        slot INTEGER NOT NULL, seconds INTEGER NOT NULL, lease INTEGER NOT NULL REFERENCES lease,
        gpu INTEGER NOT NULL REFERENCES gpu, within_ns INTEGER NOT NULL, burst_ns INTEGER NOT NULL, lent_ns INTEGER NOT NULL,
        idle_ns INTEGER NOT NULL, unmetered_ns INTEGER NOT NULL, unwatched_ns INTEGER NOT NULL, cap_kib_s INTEGER NOT NULL,
        used_kib_s INTEGER NOT NULL, low_ns INTEGER NOT NULL DEFAULT 0,
        energy_millijoules INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (slot, seconds, lease, gpu)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX line_of_lease ON line (lease);
    CREATE TABLE pool (
        slot INTEGER NOT NULL, seconds INTEGER NOT NULL, gpu INTEGER NOT NULL REFERENCES gpu, ns INTEGER NOT NULL,
        energy_millijoules INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (slot, seconds, gpu)
    ) STRICT, WITHOUT ROWID;
";

/// From version 1: of leases that were written down before it is not known what they held at most.
const SINCE_1: &str = "
    ALTER TABLE lease ADD COLUMN cap_bytes INTEGER;
    ALTER TABLE lease ADD COLUMN peak_bytes INTEGER;
";

/// From version 2, which did not know who pays, nor of which priority a lease was when it had something: that is taken to have been
/// the last one.
const SINCE_2: &str = "
    ALTER TABLE lease ADD COLUMN project TEXT;
    ALTER TABLE lease ADD COLUMN cost_center TEXT;
    ALTER TABLE line ADD COLUMN low_ns INTEGER NOT NULL DEFAULT 0;
    UPDATE line SET low_ns = burst_ns WHERE lease IN (SELECT id FROM lease WHERE priority <> 'guaranteed');
";

/// From version 3, which knew nothing of energy.
const SINCE_3: &str = "
    ALTER TABLE line ADD COLUMN energy_millijoules INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE pool ADD COLUMN energy_millijoules INTEGER NOT NULL DEFAULT 0;
";

/// From version 5, which knew when leases had ended and not how.
const SINCE_5: &str = "
    ALTER TABLE lease ADD COLUMN fraction_permille INTEGER;
    ALTER TABLE lease ADD COLUMN waited_ms INTEGER;
    ALTER TABLE lease ADD COLUMN ending TEXT;
";

/// What came with each version, the newest first: a column of a table.
const MARKS: [(i32, &str, &str); 6] = [
    (7, "life", "lease"),
    (6, "lease", "ending"),
    (5, "watched", "ns"),
    (4, "line", "energy_millijoules"),
    (3, "lease", "project"),
    (2, "lease", "peak_bytes"),
];

/// Of which version the tables are. It is what the file says, unless what came with that is not there: an earlier build marked a file
/// whose steps SQLite had undone.
fn version_of(connection: &Connection) -> rusqlite::Result<i32> {
    let mut version = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    for (since, table, column) in MARKS {
        let is_there = "SELECT EXISTS (SELECT 1 FROM pragma_table_info(?1) WHERE name = ?2)";
        if version == since && !connection.query_row(is_there, [table, column], |row| row.get(0))? {
            version -= 1;
        }
    }
    Ok(version)
}

/// Sees that a file has the tables of this version, and is written as the ledger is.
///
/// # Errors
/// It cannot be written, or read: its tables are as they were then.
pub fn prepare(connection: &mut Connection) -> rusqlite::Result<()> {
    let found = version_of(connection)?;
    if found == 0 {
        // Before the first table: room of lines that are taken out goes back to the disk.
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "journal_size_limit", JOURNAL_BYTES)?;
    // What is written is on the disk, also when the power goes: with NORMAL the changes would wait for the next checkpoint. Nobody
    // waits for the disk, since a thread of its own writes, every ten seconds.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // Nothing is written to one that has its tables, so that on a full disk it can be opened, and read.
    if found == VERSION {
        return Ok(());
    }
    let transaction = connection.transaction()?;
    match version_of(&transaction)? {
        0 => {
            transaction.execute_batch(TABLES)?;
            transaction.execute_batch(unleased::TABLES)?;
            transaction.execute_batch(lives::TABLES)?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        }
        older => {
            let steps =
                [(1, SINCE_1), (2, SINCE_2), (3, SINCE_3), (4, unleased::TABLES), (5, SINCE_5), (6, lives::TABLES)];
            let missing = steps.into_iter().filter(|(from, _)| *from >= older);
            missing.map(|(_, step)| step).try_for_each(|step| transaction.execute_batch(step))?;
            let unread = lives::since_6(&transaction)?;
            if unread > 0 {
                log!(
                    "the ledger is damaged: what {unread} leases had in all is not known (gpool history); all else goes on"
                );
            }
        }
    }
    // Where SQLite has undone all of it there is no transaction any more, and the mark alone would be written.
    if transaction.is_autocommit() {
        return Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_ABORT_ROLLBACK), None));
    }
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()
}
