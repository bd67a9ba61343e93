//! `gpool run -- COMMAND`

use crate::arguments::RunOptions;
use crate::exit::{ExitStatus, Failure};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Lies beside the OCI hook: nobody calls it by name.
const PROGRAM: &str = "gpool-run";

/// Becomes `gpool-run`. Returns only on failure.
pub fn run(options: &RunOptions) -> Result<(), Failure> {
    let configuration = gpool_configuration::load(Path::new(gpool_configuration::DEFAULT_PATH))
        .map_err(|error| Failure::Refused(ExitStatus::ConfigurationInvalid, format!("gpool: {error} [GPOOL-E004]")))?;
    let program = configuration.paths.hook.with_file_name(PROGRAM);
    let error = Command::new(&program).args(arguments(options)).exec();
    let sentence = format!("gpool: {} cannot be executed ({error}); install gpool anew", program.display());
    Err(Failure::Refused(ExitStatus::Failed, sentence))
}

fn arguments(options: &RunOptions) -> Vec<OsString> {
    let named = [
        ("fraction", &options.fraction),
        ("limit", &options.limit),
        ("memory", &options.memory),
        ("gpus", &options.gpus),
        ("class", &options.class),
        ("priority", &options.priority),
        ("team", &options.team),
    ];
    let named = named.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?)));
    let others = options.keys.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let keys = named.chain(others).flat_map(|(key, value)| ["--annotation".into(), format!("gpool.io/{key}={value}")]);
    let user = options.user.iter().flat_map(|user| ["--user".to_owned(), user.clone()]);
    keys.chain(user).map(OsString::from).chain([OsString::from("--")]).chain(options.command.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Verb, parse};

    #[test]
    fn options_become_annotations_in_the_words_of_the_request() {
        let line = "gpool run --fraction 0.3 --memory 4GiB --key mode=slice --user me -- sleep --user 5";
        let Ok(arguments) = parse(line.split(' ').map(OsString::from)) else { panic!("{line}") };
        let Verb::Run(options) = arguments.verb else { panic!("no run") };
        let want = "--annotation gpool.io/fraction=0.3 --annotation gpool.io/memory=4GiB --annotation gpool.io/mode=slice \
                    --user me -- sleep --user 5";
        assert_eq!(super::arguments(&options), want.split_whitespace().map(OsString::from).collect::<Vec<_>>());
    }
}
