//! gpool's host daemon. It acts and never decides: decisions are `gpool-policy`'s.
//!
//! | room | what |
//! |---|---|
//! | `service` | starting up, in order |
//! | `http` | the socket: who may ask for what |
//! | `lease` | a share's life: grant, bind, change, end, and taking over after a restart |
//! | `gatekeeper` | the thread that opens gates; it waits for nobody |
//! | `region` | the files that a lease shares with its container |
//! | `attendant` | births and deaths of processes and containers |
//! | `hang` | containers of whose work nothing ends |
//! | `guard` | processes that use a GPU past the shims, and what each lease really holds |
//! | `openings` | word from the kernel that a GPU's device is opened, upon which the guard looks |
//! | `sampler` | NVML and charged time, once a second |
//! | `context_cost` | what a context costs beyond what the shim counts, by what several leases agree on |
//! | `sites` | which GPUs are linked with each other |
//! | `silence` | GPUs for which NVML does not answer any more |
//! | `drains` | GPUs that take no new leases because somebody said so, or of a fault of their own |
//! | `health` | what their own figures show to be wrong with GPUs |
//! | `gpu_tests` | who may test a GPU, and what follows of what a test finds |
//! | `watchers` | those who ask boards beside the sampler, and let go of them for who wants one to himself |
//! | `xids` | what goes wrong on GPUs by the driver's own word |
//! | `late_boards` | GPUs that answer for the first time when the supervisor has started |
//! | `foreign` | memory in use that is within no lease's promise |
//! | `occupants` | whom the device lists, so that the dead are buried when it has let go of them |
//! | `queue` | requests that wait for room |
//! | `preemptions` | lower priorities that make room for higher ones and for reservations |
//! | `quotas`, `budgets`, `reservations` | who may have how much, and what is kept for whom, as it is shown and told; `lease` keeps to it |
//! | `refusals` | which allocations were refused, and who has what they wanted |
//! | `audit` | every event, written down for good in chained lines |
//! | `ledger` | who was promised what and had it, written down for months |
//! | `baseline` | what containers and programs without a lease use |
//! | `auditor` | what leases report, against what the device saw |
//! | `settings`, `reload` | the configuration in force, and taking over a changed one |
//! | `privilege` | what root is given up once everything is set up |
//! | `device` | GPUs, the driver's files for a container, and the shims that go with them |
//! | `driver_watch` | whether the driver's libraries are still those of its kernel module |
//! | `compute_modes` | how many processes each GPU lets have contexts |
//! | `mig` | dividing GPUs, and seeing it when somebody else does |
//! | `mps` | the driver's MPS daemons: one for each team, user and set of GPUs |
//! | `suspension` | leases whose processes are in the host's memory while others have their room |
//! | `time_slices` | shares that the hardware keeps: the driver's time slices, tried, set and looked after |
//! | `service_manager` | what systemd is told and what it hands over |
//! | `metrics` | figures for Prometheus |
//! | `watchdog` | whether the work goes on, as systemd wants to know it |
//! | `sole` | that there is one supervisor |
//! | `stopping` | what is written down before it ends, when it is told to |
//! | `log` | lines on stderr |
//! | `faults` | what lasts is a line when it begins, and not at each try |
//! | `elf` | what a library exports, and which build it is |
//!
//! Locks: the book of leases is held while the gatekeeper is asked, never the other way round; the gatekeeper takes
//! no lock at all.

// A write to stderr that fails must end nothing; see `log`.
#![deny(clippy::print_stderr)]

#[macro_use]
mod log;

mod absent_driver;
mod attendant;
mod audit;
mod auditor;
mod baseline;
mod bell;
mod budgets;
mod cgroup;
mod clock;
mod compute_modes;
mod context_cost;
mod counted;
mod device;
mod drains;
mod driver_watch;
mod elf;
mod energy;
mod events;
mod faults;
mod foreign;
mod gatekeeper;
mod gpu_failures;
mod gpu_tests;
mod guard;
mod hang;
mod health;
mod http;
mod idle_leases;
mod last_configuration;
mod late_boards;
mod latencies;
mod lease;
mod ledger;
mod lost_contexts;
mod memory_limits;
mod metrics;
mod mig;
mod mps;
mod occupants;
mod openings;
mod overflow;
mod overrides;
mod preemptions;
mod privilege;
mod procfs;
mod queue;
mod quotas;
mod refusals;
mod region;
mod reload;
mod reservations;
mod revocation;
mod run_times;
mod sampler;
mod service;
mod service_manager;
mod settings;
mod shortages;
mod silence;
mod sites;
mod sole;
mod state_file;
mod stopping;
mod suspension;
mod time_slices;
mod told;
mod uncounted;
mod unlisted;
mod watchdog;
mod watchers;
mod xids;

pub use metrics::reference as metrics_reference;
pub use service::{command, main};
