//! Users who administer nothing and ask again and again, or whose leases come and go, and programs of leases whose owner is root, as
//! docker's and a kubelet's are: what they fill of the disk is bounded, for each of them and together. Warnings have as much room of their own: who fills the rest hides none of them.

use gpool_protocol::LeaseId;
use std::collections::BTreeMap;
use std::fmt;

/// Who brings events about again and again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// A user who administers nothing.
    User(u32),
    /// The programs of a lease whose owner administers, and is not whoever started them.
    Lease(LeaseId),
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::User(uid) => write!(f, "user {uid}"),
            Who::Lease(id) => write!(f, "lease {}", id.0),
        }
    }
}

/// Events of one of them that are written down of each hour; of the rest their number is.
const OF_ONE: u64 = 1000;
/// The same of all of them.
const OF_ALL: u64 = 10_000;
const HOUR_NS: u64 = 3_600_000_000_000;
/// So many are named.
const NAMED: usize = 4;

/// What came in this hour of CLOCK_MONOTONIC, by who it was and by whether it is a warning, and what of that was left out.
#[derive(Debug, Default)]
pub struct Floods {
    hour: u64,
    let_through: [u64; 2],
    all: BTreeMap<(Who, bool), Counts>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    let_through: u64,
    left_out: u64,
}

impl Floods {
    /// Whether an event that is theirs is written down; what the host, root and administrators do is nobody's here. With what is
    /// to be said of an hour that is over.
    pub fn lets_through(&mut self, who: Option<Who>, is_warning: bool, now_ns: u64) -> (bool, Option<String>) {
        let remark = self.turn(now_ns);
        let Some(who) = who else { return (true, remark) };
        let its = self.all.entry((who, is_warning)).or_default();
        let [others, warnings] = &mut self.let_through;
        let all = if is_warning { warnings } else { others };
        let has_room = its.let_through < OF_ONE && *all < OF_ALL;
        if has_room {
            its.let_through += 1;
            *all += 1;
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
        self.let_through = [0; 2];
        let mut left_out: BTreeMap<Who, u64> = BTreeMap::new();
        for ((who, _), its) in std::mem::take(&mut self.all) {
            *left_out.entry(who).or_default() += its.left_out;
        }
        let mut most: Vec<(Who, u64)> = left_out.into_iter().filter(|(_, count)| *count > 0).collect();
        if most.is_empty() {
            return None;
        }
        let all: u64 = most.iter().map(|(_, count)| count).sum();
        most.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let named: Vec<String> = most.iter().take(NAMED).map(|(who, count)| format!("{count} of {who}")).collect();
        let more = if most.len() > NAMED { " and others" } else { "" };
        Some(format!(
            "{all} events were left out in an hour, beyond {OF_ONE} of a user who administers nothing or of a lease's programs and {OF_ALL} of all of these: {}{more}",
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
        let mut many = |uid: u32, count: u64| {
            (0..count).filter(|_| floods.lets_through(Some(Who::User(uid)), false, hour).0).count() as u64
        };
        assert_eq!((many(1000, OF_ONE + 100), many(1001, OF_ONE + 7)), (OF_ONE, OF_ONE));
        assert_eq!(many(1002, 5), 5, "others' are written as ever");
        let rest: u64 = (2000..2020).map(|uid| many(uid, OF_ONE)).sum();
        assert_eq!(rest, OF_ALL - 2 * OF_ONE - 5);
        assert!(floods.lets_through(None, false, hour).0, "the host's always are");
        assert!(floods.lets_through(Some(Who::User(1000)), true, hour).0, "warnings have room of their own");
        assert_eq!(floods.turn(hour), None, "the hour is not over");
        let (is_written, told) = floods.lets_through(Some(Who::User(1000)), false, hour + HOUR_NS);
        let told = told.unwrap();
        assert!(is_written && told.contains(" of user 2008, ") && told.ends_with(" and others"), "{told}");
        assert_eq!(floods.turn(hour + 2 * HOUR_NS), None, "nobody was left out");
    }
}
