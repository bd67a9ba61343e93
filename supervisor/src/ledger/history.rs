//! What ran: each lease of a time with what became of it, its figures those of all its life.

use super::lines::{Gpus, begins, gpus};
use super::lives;
use super::question::Scope;
use super::reader::ROWS;
use gpool_protocol::{ContainerId, GpuUuid, History, LeaseId, PastGpu, PastLease};
use rusqlite::{Connection, Row, Statement, params};

/// Leases that had their GPUs at some time of that, in the order in which they were granted.
pub fn history(connection: &Connection, scope: &Scope) -> rusqlite::Result<History> {
    let gpus = gpus(connection, scope)?;
    let mut query = connection.prepare(
        "SELECT id, lease_id, container_id, pod, team, project, cost_center, uid, class, priority, mechanism, created_unix_ms,
         ended_unix_ms, ending, waited_ms, fraction_permille, cap_bytes, peak_bytes FROM lease
         WHERE created_unix_ms < ?2 * 1000 AND (ended_unix_ms IS NULL OR ended_unix_ms >= ?1 * 1000)
         AND (?3 IS NULL OR coalesce(team, '') = ?3) AND (?4 IS NULL OR uid = ?4)
         AND (?5 IS NULL OR coalesce(project, '') = ?5) AND (?6 IS NULL OR coalesce(cost_center, '') = ?6)
         AND (?7 IS NULL OR lease_id = ?7 OR substr(container_id, 1, length(?7)) = ?7) ORDER BY created_unix_ms, id",
    )?;
    let mut of_lease = connection.prepare(lives::query(connection)?)?;
    let mut history = History {
        since_unix_s: scope.since_unix_s,
        until_unix_s: scope.until_unix_s,
        begins_unix_s: begins(connection)?,
        ..History::default()
    };
    let [since, until] = scope.span();
    let values = params![since, until, scope.team, scope.uid, scope.project, scope.cost_center, scope.container];
    let mut found = query.query(values)?;
    while let Some(row) = found.next()? {
        let mut lease = past_lease(row)?;
        let is_on_those = add_lines(&mut of_lease, row.get(0)?, &gpus, &mut lease)?;
        if is_on_those || scope.gpu.is_none() {
            history.leases.push(lease);
        }
        if history.leases.len() > ROWS {
            break;
        }
    }
    Ok(history)
}

/// A number of which nothing below zero is one, whatever a file says.
fn number(row: &Row<'_>, place: usize) -> rusqlite::Result<Option<u64>> {
    row.get::<_, Option<i64>>(place).map(|value| value.map(|value| u64::try_from(value).unwrap_or(0)))
}

fn past_lease(row: &Row<'_>) -> rusqlite::Result<PastLease> {
    Ok(PastLease {
        lease_id: LeaseId(row.get(1)?),
        container_id: ContainerId(row.get(2)?),
        pod: row.get(3)?,
        team: row.get(4)?,
        project: row.get(5)?,
        cost_center: row.get(6)?,
        uid: row.get(7)?,
        class: row.get(8)?,
        priority: row.get(9)?,
        mechanism: row.get(10)?,
        created_unix_ms: number(row, 11)?.unwrap_or(0),
        ended_unix_ms: number(row, 12)?,
        ending: row.get(13)?,
        waited_ms: number(row, 14)?,
        fraction_permille: number(row, 15)?.and_then(|permille| u16::try_from(permille).ok()),
        memory_cap_bytes: number(row, 16)?.filter(|bytes| *bytes > 0),
        memory_peak_bytes: number(row, 17)?,
        gpus: Vec::new(),
        reserved_gpu_ns: 0,
        used_gpu_ns: 0,
        burst_gpu_ns: 0,
        lent_gpu_ns: 0,
        idle_gpu_ns: 0,
        unmetered_gpu_ns: 0,
        energy_millijoules: 0,
    })
}

/// What it had of `gpus`. Whether it had any of them.
fn add_lines(of_lease: &mut Statement<'_>, id: i64, gpus: &Gpus, lease: &mut PastLease) -> rusqlite::Result<bool> {
    let mut lines = of_lease.query([id])?;
    while let Some(line) = lines.next()? {
        let Some(gpu) = gpus.get(&line.get(0)?) else { continue };
        let column = |place| number(line, place).map(|value| value.unwrap_or(0));
        let (within, burst, lent, idle, unmetered) = (column(1)?, column(2)?, column(3)?, column(4)?, column(5)?);
        let reserved = [within, lent, idle, unmetered].into_iter().fold(0, u64::saturating_add);
        let sums = [
            (&mut lease.reserved_gpu_ns, gpu.part_of(reserved)),
            (&mut lease.used_gpu_ns, gpu.part_of(within.saturating_add(burst))),
            (&mut lease.burst_gpu_ns, gpu.part_of(burst)),
            (&mut lease.lent_gpu_ns, gpu.part_of(lent)),
            (&mut lease.idle_gpu_ns, gpu.part_of(idle)),
            (&mut lease.unmetered_gpu_ns, gpu.part_of(unmetered)),
            (&mut lease.energy_millijoules, column(6)?),
        ];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
        lease.gpus.push(PastGpu {
            gpu_uuid: GpuUuid(gpu.uuid.clone()),
            product: gpu.product.clone(),
            mig_profile: gpu.profile.clone(),
        });
    }
    Ok(!lease.gpus.is_empty())
}
