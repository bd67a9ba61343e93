//! `gpool`: looks at the leases of a host and changes them, through the supervisor's socket.
//!
//! Data goes to stdout, everything else to stderr. A reader that goes away early (`gpool ps | head -1`) is no failure.
#![forbid(unsafe_code)]

mod arguments;
mod commands;
mod container_names;
mod doctor;
mod engines;
mod exit;
mod follower;
pub mod live;
mod money;
mod output;
mod planning;
#[cfg(test)]
mod samples;
pub mod table;

pub use arguments::command;
pub use exit::ExitStatus;

use arguments::{Arguments, Verb};
use exit::Failure;
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs one command line, the program's name first.
pub fn run(command_line: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match arguments::parse(command_line) {
        Ok(arguments) => arguments,
        Err(refusal) => return refusal.report(),
    };
    match execute(arguments) {
        Ok(()) => ExitStatus::Done.into(),
        Err(failure) => failure.report(),
    }
}

fn execute(mut arguments: Arguments) -> Result<(), Failure> {
    // What asks no supervisor must work on a machine whose configuration is broken.
    match &arguments.verb {
        Verb::Completion { shell } => return commands::completion::run(*shell),
        Verb::Doctor(checkup) => return commands::doctor::run(checkup, arguments.socket.as_deref()),
        Verb::Config { verb } => return commands::config::run(verb, arguments.socket.as_deref()),
        Verb::Simulate(simulation) => return commands::simulate::run(simulation, || arguments.client()),
        Verb::Runtime { told_files, verb } => return commands::runtime::run(verb, told_files.as_deref()),
        Verb::Audit { verb } => return commands::audit::run(verb, || arguments.client()),
        Verb::Run(options) => return commands::run::run(options),
        Verb::Exec(options) => return commands::exec::run(options),
        Verb::Mig { verb } => return commands::mig::run(verb, || arguments.client()),
        Verb::Explain { request: Some(request), host, format, .. } => {
            return commands::explain::request::run(|| arguments.client(), request, host.as_deref(), *format);
        }
        _ => {}
    }
    let client = arguments.client();
    container_names::replace(&client, arguments.verb.ids())?;
    match arguments.verb {
        Verb::Ps { processes: true, sort, format, .. } => commands::processes::run(&client, sort, format),
        Verb::Ps { quiet, whose, format, .. } => commands::ps::run(&client, &whose, quiet, format),
        Verb::Top(options) => commands::top::run(&client, &options),
        Verb::Stats(options) => commands::stats::run(&client, &options),
        Verb::Gpu { verb } => commands::gpu::run(&client, &verb),
        Verb::Inspect { ids } => commands::inspect::run(&client, &ids),
        Verb::Update(change) => commands::update::run(&client, &change),
        Verb::Pause { ids } => commands::pause::run(&client, &ids, "pause"),
        Verb::Suspend { ids, no_wait } => commands::suspend::run(&client, &ids, no_wait),
        Verb::Evict { ids } => commands::pause::run(&client, &ids, "evict"),
        Verb::Resume { ids, all, timeout } => commands::pause::resume(&client, &ids, all, timeout),
        Verb::Explain { id, format, .. } => commands::explain::run(&client, &id.unwrap_or_default(), format),
        Verb::Latency(options) => commands::latency::run(&client, &options),
        Verb::Queue { verb } => commands::queue::run(&client, &verb),
        Verb::Quota { verb } => commands::quota::run(&client, &verb),
        Verb::Overflow { verb } => commands::overflow::run(&client, &verb),
        Verb::Override { verb } => commands::overrides::run(&client, &verb),
        Verb::Reservation { verb } => commands::reservation::run(&client, &verb),
        Verb::Export { verb } => commands::export::run(&client, &verb),
        Verb::Events(options) => commands::events::run(&client, &options),
        Verb::Wait(options) => commands::wait::run(&client, &options),
        Verb::Usage(options) => commands::usage::run(&client, &options),
        Verb::Savings(options) => commands::savings::run(&client, &options),
        Verb::Forecast(options) => commands::forecast::run(&client, &options),
        Verb::Sizes(options) => commands::sizes::run(&client, &options),
        Verb::Baseline(options) => commands::baseline::run(&client, &options),
        Verb::Charges(options) => commands::charges::run(&client, &options),
        Verb::History(options) => commands::history::run(&client, &options),
        Verb::Metrics => commands::metrics::run(&client),
        Verb::Info { format } => commands::info::run(&client, format),
        Verb::Audit { .. }
        | Verb::Completion { .. }
        | Verb::Config { .. }
        | Verb::Doctor(_)
        | Verb::Simulate(_)
        | Verb::Runtime { .. }
        | Verb::Run(_)
        | Verb::Exec(_)
        | Verb::Mig { .. } => Ok(()),
    }
}
