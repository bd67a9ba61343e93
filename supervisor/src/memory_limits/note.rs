//! What was seen of one lease's limit on one GPU.

use crate::device::{FoundLimit, LimitRefusal};
use gpool_policy::repetition::Repetition;
use gpool_protocol::{format_bytes, is_limit_of};

/// See there.
#[derive(Debug, Clone, Default)]
pub struct MemoryLimitNote {
    /// What the driver was asked to keep and what it made of it, in bytes; none while it keeps nothing.
    kept: Option<(u64, u64)>,
    /// Why it does not, as was seen last.
    refused: Option<LimitRefusal>,
    /// Something to be told has happened so often, and has been told so often.
    happened: u64,
    told: u64,
    repetition: Repetition,
}

impl MemoryLimitNote {
    /// What the driver keeps, in bytes.
    pub fn kept_bytes(&self) -> Option<u64> {
        self.kept.map(|(_, kept_bytes)| kept_bytes)
    }

    /// Why it keeps nothing, if it was asked to.
    pub fn refused(&self) -> Option<&LimitRefusal> {
        self.refused.as_ref()
    }

    /// What the driver made of this limit when it was set last.
    pub fn known_bytes(&self, asked_bytes: u64) -> Option<u64> {
        self.kept.filter(|(asked, _)| *asked == asked_bytes).map(|(_, kept_bytes)| kept_bytes)
    }

    /// Takes what came of a limit of `asked_bytes`. What is to be told, the end of a sentence about a container.
    pub fn take(&mut self, now_ns: u64, asked_bytes: u64, outcome: Result<FoundLimit, LimitRefusal>) -> Option<String> {
        let known_bytes = self.known_bytes(asked_bytes);
        let outcome = outcome.and_then(|found| {
            found.kept_bytes.map(|kept_bytes| (kept_bytes, found.before_bytes)).ok_or(LimitRefusal::NotKept)
        });
        let news = match outcome {
            Ok((kept_bytes, before_bytes)) => {
                (self.kept, self.refused) = (Some((asked_bytes, kept_bytes)), None);
                // One that has not been taken yet moves by itself.
                let was_kept = known_bytes.is_some_and(|known| is_limit_of(known, asked_bytes));
                let was =
                    before_bytes.map_or_else(|| "lifted".to_owned(), |bytes| format!("set to {}", format_bytes(bytes)));
                (was_kept && before_bytes != known_bytes).then(|| {
                    format!(
                        "had its memory limit in the driver {was} by somebody; it is {} again",
                        format_bytes(kept_bytes)
                    )
                })
            }
            Err(refusal) => {
                // Who does not answer for a moment has lifted nothing.
                if !matches!(refusal, LimitRefusal::Other(_)) {
                    self.kept = None;
                }
                let is_news = self.refused.replace(refusal.clone()).as_ref() != Some(&refusal);
                // What is so on the whole host is no news of a container, and a cgroup that has ended needs none.
                let is_told = is_news && !refusal.is_of_host() && refusal != LimitRefusal::Gone;
                is_told.then(|| format!("has its memory cap kept by its shims alone: {refusal}"))
            }
        };
        self.happened += u64::from(news.is_some());
        let is_due = self.repetition.look(now_ns, self.happened, self.told);
        let news = news.filter(|_| is_due)?;
        self.told = self.happened;
        Some(news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const SECOND: u64 = 1_000_000_000;

    fn found(kept_bytes: Option<u64>, before_bytes: Option<u64>) -> Result<FoundLimit, LimitRefusal> {
        Ok(FoundLimit { kept_bytes, before_bytes })
    }

    #[test]
    fn who_changes_a_limit_is_told_of_and_who_changes_a_cap_is_not() {
        let mut note = MemoryLimitNote::default();
        let mut now_ns = 0;
        let mut take = |note: &mut MemoryLimitNote, asked, outcome| {
            now_ns += 100 * SECOND;
            note.take(now_ns, asked, outcome)
        };
        assert_eq!(take(&mut note, 4 * GIB, found(Some(4 * GIB), None)), None, "it is new");
        assert_eq!(
            (note.kept_bytes(), note.known_bytes(4 * GIB), note.known_bytes(5 * GIB)),
            (Some(4 * GIB), Some(4 * GIB), None)
        );
        assert_eq!(take(&mut note, 4 * GIB, found(Some(4 * GIB), Some(4 * GIB))), None);
        let told = take(&mut note, 4 * GIB, found(Some(4 * GIB), None)).unwrap();
        assert!(told.contains("lifted by somebody; it is 4GiB again"), "{told}");
        let told = take(&mut note, 4 * GIB, found(Some(4 * GIB), Some(9 * GIB))).unwrap();
        assert!(told.contains("set to 9GiB by somebody"), "{told}");
        assert_eq!(take(&mut note, 6 * GIB, found(Some(6 * GIB), Some(4 * GIB))), None, "gpool update has");
        // More is held than the new cap, and less by and by.
        assert_eq!(take(&mut note, GIB, found(Some(5 * GIB), Some(6 * GIB))), None);
        assert_eq!(take(&mut note, GIB, found(Some(3 * GIB), Some(5 * GIB))), None);
    }

    #[test]
    fn who_changes_it_again_and_again_is_told_of_ever_more_rarely() {
        let mut note = MemoryLimitNote::default();
        note.take(0, GIB, found(Some(GIB), None));
        let told = (1..=60).filter(|second| note.take(second * SECOND, GIB, found(Some(GIB), None)).is_some()).count();
        assert!((2..10).contains(&told), "{told} of 60");
    }

    #[test]
    fn why_the_driver_does_not_keep_a_cap_is_told_once_and_what_is_usual_is_not() {
        let mut note = MemoryLimitNote::default();
        assert_eq!(note.take(0, 1, Err(LimitRefusal::NoFunction)), None);
        assert_eq!(note.take(0, 1, Err(LimitRefusal::NotSupported)), None);
        let told = note.take(0, 1, Err(LimitRefusal::NoController)).unwrap();
        assert!(told.contains("by its shims alone: its cgroup has no dmem.max"), "{told}");
        assert_eq!(note.take(100 * SECOND, 1, Err(LimitRefusal::NoController)), None);
        assert!(note.take(200 * SECOND, 1, found(None, None)).is_some_and(|told| told.contains("keeps none")));
        assert_eq!((note.take(300 * SECOND, 1, found(Some(1), None)), note.kept_bytes()), (None, Some(1)));
        let other = LimitRefusal::Other("an unknown error".into());
        assert!(note.take(400 * SECOND, 1, Err(other)).is_some() && note.kept_bytes() == Some(1));
        assert!(note.take(500 * SECOND, 1, Err(LimitRefusal::NoController)).is_some(), "it did, and does not any more");
        assert_eq!((note.kept_bytes(), note.refused()), (None, Some(&LimitRefusal::NoController)));
    }
}
