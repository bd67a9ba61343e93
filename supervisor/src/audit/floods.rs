//! Users without root who ask again and again: what they fill of the disk is bounded.

use std::collections::BTreeMap;

/// Events of all users without root together that are written down of each hour; of the rest their number is.
const OF_USERS: u64 = 2000;
const HOUR_MS: u64 = 3_600_000;
/// So many users are named.
const NAMED: usize = 4;

/// What came in this hour, and what of that was left out.
#[derive(Debug, Default)]
pub struct Floods {
    hour: u64,
    let_through: u64,
    left_out: BTreeMap<u32, u64>,
    /// Of an hour that is over.
    remark: Option<String>,
}

impl Floods {
    /// Whether an event of that user is written down, or of nobody.
    pub fn lets_through(&mut self, uid: Option<u32>, unix_ms: u64) -> bool {
        self.turn(unix_ms);
        let Some(uid) = uid.filter(|uid| *uid != 0) else { return true };
        if self.let_through < OF_USERS {
            self.let_through += 1;
            return true;
        }
        *self.left_out.entry(uid).or_default() += 1;
        false
    }

    /// What is to be said of an hour that is over.
    pub fn take_remark(&mut self, unix_ms: u64) -> Option<String> {
        self.turn(unix_ms);
        self.remark.take()
    }

    /// Begins the hour of this moment, if it is a later one.
    fn turn(&mut self, unix_ms: u64) {
        let hour = unix_ms / HOUR_MS;
        // A clock that was set back does not give anybody another hour.
        if hour <= self.hour {
            return;
        }
        self.hour = hour;
        self.let_through = 0;
        let left_out = std::mem::take(&mut self.left_out);
        if left_out.is_empty() {
            return;
        }
        let all: u64 = left_out.values().sum();
        let mut most: Vec<(u32, u64)> = left_out.into_iter().collect();
        most.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let named: Vec<String> = most.iter().take(NAMED).map(|(uid, count)| format!("{count} of user {uid}")).collect();
        let more = if most.len() > NAMED { " and others" } else { "" };
        self.remark = Some(format!(
            "{all} events were left out in an hour, beyond {OF_USERS} of all users without root: {}{more}",
            named.join(", ")
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_again_and_again_fills_no_disk_and_is_told() {
        let mut floods = Floods::default();
        let hour = 5 * HOUR_MS;
        let let_through =
            (0..OF_USERS + 100).filter(|n| floods.lets_through(Some(1000 + (*n % 2) as u32), hour)).count();
        assert_eq!(let_through as u64, OF_USERS);
        assert!(
            floods.lets_through(Some(0), hour) && floods.lets_through(None, hour),
            "root's and the host's are not bounded"
        );
        assert_eq!(floods.take_remark(hour), None, "the hour is not over");
        assert!(!floods.lets_through(Some(7), hour - HOUR_MS), "nor is it when the clock is set back");
        let told = floods.take_remark(hour + HOUR_MS).unwrap();
        assert!(
            told.starts_with("101 events were left out")
                && told.contains("50 of user 1000, 50 of user 1001, 1 of user 7"),
            "{told}"
        );
        assert_eq!(floods.take_remark(hour + HOUR_MS), None);
        assert!(floods.lets_through(Some(1000), hour + HOUR_MS));
    }
}
