//! Subordinate ids: a user has thousands of them (/etc/subuid), any of which a program of his may take, and is one user all the same.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Who has which: subuid(5).
const FILE: &str = "/etc/subuid";

/// Ids that one user was given together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// Whose they are, as the file names it.
    pub owner: String,
    /// The first of them, which stands for all.
    pub first: u32,
    count: u32,
}

impl Range {
    /// The line of a file.
    pub fn read(line: &str) -> Option<Self> {
        let mut parts = line.trim().splitn(3, ':');
        let (owner, first, count) = (parts.next()?, parts.next()?, parts.next()?);
        let range = Self { owner: owner.to_owned(), first: first.parse().ok()?, count: count.parse().ok()? };
        // Nobody has root for a subordinate.
        (!owner.is_empty() && range.first > 0).then_some(range)
    }

    fn holds(&self, uid: u32) -> bool {
        uid.checked_sub(self.first).is_some_and(|place| place < self.count)
    }
}

/// What tells one state of a file from another.
type Mark = (u64, u64, i64, i64, u64);

fn mark(file: &Metadata) -> Mark {
    (file.dev(), file.ino(), file.mtime(), file.mtime_nsec(), file.size())
}

/// What a file says, as it was read last.
#[derive(Debug)]
struct Kept {
    mark: Option<Mark>,
    ranges: Vec<Range>,
}

impl Kept {
    const NOTHING: Self = Self { mark: None, ranges: Vec::new() };

    /// The range that `uid` is of, if any. The file is read again only when it is another one; without it nobody has any.
    fn range_of(&mut self, file: &Path, uid: u32) -> Option<Range> {
        let now = fs::metadata(file).ok().as_ref().map(mark);
        if now != self.mark {
            let text = fs::read(file).unwrap_or_default();
            self.ranges = String::from_utf8_lossy(&text).lines().filter_map(Range::read).collect();
            self.mark = now;
        }
        self.ranges.iter().find(|range| range.holds(uid)).cloned()
    }
}

/// The range of subordinate ids that `uid` is of. Nobody is asked but a file of this host.
pub fn range_of(uid: u32) -> Option<Range> {
    static KEPT: Mutex<Kept> = Mutex::new(Kept::NOTHING);
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).range_of(Path::new(FILE), uid)
}

/// Users that have an id out of somebody's range for their own, as those of a directory may.
static ACCOUNTS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Whether it was found out before that a user of this host has that id.
pub fn is_known_account(uid: u32) -> bool {
    ACCOUNTS.lock().unwrap_or_else(PoisonError::into_inner).contains(&uid)
}

/// Whether a user of this host has that id. The host may have to ask a directory server, which takes its time; what cannot be found out
/// is taken for one.
pub fn is_account(uid: u32) -> bool {
    let is_one = match nix::unistd::User::from_uid(uid.into()) {
        Ok(found) => found.is_some(),
        Err(_) => return true,
    };
    if is_one {
        ACCOUNTS.lock().unwrap_or_else(PoisonError::into_inner).insert(uid);
    }
    is_one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_known_by_the_range_that_the_file_has_now() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut kept = Kept::NOTHING;
        fs::write(&file, "alice:100000:65536\n\nnonsense\n1001:165536:10\n:7:7\nbob:x:1\nroot:0:5\n").unwrap();
        let mut owner = |uid| kept.range_of(file.path(), uid).map(|range| (range.owner, range.first));
        let alice = Some(("alice".to_owned(), 100_000));
        assert_eq!([owner(99_999), owner(100_000), owner(165_535)], [None, alice.clone(), alice]);
        assert_eq!([owner(165_545), owner(165_546)], [Some(("1001".to_owned(), 165_536)), None]);
        assert_eq!([owner(0), owner(3), owner(7), owner(u32::MAX)], [None, None, None, None]);
        fs::write(&file, "alice:200000:65536\n").unwrap();
        let mut owner = |uid| kept.range_of(file.path(), uid).map(|range| range.owner);
        assert_eq!((owner(100_000), owner(200_000)), (None, Some("alice".to_owned())));
        assert_eq!(kept.range_of(&file.path().join("none"), 200_000), None, "without it nobody has any");
    }

    #[test]
    fn who_has_an_account_is_known_from_then_on() {
        assert!(is_account(0) && is_known_account(0));
        let nobody = u32::MAX - 7;
        assert!(!is_known_account(nobody), "nobody has asked");
        is_account(nobody);
        assert!(!is_known_account(nobody), "nor has it one");
    }
}
