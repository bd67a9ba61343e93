//! Slots of processes that have ended.
//!
//! What such a process held the device has back before its parent can know of its end, and the account only once the supervisor has
//! seen that and asked the device. A program that has others work for it and then takes their room itself must not be refused for
//! that: who is about to be waits for the supervisor.
//!
//! While no supervisor is there nobody would take it for free, nor the slot for his own: on an empty GPU the next one would be
//! refused. Who comes, and who is about to be refused, frees them, as the supervisor would.

use crate::clock;
use crate::futex::Mutex;
use crate::region::Region;
use crate::registration::lock_slot;
use core::sync::atomic::{AtomicU64, Ordering};
use gpool_shared_region::Slot;

/// Held by the one thread of this process that frees slots: to each other its threads do not lock them.
static FREEING: Mutex<()> = Mutex::new(());

/// How long what processes held that have ended is waited for. The supervisor mostly needs some milliseconds, and several hundred
/// while it looks at everything.
const WAIT_NS: u64 = 2_000_000_000;
/// It is looked so often whether it is there.
const LOOK_NS: u64 = 1_000_000;

/// Whom it was waited for in vain, as [`waiting_for`] says: a process that has ended may hang in the kernel with what it holds, and not
/// each refusal is to take that long.
static IN_VAIN: AtomicU64 = AtomicU64::new(0);

/// Waits until the account has back what processes held that have ended, `own` left out. Whether there were any.
#[cold]
#[inline(never)]
pub fn wait(region: &Region, own: &Slot) -> bool {
    let limit_ns = clock::now_ns() + WAIT_NS;
    let mut has_waited = false;
    loop {
        let number = waiting_for(region, own);
        if number == 0 || number == IN_VAIN.load(Ordering::Relaxed) {
            return has_waited;
        }
        has_waited = true;
        if clock::now_ns() >= limit_ns {
            IN_VAIN.store(number, Ordering::Relaxed);
        }
        clock::sleep_until_ns(clock::now_ns() + LOOK_NS);
        free(region, Some(own));
    }
}

/// A number for those that have ended and whose slots are not free yet; 0 if there are none.
fn waiting_for(region: &Region, own: &Slot) -> u64 {
    let taken = region.slots().filter(|slot| !core::ptr::eq(*slot, own));
    taken.fold(0, |sum, slot| match slot.registration.load(Ordering::Acquire) {
        number if number != 0 && is_ours(slot) => sum ^ number,
        _ => sum,
    })
}

/// Frees the slots of processes that have ended, if no supervisor is there; `own` is this process's, if it has one.
#[cold]
#[inline(never)]
pub fn free(region: &Region, own: Option<&Slot>) {
    if region.report_fd() < 0 || !region.supervisor_is_away(clock::now_ns()) {
        return;
    }
    let _freeing = FREEING.lock();
    for (index, slot) in region.slots().enumerate() {
        let number = slot.registration.load(Ordering::Acquire);
        let is_own = own.is_some_and(|own| core::ptr::eq(own, slot));
        if number == 0 || is_own || !lock_slot(region.report_fd(), index, libc::F_WRLCK) {
            continue;
        }
        // Another one may have freed it first, and the supervisor be back.
        let is_its = slot.registration.load(Ordering::Acquire) == number && region.supervisor_is_away(clock::now_ns());
        if is_its && is_ours(slot) {
            region.clear(index);
        }
        lock_slot(region.report_fd(), index, libc::F_UNLCK);
    }
}

/// Says in a slot that was just taken whose its number is. Until then, and where that is not known, nobody else frees it.
pub fn sign(slot: &Slot) {
    slot.pid_namespace.store(pid_namespace(), Ordering::Relaxed);
    slot.image.store(image(), Ordering::Relaxed);
}

/// The inode of this process's PID namespace, which the kernel gives in 32 bits; 0 without a procfs.
fn pid_namespace() -> u32 {
    // SAFETY: all-zero is a valid place for the answer.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    let path = c"/proc/self/ns/pid".as_ptr();
    // The system call itself: glibc has had a function of this name since 2.33 only, and the shim runs where an older one is.
    // SAFETY: a path with its end and a place for the answer.
    let result = unsafe { libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path, &raw mut found, 0) };
    if result == 0 { found.st_ino as u32 } else { 0 }
}

/// A number of what was executed last in this process, never 0: of the kernel's random bytes for it (AT_RANDOM, getauxval(3)), from which they
/// cannot be told (FNV-1a).
fn image() -> u32 {
    // SAFETY: getauxval cannot fail.
    let bytes = unsafe { libc::getauxval(libc::AT_RANDOM) } as *const u8;
    if bytes.is_null() {
        return 0;
    }
    // SAFETY: the kernel has put sixteen bytes there, which stay.
    let bytes = unsafe { core::slice::from_raw_parts(bytes, 16) };
    bytes.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)) | 1
}

