//! The supervisor's configuration, and what a reload of it did.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The configuration that the supervisor works with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationView {
    /// The file that it was started with; drop-ins lie in `conf.d` beside it.
    pub path: String,
    /// Every key that has a value, by its dotted name, as TOML.
    pub keys: BTreeMap<String, String>,
    /// Why the files cannot be used, if they could not when that was tried last, twenty seconds ago at most. What was taken over before is in
    /// force then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unusable: Option<String>,
}

/// A key that differs between two configurations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedKey {
    /// Its dotted name.
    pub key: String,
    /// The value before, as TOML; none where the key had none.
    pub old: Option<String>,
    /// The value after, as TOML; none where the key has none.
    pub new: Option<String>,
}

/// The answer to a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Keys that are in force from now on, for running containers too.
    pub applied: Vec<ChangedKey>,
    /// Keys whose change waits for a restart of the supervisor; it goes on with the old values.
    pub needs_restart: Vec<ChangedKey>,
}
