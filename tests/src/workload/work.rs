//! What a launching thread does.

use super::arrivals::Arrivals;
use super::context::Context;
use super::options::{Options, WaitBy};
use super::say;
use serde_json::json;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// At most this many launches between two synchronisations of a thread.
const OUTSTANDING: u64 = 1000;
/// A thread that waits for a request looks so often whether the program ends.
const LOOK: Duration = Duration::from_millis(100);

/// What all threads share.
#[derive(Default)]
pub(super) struct Shared {
    /// Kernels, in graphs or not.
    pub(super) launched: AtomicU64,
    pub(super) stopping: AtomicBool,
    latencies_us: Mutex<Vec<u64>>,
}

impl Shared {
    /// The latencies of requests since the last call.
    pub(super) fn take_latencies_us(&self) -> Vec<u64> {
        std::mem::take(&mut *self.latencies_us.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }
}

/// One thread in its context.
pub(super) struct Worker<'a> {
    options: &'a Options,
    context: &'a Context<'a>,
    shared: &'a Shared,
    stream: *mut c_void,
    /// The graph and how many kernels it holds.
    graph: Option<(*mut c_void, u64)>,
    /// Device memory, if it waits by copying from there.
    copied_from: u64,
}

impl<'a> Worker<'a> {
    /// Prepares the calling thread. The default stream takes single kernels, an own one the graph.
    pub(super) fn prepare(options: &'a Options, context: &'a Context<'a>, shared: &'a Shared) -> Self {
        context.enter();
        let copied_from = if options.wait_by == WaitBy::Copy { context.allocate(4096) } else { 0 };
        let mut worker = Self { options, context, shared, stream: null_mut(), graph: None, copied_from };
        if let Some(kernels) = options.graph {
            let stream = context.create_stream();
            let launch = || (0..kernels.get()).for_each(|_| context.launch(stream, options.kernel_us * 1000));
            worker.graph = Some((context.capture(stream, launch), u64::from(kernels.get())));
            worker.stream = stream;
        }
        worker
    }

    /// Launches one piece of work and tells how many kernels it has.
    fn launch(&self) -> u64 {
        let kernels = match self.graph {
            Some((executable, kernels)) => {
                self.context.launch_graph(executable, self.stream);
                kernels
            }
            None => {
                self.context.launch(self.stream, self.options.kernel_us * 1000);
                1
            }
        };
        self.shared.launched.fetch_add(kernels, Relaxed);
        kernels
    }

    /// Waits while the pause file is there; true if it was.
    fn pause(&self) -> bool {
        let is_paused = || self.options.pause_file.as_ref().is_some_and(|path| path.exists());
        if !is_paused() {
            return false;
        }
        self.context.synchronize();
        while is_paused() && !self.shared.is_stopping() {
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Launches over and over until the program stops.
    pub(super) fn work_always(&self) {
        let batch = self.options.launch_batch.unwrap_or(OUTSTANDING).max(1);
        let mut since_synchronised = 0;
        while !self.shared.is_stopping() {
            if self.pause() {
                continue;
            }
            since_synchronised += self.launch();
            if since_synchronised >= batch {
                self.wait();
                since_synchronised = 0;
            }
        }
    }

    /// Waits for all work so far, as it is told to, and thinks for a while.
    fn wait(&self) {
        match self.options.wait_by {
            WaitBy::Context => self.context.synchronize(),
            WaitBy::Copy => self.context.copy_to_host(self.copied_from),
            WaitBy::Query => self.context.query_until_ended(),
        }
        let until = Instant::now() + Duration::from_micros(self.options.think_us);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }

    /// Works on requests until the program stops. A request's latency is the time from its arrival, not from when the
    /// thread came to it, until its work is complete: requests that come while another one is worked on wait.
    pub(super) fn work_on_requests(&self, mut arrivals: Arrivals) {
        let mut arrival = Instant::now() + arrivals.next_interval();
        while !self.shared.is_stopping() {
            if self.pause() {
                arrival = Instant::now() + arrivals.next_interval();
                continue;
            }
            let wait = arrival.saturating_duration_since(Instant::now());
            if !wait.is_zero() {
                std::thread::sleep(wait.min(LOOK));
                continue;
            }
            for _ in 0..self.options.request_pieces.get() {
                self.launch();
            }
            self.context.synchronize();
            let latency_us = arrival.elapsed().as_micros() as u64;
            say(&json!({"event": "request", "gpu": self.context.gpu, "latency_us": latency_us}));
            self.shared.latencies_us.lock().unwrap_or_else(PoisonError::into_inner).push(latency_us);
            arrival += arrivals.next_interval();
        }
    }
}
