//! The command line.

mod audit;
mod baseline;
mod change;
mod charges;
mod config;
mod doctor;
mod events;
mod exec;
mod export;
mod forecast;
mod gpu;
mod history;
mod ids;
mod latency;
mod leases;
mod mig;
mod overflow;
mod overrides;
mod processes;
mod queue;
mod quota;
mod reservation;
mod savings;
mod scope;
mod seconds;
mod simulate;
mod sizes;
mod stats;
mod top;
mod usage;
mod wait;
mod when;
mod words;

pub use audit::{AuditPlace, AuditVerb, ShowOptions, VerifyOptions};
pub use baseline::BaselineOptions;
pub use change::Change;
pub use charges::{ChargesFormat, ChargesOptions};
pub use config::ConfigVerb;
pub use doctor::{Checkup, DoctorVerb};
pub use events::EventsOptions;
pub use exec::ExecOptions;
pub use export::ExportVerb;
pub use forecast::ForecastOptions;
pub use gpu::{GpuVerb, TestOptions};
pub use history::HistoryOptions;
pub use latency::LatencyOptions;
pub use leases::LeasesOptions;
pub use mig::{MigVerb, Plan, Wanted};
pub use overflow::{OverflowVerb, WatchOptions};
pub use overrides::{OverrideVerb, OverrideWhom};
pub use processes::ProcessSort;
pub use queue::QueueVerb;
pub use quota::QuotaVerb;
pub use reservation::ReservationVerb;
pub use savings::SavingsOptions;
pub use simulate::Simulation;
pub use sizes::SizesOptions;
pub use stats::StatsOptions;
pub use top::{TopOptions, TopSort};
pub use usage::UsageOptions;
pub use wait::{Awaited, WaitOptions};

