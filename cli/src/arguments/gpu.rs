//! `gpool gpu`

use super::Format;
use super::seconds::parse_test_seconds;
use clap::{Args, Subcommand};
use gpool_protocol::{parse_bytes, parse_time};

/// Verbs of `gpool gpu`.
#[derive(Debug, Clone, Subcommand)]
pub enum GpuVerb {
    /// List the GPUs with what is promised of them
    Ls {
        /// How to print
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Let GPUs take no new leases, before a repair for example; those on them go on. It holds until gpool gpu undrain, also
    /// after a boot. On a node of Kubernetes kubectl cordon it first
    Drain {
        /// Indices or UUIDs of GPUs, or unique prefixes of UUIDs; a divided one is drained with all of its instances
        #[arg(required = true, value_name = "GPU")]
        gpus: Vec<String>,
        /// Why: it is shown to everybody who is refused for it
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        reason: String,
        /// Come back when no lease is left on them, after this time at the latest: 90s, 5m, 1h30m or 2d. The exit code is 1 if
        /// some are left then; the GPUs stay drained
        #[arg(long, value_name = "TIME", value_parser = parse_time, allow_hyphen_values = true)]
        wait: Option<u64>,
        /// Take them then, or at once without --wait, from the containers that are left, as gpool evict does
        #[arg(long)]
        evict: bool,
    },
    /// Test GPUs that nobody uses: answers that are known, memory that must keep what is written. What fails takes no new leases, if
    /// [health] drain_on says so. A test gives way at once to whoever comes. The exit code is 1 if a GPU fails or could not be tested
    Test(TestOptions),
    /// Let drained GPUs take leases again
    Undrain {
        /// Indices or UUIDs of GPUs, or unique prefixes of UUIDs
        #[arg(required = true, value_name = "GPU")]
        gpus: Vec<String>,
        /// Also those that the supervisor drained for a fault of their own: after a repair or a reset, or to have them serve as they are
        #[arg(long)]
        fault: bool,
    },
}

/// What is tested, and how.
#[derive(Debug, Clone, Args)]
pub struct TestOptions {
    /// Indices or UUIDs of GPUs, or unique prefixes of UUIDs
    #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "GPU")]
    pub gpus: Vec<String>,
    /// All GPUs, one after the other
    #[arg(long)]
    pub all: bool,
    /// Only those whose last test is so long ago, 12h or 7d, and that nobody uses: who is in use is left out, which is no failure
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub due: Option<u64>,
    /// For how long each is tested, about: seconds, or with a unit, 10m
    #[arg(long, value_name = "TIME", default_value_t = 10, value_parser = parse_test_seconds)]
    pub seconds: u64,
    /// How much memory is tried at most, like 64GiB; without it all that is free, as far as the time goes
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub memory: Option<u64>,
    /// Also NVIDIA's diagnosis of this level, 1 to 4, by dcgmi, if DCGM is installed: of GPUs that are drained and empty
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(u8).range(1..=4), conflicts_with = "due")]
    pub dcgm: Option<u8>,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
