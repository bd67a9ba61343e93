//! Verbs of `gpool mig`.

use super::Format;
use super::seconds::parse_seconds;
use clap::{Args, Subcommand};
use gpool_policy::mig::{MODELS, Model};
use std::path::PathBuf;
use std::time::Duration;

/// Verbs of `gpool mig`. The first three are about this host, by its supervisor; the others need neither GPU nor supervisor.
#[derive(Debug, Clone, Subcommand)]
pub enum MigVerb {
    /// Show the GPUs of this host that can be divided, with their instances and who has them
    Show {
        /// How to print
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Compare how this host's GPUs are divided with a layout; exit code 10 if they are not as it says
    Drift {
        /// Which layout
        #[command(flatten)]
        wanted: Wanted,
        /// How to print
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Divide this host's GPUs as a layout says; root only, and never under leases
    Apply {
        /// Which layout
        #[command(flatten)]
        wanted: Wanted,
        /// Let nobody new onto the GPUs that change, and wait so long, 600 (seconds) or 10m, for the end of the leases and
        /// processes on them; in a maintenance window ([mig] windows) that is done until its end without being asked for
        #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
        drain: Option<Duration>,
        /// How to print
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Say whether these instances fit on one GPU, and where they would lie; or check a file of layouts
    Plan(Plan),
    /// List what a GPU can be divided into
    Layouts {
        /// The GPU, for example A100-80GB
        #[arg(long, value_parser = parse_model)]
        model: &'static Model,
        /// With the profiles +me and those of double memory, too
        #[arg(long)]
        all_profiles: bool,
        /// How to print
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Show how full a GPU gets before an instance is refused, by who chooses where they start
    Arrivals {
        /// The GPU
        #[arg(long, value_parser = parse_model, default_value = "A100-80GB")]
        model: &'static Model,
        /// GPUs that are filled
        #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        runs: u64,
        /// The seed
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        /// How to print
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}

/// A layout of a file.
#[derive(Debug, Clone, Args)]
pub struct Wanted {
    /// A file in mig-parted's format; without it the one that [mig] layout in config.toml names
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Which of the file's layouts, if it has several; of the configured file, [mig] config if that is set
    #[arg(long, value_name = "NAME")]
    pub config: Option<String>,
}

/// `gpool mig plan`
#[derive(Debug, Clone, Args)]
pub struct Plan {
    /// The GPU, for example A100-80GB
    #[arg(long, value_parser = parse_model)]
    pub model: &'static Model,
    /// Profiles, one for each instance, for example 3g.40gb 3g.40gb
    #[arg(value_name = "PROFILE", required_unless_present = "file")]
    pub profiles: Vec<String>,
    /// A file in mig-parted's format: each of its layouts is checked on this model
    #[arg(long, value_name = "FILE", conflicts_with = "profiles")]
    pub file: Option<PathBuf>,
    /// Only this one of the file's layouts
    #[arg(long, value_name = "NAME", requires = "file", conflicts_with = "profiles")]
    pub config: Option<String>,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

fn parse_model(text: &str) -> Result<&'static Model, String> {
    Model::named(text).ok_or_else(|| {
        let names: Vec<&str> = MODELS.iter().map(|model| model.name).collect();
        format!("the models are {}", names.join(", "))
    })
}
