//! What is wrong with a configuration, and where.

use crate::catalogue::catalogue;
use std::fmt;
use std::path::{Path, PathBuf};

/// A configuration that cannot be used; the text names the file, the line and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigurationError {
    path: PathBuf,
    line: Option<usize>,
    cause: String,
}

impl ConfigurationError {
    pub(crate) fn new(path: &Path, line: Option<usize>, cause: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, cause: cause.into() }
    }

    /// What the parser says of `text`, on one line.
    pub(crate) fn of_parser(path: &Path, text: &str, error: &toml::de::Error) -> Self {
        let line = error.span().map(|span| line_of(text, span.start));
        let cause: Vec<&str> = error.message().lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        Self::new(path, line, cause.join(" "))
    }

    /// What is wrong with the value of `key`, and what the key means, which says the unit.
    pub(crate) fn of_value(path: &Path, text: &str, error: &toml::de::Error, key: &str) -> Self {
        let said = Self::of_parser(path, text, error);
        let about = about(key).map(|about| format!("; it says {about}")).unwrap_or_default();
        Self { cause: format!("{key}: {}{about}", said.cause), ..said }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The line in it, from 1, where one can be named.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        self.line
    }
}

/// The first sentence of a key's words, as part of another one.
fn about(key: &str) -> Option<String> {
    let words = catalogue().into_iter().find(|known| known.name == key)?.about.join(" ");
    let words = words.split(". ").next()?.trim_end_matches('.');
    let mut letters = words.chars();
    let first = letters.next()?;
    Some(format!("{}{}", first.to_lowercase(), letters.as_str()))
}

/// The line, from 1, in which the byte at `offset` stands.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

impl fmt::Display for ConfigurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.cause)
    }
}

impl std::error::Error for ConfigurationError {}
