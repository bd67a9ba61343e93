//! What was seen of one lease's limit on one GPU.

use crate::device::{FoundLimit, LimitRefusal};
use gpool_policy::repetition::Repetition;
use gpool_protocol::format_bytes;

/// See there.
#[derive(Debug, Clone, Default)]
pub struct MemoryLimitNote {
    /// What the driver keeps, in bytes; none while it keeps nothing.
    kept_bytes: Option<u64>,
    /// What the processes of the cgroup held then, in bytes.
    used_bytes: u64,
    /// What it was asked to keep, if that is what it has made of it.
    settled_bytes: Option<u64>,
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
        self.kept_bytes
    }

    /// What the processes of the cgroup hold as the driver counts it, in bytes, as was seen last.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Why it keeps nothing, or nothing is known of it, if it was asked to.
    pub fn refused(&self) -> Option<&LimitRefusal> {
        self.refused.as_ref()
    }

    /// Whether the driver keeps something else for now.
    pub fn is_unsettled(&self) -> bool {
        self.kept_bytes.is_some() && self.settled_bytes.is_none()
    }

    /// What the driver made of this limit when it was set last.
    pub fn known_bytes(&self, asked_bytes: u64) -> Option<u64> {
        self.kept_bytes.filter(|_| self.settled_bytes == Some(asked_bytes))
    }

    /// Takes what came of a limit of `asked_bytes`, of a container that `has_shims` or none. What is to be told, the end of a sentence
    /// about it.
    pub fn take(
        &mut self,
        now_ns: u64,
        (asked_bytes, has_shims): (u64, bool),
        outcome: Result<FoundLimit, LimitRefusal>,
    ) -> Option<String> {
        let known_bytes = self.known_bytes(asked_bytes);
        let outcome = outcome.and_then(|found| match found.kept_bytes {
            Some(kept_bytes) => Ok((kept_bytes, found)),
            None => Err(LimitRefusal::NotKept),
        });
        let news = match outcome {
            Ok((kept_bytes, found)) => {
                (self.kept_bytes, self.used_bytes, self.refused) = (Some(kept_bytes), found.used_bytes, None);
                self.settled_bytes = found.is_settled.then_some(asked_bytes);
                let was_changed = known_bytes.is_some() && found.before_bytes != known_bytes;
                let was = found
                    .before_bytes
                    .map_or_else(|| "lifted".to_owned(), |bytes| format!("set to {}", format_bytes(bytes)));
                was_changed.then(|| {
                    format!(
                        "had its memory limit in the driver {was} by somebody; it is {} again",
                        format_bytes(kept_bytes)
                    )
                })
            }
            Err(refusal) => {
                // Who does not answer for a moment has lifted nothing; a call that was given up may be carried out yet.
                self.settled_bytes = None;
                if !matches!(refusal, LimitRefusal::Other(_) | LimitRefusal::Unanswered) {
                    self.kept_bytes = None;
                }
                let is_news = self.refused.replace(refusal.clone()).as_ref() != Some(&refusal);
                // What is so on the whole host is no news of a container, a cgroup that has ended needs none, and of a GPU that
                // does not answer others tell.
                let is_usual = refusal.is_of_host() || matches!(refusal, LimitRefusal::Gone | LimitRefusal::Unanswered);
                let by = if has_shims { "by its shims alone" } else { "by nobody" };
                (is_news && !is_usual).then(|| format!("has its memory cap kept {by}: {refusal}"))
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
        Ok(FoundLimit { kept_bytes, before_bytes, is_settled: true, used_bytes: 0 })
    }

    fn held(kept_bytes: u64, before_bytes: u64) -> Result<FoundLimit, LimitRefusal> {
        Ok(FoundLimit {
            kept_bytes: Some(kept_bytes),
            before_bytes: Some(before_bytes),
            is_settled: false,
            used_bytes: 0,
        })
    }

    #[test]
    fn who_changes_a_limit_is_told_of_and_who_changes_a_cap_is_not() {
        let mut note = MemoryLimitNote::default();
        let mut now_ns = 0;
        let mut take = |note: &mut MemoryLimitNote, asked, outcome| {
            now_ns += 100 * SECOND;
            note.take(now_ns, (asked, true), outcome)
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
        assert_eq!(take(&mut note, GIB, held(5 * GIB, 6 * GIB)), None);
        assert!(note.is_unsettled() && note.known_bytes(GIB).is_none());
        assert_eq!(take(&mut note, GIB, held(3 * GIB, 5 * GIB)), None);
        assert_eq!(take(&mut note, GIB, found(Some(GIB), Some(3 * GIB))), None);
        // A call that was given up has been carried out after all.
        assert_eq!(take(&mut note, 2 * GIB, Err(LimitRefusal::Unanswered)), None);
        assert_eq!(take(&mut note, GIB, found(Some(GIB), Some(2 * GIB))), None);
    }

    #[test]
    fn who_changes_it_again_and_again_is_told_of_ever_more_rarely() {
        let mut note = MemoryLimitNote::default();
        note.take(0, (GIB, true), found(Some(GIB), None));
        let mut at = |second| note.take(second * SECOND, (GIB, true), found(Some(GIB), None)).is_some();
        let told = (1..=60).filter(|second| at(*second)).count();
        assert!((2..10).contains(&told), "{told} of 60");
    }

    #[test]
    fn why_the_driver_does_not_keep_a_cap_is_told_once_and_what_is_usual_is_not() {
        let mut note = MemoryLimitNote::default();
        let mut now_ns = 0;
        let mut take = |outcome| {
            now_ns += 100 * SECOND;
            (note.take(now_ns, (1, now_ns < 900 * SECOND), outcome), note.kept_bytes())
        };
        let told = |took: (Option<String>, Option<u64>)| took.0.unwrap();
        assert_eq!(take(Err(LimitRefusal::NoFunction)).0, None);
        assert_eq!(take(Err(LimitRefusal::NotSupported)).0, None);
        let text = told(take(Err(LimitRefusal::NoController)));
        assert!(text.contains("by its shims alone: its cgroup has no dmem.max"), "{text}");
        assert_eq!(take(Err(LimitRefusal::NoController)).0, None);
        assert!(told(take(found(None, None))).contains("keeps none"));
        assert_eq!(take(found(Some(1), None)), (None, Some(1)));
        assert_eq!(take(Err(LimitRefusal::Unanswered)), (None, Some(1)));
        assert!(matches!(take(Err(LimitRefusal::Other("an unknown error".into()))), (Some(_), Some(1))));
        assert!(told(take(Err(LimitRefusal::NoController))).contains("kept by nobody"), "it has no shims");
        assert_eq!((note.kept_bytes(), note.refused()), (None, Some(&LimitRefusal::NoController)));
    }
}
