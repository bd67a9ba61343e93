//! Reads the command line that a container engine gives an OCI runtime, without ever rewriting it.
//!
//! Two phases: global flags up to the verb, then the verb's own flags. Which flags take a value stands in the
//! tables below; everything that they do not know is left to the low-level runtime, which says so in its own
//! words.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Global flags of runc and crun that take a value.
const GLOBAL_WITH_VALUE: [&str; 7] = ["root", "log", "log-format", "log-level", "criu", "rootless", "cgroup-manager"];
/// Global flags that take none.
const GLOBAL_SWITCHES: [&str; 6] = ["debug", "systemd-cgroup", "version", "v", "help", "h"];
/// Global flags with which the low-level runtime answers at once, whatever verb follows.
const GLOBAL_ANSWERS: [&str; 4] = ["version", "v", "help", "h"];
/// Verbs of runc and crun; only asked after a global flag that the tables do not know.
const VERBS: [&str; 18] = [
    "checkpoint",
    "create",
    "delete",
    "events",
    "exec",
    "features",
    "init",
    "kill",
    "list",
    "pause",
    "ps",
    "restore",
    "resume",
    "run",
    "spec",
    "start",
    "state",
    "update",
];
/// Flags of create, run and restore that take a value.
const CREATE_WITH_VALUE: [&str; 13] = [
    "bundle",
    "b",
    "console-socket",
    "pidfd-socket",
    "pid-file",
    "preserve-fds",
    "image-path",
    "work-path",
    "manage-cgroups-mode",
    "empty-ns",
    "lsm-profile",
    "lsm-mount-context",
    "page-server",
];

/// A command line, as far as gpool has to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// Where the engine wants to read errors.
    pub log: Option<PathBuf>,
    /// What it asks for.
    pub invocation: Invocation,
}

/// What the engine asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invocation {
    /// Anything that makes no container.
    PassThrough,
    /// `create`, `run` or `restore`.
    Create(Creation),
}

/// A `create`, `run` or `restore`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Creation {
    /// The bundle's directory, relative to the working directory; empty means that directory itself.
    pub bundle: PathBuf,
    /// The container's id, if one is given.
    pub container_id: Option<OsString>,
}

/// Reads `arguments`, the program's name left out.
pub fn scan(arguments: &[OsString]) -> CommandLine {
    let mut log = None;
    let invocation = scan_globals(arguments, &mut log);
    CommandLine { log, invocation }
}

fn scan_globals(arguments: &[OsString], log: &mut Option<PathBuf>) -> Invocation {
    let mut rest = arguments.iter();
    let mut guessing = false;
    let verb = loop {
        let Some(word) = rest.next() else { return Invocation::PassThrough };
        let Some(flag) = Flag::read(word) else { break word };
        if flag.ends_flags() {
            match rest.next() {
                Some(word) => break word,
                None => return Invocation::PassThrough,
            }
        }
        if GLOBAL_ANSWERS.iter().any(|name| flag.is(name)) {
            return Invocation::PassThrough;
        }
        let takes_value = flag.is_one_of(&GLOBAL_WITH_VALUE);
        let value = match flag.value {
            None if takes_value => rest.next().map(OsString::as_os_str),
            value => value,
        };
        if flag.is("log") {
            *log = value.filter(|path| !path.is_empty()).map(PathBuf::from);
        }
        // An unknown flag may or may not take the next word as its value.
        guessing = flag.value.is_none() && !takes_value && !flag.is_one_of(&GLOBAL_SWITCHES);
        if guessing && !rest.as_slice().first().is_some_and(|next| is_verb(next) || Flag::read(next).is_some()) {
            return Invocation::PassThrough;
        }
    };
    if guessing && !is_verb(verb) {
        return Invocation::PassThrough;
    }
    if ![OsStr::new("create"), OsStr::new("run"), OsStr::new("restore")].contains(&verb.as_os_str()) {
        return Invocation::PassThrough;
    }
    scan_creation(rest.as_slice())
}

fn is_verb(word: &OsStr) -> bool {
    VERBS.iter().any(|verb| word == *verb)
}

fn scan_creation(arguments: &[OsString]) -> Invocation {
    let mut creation = Creation { bundle: PathBuf::new(), container_id: None };
    let mut rest = arguments.iter();
    let mut flags_ended = false;
    while let Some(word) = rest.next() {
        let flag = if flags_ended { None } else { Flag::read(word) };
        let Some(flag) = flag else {
            creation.container_id = Some(word.clone());
            continue;
        };
        if flag.ends_flags() {
            flags_ended = true;
            continue;
        }
        if flag.value.is_none() && (flag.is("help") || flag.is("h")) {
            return Invocation::PassThrough;
        }
        let value = match flag.value {
            None if flag.is_one_of(&CREATE_WITH_VALUE) => rest.next().map(OsString::as_os_str),
            value => value,
        };
        if flag.is("bundle") || flag.is("b") {
            creation.bundle = value.map(PathBuf::from).unwrap_or_default();
        }
    }
    Invocation::Create(creation)
}

/// `-name`, `--name`, `-name=value` or `--name=value`, as Go's flag package reads them.
struct Flag<'a> {
    name: &'a [u8],
    value: Option<&'a OsStr>,
}

impl<'a> Flag<'a> {
    /// None for a word that is no flag; a lone `-` is none.
    fn read(word: &'a OsStr) -> Option<Self> {
        let bytes = word.as_bytes().strip_prefix(b"-")?;
        if bytes.is_empty() {
            return None;
        }
        let bytes = bytes.strip_prefix(b"-").unwrap_or(bytes);
        Some(match bytes.iter().position(|byte| *byte == b'=') {
            Some(at) => Flag { name: &bytes[..at], value: Some(OsStr::from_bytes(&bytes[at + 1..])) },
            None => Flag { name: bytes, value: None },
        })
    }

    /// Whether this is the `--` behind which nothing is a flag.
    fn ends_flags(&self) -> bool {
        self.name.is_empty() && self.value.is_none()
    }

    fn is(&self, name: &str) -> bool {
        self.name == name.as_bytes()
    }

    fn is_one_of(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.is(name))
    }
}

#[cfg(test)]
#[path = "argv_tests.rs"]
mod tests;
