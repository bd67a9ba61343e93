//! The files that make up a configuration: `config.toml`, then `conf.d/*.toml` beside it in the order of their names.
//! A later file wins key by key; an array is one value and is replaced as a whole.

use crate::bounds;
use crate::error::{ConfigurationError, line_of};
use crate::keys::Configuration;
use crate::unknown::unknown_key;
use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// Where the configuration lies unless told otherwise.
pub const DEFAULT_PATH: &str = "/etc/gpool/config.toml";

/// The directory beside the file whose files are laid over it.
const DROP_INS: &str = "conf.d";

/// Where a key got its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The file.
    pub path: PathBuf,
    /// The line of the key in it, from 1; of an array of tables the first header's.
    pub line: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}

/// A configuration with what it was made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layered {
    /// What holds.
    pub configuration: Configuration,
    /// The files that were read, the strongest last.
    pub files: Vec<PathBuf>,
    /// Where each key that some file sets got its value, by its dotted name.
    pub origins: BTreeMap<String, Origin>,
}

/// Reads the file at `path` and the drop-ins beside it. A file that is not there is an empty one.
///
/// # Errors
/// An unreadable file, a syntax error, an unknown key, a value of another type or out of its range.
pub fn load(path: &Path) -> Result<Configuration, ConfigurationError> {
    load_layered(path).map(|layered| layered.configuration)
}

/// The same, with the origin of each key.
///
/// # Errors
/// As [`load`].
pub fn load_layered(path: &Path) -> Result<Layered, ConfigurationError> {
    let mut sources: Vec<(PathBuf, String)> = read(path)?.map(|text| (path.to_owned(), text)).into_iter().collect();
    for file in drop_ins(path)? {
        let text = read(&file)?;
        sources.extend(text.map(|text| (file, text)));
    }
    merge(&sources)
}

/// Whether a configuration that was not read from files can be used.
///
/// # Errors
/// As [`load`], without a line.
pub fn check(configuration: &Configuration) -> Result<(), ConfigurationError> {
    bounds::check(configuration).map_err(|breach| breach.located(&BTreeMap::new()))
}

/// `[paths] state_dir` of files that need not be usable, as far as it can be told.
#[must_use]
pub fn state_dir(path: &Path) -> PathBuf {
    said_of(path, "paths", "state_dir").unwrap_or_else(|| Configuration::default().paths.state_dir)
}

/// `[socket] path` likewise.
#[must_use]
pub fn socket_path(path: &Path) -> PathBuf {
    said_of(path, "socket", "path").unwrap_or_else(|| Configuration::default().socket.path)
}

/// What the last of those files that are TOML says of a place. Of one that is not, a line by itself may say it, where the key is in no
/// other table.
fn said_of(path: &Path, table: &str, key: &str) -> Option<PathBuf> {
    let mut files = vec![path.to_owned()];
    files.extend(drop_ins(path).unwrap_or_default());
    let of_line = |line: &str| {
        let line: toml::Table = line.parse().ok()?;
        let said = line.get(key).or_else(|| line.get(table)?.get(key))?;
        Some(said.as_str()?.to_owned())
    };
    let said = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).ok()?;
        let said = match text.parse::<toml::Table>() {
            Ok(all) => Some(all.get(table)?.get(key)?.as_str()?.to_owned()),
            Err(_) if key == "state_dir" => text.lines().rev().find_map(of_line),
            Err(_) => None,
        };
        said.map(PathBuf::from)
    };
    files.iter().rev().find_map(said).filter(|said| said.is_absolute())
}

/// Reads `text` alone, naming `path` in errors.
///
/// # Errors
/// As [`load`].
pub fn parse(path: &Path, text: &str) -> Result<Configuration, ConfigurationError> {
    merge(&[(path.to_owned(), text.to_owned())]).map(|layered| layered.configuration)
}

/// As [`load_layered`], for whoever checks the files.
///
/// # Errors
/// As [`load`], and a value that does nothing: a request key that no container has, a relative directory of programs.
pub fn load_strictly(path: &Path) -> Result<Layered, ConfigurationError> {
    load_layered(path).and_then(strictly)
}