/// Whether the slot of a process that holds no lock is free for whoever is here. The lock alone does not say so: a program that
/// closes descriptors wholesale has dropped it. Nor does the pid, of another PID namespace.
fn is_ours(slot: &Slot) -> bool {
    let (pid, namespace) =
        (slot.process_id.load(Ordering::Relaxed).cast_signed(), slot.pid_namespace.load(Ordering::Relaxed));
    if namespace == 0 || namespace != pid_namespace() {
        return false;
    }
    // SAFETY: getpid cannot fail.
    if pid == unsafe { libc::getpid() } {
        // Of the program before execve(2), and not of another copy of the shim in this one.
        return ![0, image()].contains(&slot.image.load(Ordering::Relaxed));
    }
    has_ended(pid)
}

/// Whether a process of this PID namespace has ended.
fn has_ended(pid: i32) -> bool {
    // The system calls themselves: a thread that is cancelled does not go here.
    // SAFETY: opens a descriptor, or fails.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32;
    if fd < 0 {
        // Linux before 5.3, or a filter of system calls, knows no such descriptors.
        // SAFETY: no signal is sent.
        let is_refused = pid > 0 && unsafe { libc::kill(pid, 0) } < 0;
        // SAFETY: glibc's errno of this thread.
        return is_refused && unsafe { *libc::__errno_location() } == libc::ESRCH;
    }
    // Also one that its parent has not waited for: it holds nothing any more.
    let mut ended = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live description of a descriptor; it is not waited for.
    let has_ended = unsafe { libc::syscall(libc::SYS_poll, &raw mut ended, 1usize, 0) } == 1;
    // SAFETY: it is ours.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    has_ended
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_driver::one_at_a_time;
    use crate::memory::{Charge, try_reserve, used_bytes};
    use crate::registration::{Registration, register};
    use gpool_shared_region::{Control, HEARTBEAT_STALE_NS, REPORT_BYTES};
    use std::fs::File;
    use std::io::{Read, Write, pipe};
    use std::os::fd::AsRawFd;

    /// A process that has registered and holds so much, without a supervisor.
    struct Child {
        pid: i32,
        /// It ends, or drops its lock, when it is told.
        orders: std::io::PipeWriter,
        answers: std::io::PipeReader,
    }

    impl Child {
        #[expect(clippy::disallowed_methods, reason = "a lock must be a process's that has this report mapped")]
        fn holding(region: &Region, bytes: u64) -> Self {
            let ((mut heard, orders), (answers, mut said)) = (pipe().unwrap(), pipe().unwrap());
            // SAFETY: the child goes through what follows alone, which takes no lock of another thread, and ends without clean-up.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: of a test that fails nothing is left.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                let is_held = register(region)
                    .is_ok_and(|its| try_reserve(region, region.slot(its.slot), 0, Charge::Bytes(bytes)));
                let mut order = [0];
                let _ = said.write_all(&[u8::from(is_held)]);
                while heard.read_exact(&mut order).is_ok() && order == [1] {
                    // SAFETY: closing any descriptor of the file drops the lock.
                    unsafe { libc::close(libc::dup(region.report_fd())) };
                    let _ = said.write_all(&[1]);
                }
                // SAFETY: ends the process.
                unsafe { libc::_exit(0) };
            }
            let mut child = Self { pid, orders, answers };
            child.is_done();
            child
        }

        fn is_done(&mut self) {
            let mut answer = [0];
            self.answers.read_exact(&mut answer).unwrap();
            assert_eq!(answer, [1]);
        }

        fn drop_lock(&mut self) {
            self.orders.write_all(&[1]).unwrap();
            self.is_done();
        }

        /// It has ended, and nobody has waited for it.
        fn end(self) -> i32 {
            (&self.orders).write_all(&[0]).unwrap();
            // SAFETY: all-zero is a valid place for the answer.
            let mut answer: libc::siginfo_t = unsafe { core::mem::zeroed() };
            // SAFETY: it stays as it is.
            let waited =
                unsafe { libc::waitid(libc::P_PID, self.pid as u32, &mut answer, libc::WEXITED | libc::WNOWAIT) };
            assert_eq!(waited, 0);
            self.pid
        }
    }

    fn reap(pid: i32) {
        // SAFETY: it is our child; how it ended does not matter.
        assert_eq!(unsafe { libc::waitpid(pid, core::ptr::null_mut(), 0) }, pid);
    }

    /// A lease of 1000 bytes, whose supervisor is there until `heartbeat_ns`.
    fn lease(file: &File) -> Region {
        file.set_len(REPORT_BYTES as u64).unwrap();
        let control: &'static Control = crate::fake_driver::region().control();
        control.memory_cap_bytes.store(1000, Ordering::Relaxed);
        Region::over(control, file.as_raw_fd())
    }

    #[test]
    fn what_processes_held_that_have_ended_is_free_while_no_supervisor_is_there() {
        let _order = one_at_a_time();
        let file = tempfile();
        let region = lease(&file);
        let [ended, mut living, zombie] = [500, 200, 300].map(|bytes| Child::holding(&region, bytes));
        let taken = || (0..4).map(|index| region.slot(index).registration.load(Ordering::Relaxed) != 0);
        let used = || used_bytes(&region, 0);
        assert_eq!((used(), taken().collect::<Vec<_>>()), (1000, vec![true, true, true, false]));
        reap(ended.end());
        region.control().heartbeat_ns.store(u64::MAX / 2, Ordering::Relaxed);
        free(&region, None);
        assert_eq!(used(), 1000, "the supervisor looks whether the device has it back");
        region.control().heartbeat_ns.store(0, Ordering::Relaxed);
        let own = register(&region).unwrap();
        assert_eq!((own.slot, used()), (0, 500), "who comes has its place");
        let slot = region.slot(own.slot);
        assert!(
            try_reserve(&region, slot, 0, Charge::Bytes(500)) && !try_reserve(&region, slot, 0, Charge::Bytes(300))
        );
        let zombie = zombie.end();
        assert!(try_reserve(&region, slot, 0, Charge::Bytes(300)), "nobody has waited for it, and it holds nothing");
        reap(zombie);
        living.drop_lock();
        assert!(!try_reserve(&region, slot, 0, Charge::Bytes(200)), "it has closed what it did not open, and lives");
        let namespace = region.slot(1).pid_namespace.fetch_add(1, Ordering::Relaxed);
        let pid = region.slot(1).process_id.swap(u32::MAX >> 1, Ordering::Relaxed);
        assert!(!try_reserve(&region, slot, 0, Charge::Bytes(200)), "of another PID namespace nothing is known");
        region.slot(1).pid_namespace.store(namespace, Ordering::Relaxed);
        region.slot(1).process_id.store(pid, Ordering::Relaxed);
        assert_eq!(taken().collect::<Vec<_>>(), [true, true, false, false]);
        reap(living.end());
        assert!(try_reserve(&region, slot, 0, Charge::Bytes(200)));
        assert_eq!((used(), taken().collect::<Vec<_>>()), (1000, vec![true, false, false, false]));
    }

    #[test]
    fn who_is_about_to_be_refused_waits_for_what_the_ended_held_and_for_nobody_twice_in_vain() {
        let _order = one_at_a_time();
        let file = tempfile();
        let region = lease(&file);
        let slot = region.slot(register(&region).unwrap().slot);
        let heartbeat = |ns| region.control().heartbeat_ns.store(ns, Ordering::Relaxed);
        let begun_ns = clock::now_ns();
        let waited_ns = || clock::now_ns() - begun_ns;
        // It is there for a second more: then the place is free, as where it frees that itself.
        heartbeat(begun_ns + 1_000_000_000 - HEARTBEAT_STALE_NS);
        let living = Child::holding(&region, 700);
        assert!(!wait(&region, slot) && waited_ns() == 0, "nobody has ended");
        let ended = living.end();
        assert!(wait(&region, slot) && try_reserve(&region, slot, 0, Charge::Bytes(700)));
        assert!((1_000_000_000..1_100_000_000).contains(&waited_ns()), "{}", waited_ns());
        reap(ended);
        heartbeat(u64::MAX / 2);
        let stuck = Child::holding(&region, 300).end();
        let before_ns = waited_ns();
        assert!(wait(&region, slot) && waited_ns() >= before_ns + WAIT_NS, "the device keeps what it held");
        let before_ns = waited_ns();
        assert!(!wait(&region, slot) && waited_ns() == before_ns, "the next one need not wait for it");
        let other = Child::holding(&region, 0).end();
        assert!(wait(&region, slot) && waited_ns() >= before_ns + WAIT_NS, "another one may be through soon");
        [stuck, other].into_iter().for_each(reap);
    }

    #[test]
    fn places_of_the_ended_are_taken_again_and_the_program_before_leaves_none() {
        let _order = one_at_a_time();
        let file = tempfile();
        let region = lease(&file);
        let before = Registration { slot: 0, ..register(&region).unwrap() };
        assert!(try_reserve(&region, region.slot(0), 0, Charge::Bytes(900)));
        // As execve(2) closes it, and as the same process registers again.
        // SAFETY: a duplicate of ours is closed.
        unsafe { libc::close(libc::dup(region.report_fd())) };
        let beside = register(&region).unwrap();
        assert_eq!((beside.slot, used_bytes(&region, 0)), (1, 900), "another copy of the shim in the same process");
        // SAFETY: a duplicate of ours is closed.
        unsafe { libc::close(libc::dup(region.report_fd())) };
        region.clear(1);
        region.slot(0).image.fetch_add(2, Ordering::Relaxed);
        let after = register(&region).unwrap();
        assert_eq!((after.slot, after.process_id, used_bytes(&region, 0)), (before.slot, before.process_id, 0));
        (0..200).for_each(|_| reap(Child::holding(&region, 1).end()));
    }

    fn tempfile() -> File {
        let path = std::env::temp_dir().join(format!("gpool-ended-{:?}", std::thread::current().id()));
        let file = File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file
    }
}
