//! A configuration as a flat list of keys, to be shown and compared.

use crate::keys::Configuration;
use crate::layers::dotted;
use std::collections::BTreeMap;

/// Every key that has a value, by its dotted name.
#[must_use]
pub fn flat(configuration: &Configuration) -> BTreeMap<String, toml::Value> {
    let mut keys = BTreeMap::new();
    // Every type of the keys has a form in TOML; one that had none would be missing here, which a test would show.
    if let Ok(table) = toml::Table::try_from(configuration) {
        flatten("", table, &mut keys);
    }
    keys
}

fn flatten(prefix: &str, table: toml::Table, keys: &mut BTreeMap<String, toml::Value>) {
    for (key, value) in table {
        let name = dotted(prefix, &key);
        match value {
            toml::Value::Table(inner) => flatten(&name, inner, keys),
            value => drop(keys.insert(name, value)),
        }
    }
}

/// A key whose value differs between two configurations; none where it has no value.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Its dotted name.
    pub key: String,
    /// In the first, as TOML.
    pub old: Option<String>,
    /// In the second, as TOML.
    pub new: Option<String>,
}

/// The keys in which two configurations differ, by name.
#[must_use]
pub fn differences(old: &Configuration, new: &Configuration) -> Vec<Difference> {
    let (old, new) = (flat(old), flat(new));
    let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
    names.sort();
    names.dedup();
    let differing = names.into_iter().filter(|name| old.get(*name) != new.get(*name));
    let text = |value: Option<&toml::Value>| value.map(ToString::to_string);
    differing.map(|key| Difference { key: key.clone(), old: text(old.get(key)), new: text(new.get(key)) }).collect()
}
