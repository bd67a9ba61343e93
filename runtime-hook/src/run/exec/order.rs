//! What `gpool-run --exec` was called for.

use gpool_protocol::{ErrorBody, ErrorCode};
use std::ffi::OsString;

/// The command, and beside which one it is to run.
#[derive(Debug, PartialEq, Eq)]
pub struct Order {
    /// The id of that one, the beginning of it, or its lease's.
    pub of: String,
    /// Who runs it; the user of that one if absent.
    pub user: Option<String>,
    /// The command with its arguments; never empty.
    pub command: Vec<String>,
}

impl Order {
    /// Reads the command line, without the word that stands before.
    ///
    /// # Errors
    /// An unknown word before `--`, a value that is missing, no name, no command, or text that is no UTF-8: it goes through JSON.
    pub fn read(arguments: &[OsString]) -> Result<Self, ErrorBody> {
        let mut words =
            arguments.iter().map(|word| word.to_str().ok_or_else(|| wrong(&format!("{word:?} is no UTF-8"))));
        let (mut of, mut user, mut command) = (None, None, Vec::new());
        while let Some(word) = words.next().transpose()? {
            match word {
                "--" => {
                    command = words.map(|word| word.map(str::to_owned)).collect::<Result<_, _>>()?;
                    break;
                }
                "--user" => {
                    let name = words.next().transpose()?.filter(|name| !name.is_empty());
                    user = Some(name.ok_or_else(|| wrong("--user needs a name"))?.to_owned());
                }
                name if of.is_none() && !name.is_empty() && !name.starts_with('-') => of = Some(name.to_owned()),
                other => return Err(wrong(&format!("{other:?} is no option"))),
            }
        }
        if command.is_empty() {
            return Err(wrong("no command is given"));
        }
        Ok(Self { of: of.ok_or_else(|| wrong("it is not said beside which command"))?, user, command })
    }
}

fn wrong(what: &str) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::RequestInvalid,
        format!("gpool-run cannot be called so: {what}"),
        "gpool-run --exec NAME [--user USER] -- COMMAND [ARGUMENT ...]",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::assert_presentable;

    fn read(line: &str) -> Result<Order, ErrorBody> {
        Order::read(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_command_begins_behind_the_dashes_and_is_left_as_it_is() {
        let order = read("job-7 --user me -- a --user -- b").unwrap();
        assert_eq!((order.of.as_str(), order.user.as_deref()), ("job-7", Some("me")));
        assert_eq!(order.command, ["a", "--user", "--", "b"]);
        assert_eq!(read("job-7 -- a").unwrap().user, None);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for line in ["", "job-7", "job-7 --", "-- a", "job-7 job-8 -- a", "job-7 --user", "--name x -- a", "job-7 a"] {
            assert_presentable(&read(line).unwrap_err());
        }
    }
}
