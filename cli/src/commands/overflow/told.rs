//! What the program was told last, also by an earlier life of the command.

use crate::exit::{ExitStatus, Failure};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};

/// What it knows of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Known {
    /// The host is short of room.
    Short,
    /// It is not. This is where everybody begins.
    NotShort,
    /// Telling it was begun and has not ended well: it may have acted or not, and is told in any case.
    Unknown,
}

#[derive(Debug, Serialize, Deserialize)]
struct Written {
    told: Known,
}

/// That, and the file that keeps it.
#[derive(Debug)]
pub struct Told {
    known: Known,
    file: Option<PathBuf>,
}

impl Told {
    /// What the file has, which need not be there yet.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub fn open(file: Option<&Path>) -> Result<Self, Failure> {
        let Some(file) = file else { return Ok(Self { known: Known::NotShort, file: None }) };
        let unusable = |cause: String, remedy: &str| {
            let sentence = format!("gpool: --state {} cannot be used: {cause}; {remedy}", file.display());
            Failure::Refused(ExitStatus::Failed, sentence)
        };
        let known = match std::fs::read(file) {
            Ok(text) => serde_json::from_slice::<Written>(&text).map(|its| its.told).map_err(|cause| {
                unusable(cause.to_string(), "remove it, and the program is told anew while the host is short of room")
            })?,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Known::NotShort,
            Err(cause) => return Err(unusable(cause.to_string(), "name a file that can be read and written")),
        };
        let its = Self { known, file: Some(file.to_owned()) };
        // A file that cannot be written is found out now and not in the night.
        its.write().map_err(|cause| {
            unusable(cause.to_string(), "name a file in a directory that is there and can be written")
        })?;
        Ok(its)
    }

    /// Whether the program has to be told how the host stands.
    pub fn is_due(&self, is_short: bool) -> bool {
        self.known != if is_short { Known::Short } else { Known::NotShort }
    }

    /// From now on it knows this.
    ///
    /// # Errors
    /// That cannot be written down, and holds all the same.
    pub fn note(&mut self, known: Known) -> std::io::Result<()> {
        if std::mem::replace(&mut self.known, known) == known {
            return Ok(());
        }
        self.write()
    }

    fn write(&self) -> std::io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let directory = file.parent().filter(|its| !its.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut new = tempfile::NamedTempFile::new_in(directory)?;
        serde_json::to_writer(&mut new, &Written { told: self.known })?;
        new.write_all(b"\n")?;
        new.as_file().sync_all()?;
        new.persist(file).map_err(|error| error.error)?;
        std::fs::File::open(directory)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_outlives_the_command() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("told.json");
        let mut told = Told::open(Some(&file)).unwrap();
        assert!(told.is_due(true) && !told.is_due(false));
        told.note(Known::Unknown).unwrap();
        let half_way = Told::open(Some(&file)).unwrap();
        assert!(half_way.is_due(true) && half_way.is_due(false), "it may have acted or not");
        told.note(Known::Short).unwrap();
        let again = Told::open(Some(&file)).unwrap();
        assert!(!again.is_due(true) && again.is_due(false));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "{\"told\":\"short\"}\n");
    }

    #[test]
    fn a_file_that_cannot_be_used_is_found_out_at_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let told = |name: &str| Told::open(Some(&directory.path().join(name))).map_err(|error| format!("{error:?}"));
        std::fs::write(directory.path().join("other.json"), "{}").unwrap();
        let error = told("other.json").unwrap_err();
        assert!(error.contains("--state") && error.contains("remove it"), "{error}");
        let error = told("absent/told.json").unwrap_err();
        assert!(error.contains("a directory that is there"), "{error}");
        assert!(Told::open(None).unwrap().is_due(true));
    }
}
