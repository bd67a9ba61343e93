//! Starting up in order: configuration, one instance, GPUs, privileges given up, gates, leases that were, and the socket last.

use crate::absent_driver;
use crate::attendant::Mailbox;
use crate::audit;
use crate::bell::Bell;
use crate::budgets;
use crate::compute_modes::ComputeModes;
use crate::context_cost::ContextCosts;
use crate::counted::HostSeal;
use crate::device::{DriverFiles, Found, NvmlInventory, Roster, Served, StartPatience, with_places};
use crate::drains::Drains;
use crate::events::{About, Events};
use crate::gatekeeper;
use crate::gpu_tests::GpuTests;
use crate::guard::Guard;
use crate::health::{self, Healths};
use crate::http::Listener;
use crate::late_boards::{self, LateBoards};
use crate::lease::{self, Changes, KnownCgroups, Leases, Leftovers, Outsiders};
use crate::ledger::{self, Ledger};
use crate::log::Priority;
use crate::memory_limits::{self, MemoryLimits};
use crate::metrics::Counters;
use crate::mps::Groups;
use crate::occupants::Occupants;
use crate::overflow::{self, Short};
use crate::overrides::Overrides;
use crate::region::{self, Mounts};
use crate::settings::Settings;
use crate::silence::{self, Silence};
use crate::sites::{LinkWatch, Sites};
use crate::sole::Sole;
use crate::suspension;
use crate::time_slices::{self, Verdicts};
use crate::watchdog::{self, Progress};
use crate::watchers::Watchers;
use crate::xids::{self, Xids};
use crate::{
    clock, last_configuration, log, mig, mps, openings, privilege, procfs, reload, sampler, service_manager, stopping,
    told,
};
use clap::{CommandFactory, Parser};
use gpool_policy::TenantId;
use gpool_policy::slice::ServerSet;
use gpool_protocol::EventKind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// The gpool host daemon: grants shares of GPUs to containers, paces them and accounts for them.
#[derive(Parser)]
#[command(version = gpool_protocol::version())]
struct Arguments {
    /// Configuration file; one that is not there is an empty one
    #[arg(long, value_name = "FILE", default_value = gpool_configuration::DEFAULT_PATH)]
    config: PathBuf,
    /// Check the configuration and exit
    #[arg(long)]
    check_config: bool,
    /// Mount regions for a supervisor that has a mount namespace of its own, and do nothing else
    #[arg(long, conflicts_with = "check_config")]
    mount_regions: bool,
    /// Become the MPS daemon that a supervisor has made folders for, and do nothing else
    #[arg(long, value_name = "ID", conflicts_with_all = ["check_config", "mount_regions"])]
    mps_daemon: Option<String>,
    /// Keep the GPU busy that CUDA_VISIBLE_DEVICES names, by kernels of so many rounds, for a supervisor that tries time
    /// slices, and do nothing else
    #[arg(long, value_name = "ROUNDS", conflicts_with_all = ["check_config", "mount_regions", "mps_daemon"])]
    time_slice_load: Option<u64>,
    /// Move processes to the host's memory or back by the driver's checkpoint calls, for a supervisor that suspends a lease, and do nothing
    /// else: "suspend" or "resume", and their pids with their start times
    #[arg(long, num_args = 2.., value_names = ["WAY", "PID:START"], conflicts_with_all = ["check_config", "mount_regions", "mps_daemon"])]
    checkpoint: Vec<String>,
}

/// The command line, for the manual, the man page and their tests.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command().name("gpool-supervisor")
}

/// What stays the same for the life of this process.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// Unix time of the start, milliseconds.
    pub started_unix_ms: u64,
}

/// Exit status for a configuration that cannot be used, as sysexits has it.
const CONFIGURATION_INVALID: u8 = 78;

/// NVML and a host full of sick boards may take so long. The service manager would end a start that it waits for, and the next
/// one would not be faster.
const NVML_PATIENCE: Duration = Duration::from_secs(180);
/// What a board may take for its first answer while containers wait for their supervisor.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);

/// No board that could be served has answered yet: nothing works without one, and the next start would not be faster.
const FIRST_PATIENCE: Duration = Duration::from_secs(60);

/// How long a start waits for boards. What runs is unpaced meanwhile, and starts of containers wait for a few seconds only: while
/// there are containers, a board that does not answer is not waited for if another one does.
fn start_patience(is_waited_for: bool) -> StartPatience {
    let (to_answer, to_come_back) = match is_waited_for {
        true => (ANSWER_PATIENCE, Duration::ZERO),
        false => (silence::PATIENCE, silence::PATIENCE),
    };
    StartPatience { to_answer, to_come_back, for_the_first: FIRST_PATIENCE }
}

