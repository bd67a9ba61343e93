//! `gpool run COMMAND`

use crate::arguments::RunOptions;
use crate::exit::{ExitStatus, Failure};
use gpool_configuration::{Configuration, ConfigurationError};
use gpool_protocol::{ErrorBody, ErrorCode};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Lies beside the OCI hook: nobody calls it by name.
const PROGRAM: &str = "gpool-run";

/// Becomes `gpool-run`. Returns only on failure, and always with the status that no command's end is mistaken for.
pub fn run(options: &RunOptions) -> Result<(), Failure> {
    Err(become_program(prepare(options, Path::new(gpool_configuration::DEFAULT_PATH))))
}

fn prepare(options: &RunOptions, configuration: &Path) -> Result<Command, ErrorBody> {
    if options.socket.is_some() {
        return Err(takes_no_socket("run"));
    }
    if let Some(key) = given_twice(options) {
        return Err(ErrorBody::new(
            ErrorCode::RequestInvalid,
            format!("gpool run: {key} is given twice"),
            "give each key once, by its option or by --key",
        ));
    }
    let configuration = gpool_configuration::load(configuration).map_err(|error| unusable(&error))?;
    Ok(program(&configuration, arguments(options)))
}

/// What whoever names a socket to a verb of `gpool-run` is told.
pub fn takes_no_socket(verb: &str) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::RequestInvalid,
        format!("gpool {verb} takes no --socket: shims and files of leases are looked for where config.toml has them"),
        "leave it out, and let [socket] path in config.toml say which supervisor is asked",
    )
}

/// `gpool-run` with these arguments.
pub fn program(configuration: &Configuration, arguments: Vec<OsString>) -> Command {
    let mut command = Command::new(configuration.paths.hook.with_file_name(PROGRAM));
    command.args(arguments);
    command
}

/// Becomes it, and says why not. No test comes here: whoever fails to become a program has given SIGPIPE back already, of which others in
/// its process would die.
pub fn become_program(prepared: Result<Command, ErrorBody>) -> Failure {
    let error = prepared.map_or_else(|error| error, |mut command| not_executed(&command.exec(), &command));
    Failure::Refused(ExitStatus::NotStarted, error.to_string())
}

fn not_executed(cause: &std::io::Error, command: &Command) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::CommandNotPrepared,
        format!("the command was not started: {} cannot be executed ({cause})", command.get_program().display()),
        "install gpool anew",
    )
}

/// On one line, as everything that `gpool run` says of itself.
pub fn unusable(error: &ConfigurationError) -> ErrorBody {
    let lines = error.to_string();
    let text: Vec<&str> = lines.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    ErrorBody::new(ErrorCode::ConfigurationInvalid, text.join(" "), "correct the file; gpool needs it for a share")
}

/// What is asked for, by options of its own and by `--key`.
fn asked(options: &RunOptions) -> impl Iterator<Item = (&str, &str)> {
    let named = [
        ("fraction", &options.fraction),
        ("limit", &options.limit),
        ("memory", &options.memory),
        ("spill", &options.spill),
        ("gpus", &options.gpus),
        ("device", &options.device),
        ("model", &options.model),
        ("class", &options.class),
        ("priority", &options.priority),
        ("team", &options.team),
        ("project", &options.project),
        ("cost-center", &options.cost_center),
        ("wait", &options.wait),
        ("p99", &options.p99),
        ("run-time", &options.run_time),
        ("deadline", &options.deadline),
    ];
    let named = named.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?)));
    named.chain(options.keys.iter().map(|(key, value)| (key.as_str(), value.as_str())))
}

fn given_twice(options: &RunOptions) -> Option<&str> {
    let mut seen = BTreeSet::new();
    asked(options).map(|(key, _)| key).find(|key| !seen.insert(*key))
}

fn arguments(options: &RunOptions) -> Vec<OsString> {
    let keys = asked(options).flat_map(|(key, value)| ["--annotation".into(), format!("gpool.io/{key}={value}")]);
    let own = [("--user", &options.user), ("--name", &options.name)];
    let own = own.into_iter().filter_map(|(option, value)| Some([option.to_owned(), value.clone()?])).flatten();
    let lock = options.lock.iter().flat_map(|file| [OsString::from("--lock"), file.clone().into_os_string()]);
    let command = std::iter::once(OsString::from("--")).chain(options.command.iter().cloned());
    keys.chain(own).map(OsString::from).chain(lock).chain(command).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Verb, parse};

    fn options(line: &str) -> RunOptions {
        let Ok(arguments) = parse(line.split(' ').map(OsString::from)) else { panic!("{line}") };
        let Verb::Run(options) = arguments.verb else { panic!("no run") };
        *options
    }

    #[test]
    fn options_become_annotations_in_the_words_of_the_request() {
        let line = "gpool run --fraction 0.3 --memory 4GiB --device 1 --run-time 2h --key mode=slice --lock /run/l --name job-7 --user me -- sleep --user 5";
        let want = "--annotation gpool.io/fraction=0.3 --annotation gpool.io/memory=4GiB --annotation gpool.io/device=1 \
                    --annotation gpool.io/run-time=2h --annotation gpool.io/mode=slice --user me --name job-7 --lock /run/l \
                    -- sleep --user 5";
        let want: Vec<OsString> = want.split_whitespace().map(OsString::from).collect();
        assert_eq!(super::arguments(&options(line)), want);
    }

    #[test]
    fn what_keeps_it_from_starting_is_one_line_with_a_code() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.toml");
        let line = "gpool run --fraction 0.3 -- true";
        for (text, line, code) in [
            ("[paths", line, "[GPOOL-E004]"),
            ("", "gpool run --fraction 0.3 --key fraction=0.4 -- true", "[GPOOL-E101]"),
            ("", "gpool run --key mode=slice --key mode=mps -- true", "[GPOOL-E101]"),
            ("", "gpool run --fraction 0.3 --socket /run/other.sock -- true", "[GPOOL-E101]"),
        ] {
            std::fs::write(&file, text).unwrap();
            let said = prepare(&options(line), &file).unwrap_err().to_string();
            assert!(said.contains(code) && said.lines().count() == 1, "{text:?} gives {said:?}");
        }
        std::fs::write(&file, "[paths]\nhook = \"/proc/none/gpool-hook\"\n").unwrap();
        let command = prepare(&options(line), &file).unwrap();
        let said = not_executed(&std::io::ErrorKind::NotFound.into(), &command).to_string();
        assert!(said.contains("[GPOOL-E511]") && said.contains("/proc/none/gpool-run"), "{said}");
    }

    #[test]
    fn it_was_not_started_whatever_the_reason() {
        let refused = run(&options("gpool --socket /run/other.sock run --fraction 0.3 -- true"));
        let Err(Failure::Refused(status, _)) = refused else { panic!("no refusal") };
        assert_eq!(status as u8, 125);
    }
}
