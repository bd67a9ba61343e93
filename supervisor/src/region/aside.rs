//! Calls that a container may hold up within the kernel, made by threads that nobody waits for.
//!
//! Opening, reading, writing and closing a FIFO take a lock of its pipe, and writing to a file one of its inode. The kernel keeps
//! that lock while it copies from or to the memory of whoever else calls, and what is behind that memory may be a file server of
//! that one's own (FUSE), or a fault that he is to serve himself (userfaultfd(2)): it may never answer. Neither O_NONBLOCK nor
//! SIGKILL ends the wait for such a lock. Each lease has few of these calls under way at once, and each owner a bounded number: what
//! hangs of one owner keeps nobody waiting but himself.

use crate::clock;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// When no job has been begun for so long while some wait, whoever is at one hangs, and another thread goes on.
const PATIENCE_NS: u64 = 50_000_000;
/// The most threads. Beyond that nothing is done here before one comes back.
const THREADS: usize = 256;
/// The most of them that are at jobs of one owner.
const OF_ONE_OWNER: usize = 16;

/// Something that may hang.
type Job = Box<dyn FnOnce() + Send>;

/// Whose files they are at which jobs may hang, together with what else of his may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// A user without root, with all that he leases.
    User(u32),
    /// One lease of root's, which starts them for others: they have nothing to do with each other.
    Lease(u64),
}

impl Owner {
    /// That of a new lease of this user.
    pub fn of(uid: u32) -> Self {
        static LEASES: AtomicU64 = AtomicU64::new(0);
        if uid == 0 { Self::Lease(LEASES.fetch_add(1, Ordering::Relaxed)) } else { Self::User(uid) }
    }
}

struct Aside {
    jobs: VecDeque<(Owner, Job)>,
    /// How many threads are at jobs of whom.
    at_work: BTreeMap<Owner, usize>,
    /// Threads in all, and those of them that wait for a job: one at most.
    threads: usize,
    idle: usize,
    /// When a job was begun last, or came when there was none.
    moved_ns: u64,
    /// Whether it was told that all of them hang.
    is_told: bool,
}

/// Its lock is held for moments, and nothing is waited for meanwhile.
static ASIDE: Mutex<Aside> = Mutex::new(Aside {
    jobs: VecDeque::new(),
    at_work: BTreeMap::new(),
    threads: 0,
    idle: 0,
    moved_ns: 0,
    is_told: false,
});
static NEWS: Condvar = Condvar::new();

fn aside() -> MutexGuard<'static, Aside> {
    ASIDE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has `job` done soon, in turn; it is at files of `owner`.
pub fn ask(owner: Owner, job: impl FnOnce() + Send + 'static) {
    let mut aside = aside();
    if aside.next().is_none() {
        aside.moved_ns = clock::now_ns();
    }
    aside.jobs.push_back((owner, Box::new(job)));
    aside.tend();
    drop(aside);
    NEWS.notify_one();
}

/// Sees to it that jobs do not wait for a thread that hangs. To be called from time to time by somebody who does not.
pub fn tend() {
    aside().tend();
}

impl Aside {
    /// The place of the job that is to be begun next. Those of an owner who has as many threads at work as he may have wait for one of
    /// these, and hold nobody else's up.
    fn next(&self) -> Option<usize> {
        let at_work = |owner: &Owner| self.at_work.get(owner).copied().unwrap_or(0);
        self.jobs.iter().position(|(owner, _)| at_work(owner) < OF_ONE_OWNER)
    }

    fn begin_next(&mut self) -> Option<(Owner, Job)> {
        let (owner, job) = self.jobs.remove(self.next()?)?;
        *self.at_work.entry(owner).or_default() += 1;
        self.moved_ns = clock::now_ns();
        Some((owner, job))
    }

    fn end_one_of(&mut self, owner: Owner) {
        let left = self.at_work.remove(&owner).unwrap_or(0).saturating_sub(1);
        if left > 0 {
            self.at_work.insert(owner, left);
        }
    }

    fn tend(&mut self) {
        // Who waits for a job takes it.
        if self.idle > 0 || self.next().is_none() {
            return;
        }
        let stands = clock::now_ns().saturating_sub(self.moved_ns) > PATIENCE_NS;
        if self.threads == 0 || (stands && self.threads < THREADS) {
            // Without one the next who looks tries again.
            if std::thread::Builder::new().name("aside".into()).spawn(work).is_ok() {
                self.threads += 1;
                self.moved_ns = clock::now_ns();
            }
        } else if stands && self.threads >= THREADS && !self.is_told {
            self.is_told = true;
            log!(
                "{THREADS} calls to files of containers do not come back (their owners hold them up in the kernel; gpool audit show --kind breach names them): \
                 bells of other containers are not emptied and places of ended processes stay taken until they are ended"
            );
        }
    }
}

/// Does one job after the other. Of several threads that have come back one stays.
fn work() {
    let mut all = aside();
    loop {
        if let Some((owner, job)) = all.begin_next() {
            drop(all);
            job();
            all = aside();
            all.end_one_of(owner);
        } else if all.idle > 0 {
            all.threads -= 1;
            return;
        } else {
            all.idle += 1;
            all = NEWS.wait(all).unwrap_or_else(PoisonError::into_inner);
            all.idle -= 1;
        }
    }
}

/// Something that is done for one lease again and again: by one thread at a time, and once more if it is asked for meanwhile.
#[derive(Debug)]
pub struct Errand {
    owner: Owner,
    is_wanted: AtomicBool,
    is_queued: AtomicBool,
    /// Since when a thread is at it; 0 while none is.
    begun_ns: AtomicU64,
}