/// Runs the supervisor until it is told to stop, or killed.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(rounds) = arguments.time_slice_load {
        return time_slices::load(rounds);
    }
    if let [way, pids @ ..] = arguments.checkpoint.as_slice() {
        return suspension::call_driver(way, pids);
    }
    // Who only looks wants to know.
    let loaded = match arguments.check_config {
        true => gpool_configuration::load(&arguments.config).map(|configuration| (configuration, None)),
        false => last_configuration::load_or_last(&arguments.config),
    };
    let (configuration, unusable) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            log::line(Priority::Error, format_args!("{error} [GPOOL-E004]"));
            return ExitCode::from(CONFIGURATION_INVALID);
        }
    };
    if arguments.check_config {
        return ExitCode::SUCCESS;
    }
    if let Some(id) = arguments.mps_daemon {
        log::line(Priority::Error, format_args!("{}", mps::become_daemon(&configuration, &id)));
        return ExitCode::FAILURE;
    }
    let (driver, socket) = (configuration.driver.clone(), configuration.socket.path.clone());
    let served = match arguments.mount_regions {
        true => region::mount_for_others(&configuration.paths.run_dir),
        false => {
            let settings = Settings::new(arguments.config, configuration);
            if let Some(error) = unusable {
                log::line(
                    Priority::Error,
                    format_args!(
                        "started with the configuration that was taken over last, since the files cannot be used: {error} [GPOOL-E004]"
                    ),
                );
                settings.note_unusable(Some(error.to_string()));
            }
            run(settings)
        }
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::line(Priority::Error, format_args!("{error}"));
            let is_without_driver = !arguments.mount_regions && absent_driver::is_so(&driver);
            if is_without_driver {
                log::line(
                    Priority::Error,
                    format_args!(
                        "no driver is loaded; under systemd gpool-driver.service starts this again when one is, and once a minute, if it is enabled"
                    ),
                );
                absent_driver::turn_away(&socket);
            }
            log::finish();
            if is_without_driver { ExitCode::from(absent_driver::STATUS) } else { ExitCode::FAILURE }
        }
    }
}

/// A descriptor for each process and three for each lease: as many as the host allows.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    // Refused only where it is not needed: the soft limit may always rise to the hard one.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

