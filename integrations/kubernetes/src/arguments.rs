//! The command line.

use crate::kubelet::{DIRECTORY, RESOURCES_SOCKET};
use clap::{Command, CommandFactory, Parser};
use gpool_protocol::DEFAULT_SOCKET;
use std::path::PathBuf;

/// Tell the kubelet how much of this host's GPUs Kubernetes may give out.
///
/// A device plugin: containers of pods ask for gpool.io/percent, hundredths of a GPU, or for gpool.io/mig-PROFILE in their
/// resource limits, and gpool-runtime gives them that. It waits for a kubelet and for the supervisor, and is needed for new pods
/// alone.
#[derive(Debug, Parser)]
#[command(name = "gpool-device-plugin", version = gpool_protocol::version())]
pub struct Arguments {
    /// The supervisor's socket, as [socket] path of its configuration has it
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// The directory where the kubelet listens for plugins
    #[arg(long, value_name = "DIRECTORY", default_value = DIRECTORY)]
    pub kubelet: PathBuf,
    /// The kubelet's socket for who asks which container has what
    #[arg(long, value_name = "PATH", default_value = RESOURCES_SOCKET)]
    pub pod_resources: PathBuf,
}

/// The same, for the man page.
pub fn command() -> Command {
    Arguments::command()
}
