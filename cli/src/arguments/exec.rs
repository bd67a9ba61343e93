//! `gpool exec`

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// Beside which command, and what.
#[derive(Debug, Clone, Args)]
pub struct ExecOptions {
    /// Run it as this user, by name or number [default: the user of that command]
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// The program's own, wherever it stands; out of the help of this verb, which refuses it
    #[arg(long, hide = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Id of a command of gpool run, or its --name or another unique beginning of it, or id of its lease
    #[arg(value_name = "ID")]
    pub id: String,
    /// The command and its arguments; -- before it is needed only where its name begins with a dash
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}