use crate::engines::Engine;
use crate::exit::{EXIT_CODES_HELP, Failure};
use crate::follower::say;
use clap::builder::ArgPredicate;
use clap::{Args, Command, CommandFactory, Parser, Subcommand, ValueEnum};
use gpool_protocol::{Client, parse_time};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Shares of NVIDIA GPUs between the containers of this host.
#[derive(Debug, Parser)]
#[command(name = "gpool", version = gpool_protocol::version(), after_help = EXIT_CODES_HELP, infer_long_args = false)]
pub struct Arguments {
    /// The supervisor's socket [default: socket.path of /etc/gpool/config.toml]
    #[arg(long, global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List the leases, one line a container
    Ps {
        /// Print nothing but the ids of their containers, in full
        #[arg(short, long, conflicts_with = "format")]
        quiet: bool,
        /// Which of them
        #[command(flatten)]
        whose: LeasesOptions,
        /// List processes that use GPUs, and what each holds, in place of leases: of containers with shims, past an MPS server, and
        /// without a lease
        #[arg(long, conflicts_with_all = ["quiet", "team", "user", "gpu"])]
        processes: bool,
        /// With --processes, in which order; otherwise by their pids
        #[arg(long, value_enum, value_name = "WHAT", requires = "processes")]
        sort: Option<ProcessSort>,
        /// How to print
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Watch the leases: redraws on a terminal, prints plain blocks elsewhere
    Top(TopOptions),
    /// Stream what each lease did in the last interval: share received, memory, time at the gate, launches, refusals
    Stats(StatsOptions),
    /// GPUs of this host
    Gpu {
        /// What to do with them.
        #[command(subcommand)]
        verb: GpuVerb,
    },
    /// Divide this host's GPUs with MIG and compare them with a layout, or plan layouts without a GPU
    Mig {
        /// What to do.
        #[command(subcommand)]
        verb: MigVerb,
    },
    /// Show everything about leases, as one JSON array
    Inspect {
        /// Ids or names of containers, or ids of leases, or unique prefixes of ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Change a lease while its container runs
    ///
    /// It stays changed when the container is started again, but for the run time.
    Update(Change),
    /// Keep the gates of leases closed until they are resumed: what has been launched goes on, nothing more begins
    Pause {
        /// Ids or names of containers, or ids of leases, or unique prefixes of ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Move what running containers hold of their GPUs to the host's memory, and their room is free for others: their programs live on, and
    /// come back when they want the GPU and there is room, or by gpool resume
    Suspend {
        /// Ids or names of containers, or ids of leases, or unique prefixes of ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
        /// Do not wait until it is done
        #[arg(long)]
        no_wait: bool,
    },
    /// Serve paused leases again, and have suspended ones come back
    Resume {
        /// Ids or names of containers, or ids of leases, or unique prefixes of ids
        #[arg(required_unless_present = "all", value_name = "ID")]
        ids: Vec<String>,
        /// All that are paused or suspended
        #[arg(long, conflicts_with = "ids")]
        all: bool,
        /// Wait for so long until suspended ones are back on their GPUs, and fail if one is not
        #[arg(long, value_name = "TIME", value_parser = parse_time, allow_hyphen_values = true)]
        timeout: Option<u64>,
    },
    /// Take the GPUs from running containers: their processes that use them are killed, the others live on and can open
    /// them no more; a container that is started anew asks for its share again. The lease of one that has not started ends
    Evict {
        /// Ids or names of containers, or ids of leases, or unique prefixes of ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Show why a lease runs or waits, and how exact its share is; or with --request which mechanism would serve one
    Explain {
        /// Id or name of a container, or id of a lease, or a unique prefix of an id
        #[arg(required_unless_present = "request", conflicts_with = "request")]
        id: Option<String>,
        /// A request that is not made yet, for example fraction=0.3,model=A100+H100,isolation=hardware,p99=50ms; several values
        /// of a key are joined by +
        #[arg(long, value_name = "KEY=VALUE,...")]
        request: Option<String>,
        /// The host that it is planned for, as a file describes it [default: this host, as its supervisor sees it]
        #[arg(long, value_name = "FILE", requires = "request", conflicts_with = "id")]
        host: Option<PathBuf>,
        /// How to print
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Show how long the requests of containers of class latency take, how long with the GPUs to themselves, and what was promised
    Latency(LatencyOptions),
    /// Containers and commands that wait for room
    Queue {
        /// What to do with them.
        #[command(subcommand)]
        verb: QueueVerb,
    },
    /// How much teams and users may reserve
    Quota {
        /// What to do with it.
        #[command(subcommand)]
        verb: QuotaVerb,
    },
    /// Whether the host is short of room, and a program that is told so
    Overflow {
        /// What to do.
        #[command(subcommand)]
        verb: OverflowVerb,
    },
    /// Emergencies: teams and users for whom no quota holds for a while, and who stand first in the queue
    Override {
        /// What to do with them.
        #[command(subcommand)]
        verb: OverrideVerb,
    },
    /// Parts of GPUs that are kept free for somebody
    Reservation {
        /// What to do with them.
        #[command(subcommand)]
        verb: ReservationVerb,
    },
    /// Show what happened: grants, refusals, changes, ends
    Events(EventsOptions),
    /// What happened, written down for good: shown, and checked for changes
    Audit {
        /// What to do with it.
        #[command(subcommand)]
        verb: AuditVerb,
    },
    /// Come back when leases have ended, or when containers that wait for room have one; a supervisor that goes away meanwhile is
    /// waited for
    Wait(WaitOptions),
    /// Show who was promised what of the GPUs and had it, over hours, days or months
    Usage(UsageOptions),
    /// Show what each container is charged, by the prices of the configuration: the rows of a bill, also for programs of finance
    Charges(ChargesOptions),
    /// Show what ran: each container with when it began, how long it had waited, what it had of its share and its memory, and how it
    /// ended
    #[command(mut_arg("since", |since| since.default_value_if("id", ArgPredicate::IsPresent, "1970-01-01")))]
    History(HistoryOptions),
    /// Show how many GPUs would have been enough if each container had whole ones, if each team had its own, and shared by all
    #[command(mut_arg("since", |since| since.default_value("4w")))]
    Savings(SavingsOptions),
    /// Show how much of the GPUs will be asked for in the weeks to come, if it goes on as it went
    #[command(mut_arg("since", |since| since.default_value("26w")))]
    Forecast(ForecastOptions),
    /// Show what containers used of what they had asked for, and which requests would have been enough
    #[command(mut_arg("since", |since| since.default_value("7d")))]
    Sizes(SizesOptions),
    /// Show what containers and programs without a lease used of the GPUs, which request would have been enough for each, and how
    /// many GPUs for all
    #[command(mut_arg("since", |since| since.default_value("7d")))]
    Baseline(BaselineOptions),
    /// Describe this host's GPUs to Slurm or Kubernetes, in their own words
    Export {
        /// To whom.
        #[command(subcommand)]
        verb: ExportVerb,
    },
    /// Print the figures of this moment for Prometheus
    Metrics,
    /// Run a command of this host with a share, without a container engine: in a cgroup below the caller's, and with a
    /// mount and a PID namespace of its own. As root; the exit code is the command's, 125 if it was not started
    Run(Box<RunOptions>),
    /// Start one more command under the share of one of gpool run, in its namespaces and its cgroup, as docker exec does in a
    /// container. As root; the exit code is the command's, 125 if it was not started
    Exec(ExecOptions),
    /// Tell container engines of gpool's runtime, or take that back
    Runtime {
        /// Where the files are listed through which engines were told, but for the usual ones; for tests
        #[arg(long, hide = true, value_name = "FILE")]
        told_files: Option<PathBuf>,
        /// What to do with them.
        #[command(subcommand)]
        verb: RuntimeVerb,
    },
    /// Show versions and settings of the supervisor
    Info {
        /// How to print
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Look at the configuration, and let the supervisor take a changed one over
    Config {
        /// What to do with it.
        #[command(subcommand)]
        verb: ConfigVerb,
    },
    /// Examine this host: kernel, driver, engines, shims, supervisor, leases. The exit code is 1 if a check fails, 10 if
    /// the worst is a warning
    Doctor(Checkup),
    /// Run a scenario in virtual time under the scheduler and under others beside it
    Simulate(Simulation),
    /// Print a completion script
    Completion {
        /// For which shell
        shell: clap_complete::Shell,
    },
}

/// What a command asks for, in the words of the request keys, and the command.
#[derive(Debug, Clone, Args)]
pub struct RunOptions {
    /// Share of the GPU, 0.01 to 1
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    pub fraction: Option<String>,
    /// The most that it may have, not below the share; otherwise idle time may be used
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    pub limit: Option<String>,
    /// Memory cap, contexts included: 4GiB, 4G, bytes or 25% [default: the share of the GPU's memory]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: Option<String>,
    /// How much of what it allocates beyond that may lie in the host's memory, for example 8GiB [default: nothing]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub spill: Option<String>,
    /// Number of GPUs, all or none
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub gpus: Option<String>,
    /// Which GPUs will do, by their numbers or UUIDs: 1, or 0,2
    #[arg(long, value_name = "GPU,...")]
    pub device: Option<String>,
    /// Which GPUs will do, by words of their names: H100, or A100,H100
    #[arg(long, value_name = "NAME,...")]
    pub model: Option<String>,
    /// How it uses the GPU
    #[arg(long, value_name = "CLASS", value_parser = words::Hinted(words::classes()))]
    pub class: Option<String>,
    /// How long 99 of 100 of its requests are to take at most, with class latency, for example 20ms
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub p99: Option<String>,
    /// Before whom it is served
    #[arg(long, value_name = "PRIORITY", value_parser = words::Hinted(words::priorities()))]
    pub priority: Option<String>,
    /// Who pays
    #[arg(long, value_name = "NAME")]
    pub team: Option<String>,
    /// For which project
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
    /// On whose bill
    #[arg(long, value_name = "NAME")]
    pub cost_center: Option<String>,
    /// Wait for room for so long if there is none, 90s, 5m, 1h30m or 2d [default: it is refused]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub wait: Option<String>,
    /// Have the GPUs for so long at most, 90s, 5m, 1h30m or 2d; then they are taken [default: as the host says for the class]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub run_time: Option<String>,
    /// By when it has to be through, in 6h or at 2026-12-01T08:00:00Z: it begins in time, with --run-time, or is refused at once
    #[arg(long, value_name = "MOMENT", allow_hyphen_values = true)]
    pub deadline: Option<String>,
    /// Any other key that a container may carry as gpool.io/KEY; may be repeated
    #[arg(long = "key", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub keys: Vec<(String, String)>,
    /// Run it as this user, by name or number [default: root]
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// What its id begins with, as gpool ps, history and usage show it; twelve digits and more follow [default: run]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Have one at a time: hold the lock of this file until it ends, and refuse where another one has it. It is made if it is not there
    #[arg(long, value_name = "FILE")]
    pub lock: Option<PathBuf>,
    /// The program's own, wherever it stands; out of the help of this verb, which refuses it
    #[arg(long, hide = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The command and its arguments; -- before it is needed only where its name begins with a dash
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Verbs of `gpool runtime`.
#[derive(Debug, Clone, Subcommand)]
pub enum RuntimeVerb {
    /// Add the runtime gpool to an engine's configuration; the rest of it stays as it is
    Configure {
        /// Which engine
        #[arg(long = "runtime", value_enum, value_name = "ENGINE")]
        engine: Engine,
        /// The engine's configuration file [default: where Debian's package has it]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Where gpool-runtime is
        #[arg(long, value_name = "PATH", default_value = "/usr/bin/gpool-runtime")]
        runtime_path: PathBuf,
        /// Use it for containers that name no runtime, too; without a request they run as before
        #[arg(long)]
        set_as_default: bool,
        /// Show the change and make none
        #[arg(long)]
        dry_run: bool,
    },
    /// Take it out again, exactly
    Unconfigure {
        /// Which engine
        #[arg(long = "runtime", value_enum, value_name = "ENGINE")]
        engine: Engine,
        /// The engine's configuration file [default: where Debian's package has it]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Show the change and make none
        #[arg(long)]
        dry_run: bool,
    },
    /// Show which engines know it
    Status {
        /// One engine only
        #[arg(long = "runtime", value_enum, value_name = "ENGINE")]
        engine: Option<Engine>,
        /// The engine's configuration file
        #[arg(long, value_name = "FILE", requires = "engine")]
        config: Option<PathBuf>,
        /// How to print
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}

/// How data is printed. The text of a table is no interface; JSON and CSV are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Table,
    /// For people, with every column
    Wide,
    /// For programs: bytes, permille and nanoseconds as integers
    Json,
    /// For programs: the same figures, with a header line
    Csv,
}

impl Arguments {
    /// A client of the socket that the command line or the configuration names. One that cannot be used is told of, and asked where the
    /// socket is all the same: whoever has a mistake in a file has to see what runs.
    pub fn client(&self) -> Client {
        if let Some(socket) = &self.socket {
            return Client::new(socket);
        }
        let path = Path::new(gpool_configuration::DEFAULT_PATH);
        match gpool_configuration::load(path) {
            Ok(configuration) => Client::new(configuration.socket.path),
            Err(error) => {
                say(&format!("gpool: {error} [GPOOL-E004]; the supervisor is asked all the same"));
                Client::new(gpool_configuration::socket_path(path))
            }
        }
    }
}

/// The definition of the command line, for the manual, man pages, completions and their tests.
pub fn command() -> Command {
    Arguments::command()
}

/// Reads a command line.
pub fn parse(command_line: impl IntoIterator<Item = OsString>) -> Result<Arguments, Failure> {
    Arguments::try_parse_from(command_line).map_err(|error| Failure::Clap(Box::new(error)))
}

/// `KEY=VALUE`
fn parse_pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    pair.map(|(key, value)| (key.to_owned(), value.to_owned())).ok_or("write KEY=VALUE".to_owned())
}

#[cfg(test)]
mod tests;
