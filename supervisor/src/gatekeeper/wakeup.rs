//! Waiting for bells, orders and a point in time at once.

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::pipe::PipeFlags;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Token of the order channel; tenants' tokens are their ids, which start at 1.
const ORDERS: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;
/// Bells taken in one wait; the rest come with the next.
const EVENTS: usize = 64;

/// Once for what is written meanwhile, read or not.
const WRITTEN: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ET);

/// Whether the kernel tells of what is written into a pipe that is not empty. Linux 5.5 to 5.13 does not, but for later versions of
/// some of these (commit 3a34b13a88ca).
fn tells_each_write() -> io::Result<bool> {
    let (heard, rung) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &heard, epoll::EventData::new_u64(0), WRITTEN)?;
    let is_told = || -> io::Result<bool> {
        rustix::io::write(&rung, &[0])?;
        let mut places = [const { MaybeUninit::<epoll::Event>::uninit() }; 1];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        Ok(!epoll::wait(&epoll, &mut places, Some(&at_once))?.0.is_empty())
    };
    Ok(is_told()? && is_told()?)
}

/// Rung by other threads after they have sent an order.
#[derive(Clone)]
pub struct Doorbell(Arc<OwnedFd>);

impl Doorbell {
    /// Wakes the gatekeeper.
    pub fn ring(&self) {
        // A full counter is a rung bell.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// The gatekeeper's one place to wait.
pub struct Wakeup {
    epoll: OwnedFd,
    timer: OwnedFd,
    orders: Arc<OwnedFd>,
    armed_ns: Option<u64>,
    /// Whether each ring of a bell is told that holds something already.
    pub tells_each_ring: bool,
}

impl Wakeup {
    /// Nothing but orders to wait for yet.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let orders = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &*orders, epoll::EventData::new_u64(ORDERS), epoll::EventFlags::IN)?;
        Ok(Self { epoll, timer, orders, armed_ns: None, tells_each_ring: tells_each_write()? })
    }

    /// For other threads.
    pub fn doorbell(&self) -> Doorbell {
        Doorbell(self.orders.clone())
    }

    /// Waits for what is written into `fd` too, and for what it holds already; `token` says whose it is. It need not be read.
    pub fn watch(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), WRITTEN)?)
    }

    /// Waits for `fd` no longer.
    pub fn forget(&self, fd: impl AsFd) {
        // A descriptor that is closed is forgotten by the kernel.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits until something happens or until `at_ns`; fills `rung` with the tokens of rung bells.
    pub fn wait(&mut self, at_ns: Option<u64>, rung: &mut Vec<u64>) {
        if at_ns != self.armed_ns {
            self.armed_ns = at_ns;
            // Zero would disarm; the distant past fires at once.
            let value_ns = at_ns.map_or(0, |at_ns| at_ns.max(1));
            let it_value =
                Timespec { tv_sec: (value_ns / 1_000_000_000) as i64, tv_nsec: (value_ns % 1_000_000_000) as i64 };
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval, it_value });
        }
        rung.clear();
        let mut places = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        // An interrupted wait is an early return.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut places, None) else { return };
        let mut counter = [0u8; 8];
        for event in events {
            match event.data.u64() {
                TIMER => {
                    let _ = rustix::io::read(&self.timer, &mut counter);
                    self.armed_ns = None;
                }
                ORDERS => {
                    let _ = rustix::io::read(&*self.orders, &mut counter);
                }
                token => rung.push(token),
            }
        }
    }
}
