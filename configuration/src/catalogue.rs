//! Every key with its words, read from the file that is shipped: `configs/config.toml` is the one place where a key is
//! explained, and the manual, the schema and `gpool config defaults` are made of it.
//!
//! In that file a line `#: key = value` states a default, one that begins with `#+ ` gives an example of a key that has
//! none, and the comment above explains it.

use crate::flat::flat;
use crate::keys::Configuration;

/// The file as it is shipped.
pub const SHIPPED: &str = include_str!("../../configs/config.toml");

const DEFAULT_MARK: &str = "#: ";
const EXAMPLE_MARK: &str = "#+ ";

/// A key of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its dotted name.
    pub name: String,
    /// What it means, one line a line of the file; empty where another class explains it.
    pub about: Vec<String>,
    /// Its default as TOML; none for a key that is left out by default.
    pub default: Option<String>,
    /// Lines of TOML that show it in use, where it has no default.
    pub example: Vec<String>,
    /// When a change of it is in force.
    pub effect: Effect,
}

/// When a changed key is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// At the next start of a container: gpool-runtime reads it each time.
    NextContainer,
    /// The same; for users without root after a reload, since for those the supervisor decides as well.
    NextContainerOrReload,
    /// After a reload of the supervisor, for running containers too.
    Reload,
    /// After a restart of the supervisor, which running containers do not notice.
    Restart,
}

impl Effect {
    /// In the words of the manual.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Effect::NextContainer => "the next container",
            Effect::NextContainerOrReload => "the next container; for users without root a reload",
            Effect::Reload => "reload",
            Effect::Restart => "restart",
        }
    }

    /// That of a key. Of one that nobody has thought of, a restart.
    #[must_use]
    pub fn of(key: &str) -> Self {
        let is_in = |table: &str| key.starts_with(table);
        match key {
            "driver.compat" | "policy.namespace_teams" | "policy.counted_pods" | "policy.placed_by" => {
                Effect::NextContainer
            }
            "policy.unenforced" => Effect::NextContainerOrReload,
            "socket.group"
            | "driver.memory_limits"
            | "policy.classes"
            | "policy.rootless_group"
            | "policy.counted_memory_percent"
            | "policy.timeslice"
            | "lease.hold_ms"
            | "ledger.minute_days"
            | "ledger.hour_days"
            | "audit.keep_days"
            | "audit.most_mib" => Effect::Reload,
            _ if is_in("policy.env.") => Effect::NextContainerOrReload,
            _ if is_in("runtime.") || is_in("default_request.") => Effect::NextContainer,
            _ if is_in("class.")
                || is_in("mig.")
                || is_in("queue.")
                || is_in("overflow.")
                || is_in("preemption.")
                || is_in("latency.")
                || is_in("run_time.")
                || is_in("spill.")
                || is_in("quota.")
                || is_in("reservation")
                || is_in("team")
                || is_in("rates.")
                || is_in("health.") =>
            {
                Effect::Reload
            }
            _ => Effect::Restart,
        }
    }
}

/// All keys, in the order of the shipped file.
#[must_use]
pub fn catalogue() -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    let (mut table, mut about, mut example) = (String::new(), Vec::new(), Vec::new());
    for line in SHIPPED.lines().chain([""]) {
        if let Some(example_line) = line.strip_prefix(EXAMPLE_MARK) {
            example.push(example_line.to_owned());
            continue;
        }
        if !example.is_empty() {
            keys.push(key_of_example(&table, std::mem::take(&mut about), std::mem::take(&mut example)));
        }
        if let Some((name, default)) = line.strip_prefix(DEFAULT_MARK).and_then(|line| line.split_once(" = ")) {
            let name = format!("{table}.{name}");
            let effect = Effect::of(&name);
            let about = std::mem::take(&mut about);
            keys.push(Key { name, about, default: Some(default.to_owned()), example: Vec::new(), effect });
        } else if let Some(words) = line.strip_prefix("# ") {
            about.push(words.to_owned());
        } else {
            about.clear();
            if let Some(header) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                header.clone_into(&mut table);
            }
        }
    }
    keys
}

/// A key without a default: named by the example's first line, which is `key = value`, the header of an array, or that of one of
/// several tables whose names are for whoever writes them.
fn key_of_example(table: &str, about: Vec<String>, example: Vec<String>) -> Key {
    let first = example.first().map(String::as_str).unwrap_or_default();
    let header = first.strip_prefix('[').and_then(|line| line.strip_suffix(']'));
    let name = match header {
        Some(header) => match header.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(array) => array.to_owned(),
            None => header.rsplit_once('.').map_or(header, |(tables, _)| tables).to_owned(),
        },
        None => format!("{table}.{}", first.split(' ').next().unwrap_or_default()),
    };
    let effect = Effect::of(&name);
    Key { name, about, default: None, example, effect }
}

/// The names of all keys: those of the catalogue, and those that have a value by default in case it lacks one.
pub(crate) fn known_keys() -> Vec<String> {
    let mut names: Vec<String> = catalogue().into_iter().map(|key| key.name).collect();
    names.extend(flat(&Configuration::default()).into_keys());
    names.sort();
    names.dedup();
    names
}
