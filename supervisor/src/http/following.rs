//! Who follows the events: each keeps a connection for as long, and leaves enough to those who ask for something else.

use super::listener::Side;
use gpool_protocol::{ErrorBody, ErrorCode};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Followers among users without rights, all together, and among processes in leased containers: half of the connections that each
/// side has.
const FOLLOWERS: usize = 32;
/// Followers of one user: of its connections some are left for its commands.
const FOLLOWERS_OF_ONE: usize = 6;

/// Those of this process.
pub static FOLLOWING: Following = Following(Mutex::new(BTreeMap::new()));

/// How many follow, by side.
pub struct Following(Mutex<BTreeMap<Side, usize>>);

impl Following {
    /// Takes one more in, until what is given is dropped: of root, as many as it has connections.
    ///
    /// # Errors
    /// There are enough.
    pub fn begin(&self, side: Side) -> Result<One<'_>, ErrorBody> {
        let mut by_side = self.lock();
        let mine = by_side.get(&side).copied().unwrap_or(0);
        let is_a_users = |(side, _): &(&Side, &usize)| matches!(side, Side::User(uid) if *uid != 0);
        let of_users: usize = by_side.iter().filter(is_a_users).map(|(_, count)| *count).sum();
        let enough = match side {
            Side::User(0) => None,
            Side::Tenants if mine >= FOLLOWERS => Some(format!("{FOLLOWERS} connections of leased containers")),
            Side::Ended if mine >= FOLLOWERS => Some(format!("{FOLLOWERS} connections of processes that have ended")),
            Side::User(uid) | Side::Administrator(uid) if mine >= FOLLOWERS_OF_ONE => {
                Some(format!("{FOLLOWERS_OF_ONE} connections of user {uid}"))
            }
            Side::User(_) if of_users >= FOLLOWERS => Some(format!("{FOLLOWERS} connections of users without root")),
            Side::Tenants | Side::Ended | Side::User(_) | Side::Administrator(_) => None,
        };
        if let Some(whose) = enough {
            return Err(ErrorBody::new(
                ErrorCode::NotPermitted,
                format!("{whose} follow the events already"),
                "ask again later or as root; gpool events without --follow is answered at once",
            ));
        }
        *by_side.entry(side).or_default() += 1;
        Ok(One { of: self, side })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Side, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of those who follow.
pub struct One<'a> {
    of: &'a Following,
    side: Side,
}

impl Drop for One<'_> {
    fn drop(&mut self) {
        let mut by_side = self.of.lock();
        if let Some(count) = by_side.get_mut(&self.side) {
            *count -= 1;
            if *count == 0 {
                by_side.remove(&self.side);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_left_to_who_does_not_follow() {
        let all = Following(Mutex::default());
        let begun = |side: Side| -> Vec<One<'_>> { (0..100).filter_map(|_| all.begin(side).ok()).collect() };
        let users: Vec<_> = (1000..1010).map(|uid| begun(Side::User(uid))).collect();
        assert_eq!(users[0].len(), FOLLOWERS_OF_ONE);
        assert_eq!(users.iter().map(Vec::len).sum::<usize>(), FOLLOWERS);
        let refusal = all.begin(Side::User(1000)).err().unwrap();
        assert!(refusal.message.starts_with("6 connections of user 1000 follow"), "{refusal}");
        let (tenants, member) = (begun(Side::Tenants), begun(Side::Administrator(1)));
        assert_eq!((tenants.len(), member.len()), (FOLLOWERS, FOLLOWERS_OF_ONE));
        assert_eq!(begun(Side::User(0)).len(), 100, "root follows as it likes");
        drop(users);
        assert!(all.begin(Side::User(1000)).is_ok(), "they have gone");
        drop((tenants, member));
        assert!(all.lock().is_empty());
    }
}
