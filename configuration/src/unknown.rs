//! Keys that there are not, with the nearest that there is.

use crate::catalogue::known_keys;
use crate::error::{ConfigurationError, line_of};
use crate::layers::dotted;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// Further apart, two names have nothing to do with each other.
const NEAR: usize = 3;

/// The first key of `tree` that is none, as an error with its line and the nearest one.
pub fn unknown_key(path: &Path, text: &str, tree: &DeTable<'_>) -> Option<ConfigurationError> {
    let known = known_keys();
    let (key, start, is_table) = first_unknown("", tree, &known)?;
    let cause = format!("`{key}` is no key; {}", remedy(&key, is_table, &known));
    Some(ConfigurationError::new(path, Some(line_of(text, start)), cause))
}

/// Its name, where it stands, and whether it is a table.
fn first_unknown(prefix: &str, table: &DeTable<'_>, known: &[String]) -> Option<(String, usize, bool)> {
    table.iter().find_map(|(key, value)| {
        let name = dotted(prefix, key.get_ref());
        let is_value = known.contains(&name);
        let is_table = known.iter().any(|other| is_below(other, &name));
        match value.get_ref() {
            other if !is_value && !is_table => Some((name, key.span().start, matches!(other, DeValue::Table(_)))),
            DeValue::Table(inner) if is_table => first_unknown(&name, inner, known),
            _ => None,
        }
    })
}

/// Whether `key` stands in the table `table`, or in one of its tables.
fn is_below(key: &str, table: &str) -> bool {
    table.is_empty() || key.strip_prefix(table).is_some_and(|rest| rest.starts_with('.'))
}

fn remedy(key: &str, is_table: bool, known: &[String]) -> String {
    let (table, last) = key.rsplit_once('.').unwrap_or(("", key));
    // Every key and every table, since either may be mistyped; one of the same table before one of another.
    let mut names: Vec<&str> = known.iter().map(String::as_str).collect();
    names.extend(known.iter().flat_map(|key| key.match_indices('.').map(|(at, _)| &key[..at])));
    let distance = |name: &str| {
        let (its_table, its_last) = name.rsplit_once('.').unwrap_or(("", name));
        // Where a table stands, a key with the same name in another one was hardly meant.
        let is_of_another_kind = is_table && known.iter().any(|key| key == name);
        strsim::levenshtein(its_last, last) * 2 + usize::from(its_table != table) + 2 * usize::from(is_of_another_kind)
    };
    match names.iter().min_by_key(|name| distance(name)) {
        Some(nearest) if distance(nearest) <= NEAR * 2 => format!("did you mean `{nearest}`?"),
        _ => {
            let below = known.iter().filter(|key| is_below(key, table));
            let start = if table.is_empty() { 0 } else { table.len() + 1 };
            let mut here: Vec<&str> = below.map(|key| key[start..].split('.').next().unwrap_or_default()).collect();
            here.sort_unstable();
            here.dedup();
            format!("here there are `{}`", here.join("`, `"))
        }
    }
}
