//! `gpool completion SHELL`

use crate::arguments::Arguments;
use crate::exit::Failure;
use crate::output;
use clap::CommandFactory;

/// Prints the completion script of `shell`.
pub fn run(shell: clap_complete::Shell) -> Result<(), Failure> {
    // Into memory first: the generator panics when its output is closed.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "gpool", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
