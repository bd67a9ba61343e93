//! Those who ask boards for themselves, beside the sampler: all of them let go of their boards for who wants one to himself.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// While somebody has boards for himself, how often it is looked whether that is over.
pub const PAUSE_PERIOD: Duration = Duration::from_millis(100);
/// A watcher lets go of its board within the time for which it asks the driver at once, unless the board hangs.
const PAUSE_PATIENCE: Duration = Duration::from_secs(2);

/// Who watches, and who wants that nobody does.
#[derive(Debug, Default)]
pub struct Watchers {
    /// Those who want boards for themselves, as who divides them does.
    pausing: AtomicUsize,
    /// Watchers that have a board open.
    watching: AtomicUsize,
}

/// Nobody watches while it is there.
pub struct Pause<'a>(&'a Watchers);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.pausing.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Somebody has a board open while it is there.
pub struct Watching<'a>(&'a Watchers);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.watching.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Watchers {
    /// Has the watchers let go of their boards, and waits a while for it: whoever has a board open keeps it from being reset.
    pub fn pause(&self) -> Pause<'_> {
        self.pausing.fetch_add(1, Ordering::SeqCst);
        let deadline = Instant::now() + PAUSE_PATIENCE;
        while self.watching.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        Pause(self)
    }

    /// Whether somebody wants that nobody watches.
    pub fn is_paused(&self) -> bool {
        self.pausing.load(Ordering::SeqCst) > 0
    }

    /// For who is about to ask a board; none while nobody may.
    pub fn begin(&self) -> Option<Watching<'_>> {
        // Counted first: who pauses sees it, or is seen here.
        self.watching.fetch_add(1, Ordering::SeqCst);
        let watching = Watching(self);
        (!self.is_paused()).then_some(watching)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_watches_while_somebody_has_the_boards_for_himself() {
        let watchers = Watchers::default();
        let pause = watchers.pause();
        assert!(watchers.is_paused() && watchers.begin().is_none());
        let second = watchers.pause();
        drop(pause);
        assert!(watchers.begin().is_none(), "there is another one");
        drop(second);
        assert!(watchers.begin().is_some() && !watchers.is_paused());
        assert_eq!(watchers.watching.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn who_wants_a_board_waits_for_who_has_it_open() {
        let watchers = Watchers::default();
        let begun = watchers.begin().unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| drop(watchers.pause()));
            while !watchers.is_paused() {
                std::thread::yield_now();
            }
            assert!(!waits.is_finished());
            drop(begun);
        });
        assert!(!watchers.is_paused());
    }
}
