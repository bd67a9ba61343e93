//! What `gpool-run` was called for.

use gpool_protocol::{ErrorBody, ErrorCode};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// The command and what it asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Order {
    /// Annotations as an engine would hand them on: `gpool.io/fraction` and the like.
    pub annotations: BTreeMap<String, String>,
    /// Who runs it; nobody else than who called if absent.
    pub user: Option<String>,
    /// What its id begins with, by which it is found again.
    pub name: Option<String>,
    /// Whose lock it has to have, so that there is one such command at a time.
    pub lock: Option<PathBuf>,
    /// The command with its arguments; never empty.
    pub command: Vec<String>,
}

impl Order {
    /// Reads the command line.
    ///
    /// # Errors
    /// An unknown word before `--`, a value that is missing, no command, or text that is no UTF-8: it goes through JSON.
    pub fn read(arguments: &[OsString]) -> Result<Self, ErrorBody> {
        let mut words =
            arguments.iter().map(|word| word.to_str().ok_or_else(|| wrong(&format!("{word:?} is no UTF-8"))));
        let mut order = Self { annotations: BTreeMap::new(), user: None, name: None, lock: None, command: Vec::new() };
        while let Some(word) = words.next().transpose()? {
            match word {
                "--" => {
                    order.command = words.map(|word| word.map(str::to_owned)).collect::<Result<_, _>>()?;
                    break;
                }
                "--annotation" => {
                    let pair = words.next().transpose()?.and_then(|pair| pair.split_once('='));
                    let (key, value) = pair.ok_or_else(|| wrong("--annotation needs KEY=VALUE"))?;
                    order.annotations.insert(key.to_owned(), value.to_owned());
                }
                "--user" => {
                    let user = words.next().transpose()?.filter(|user| !user.is_empty());
                    order.user = Some(user.ok_or_else(|| wrong("--user needs a name"))?.to_owned());
                }
                "--name" => {
                    let name = words.next().transpose()?;
                    order.name = Some(name.ok_or_else(|| wrong("--name needs a name"))?.to_owned());
                }
                "--lock" => {
                    let file = words.next().transpose()?.filter(|file| !file.is_empty());
                    order.lock = Some(file.ok_or_else(|| wrong("--lock needs a file"))?.into());
                }
                other => return Err(wrong(&format!("{other:?} is no option"))),
            }
        }
        if order.command.is_empty() {
            return Err(wrong("no command is given"));
        }
        Ok(order)
    }
}

fn wrong(what: &str) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::RequestInvalid,
        format!("gpool-run cannot be called so: {what}"),
        "gpool-run [--annotation KEY=VALUE ...] [--user NAME] [--name NAME] [--lock FILE] -- COMMAND [ARGUMENT ...]",
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
        let order =
            read("--annotation gpool.io/fraction=0.3 --user me --name job-7 --lock /run/l -- a --user -- b").unwrap();
        assert_eq!(order.annotations["gpool.io/fraction"], "0.3");
        assert_eq!(order.user.as_deref(), Some("me"));
        assert_eq!((order.name.as_deref(), order.lock), (Some("job-7"), Some("/run/l".into())));
        assert_eq!(order.command, ["a", "--user", "--", "b"]);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for line in ["", "--", "a", "--annotation", "--annotation x -- a", "--user", "--annotation a=b", "--user me"] {
            assert_presentable(&read(line).unwrap_err());
        }
        for line in ["--name", "--lock", "--lock /run/l"] {
            assert_presentable(&read(line).unwrap_err());
        }
    }
}
