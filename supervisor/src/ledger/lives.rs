//! What each lease has had in all its life, kept beside its lines: of one that runs for a year there are half a million of those, and
//! whoever asks what ran asks for their sums.

use super::balance::Amounts;
use rusqlite::{Connection, ErrorCode, Transaction, params};

/// They are added to as lines are, and stay when those have become old.
pub const TABLES: &str = "
    CREATE TABLE life (
        lease INTEGER NOT NULL REFERENCES lease ON DELETE CASCADE, gpu INTEGER NOT NULL REFERENCES gpu,
        within_ns INTEGER NOT NULL, burst_ns INTEGER NOT NULL, lent_ns INTEGER NOT NULL, idle_ns INTEGER NOT NULL,
        unmetered_ns INTEGER NOT NULL, energy_millijoules INTEGER NOT NULL, PRIMARY KEY (lease, gpu)
    ) STRICT, WITHOUT ROWID;
";

/// What lines come to, of leases that are there.
const OF_LINES: &str = "
    INSERT INTO life SELECT line.lease, line.gpu, sum(within_ns), sum(burst_ns), sum(lent_ns), sum(idle_ns), sum(unmetered_ns),
        sum(energy_millijoules) FROM line JOIN lease ON lease.id = line.lease";

/// From version 6, which had lines alone: what they come to, as far as they go back. These are but sums for whoever asks what ran: where
/// the file is damaged at a place at which nothing else looks any more, those of the leases there are left out. How many these are.
///
/// # Errors
/// The disk cannot be read or has no room, for which SQLite may have undone the whole transaction: all of it is to be done again.
pub fn since_6(transaction: &Transaction<'_>) -> rusqlite::Result<usize> {
    if is_done(transaction.execute(&format!("{OF_LINES} GROUP BY line.lease, line.gpu"), []))? {
        return Ok(0);
    }
    let mut leases = transaction.prepare("SELECT id FROM lease")?;
    let leases: Vec<i64> = leases.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let of_one = format!("{OF_LINES} WHERE line.lease = ?1 GROUP BY line.lease, line.gpu");
    let mut unread = 0;
    for lease in leases {
        if !is_done(transaction.execute(&of_one, params![lease]))? {
            unread += 1;
        }
    }
    Ok(unread)
}

/// Whether that was done, or what it reads is damaged, or says something that cannot be: that stays so, and no more than the one
/// statement is undone for it.
///
/// # Errors
/// Anything else, which may be over the next time.
fn is_done(outcome: rusqlite::Result<usize>) -> rusqlite::Result<bool> {
    match outcome {
        Ok(_) => Ok(true),
        Err(cause) => match cause.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::ConstraintViolation) => Ok(false),
            _ => Err(cause),
        },
    }
}

/// Adds what is added to a line.
pub fn add(transaction: &Transaction<'_>, (lease, gpu): (i64, i64), amounts: &Amounts) -> rusqlite::Result<()> {
    let mut insert = transaction.prepare_cached(
        "INSERT INTO life (lease, gpu, within_ns, burst_ns, lent_ns, idle_ns, unmetered_ns, energy_millijoules)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
         ON CONFLICT DO UPDATE SET within_ns = within_ns + ?3, burst_ns = burst_ns + ?4, lent_ns = lent_ns + ?5,
         idle_ns = idle_ns + ?6, unmetered_ns = unmetered_ns + ?7, energy_millijoules = energy_millijoules + ?8",
    )?;
    let Amounts { within_ns, burst_ns, lent_ns, idle_ns, unmetered_ns, energy_millijoules, .. } = amounts;
    let values = params![lease, gpu, within_ns, burst_ns, lent_ns, idle_ns, unmetered_ns, energy_millijoules];
    insert.execute(values).map(drop)
}

/// Asks for those of a lease, by GPU. A file that cannot be written may be of before they were kept, and has lines alone.
pub fn query(connection: &Connection) -> rusqlite::Result<&'static str> {
    let is_kept: bool =
        connection
            .query_row("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'life')", [], |row| row.get(0))?;
    Ok(match is_kept {
        true => {
            "SELECT gpu, within_ns, burst_ns, lent_ns, idle_ns, unmetered_ns, energy_millijoules FROM life WHERE lease = ?1"
        }
        false => {
            "SELECT gpu, sum(within_ns), sum(burst_ns), sum(lent_ns), sum(idle_ns), sum(unmetered_ns), sum(energy_millijoules)
             FROM line WHERE lease = ?1 GROUP BY gpu"
        }
    })
}
