//! The parts of a day as one.

use gpool_protocol::{Charge, Charges, GpuUuid, LeaseId};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

const DAY_S: u64 = 86_400;

/// Of answers for times that follow one another: for each day a row for each lease on each GPU, as in one answer for all of it.
pub fn joined(parts: Vec<Charges>) -> Charges {
    let mut parts = parts.into_iter();
    let mut all = parts.next().unwrap_or_default();
    let day = |row: &Charge| row.begins_unix_s - row.begins_unix_s % DAY_S;
    let key = |row: &Charge| -> (u64, LeaseId, GpuUuid) { (day(row), row.lease_id.clone(), row.gpu_uuid.clone()) };
    let mut places: HashMap<_, usize> = all.rows.iter().enumerate().map(|(place, row)| (key(row), place)).collect();
    for part in parts {
        all.until_unix_s = part.until_unix_s;
        all.total_cost_nanos = all.total_cost_nanos.saturating_add(part.total_cost_nanos);
        for row in part.rows {
            match places.entry(key(&row)) {
                Entry::Occupied(place) => add(&mut all.rows[*place.get()], row),
                Entry::Vacant(place) => {
                    place.insert(all.rows.len());
                    all.rows.push(row);
                }
            }
        }
    }
    // A row says of which time it is asked, and not when the lease was there.
    let (since, until) = (all.since_unix_s, all.until_unix_s);
    for row in &mut all.rows {
        let begins = day(row);
        (row.begins_unix_s, row.ends_unix_s) = (begins.max(since), (begins + DAY_S).min(until));
    }
    all
}

/// Adds what a lease had later. What it is stays as it was, and an end is known later.
fn add(row: &mut Charge, later: Charge) {
    let sums = [
        (&mut row.reserved_gpu_ns, later.reserved_gpu_ns),
        (&mut row.used_gpu_ns, later.used_gpu_ns),
        (&mut row.burst_gpu_ns, later.burst_gpu_ns),
        (&mut row.lent_gpu_ns, later.lent_gpu_ns),
        (&mut row.idle_gpu_ns, later.idle_gpu_ns),
        (&mut row.memory_cap_mib_s, later.memory_cap_mib_s),
        (&mut row.memory_used_mib_s, later.memory_used_mib_s),
        (&mut row.energy_millijoules, later.energy_millijoules),
        (&mut row.billed_gpu_ns, later.billed_gpu_ns),
        (&mut row.cost_nanos, later.cost_nanos),
        (&mut row.list_cost_nanos, later.list_cost_nanos),
    ];
    for (sum, more) in sums {
        *sum = sum.saturating_add(more);
    }
    row.ended_unix_ms = later.ended_unix_ms.or(row.ended_unix_ms);
    row.is_estimated |= later.is_estimated;
    row.price_micros = row.price_micros.or(later.price_micros);
    row.list_price_micros = row.list_price_micros.or(later.list_price_micros);
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn a_lease_of_both_halves_of_a_day_is_one_row_of_all_of_it() {
        let sample = || {
            let mut day = sample();
            day.rows.iter_mut().zip(["01A", "01B"]).for_each(|(row, id)| row.lease_id = LeaseId(id.into()));
            day
        };
        let day = sample();
        let (begins, ends) = (day.since_unix_s, day.until_unix_s);
        let middle = begins + (ends - begins) / 2;
        let half = |since: u64, until: u64| {
            let mut half = sample();
            (half.since_unix_s, half.until_unix_s) = (since, until);
            half.rows.iter_mut().for_each(|row| (row.begins_unix_s, row.ends_unix_s) = (since, until));
            half
        };
        let mut second = half(middle, ends);
        let mut new = second.rows[0].clone();
        (new.lease_id, second.rows[0].is_estimated) = (LeaseId("02K".into()), true);
        second.rows.insert(0, new.clone());
        second.total_cost_nanos += new.cost_nanos;
        let all = joined(vec![half(begins, middle), second]);
        assert_eq!((all.since_unix_s, all.until_unix_s, all.rows.len()), (begins, ends, day.rows.len() + 1));
        let row = &all.rows[0];
        assert_eq!((row.begins_unix_s, row.ends_unix_s), (begins, ends));
        assert_eq!(row.reserved_gpu_ns, 2 * day.rows[0].reserved_gpu_ns);
        assert_eq!((row.cost_nanos, row.is_estimated), (2 * day.rows[0].cost_nanos, true));
        assert_eq!(all.rows.last().map(|row| (&row.lease_id, row.cost_nanos)), Some((&new.lease_id, new.cost_nanos)));
        assert_eq!(all.total_cost_nanos, all.rows.iter().map(|row| row.cost_nanos).sum::<u64>());
        assert_eq!(joined(vec![day.clone()]), day);
    }
}
