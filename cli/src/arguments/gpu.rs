//! `gpool gpu`

use super::Format;
use clap::Subcommand;
use gpool_protocol::parse_time;

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
    /// after a boot
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
    },
    /// Let drained GPUs take leases again
    Undrain {
        /// Indices or UUIDs of GPUs, or unique prefixes of UUIDs
        #[arg(required = true, value_name = "GPU")]
        gpus: Vec<String>,
    },
}