fn run(settings: Settings) -> Result<(), Box<dyn std::error::Error>> {
    let configuration = settings.current();
    // Before the first thread, so that none is ended by it.
    let hangup = reload::block_hangup()?;
    raise_descriptor_limit();
    let identity = Identity { started_unix_ms: clock::unix_ms() };
    lease::prepare(&configuration.paths.run_dir)?;
    let mounts = Mounts::of(&configuration.paths.run_dir)?;
    let sole = Sole::take(&configuration.paths.run_dir)?;

    let files = DriverFiles::find(&configuration)?;
    service_manager::starting_takes(NVML_PATIENCE);
    let boot_id = procfs::boot_id()?;
    let run_dir = &configuration.paths.run_dir;
    let are_awaited = late_boards::are_awaited(run_dir);
    let patience = start_patience(!are_awaited && lease::any_may_live(run_dir, &boot_id));
    let driver = &configuration.driver;
    let inventory = NvmlInventory::open(&driver.nvml, &files.kept_nvml(), Served::of(driver), &patience)?;
    let Found { gpus, silent, absent } = inventory.gpus_at_start(patience.to_come_back)?;
    let gpus = with_places(gpus, ServerSet::LIMIT)?;
    // Instances may come while it runs.
    let places = if inventory.boards().is_empty() { gpus.len() } else { ServerSet::LIMIT };
    match configuration.policy.mps && mps::starts_detached() {
        true => privilege::keep_what_daemons_need()?,
        false => privilege::keep_what_is_needed()?,
    }
    log::start()?;
    let mailbox = Mailbox::new()?;
    let (post, waker) = (mailbox.post(), mailbox.post());
    let (gatekeeper, _thread) = gatekeeper::start(places, move |notice| post.put(notice))?;
    let counters = |value: u64| (0..places).map(|_| AtomicU64::new(value)).collect::<Vec<_>>();
    let leases = Arc::new(Leases {
        may_not_take: AtomicBool::new(false),
        context_bytes: counters(configuration.driver.context_bytes),
        foreign_bytes: counters(0),
        occupants: Occupants::new(places),
        outsiders: Outsiders::default(),
        known_cgroups: KnownCgroups::default(),
        compute_modes: ComputeModes::new(places),
        sites: Sites::default(),
        silence: Silence::new(places, silent),
        seal: HostSeal::new(&configuration.paths.state_dir),
        drains: Drains::open(&configuration.paths.state_dir),
        changes: Changes::open(&configuration.paths.state_dir),
        overrides: Overrides::open(&configuration.paths.state_dir),
        short: Short::open(&configuration.paths.state_dir),
        xids: Xids::open(&configuration.paths.state_dir),
        healths: Healths::open(&configuration.paths.state_dir),
        gpu_tests: GpuTests::open(&configuration.paths.state_dir),
        watchers: Watchers::default(),
        used_bytes: counters(0),
        guarded: Mutex::default(),
        unleased: Mutex::default(),
        leftovers: Leftovers::default(),
        next_tenant: AtomicU64::new(TenantId(1).0),
        counters: Counters::default(),
        ledger: Ledger::default(),
        groups: Groups::default(),
        time_slices: Verdicts::open(&configuration.paths.state_dir, run_dir, &boot_id),
        memory_limits: MemoryLimits::default(),
        suspensions: Bell::default(),
        mounts,
        progress: Progress::default(),
        book: Mutex::default(),
        ended: Condvar::new(),
        watch_changed: Box::new(move || waker.wake()),
        events: Arc::new(if configuration.audit.is_kept() { Events::for_the_audit() } else { Events::default() }),
        audit: audit::Figures::default(),
        boot_id,
        settings,
        roster: Roster::new(gpus, places),
        inventory,
        dividing: Mutex::default(),
        files,
        gatekeeper,
    });
    if leases.configuration().audit.is_kept() {
        let written = leases.clone();
        std::thread::Builder::new().name("audit".into()).spawn(move || audit::keep(&written))?;
    }
    stopping::watch(&leases)?;
    let message = format!("started with {} GPU(s)", leases.gpus().len());
    leases.events.note(EventKind::SupervisorStarted, About::default(), message);
    silence::tell_left_out(&leases);
    silence::tell_absent(&leases, &absent);
    mps::take_over(&leases);
    lease::take_over(&leases)?;
    leases.take_queue_over();
    leases.book().queue.put_first(leases.overrides.holders(clock::unix_ms()));
    overflow::tend(&leases);
    // Before the first container: it may want an instance.
    mig::after_boot(&leases);
    // Before the first request: what others hold cannot be promised.
    let mut costs = ContextCosts::new(places, leases.configuration().driver.context_bytes);
    sampler::note_memory(&leases, &leases.inventory, &mut costs);
    let mut links = LinkWatch::default();
    links.look(&leases);

    let guard = Guard::new(leases.files.gpu_devices(&leases.gpus()))?;
    let late_boards = LateBoards::new(are_awaited);
    let (attended, sampled) = (leases.clone(), leases.clone());
    std::thread::Builder::new().name("attendant".into()).spawn(move || mailbox.attend(&attended))?;
    std::thread::Builder::new()
        .name("sampler".into())
        .spawn(move || sampler::sample(&sampled, (late_boards, links), costs, guard))?;
    openings::watch(&leases)?;
    xids::watch(&leases)?;
    health::watch(&leases)?;
    if leases.configuration().policy.mps || !leases.groups.all().is_empty() {
        let watched = leases.clone();
        std::thread::Builder::new().name("mps".into()).spawn(move || mps::watch(&watched))?;
    }
    // Also for leases of an earlier life, where the configuration wants no more of them.
    let has_shares = leases.book().leases.values().any(|lease| lease.record.is_kept_by_hardware());
    if leases.configuration().policy.timeslice_shares || has_shares {
        leases.time_slices.take_over(&leases.gpus());
        let (tested, kept) = (leases.clone(), leases.clone());
        std::thread::Builder::new().name("slice-test".into()).spawn(move || time_slices::test_all(&tested))?;
        std::thread::Builder::new().name("slices".into()).spawn(move || time_slices::keep(&kept))?;
    }
    if leases.configuration().ledger.is_kept() {
        let entered = leases.clone();
        std::thread::Builder::new().name("ledger".into()).spawn(move || ledger::keep(&entered))?;
    }
    let limited = leases.clone();
    std::thread::Builder::new().name("memory-limits".into()).spawn(move || memory_limits::keep(&limited))?;
    let moved = leases.clone();
    std::thread::Builder::new().name("suspension".into()).spawn(move || suspension::keep(&moved))?;
    // Also without a ledger, which leaves nobody beyond a budget of an earlier life.
    let kept = leases.clone();
    std::thread::Builder::new().name("budgets".into()).spawn(move || budgets::keep(&kept))?;
    let of_changes = leases.clone();
    std::thread::Builder::new().name("told".into()).spawn(move || told::keep(&of_changes))?;
    let reloaded = leases.clone();
    std::thread::Builder::new().name("reload".into()).spawn(move || reload::at_each(&hangup, &reloaded))?;
    let listener = Listener::open(&leases.configuration().socket.path, sole.has_replaced)?;
    if let Some(patience) = service_manager::watchdog_patience() {
        let watched = leases.clone();
        std::thread::Builder::new().name("watchdog".into()).spawn(move || watchdog::watch(&watched, patience))?;
    }
    service_manager::ready(&format!("{} GPU(s), {} lease(s)", leases.gpus().len(), leases.book().leases.len()));
    listener.serve(&leases, identity);
    Ok(())
}