impl Errand {
    /// One at files of `owner`.
    pub fn new(owner: Owner) -> Self {
        let [is_wanted, is_queued] = [(); 2].map(|()| AtomicBool::new(false));
        Self { owner, is_wanted, is_queued, begun_ns: AtomicU64::new(0) }
    }

    /// Has `run` done for `whose`, to whom the errand `of` belongs.
    pub fn ask<T: Send + Sync + 'static>(whose: &Arc<T>, of: fn(&T) -> &Self, run: impl Fn(&T) + Send + 'static) {
        of(whose).is_wanted.store(true, Ordering::SeqCst);
        if !of(whose).is_queued.swap(true, Ordering::SeqCst) {
            Self::queue(whose.clone(), of, run);
        }
    }

    fn queue<T: Send + Sync + 'static>(whose: Arc<T>, of: fn(&T) -> &Self, run: impl Fn(&T) + Send + 'static) {
        ask(of(&whose).owner, move || {
            let errand = of(&whose);
            errand.begun_ns.store(clock::now_ns(), Ordering::SeqCst);
            errand.is_wanted.store(false, Ordering::SeqCst);
            run(&whose);
            errand.begun_ns.store(0, Ordering::SeqCst);
            errand.is_queued.store(false, Ordering::SeqCst);
            if errand.is_wanted.load(Ordering::SeqCst) && !errand.is_queued.swap(true, Ordering::SeqCst) {
                Self::queue(whose, of, run);
            }
        });
    }

    /// Whether a thread has been at it for so long.
    pub fn takes(&self, time: Duration) -> bool {
        let begun_ns = self.begun_ns.load(Ordering::SeqCst);
        begun_ns != 0 && u128::from(clock::now_ns().saturating_sub(begun_ns)) >= time.as_nanos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    /// Looks from time to time, as the gatekeeper does, until it is so.
    fn wait_until(is_so: impl Fn() -> bool) {
        let patience = Instant::now() + Duration::from_secs(30);
        while !is_so() {
            assert!(Instant::now() < patience, "it does not come to that");
            tend();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn jobs_do_not_wait_for_those_that_hang() {
        let (let_go, wait) = channel::<()>();
        let owner = Owner::of(0);
        ask(owner, move || wait.recv().unwrap_or_default());
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..100 {
            let done = done.clone();
            ask(owner, move || assert!(done.fetch_add(1, Ordering::SeqCst) < 100));
        }
        wait_until(|| done.load(Ordering::SeqCst) == 100);
        drop(let_go);
    }

    #[test]
    fn what_hangs_of_one_owner_keeps_only_his_own_waiting() {
        const JOBS: usize = 3 * OF_ONE_OWNER;
        assert_eq!(Owner::of(1000), Owner::of(1000));
        assert_ne!(Owner::of(0), Owner::of(0), "root starts them for others");
        let (held, counted) = (Arc::new(Mutex::new(())), Arc::new([(); 2].map(|()| AtomicUsize::new(0))));
        let hold = held.lock().unwrap();
        for _ in 0..JOBS {
            let (held, counted) = (held.clone(), counted.clone());
            ask(Owner::User(4711), move || {
                counted[0].fetch_add(1, Ordering::SeqCst);
                drop(held.lock());
                counted[1].fetch_add(1, Ordering::SeqCst);
            });
        }
        let [begun, ended] = &*counted;
        wait_until(|| begun.load(Ordering::SeqCst) == OF_ONE_OWNER);
        for uid in [0, 4712] {
            let done = Arc::new(AtomicBool::new(false));
            let its = done.clone();
            ask(Owner::of(uid), move || its.store(true, Ordering::SeqCst));
            wait_until(|| done.load(Ordering::SeqCst));
        }
        assert_eq!(begun.load(Ordering::SeqCst), OF_ONE_OWNER, "he has no more");
        drop(hold);
        wait_until(|| ended.load(Ordering::SeqCst) == JOBS);
        wait_until(|| !aside().at_work.contains_key(&Owner::User(4711)));
    }

    struct Counted {
        errand: Errand,
        times: AtomicUsize,
    }

    #[test]
    fn an_errand_is_run_by_one_thread_at_a_time_and_once_more_for_those_who_asked_meanwhile() {
        let whose = Arc::new(Counted { errand: Errand::new(Owner::of(0)), times: AtomicUsize::new(0) });
        let (let_go, wait) = channel::<()>();
        let ask = |run| Errand::ask(&whose, |its: &Counted| &its.errand, run);
        let run: Box<dyn Fn(&Counted) + Send> = Box::new(move |its| {
            its.times.fetch_add(1, Ordering::SeqCst);
            let _ = wait.recv();
        });
        ask(run);
        wait_until(|| whose.times.load(Ordering::SeqCst) == 1);
        assert!(!whose.errand.takes(Duration::from_secs(3600)));
        wait_until(|| whose.errand.takes(Duration::from_millis(10)));
        // What is asked for meanwhile is one run more, of what was asked for first.
        (0..5).for_each(|_| ask(Box::new(|_| unreachable!())));
        let_go.send(()).unwrap();
        wait_until(|| whose.times.load(Ordering::SeqCst) == 2);
        drop(let_go);
        wait_until(|| !whose.errand.is_queued.load(Ordering::SeqCst));
        assert_eq!(whose.times.load(Ordering::SeqCst), 2);
        assert!(!whose.errand.takes(Duration::ZERO), "nobody is at it");
    }
}
