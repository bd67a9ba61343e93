//! A lease whose processes are in the host's memory, or on their way: a call of the driver that has to do with a GPU would
//! not return before they are back, and nobody would know that their program wants that. So such a call is noticed before it is
//! made: its thread says that it waits, as one at the gate does, and stands here.

use crate::clock;
use crate::place::Place;
use crate::process::Process;
use crate::standing::Standing;
use core::sync::atomic::Ordering;
use gpool_shared_region::{Control, Demand};

impl Process {
    /// Called before each call of the driver that has to do with a GPU and does not stand at the gate. Returns when the lease is
    /// not suspended; at once to who can say nothing, since there is no place for it.
    #[inline(always)]
    pub fn touch(&self) {
        // SAFETY: null, or the supervisor's page, which is never unmapped.
        let page = unsafe { self.page.load(Ordering::Acquire).as_ref() };
        if page.is_some_and(Control::is_suspended) {
            self.stand_suspended();
        }
    }

    /// Touches, and then as [`Process::place`]: so many entry points begin.
    #[inline(never)]
    pub fn touched_place(&self) -> Option<&Place> {
        self.touch();
        self.place()
    }

    /// A supervisor that is away changes nothing: the driver would not let the call return either.
    #[cold]
    #[inline(never)]
    fn stand_suspended(&self) {
        // Who comes first takes a place for it. In a forked child, which has neither a place nor a driver, calls fail as ever.
        let Some(place) = self.place() else { return };
        // SAFETY: getpid cannot fail.
        if unsafe { libc::getpid() } != place.registration.process_id {
            return;
        }
        let mut standing = Standing::default();
        loop {
            // Before it is looked whether the lease is back: that is written first, and wakes by another word.
            let (word, now_ns) = (place.region.gate(), clock::now_ns());
            if !place.region.control().is_suspended() {
                standing.end(place, now_ns);
                break;
            }
            standing.begin(place, now_ns);
            // What was outstanding was to end before the lease was moved.
            place.say(Demand::Waiting, word.0, 0);
            standing.wait(place, word, now_ns);
        }
        // It says that nothing is wanted any more, unless somebody else waits: the program may go on without a launch.
        self.wake_watcher();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_driver::{
        CAPTURING, DEVICE, driver, one_at_a_time, process_behind, region, region_with_bell, watchers_rest,
    };
    use crate::futex;
    use crate::registration::Registration;
    use crate::{Admission, Bytes, Work};
    use gpool_driver_abi::cuda::CUstream;
    use gpool_shared_region::{Opening, Slot};
    use std::io::{PipeReader, Read, pipe};
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::time::{Duration, Instant};

    const STREAM: CUstream = 0x100 as CUstream;

    /// A process, what stands in its slot, its page, and what it rings. Its gate is closed.
    struct Tenant {
        process: &'static Process,
        slot: &'static Slot,
        control: &'static Control,
        heard: PipeReader,
        _bell: OwnedFd,
    }

    impl Tenant {
        fn new() -> Self {
            let (heard, bell) = pipe().unwrap();
            let region = region_with_bell(bell.as_raw_fd());
            let (slot, control) = (region.slot(0), region.control());
            Self { process: process_behind(region), slot, control, heard, _bell: bell.into() }
        }

        fn suspend(&self) {
            self.control.is_suspended.store(1, Ordering::Relaxed);
        }

        /// As a supervisor does: first this, then the word.
        fn resume(&self) {
            self.control.is_suspended.store(0, Ordering::Relaxed);
            self.turn();
        }

        /// The gate has another word, and stays closed.
        fn turn(&self) -> u32 {
            let word = self.control.close_gate();
            futex::wake(&self.control.gate, i32::MAX);
            word.0
        }

        fn demand(&self) -> Demand {
            Demand::from_word(self.slot.demand.load(Ordering::Acquire))
        }

        fn waiters(&self) -> u32 {
            self.slot.waiters.load(Ordering::Acquire)
        }

        /// Whether it says that it waits for this word, and that nothing is outstanding.
        fn waits_for(&self, word: u32) -> bool {
            let end_ns = self.slot.estimated_end_ns.load(Ordering::Relaxed);
            let said = self.slot.demand_word.load(Ordering::Relaxed);
            (self.demand(), said, end_ns) == (Demand::Waiting, word, 0)
        }

        /// How often it has rung since this was asked last.
        fn rings(&self) -> usize {
            let mut waiting = 0;
            // SAFETY: a descriptor of ours, and a place for the answer.
            unsafe { libc::ioctl(self.heard.as_raw_fd(), libc::FIONREAD, &raw mut waiting) };
            let mut bytes = vec![1; waiting as usize];
            (&self.heard).read_exact(&mut bytes).unwrap();
            assert!(bytes.iter().all(|slot| *slot == 0));
            bytes.len()
        }
    }

    /// Ends the whole test program when the condition never comes, because scoped threads would wait too.
    fn until(condition: impl Fn() -> bool) {
        let start = Instant::now();
        while !condition() {
            if start.elapsed() > Duration::from_secs(300) {
                eprintln!("the condition never came");
                std::process::abort();
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    #[test]
    fn a_lease_that_is_there_is_touched_and_nothing_is_said() {
        let _order = one_at_a_time();
        Process::new().touch();
        let tenant = Tenant::new();
        tenant.process.touch();
        assert_eq!((tenant.demand(), tenant.waiters(), tenant.rings()), (Demand::Idle, 0, 0));
        assert_eq!(tenant.process.watcher_started.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_touch_waits_until_the_lease_is_back_and_wants_nothing_afterwards() {
        let _order = one_at_a_time();
        let tenant = Tenant::new();
        // Nobody is there, which opens no gate of the driver's.
        tenant.control.heartbeat_ns.store(1, Ordering::Relaxed);
        tenant.suspend();
        let word = tenant.turn();
        std::thread::scope(|scope| {
            let touching = scope.spawn(|| tenant.process.touch());
            until(|| tenant.waits_for(word));
            assert_eq!(tenant.waiters(), 1);
            until(|| tenant.rings() == 1);
            let word = tenant.turn();
            until(|| tenant.waits_for(word));
            until(|| tenant.rings() == 1);
            assert!(!touching.is_finished(), "another word alone is not the lease");
            clock::turn_ns(1000);
            tenant.resume();
            touching.join().unwrap();
        });
        assert_eq!((tenant.waiters(), tenant.slot.gate_wait_ns.load(Ordering::Relaxed)), (0, 1000));
        until(|| tenant.demand() == Demand::Idle);
        until(|| tenant.rings() == 1);
    }

    #[test]
    fn who_stands_at_the_gate_is_not_hidden_by_a_touch_that_has_ended() {
        let _order = one_at_a_time();
        let tenant = Tenant::new();
        std::thread::scope(|scope| {
            let launching = scope.spawn(|| tenant.process.admit(STREAM, Work::numbered(1)));
            until(|| tenant.waiters() == 1);
            tenant.suspend();
            let touching = scope.spawn(|| tenant.process.touch());
            until(|| tenant.waiters() == 2);
            tenant.resume();
            touching.join().unwrap();
            until(watchers_rest);
            assert_eq!((tenant.demand(), tenant.waiters()), (Demand::Waiting, 1));
            let until_ns = clock::now_ns() + 1_000_000_000;
            let (depth_ns, burst_ns) = (3_000_000, 1_000_000);
            let opening = Opening {
                until_ns,
                depth_ns,
                burst_ns,
                is_left_open: false,
                heeds_leaving: false,
                stands_alone: false,
            };
            tenant.control.open_gate(clock::now_ns(), opening);
            futex::wake(&tenant.control.gate, i32::MAX);
            assert!(matches!(launching.join().unwrap(), Admission::PassAlone(_)));
        });
    }

    #[test]
    fn nothing_is_wanted_only_once_nobody_stands() {
        let tenant = Tenant::new();
        let place = tenant.process.place().unwrap();
        let mut standing = Standing::default();
        standing.begin(place, 10);
        place.say(Demand::Waiting, 4, 0);
        assert!(!place.say_idle(4, 20));
        assert_eq!(tenant.demand(), Demand::Waiting);
        standing.end(place, 20);
        assert!(place.say_idle(4, 20) && !place.say_idle(4, 20), "once");
        assert_eq!(tenant.demand(), Demand::Idle);
    }

    #[test]
    fn the_watcher_wants_nothing_of_a_suspended_lease_and_asks_the_driver_nothing() {
        let _order = one_at_a_time();
        let tenant = Tenant::new();
        tenant.process.wake_watcher();
        until(watchers_rest);
        tenant.suspend();
        let asked = || {
            let device = DEVICE.lock();
            (device.records, device.questions, device.handles)
        };
        let before = asked();
        for _ in 0..20 {
            tenant.process.wake_watcher();
            until(watchers_rest);
        }
        assert_eq!((tenant.demand(), tenant.waiters(), tenant.rings()), (Demand::Idle, 0, 0));
        assert_eq!(asked(), before);
    }

    #[test]
    fn short_copies_and_what_is_captured_wait_too() {
        let _order = one_at_a_time();
        let tenant = Tenant::new();
        tenant.suspend();
        std::thread::scope(|scope| {
            let copying = scope.spawn(|| tenant.process.admit_bytes(STREAM, Bytes::Copy, 1));
            let capturing = scope.spawn(|| tenant.process.admit(CAPTURING, Work::numbered(1)));
            until(|| tenant.waiters() == 2);
            assert!(!copying.is_finished() && !capturing.is_finished());
            tenant.resume();
            assert_eq!(copying.join().unwrap(), Admission::Pass);
            assert_eq!(capturing.join().unwrap(), Admission::Pass, "the gate is still closed");
        });
        until(|| tenant.demand() == Demand::Idle);
    }

    #[test]
    fn a_forked_child_waits_for_nothing() {
        let _order = one_at_a_time();
        let tenant = Tenant::new();
        tenant.suspend();
        tenant.process.forked();
        tenant.process.touch();
        // One that was made past glibc, which tells nobody.
        let region = region();
        region.control().is_suspended.store(1, Ordering::Relaxed);
        let process: &'static Process = Box::leak(Box::new(Process::new()));
        let slot = region.slot(0);
        process.adopt(Place::new(region, Registration { slot: 0, process_id: 1, number: 1 }, driver()));
        process.touch();
        assert_eq!((tenant.waiters(), slot.waiters.load(Ordering::Relaxed)), (0, 0));
    }
}
