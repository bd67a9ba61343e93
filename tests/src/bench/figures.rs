//! The figures: their names, their units, what was measured and what is promised.

use super::catalog::Figure;
use super::catalog::Promise::{self, AtLeast, AtMost, Nothing, Within};
use super::catalog::Reduce::{self, Median, P99, Quotient, Worst};

const fn simulated(
    name: &'static str,
    unit: &'static str,
    reduce: Reduce,
    promise: Promise,
    what: &'static str,
) -> Figure {
    Figure { name, unit, reduce, promise, is_simulated: true, what }
}

const fn host(name: &'static str, unit: &'static str, reduce: Reduce, promise: Promise, what: &'static str) -> Figure {
    Figure { name, unit, reduce, promise, is_simulated: false, what }
}

/// The one figure that a machine may not have: its kernel may not account for pressure.
pub const MACHINE: &str = "machine.cpu_wait";

/// All figures, in the order of the table.
pub const FIGURES: &[Figure] = &[
    simulated(
        "share.error_10s",
        "points",
        Median,
        AtMost(1.0),
        "worst deviation from 30/60/10 % over 10 s; native: the same tenants in plain containers",
    ),
    simulated("share.error_1s_mae", "points", Median, AtMost(2.0), "mean absolute error over windows of 1 s"),
    simulated(
        "share.work_delivered",
        "ratio",
        Median,
        AtLeast(0.95),
        "GPU time received over entitled, all three together",
    ),
    simulated(
        "share.work_delivered_min",
        "ratio",
        Median,
        Nothing,
        "the same of the tenant that received least of what it is entitled to",
    ),
    simulated(
        "share.ten_ninety",
        "ratio",
        Median,
        Within(0.95, 1.05),
        "received by a 10 % tenant over received by a 90 % tenant, times 9, over 8 s; native: plain containers",
    ),
    simulated(
        "share.seven_error_10s",
        "points",
        Median,
        AtMost(1.0),
        "worst deviation of seven tenants from 40/15/10/10/10/10/5 % over 10 s, kernels of 0.3 to 3 ms; \
         native: plain containers",
    ),
    simulated(
        "share.limit_030",
        "ratio",
        Median,
        Within(0.28, 0.32),
        "received by a busy tenant with fraction and limit 0.3 alone on the GPU, 3 s; native: a plain container",
    ),
    simulated(
        "share.graph_limit_050",
        "ratio",
        Median,
        Within(0.48, 0.52),
        "received by a tenant that launches graphs of 20 kernels of 0.25 ms with limit 0.5, alone, 3 s; \
         native: a plain container",
    ),
    simulated(
        "latency.p99_beside_batch",
        "ratio",
        Quotient("latency.p99_beside", "latency.p99_alone"),
        AtMost(1.5),
        "requests of 3 ms of work, Poisson with 30/s, of a latency tenant with 20 % beside busy batch tenants with 50 \
         and 30 %; native: plain containers",
    ),
    simulated("latency.p99_beside", "ms", P99, Nothing, "such a request beside the two; native: plain containers"),
    simulated("latency.p99_alone", "ms", P99, Nothing, "such a request alone on the GPU"),
    simulated("latency.p50_beside_batch", "ms", Median, Nothing, "the middle one beside the two"),
    simulated(
        "gpu.busy",
        "ratio",
        Median,
        AtLeast(0.95),
        "kernels executing while all three had work, aim 0.97; switches are not busy",
    ),
    simulated(
        "gpu.longest_gap",
        "ms",
        Worst,
        Nothing,
        "longest time without a kernel while two tenants or three had work, during all pauses; readings 1 ms apart",
    ),
    simulated(
        "lend.idle",
        "ratio",
        Median,
        AtLeast(0.95),
        "GPU time that the others used while the 60 % tenant was idle for 2 s",
    ),
    simulated(
        "lend.time",
        "ms",
        Median,
        AtMost(20.0),
        "last kernel of the idle tenant to the next one of another; readings 1 ms apart; \
         native: the idle tenant synchronises every 8 launches, or its queue would hold seconds of work",
    ),
    simulated("lend.p99", "ms", P99, Nothing, "the same"),
    simulated(
        "reclaim.p50",
        "ms",
        Median,
        Nothing,
        "the tenant wants again to its first kernel, up to 1 ms of it the tenant's own poll; native as in lend.time",
    ),
    simulated("reclaim.p99", "ms", P99, AtMost(20.0), "the same"),
    simulated(
        "update.effect",
        "ms",
        Worst,
        AtMost(1000.0),
        "gpool update to the start of the first window of 1 s within 2 points of the new shares; 0 when the change \
         was complete within 0.2 s",
    ),
    simulated(
        "kill.free",
        "ms",
        Worst,
        AtMost(1000.0),
        "SIGKILL to the container's init to no byte held at the device; native: plain containers",
    ),
    simulated("kill.slice", "ms", Worst, AtMost(1000.0), "its last kernel to the next one of another"),
    host(
        "gate.launch_added",
        "ns",
        Median,
        AtMost(8.0),
        "the gate before one launch, null driver, with the slow path once per 400 launches; native: an empty loop",
    ),
    host("gate.launch_added_mixed", "ns", Median, AtMost(8.0), "the same with 64 functions launched in turn"),
    host(
        "gate.graph_added",
        "ns",
        Median,
        AtMost(40.0),
        "the same before one launch of a graph of 25 us, with the slow path once per 40",
    ),
    host(
        "gate.copy_added",
        "ns",
        Median,
        AtMost(3.0),
        "the same before one copy of 64 KiB on the device, which passes",
    ),
    host(
        "gate.launch_two_threads",
        "ratio",
        Median,
        AtMost(1.1),
        "the hot path, thread CPU time per call with two threads, each on a processor of its own, over one; \
         native: a private atomic counter",
    ),
    host(
        "gate.launch_eight_threads",
        "ratio",
        Worst,
        Nothing,
        "the same with eight threads, with stacks of 8 MiB as pthreads have them, over one",
    ),
    host(
        "gate.burst_added",
        "ns",
        Median,
        Nothing,
        "the slow path behind the gate, once per burst of about 1 ms of GPU time, null driver",
    ),
    host(
        "gate.rest_added",
        "ns",
        Median,
        Nothing,
        "one launch, and a wait for it with which its burst rests, null driver",
    ),
    host(
        "alloc.pair_0",
        "ns",
        Median,
        AtMost(300.0),
        "cuMemAlloc and cuMemFree through the shim with the null driver behind it, nothing else allocated; native: the \
         null driver's own",
    ),
    host("alloc.pair_1k", "ns", Median, AtMost(300.0), "the same beside 1000 other allocations"),
    host("alloc.pair_10k", "ns", Median, AtMost(300.0), "the same beside 10,000"),
    simulated(
        "gate.launch_added_whole",
        "ns",
        Median,
        Nothing,
        "cuLaunchKernel through the shim in a container, thread CPU time; bursts are measured with the \
         simulated driver's events, which cost as much as a launch; \
         native: the simulated library's own in the same process",
    ),
    simulated(
        "gate.wait_added",
        "ns",
        Median,
        Nothing,
        "four cuLaunchKernel and a cuCtxSynchronize through the shim in a container, thread CPU time; native: the simulated \
         library's own in the same process",
    ),
    simulated(
        "gate.event_added",
        "ns",
        Median,
        Nothing,
        "cuLaunchKernel, cuEventRecord and a cuEventSynchronize for the event of three launches before, through the shim in a \
         container, thread CPU time; native: the simulated library's own in the same process",
    ),
    host(
        "shim.trampoline_added",
        "ns",
        Median,
        Nothing,
        "cuDriverGetVersion through the shim in a container; native: the library's own",
    ),
    host(
        "runtime.create_added",
        "ms",
        Median,
        AtMost(12.0),
        "gpool-runtime create with a request beside runc create without, whole processes; native: runc",
    ),
    host("runtime.passthrough_added", "ms", Median, AtMost(1.5), "gpool-runtime state beside runc state; native: runc"),
    host(
        "runtime.verbs_added",
        "ms",
        Median,
        AtMost(2.0),
        "the verb of runc that gpool-runtime adds most to, of state, list, ps, exec, pause with resume, and update; native: \
         that verb of runc",
    ),
    host("runtime.verbs_added_crun", "ms", Median, AtMost(2.0), "the same with crun; native: that verb of crun"),
    host(
        "runtime.create_added_crun",
        "ms",
        Median,
        AtMost(12.0),
        "gpool-runtime create with a request and crun beside crun create without, whole processes; native: crun",
    ),
    host(
        "lease.rate",
        "leases/s",
        Median,
        Nothing,
        "gpool-runtime create with a request and `/bin/true` as low-level runtime, 80 times, one after the other",
    ),
    host("lease.memory", "KiB", Median, Nothing, "resident memory of the supervisor that each of these leases adds"),
    host("size.runtime", "MiB", Median, Nothing, "gpool-runtime, static"),
    host("size.hook", "MiB", Median, Nothing, "gpool-hook, static"),
    host("size.supervisor", "MiB", Median, Nothing, "gpool-supervisor"),
    host("size.gpool", "MiB", Median, Nothing, "gpool"),
    host("size.wrapper_crates", "crates", Median, Nothing, "crates that gpool-runtime and gpool-hook are made of"),
    host(
        "runtime.start_200",
        "leases/s",
        Median,
        Nothing,
        "gpool-runtime run of `true` with a request, 200 times, one after the other; native: runc run without",
    ),
    host(
        "start.true_added",
        "us",
        Median,
        Nothing,
        "`true` in a leased container, from fork to its end, median of 200; native: in the same container under runc",
    ),
    host(
        "start.cuinit_added",
        "us",
        Median,
        AtMost(200.0),
        "a process that loads libcuda, calls cuInit and ends, median of 200; native: in the same container under runc",
    ),
    host(
        "start.shim_added",
        "us",
        Median,
        AtMost(200.0),
        "the same without containers, with a driver that does nothing and needs the libraries that NVIDIA's needs, median of \
         500; native: the driver alone",
    ),
    simulated(
        "handoff.p50",
        "us",
        Median,
        Nothing,
        "gate opened that was closed to the first launch behind it, three tenants competing; the supervisor's own \
         count, rounded up by at most a sixteenth",
    ),
    simulated("handoff.p99", "us", Median, Nothing, "the same, 99th percentile of each round"),
    host("supervisor.rss", "MiB", Median, AtMost(32.0), "resident memory with three tenants competing"),
    host("supervisor.cpu_idle", "ratio", Median, AtMost(0.01), "of one core, three idle leases, 10 s"),
    host("supervisor.cpu_busy", "ratio", Median, Nothing, "of one core, three tenants competing, 10 s"),
    host(
        MACHINE,
        "ratio",
        Median,
        Nothing,
        "time in which some process of this machine waited for a CPU (PSI), while the shares were measured: \
         what disturbs the figures above",
    ),
    host("decide.2", "ns", Median, Nothing, "one decision of the slice scheduler with 2 tenants that want"),
    host("decide.16", "ns", Median, Nothing, "the same with 16"),
    host("decide.128", "ns", Median, Nothing, "the same with 128"),
    host("decide.1000", "ns", Median, Nothing, "the same with 1000"),
    host("decide.growth", "ratio", Median, AtMost(12.0), "a decision with 1000 tenants over one with 2"),
    host(
        "mig.slices_before_refusal",
        "of 7",
        Median,
        AtLeast(5.8),
        "compute slices in use at the first refusal of MIG instances in random order (1g 40, 2g 30, 3g 20, 4g 10 %), \
         computed; native: the lowest start in place of the highest",
    ),
    host(
        "host.decide_128",
        "ratio",
        Median,
        Nothing,
        "of one core: all decisions for 16 GPUs with 8 busy tenants each and slices of 6 ms, CPU time over virtual time",
    ),
    host(
        "host.decide_gangs",
        "ratio",
        Median,
        Nothing,
        "of one core: the same where 12 of the busy tenants have 4 GPUs each, and 20 such tenants more are idle",
    ),
];