/// As [`parse`], for whoever checks the file.
///
/// # Errors
/// As [`load_strictly`].
pub fn parse_strictly(path: &Path, text: &str) -> Result<Configuration, ConfigurationError> {
    merge(&[(path.to_owned(), text.to_owned())]).and_then(strictly).map(|layered| layered.configuration)
}

fn strictly(layered: Layered) -> Result<Layered, ConfigurationError> {
    bounds::check_strictly(&layered.configuration).map_err(|breach| breach.located(&layered.origins))?;
    Ok(layered)
}

/// None if the file is not there.
fn read(path: &Path) -> Result<Option<String>, ConfigurationError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ConfigurationError::new(path, None, format!("cannot be read ({})", error.kind()))),
    }
}

/// The drop-ins of the file at `path`, by name. What does not end in `.toml`, or begins with a dot, is none.
fn drop_ins(path: &Path) -> Result<Vec<PathBuf>, ConfigurationError> {
    let directory = path.with_file_name(DROP_INS);
    let failed =
        |error: std::io::Error| ConfigurationError::new(&directory, None, format!("cannot be read ({})", error.kind()));
    let entries = match std::fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let file = entry.map_err(failed)?.path();
        let is_hidden = file.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        if !is_hidden && file.extension().is_some_and(|extension| extension == "toml") {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// Each text is judged alone, so that an error names its line, and what they make together once more.
fn merge(sources: &[(PathBuf, String)]) -> Result<Layered, ConfigurationError> {
    let mut layered = Layered::default();
    let mut merged = toml::Table::new();
    for (path, text) in sources {
        let tree = DeTable::parse(text).map_err(|error| ConfigurationError::of_parser(path, text, &error))?;
        layered.configuration = toml::from_str(text).map_err(|error| {
            let unknown = unknown_key(path, text, tree.get_ref());
            let key = error.span().and_then(|span| key_at("", tree.get_ref(), span.start));
            unknown.unwrap_or_else(|| match key {
                Some(key) => ConfigurationError::of_value(path, text, &error, &key),
                None => ConfigurationError::of_parser(path, text, &error),
            })
        })?;
        note_origins("", tree.get_ref(), &mut |key, start| {
            layered.origins.insert(key, Origin { path: path.clone(), line: line_of(text, start) });
        });
        layered.files.push(path.clone());
        if sources.len() > 1 {
            let table = toml::from_str(text).map_err(|error| ConfigurationError::of_parser(path, text, &error))?;
            lay_over(&mut merged, table);
        }
    }
    if sources.len() > 1 {
        // Every file alone was fine, so this is.
        let whole = toml::Value::Table(merged).try_into();
        layered.configuration = whole.map_err(|error: toml::de::Error| {
            ConfigurationError::new(&sources[0].0, None, format!("does not go with its drop-ins ({})", error.message()))
        })?;
    }
    bounds::check(&layered.configuration).map_err(|breach| breach.located(&layered.origins))?;
    Ok(layered)
}

/// Tables are gone into; everything else is a value.
fn lay_over(below: &mut toml::Table, above: toml::Table) {
    for (key, value) in above {
        match (below.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => lay_over(old, new),
            (_, value) => drop(below.insert(key, value)),
        }
    }
}

fn note_origins(prefix: &str, table: &DeTable<'_>, note: &mut impl FnMut(String, usize)) {
    for (key, value) in table {
        let name = dotted(prefix, key.get_ref());
        match value.get_ref() {
            DeValue::Table(inner) => note_origins(&name, inner, note),
            _ => note(name, key.span().start),
        }
    }
}

/// The key in whose value the byte at `offset` stands.
fn key_at(prefix: &str, table: &DeTable<'_>, offset: usize) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let name = dotted(prefix, key.get_ref());
        match value.get_ref() {
            DeValue::Table(inner) => key_at(&name, inner, offset),
            _ => value.span().contains(&offset).then_some(name),
        }
    })
}

/// `prefix.key`, or `key` at the top. A key that TOML takes in quotes alone, as a team may be called, has them.
pub(crate) fn dotted(prefix: &str, key: &str) -> String {
    let is_bare = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    let key = if is_bare { key.to_owned() } else { toml::Value::from(key).to_string() };
    if prefix.is_empty() { key } else { format!("{prefix}.{key}") }
}
