//! Users without root who ask again and again: what they fill of the disk is bounded, for each of them and together.

use std::collections::BTreeMap;

/// Events of one user without root that are written down of each hour; of the rest their number is.
const OF_ONE: u64 = 1000;
/// The same of all of them together.
const OF_ALL: u64 = 10_000;
const HOUR_NS: u64 = 3_600_000_000_000;
/// So many users are named.
const NAMED: usize = 4;

/// What came in this hour of CLOCK_MONOTONIC, by user, and what of that was left out.
#[derive(Debug, Default)]
pub struct Floods {
    hour: u64,
    let_through: u64,
    users: BTreeMap<u32, Counts>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    let_through: u64,
    left_out: u64,
}

impl Floods {
    /// Whether an event of that user is written down, or of nobody; with what is to be said of an hour that is over.
    pub fn lets_through(&mut self, uid: Option<u32>, now_ns: u64) -> (bool, Option<String>) {
        let remark = self.turn(now_ns);
        let Some(uid) = uid.filter(|uid| *uid != 0) else { return (true, remark) };
        let its = self.users.entry(uid).or_default();
        let has_room = its.let_through < OF_ONE && self.let_through < OF_ALL;
        if has_room {
            its.let_through += 1;
            self.let_through += 1;
        } else {
            its.left_out += 1;
        }
        (has_room, remark)
    }

    /// Begins the hour of this moment, if it is a later one. What is to be said of the one before.
    pub fn turn(&mut self, now_ns: u64) -> Option<String> {
        let hour = now_ns / HOUR_NS;
        if hour <= self.hour {
            return None;
        }
        self.hour = hour;
        self.let_through = 0;
        let left_out = std::mem::take(&mut self.users).into_iter().map(|(uid, its)| (uid, its.left_out));
        let mut most: Vec<(u32, u64)> = left_out.filter(|(_, count)| *count > 0).collect();
        if most.is_empty() {
            return None;
        }
        let all: u64 = most.iter().map(|(_, count)| count).sum();
        most.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let named: Vec<String> = most.iter().take(NAMED).map(|(uid, count)| format!("{count} of user {uid}")).collect();
        let more = if most.len() > NAMED { " and others" } else { "" };
        Some(format!(
            "{all} events were left out in an hour, beyond {OF_ONE} of a user without root and {OF_ALL} of all: {}{more}",
            named.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_again_and_again_fills_no_disk_keeps_nobody_else_out_and_is_told() {
        let mut floods = Floods::default();
        let hour = 5 * HOUR_NS;
        let mut many =
            |uid: u32, count: u64| (0..count).filter(|_| floods.lets_through(Some(uid), hour).0).count() as u64;
        assert_eq!((many(1000, OF_ONE + 100), many(1001, OF_ONE + 7)), (OF_ONE, OF_ONE));
        assert_eq!(many(1002, 5), 5, "others' are written as ever");
        let rest: u64 = (2000..2020).map(|uid| many(uid, OF_ONE)).sum();
        assert_eq!(rest, OF_ALL - 2 * OF_ONE - 5);
        assert!(
            floods.lets_through(Some(0), hour).0 && floods.lets_through(None, hour).0,
            "root's and the host's always are"
        );
        assert_eq!(floods.turn(hour), None, "the hour is not over");
        let (is_written, told) = floods.lets_through(Some(1000), hour + HOUR_NS);
        let told = told.unwrap();
        assert!(is_written && told.contains(" of user 2008, ") && told.ends_with(" and others"), "{told}");
        assert_eq!(floods.turn(hour + 2 * HOUR_NS), None, "nobody was left out");
    }
}
