//! From the command line to the last line of the report.

use super::arrivals::Arrivals;
use super::context::Context;
use super::driver::Driver;
use super::latency::summary;
use super::memory::Holding;
use super::options::{Options, Part};
use super::work::{Shared, Worker};
use super::{
    OUTLIVES_ERRORS, beside, beyond, check, churn, fail, graphs, nvml, nvml_wrapped, place, programs, remembering, say,
    sharing, starts, storm,
};
use clap::Parser;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use serde_json::json;
use std::ffi::c_int;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Runs the program with the process's arguments.
pub fn run() -> ExitCode {
    let options = Options::parse();
    OUTLIVES_ERRORS.store(options.outlive_errors, Relaxed);
    if let Some(times) = options.monitor {
        nvml::monitor(times);
        return ExitCode::SUCCESS;
    }
    if let Some(times) = options.monitor_by_crate {
        nvml_wrapped::monitor(times);
        return ExitCode::SUCCESS;
    }
    if options.time_starts {
        return starts::time();
    }
    if options.only_start {
        let driver = Driver::load();
        // SAFETY: takes no pointer.
        check("cuInit", unsafe { (driver.init)(0) });
        return ExitCode::SUCCESS;
    }
    if options.take_place {
        return place::take();
    }
    if let Some(part) = &options.erase {
        return erase(part);
    }
    if let Some(kills) = options.storm {
        storm::rage(kills, options.seed);
        return ExitCode::SUCCESS;
    }
    let _slow = options.slow_end_mib.map(slow_to_close);
    let driver = Driver::load();
    let contexts = contexts(&options, &driver);
    if let Some(way) = options.share {
        sharing::share(&options, &driver, way);
    }
    if let Some(way) = options.open {
        sharing::open(&options, &driver, way);
    }
    if let Some(kind) = options.program {
        programs::load(&options, &driver, &contexts, kind);
    }
    if let Some(mib) = options.remember {
        remembering::remember(&options, &driver, &contexts[0], mib);
    }
    if options.beyond {
        beyond::go(&options, &driver, &contexts[0]);
    }
    if let Some(steps) = &options.graphs {
        graphs::run(&driver, steps);
        return ExitCode::SUCCESS;
    }
    // Memory is told of and held in the first context of each GPU.
    let of_gpus: Vec<&Context> = contexts.iter().step_by(options.contexts.get() as usize).collect();
    for context in &of_gpus {
        context.enter();
        context.report_memory();
    }
    if options.nvml {
        nvml::report();
    }
    if let (Some(library), Some(mib)) = (&options.beside, options.beside_mib) {
        beside::take(&driver, library, mib << 20);
    }
    if let Some(pause_us) = options.churn {
        churn::churn(&options, &contexts[0], pause_us);
    }
    let shared = Shared::default();
    let mut latencies_us = std::thread::scope(|scope| {
        let places = contexts.iter().flat_map(|context| (0..options.threads).map(move |_| context));
        for (number, context) in (0..).zip(places) {
            let (options, shared) = (&options, &shared);
            scope.spawn(move || {
                let worker = Worker::prepare(options, context, shared);
                match options.request_rate {
                    Some(rate) => worker.work_on_requests(Arrivals::new(rate, options.seed.wrapping_add(number))),
                    None => worker.work_always(),
                }
            });
        }
        let holdings = of_gpus.iter().map(|context| Holding::new(&options, context)).collect();
        let latencies_us = watch(&options, holdings, &shared);
        shared.stopping.store(true, Relaxed);
        latencies_us
    });
    for context in &contexts {
        context.enter();
        context.synchronize();
    }
    if options.request_rate.is_some() {
        latencies_us.extend(shared.take_latencies_us());
        say(&json!({"event": "requests", "latency": summary(&latencies_us)}));
    }
    ExitCode::SUCCESS
}

/// A file that nobody else has, whose pages are freed when it is closed.
fn slow_to_close(mib: u64) -> OwnedFd {
    let made = memfd_create("slow", MemfdFlags::CLOEXEC)
        .and_then(|file| fallocate(&file, FallocateFlags::empty(), 0, mib << 20).map(|()| file));
    made.unwrap_or_else(|error| fail("--slow-end-mib", error.raw_os_error()))
}

/// The contexts to work in, those of one GPU after those of the other.
fn contexts<'a>(options: &Options, driver: &'a Driver) -> Vec<Context<'a>> {
    let mut gpus: c_int = 1;
    // SAFETY: the result goes to a live local.
    unsafe {
        check("cuInit", (driver.init)(0));
        if options.all_gpus {
            check("cuDeviceGetCount", (driver.device_count)(&mut gpus));
        }
    }
    let copy_bytes = options.copy_mib.map(|mib| (mib.get() as usize) << 20);
    let (contexts, only_copies) = (options.contexts.get(), options.only_copies);
    let create = |gpu| (0..contexts).map(move |_| Context::create(driver, gpu, copy_bytes, only_copies));
    (0..gpus).flat_map(create).collect()
}

/// Without a pause: what stands there for a moment may have been read.
fn erase(part: &Part) -> ExitCode {
    let zeros = vec![0; part.bytes];
    let written = File::options().write(true).open(&part.path).and_then(|file| {
        loop {
            file.write_all_at(&zeros, part.offset)?;
        }
    });
    let Err(error): Result<std::convert::Infallible, std::io::Error> = written;
    eprintln!("{}: {error}", part.path.display());
    ExitCode::FAILURE
}

/// Allocates what was asked for, then reports every second and tries again what was refused. Returns the latencies of
/// requests.
fn watch(options: &Options, mut holdings: Vec<Holding>, shared: &Shared) -> Vec<u64> {
    holdings.iter_mut().for_each(Holding::fill);
    let sums = |holdings: &[Holding]| {
        let sum = |figure: fn(&Holding) -> u64| holdings.iter().map(figure).sum::<u64>();
        (sum(|holding| holding.allocated_bytes), sum(|holding| holding.refused))
    };
    let (allocated, refused) = sums(&holdings);
    say(&json!({"event": "allocated", "bytes": allocated, "refused": refused}));
    let started = Instant::now();
    let mut retry_at = started + Duration::from_millis(options.retry_allocation_ms);
    let mut report_at = started + Duration::from_secs(1);
    let mut all_latencies_us = Vec::new();
    loop {
        std::thread::sleep(retry_at.min(report_at).saturating_duration_since(Instant::now()));
        let now = Instant::now();
        if now >= retry_at {
            retry_at = now + Duration::from_millis(options.retry_allocation_ms.max(1));
            holdings.iter_mut().for_each(Holding::allocate_more);
        }
        if now >= report_at {
            report_at += Duration::from_secs(1);
            let (allocated, refused) = sums(&holdings);
            let launched = shared.launched.load(Relaxed);
            let mut line =
                json!({"event": "progress", "launched": launched, "allocated": allocated, "refused": refused});
            if options.request_rate.is_some() {
                let latencies_us = shared.take_latencies_us();
                line["latency"] = summary(&latencies_us);
                all_latencies_us.extend(latencies_us);
            }
            say(&line);
            if options.seconds > 0 && started.elapsed().as_secs() >= options.seconds {
                return all_latencies_us;
            }
        }
    }
}
