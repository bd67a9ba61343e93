//! `gpool exec ID COMMAND`

use super::run::{become_program, program, takes_no_socket, unusable};
use crate::arguments::ExecOptions;
use crate::container_names;
use crate::exit::Failure;
use gpool_protocol::{Client, ErrorBody};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// Becomes `gpool-run`. Returns only on failure, and always with the status that no command's end is mistaken for.
pub fn run(options: &ExecOptions) -> Result<(), Failure> {
    let path = Path::new(gpool_configuration::DEFAULT_PATH);
    Err(become_program(prepare(options, path, rustix::process::geteuid().is_root())))
}

fn prepare(options: &ExecOptions, configuration: &Path, is_root: bool) -> Result<Command, ErrorBody> {
    if options.socket.is_some() {
        return Err(takes_no_socket("exec"));
    }
    let configuration = gpool_configuration::load(configuration).map_err(|error| unusable(&error))?;
    let mut id = options.id.clone();
    // Who names a container of docker's or podman's is to be told that it is one; and others than root that they are not.
    container_names::replace(&Client::new(&configuration.socket.path), is_root.then_some(&mut id))?;
    Ok(program(&configuration, arguments(options, id)))
}

fn arguments(options: &ExecOptions, id: String) -> Vec<OsString> {
    let user = options.user.iter().flat_map(|user| ["--user".to_owned(), user.clone()]);
    let own = ["--exec".to_owned(), id].into_iter().chain(user).chain(["--".to_owned()]);
    own.map(OsString::from).chain(options.command.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Verb, parse};

    fn options(line: &str) -> ExecOptions {
        let Ok(arguments) = parse(line.split(' ').map(OsString::from)) else { panic!("{line}") };
        let Verb::Exec(options) = arguments.verb else { panic!("no exec") };
        options
    }

    #[test]
    fn what_is_typed_reaches_the_program() {
        for (line, want) in [
            ("gpool exec job-7 -- nvidia-smi -L", "--exec whole -- nvidia-smi -L"),
            ("gpool exec job-7 nvidia-smi -L", "--exec whole -- nvidia-smi -L"),
            ("gpool exec --user me job-7 sh --user 5", "--exec whole --user me -- sh --user 5"),
        ] {
            let want: Vec<OsString> = want.split(' ').map(OsString::from).collect();
            assert_eq!(arguments(&options(line), "whole".to_owned()), want, "{line}");
        }
        for line in ["gpool exec", "gpool exec job-7", "gpool exec job-7 --"] {
            assert!(parse(line.split(' ').map(OsString::from)).is_err(), "{line}");
        }
    }

    #[test]
    fn what_keeps_it_from_starting_is_one_line_with_a_code() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.toml");
        for (text, line, code) in [
            ("[paths", "gpool exec job-7 -- true", "[GPOOL-E004]"),
            ("[socket]\npath = \"/proc/none/gpool.sock\"\n", "gpool exec job-7 -- true", "[GPOOL-E001]"),
            ("", "gpool exec --socket /run/other.sock job-7 -- true", "[GPOOL-E101]"),
        ] {
            std::fs::write(&file, text).unwrap();
            let said = prepare(&options(line), &file, true).unwrap_err().to_string();
            assert!(said.contains(code) && said.lines().count() == 1, "{text:?} gives {said:?}");
        }
        // The program says who may, without a supervisor.
        std::fs::write(&file, "[socket]\npath = \"/proc/none/gpool.sock\"\n").unwrap();
        let command = prepare(&options("gpool exec job-7 -- true"), &file, false).unwrap();
        assert_eq!(command.get_args().nth(1), Some("job-7".as_ref()));
    }

    #[test]
    fn it_was_not_started_whatever_the_reason() {
        let refused = run(&options("gpool --socket /run/other.sock exec job-7 -- true"));
        let Err(Failure::Refused(status, _)) = refused else { panic!("no refusal") };
        assert_eq!(status as u8, 125);
    }
}
