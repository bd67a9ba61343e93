//! What each lease is charged for each day on each of its GPUs: the rows of a bill.

use super::lines::{Amounts, GpuPart, OF_SCOPE, begins, gpus, in_scope, walk};
use super::pricing::{Cost, Prices, Pricing};
use super::question::Scope;
use super::reader::ROWS;
use super::retention::DAY_S;
use gpool_protocol::{Charge, Charges, ContainerId, GpuUuid, LeaseId};
use rusqlite::{Connection, Row};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

/// What a lease on a GPU comes to on a day.
#[derive(Default)]
struct Sum {
    amounts: Amounts,
    cost: Cost,
    billed_ns: u64,
    prices: Option<Prices>,
}

/// A lease as the ledger has it, and by what it pays.
struct Leased {
    lease_id: LeaseId,
    container_id: ContainerId,
    pod: Option<String>,
    project: Option<String>,
    cost_center: Option<String>,
    uid: u32,
    class: String,
    priority: String,
    mechanism: String,
    created_unix_ms: u64,
    ended_unix_ms: Option<u64>,
    is_end_seen: bool,
    team: Option<String>,
}

/// Makes the rows of a bill: by day, then by lease, then by GPU, each in the order in which they came.
pub fn charges(connection: &Connection, scope: &Scope, mut pricing: Option<Pricing>) -> rusqlite::Result<Charges> {
    let gpus = gpus(connection, scope)?;
    let mut query = connection.prepare(&format!(
        "SELECT lease_id, container_id, pod, team, project, cost_center, uid, class, priority, mechanism, created_unix_ms,
         ended_unix_ms, is_end_seen FROM lease WHERE {OF_SCOPE}"
    ))?;
    let mut leases: HashMap<i64, Option<Leased>> = HashMap::new();
    let mut sums: BTreeMap<(u64, i64, i64), Sum> = BTreeMap::new();
    walk(connection, scope, &gpus, |line| {
        if let Entry::Vacant(place) = leases.entry(line.of.0) {
            place.insert(in_scope(&mut query, line.of.0, scope, leased)?);
        }
        let (Some(Some(its)), Some(gpu)) = (leases.get(&line.of.0), gpus.get(&line.of.1)) else {
            return Ok(ControlFlow::Continue(()));
        };
        let day_unix_s = line.slot_unix_s - line.slot_unix_s % DAY_S;
        let sum = sums.entry((day_unix_s, line.of.0, line.of.1)).or_default();
        sum.amounts.add(&line.amounts);
        if let Some(pricing) = pricing.as_mut() {
            sum.cost.add(&pricing.cost_of(&line, its.team.as_deref(), gpu));
            sum.billed_ns = sum.billed_ns.saturating_add(pricing.billed_ns(&line, gpu));
            // They change with the day.
            let at_unix_s = line.slot_unix_s;
            sum.prices.get_or_insert_with(|| pricing.holding(line.of, its.team.as_deref(), gpu, at_unix_s));
        }
        Ok(if sums.len() > ROWS { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    let mut charges = Charges {
        since_unix_s: scope.since_unix_s,
        until_unix_s: scope.until_unix_s,
        begins_unix_s: begins(connection)?,
        ..Charges::default()
    };
    for ((day_unix_s, lease, gpu), sum) in sums {
        if let (Some(Some(its)), Some(gpu)) = (leases.get(&lease), gpus.get(&gpu)) {
            let begins_unix_s = day_unix_s.max(scope.since_unix_s);
            let ends_unix_s = (day_unix_s + DAY_S).min(scope.until_unix_s);
            charges.total_cost_nanos = charges.total_cost_nanos.saturating_add(sum.cost.nanos);
            charges.rows.push(row((begins_unix_s, ends_unix_s), its, gpu, &sum));
        }
    }
    Ok(charges)
}

fn leased(row: &Row<'_>) -> rusqlite::Result<Leased> {
    let moment = |ms: i64| u64::try_from(ms).unwrap_or(0);
    Ok(Leased {
        lease_id: LeaseId(row.get(0)?),
        container_id: ContainerId(row.get(1)?),
        pod: row.get(2)?,
        team: row.get(3)?,
        project: row.get(4)?,
        cost_center: row.get(5)?,
        uid: row.get(6)?,
        class: row.get(7)?,
        priority: row.get(8)?,
        mechanism: row.get(9)?,
        created_unix_ms: row.get(10).map(moment)?,
        ended_unix_ms: row.get::<_, Option<i64>>(11)?.map(moment),
        is_end_seen: row.get(12)?,
    })
}

fn row((begins_unix_s, ends_unix_s): (u64, u64), its: &Leased, gpu: &GpuPart, sum: &Sum) -> Charge {
    let amounts = &sum.amounts;
    let price = |of: fn(&Prices) -> Option<u64>| sum.prices.as_ref().and_then(of);
    Charge {
        begins_unix_s,
        ends_unix_s,
        lease_id: its.lease_id.clone(),
        container_id: its.container_id.clone(),
        pod: its.pod.clone(),
        team: its.team.clone(),
        project: its.project.clone(),
        cost_center: its.cost_center.clone(),
        uid: its.uid,
        class: its.class.clone(),
        priority: its.priority.clone(),
        mechanism: its.mechanism.clone(),
        created_unix_ms: its.created_unix_ms,
        ended_unix_ms: its.ended_unix_ms,
        gpu_uuid: GpuUuid(gpu.uuid.clone()),
        product: gpu.product.clone(),
        mig_profile: gpu.profile.clone(),
        compute_slices: gpu.slices.0,
        of_compute_slices: gpu.slices.1,
        reserved_gpu_ns: gpu.part_of(amounts.reserved_ns()),
        used_gpu_ns: gpu.part_of(amounts.within_ns.saturating_add(amounts.burst_ns)),
        burst_gpu_ns: gpu.part_of(amounts.burst_ns),
        lent_gpu_ns: gpu.part_of(amounts.lent_ns),
        idle_gpu_ns: gpu.part_of(amounts.idle_ns),
        memory_cap_mib_s: amounts.cap_kib_s / 1024,
        memory_used_mib_s: amounts.used_kib_s / 1024,
        energy_millijoules: amounts.energy_millijoules,
        is_estimated: !its.is_end_seen || amounts.unwatched_ns > 0,
        billed_gpu_ns: sum.billed_ns,
        price_micros: price(|prices| prices.contracted.micros_per_gpu_hour),
        list_price_micros: price(|prices| prices.list.micros_per_gpu_hour.or(prices.contracted.micros_per_gpu_hour)),
        cost_nanos: sum.cost.nanos,
        list_cost_nanos: sum.cost.list_nanos,
    }
}
