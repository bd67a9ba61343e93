//! A bell for a thread that looks after something from time to time, and at once when somebody rings.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Who rings while nobody waits is heard by the next who does. Its lock is taken last of all.
#[derive(Debug, Default)]
pub struct Bell {
    is_rung: Mutex<bool>,
    rung: Condvar,
}

impl Bell {
    /// Wakes the one who waits.
    pub fn ring(&self) {
        *self.is_rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.rung.notify_all();
    }

    /// Waits until somebody rings, or for so long.
    pub fn wait(&self, patience: Duration) {
        let is_rung = self.is_rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.rung.wait_timeout_while(is_rung, patience, |is_rung| !*is_rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn who_rings_is_heard_once_also_by_who_comes_later() {
        let (bell, long) = (Bell::default(), Duration::from_secs(60));
        bell.ring();
        bell.ring();
        let begun = Instant::now();
        bell.wait(long);
        assert!(begun.elapsed() < long);
        let short = Duration::from_millis(20);
        let begun = Instant::now();
        bell.wait(short);
        assert!(begun.elapsed() >= short, "what was heard is over");
    }
}
