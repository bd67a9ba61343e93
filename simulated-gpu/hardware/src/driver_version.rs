//! Which driver the host pretends to have.

use crate::layout::Layout;
use std::fs;
use std::io;

/// A driver's version, such as `550.163.01`. Programs that come with a driver refuse another one's NVML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverVersion {
    text: String,
}

impl DriverVersion {
    /// The version with this text, which begins with a branch's number.
    ///
    /// # Errors
    /// When it does not, or is longer than NVML's buffer of 80 bytes admits; the sentence says so.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if text.len() < 72 && text.split_once('.').is_some_and(|(branch, rest)| is_number(branch) && !rest.is_empty()) {
            return Ok(Self { text: text.to_owned() });
        }
        Err(format!("{text:?} is not a driver's version, such as 550.163.01"))
    }

    /// The version of the host with this layout; the default one where none is written down.
    ///
    /// # Errors
    /// When what is written down cannot be read.
    pub fn read(layout: &Layout) -> io::Result<Self> {
        match fs::read_to_string(layout.driver_version()) {
            Ok(text) => Self::parse(text.trim_end()).map_err(io::Error::other),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(cause) => Err(cause),
        }
    }

    /// Makes this the version of the host with this layout, for whoever asks from now on.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, layout: &Layout) -> io::Result<()> {
        let (path, new) = (layout.driver_version(), layout.driver_version().with_extension("new"));
        fs::write(&new, format!("{self}\n"))?;
        fs::rename(new, path)
    }

    /// The version of the CUDA driver API that this branch brings, as 1000 x major + 10 x minor; 12.2 for a branch that
    /// is not known. Source: NVIDIA's CUDA toolkit release notes, table of driver versions.
    pub fn cuda(&self) -> i32 {
        match self.text.split('.').next() {
            Some("550") => 12040,
            Some("555") => 12050,
            Some("570") => 12080,
            Some("575") => 12090,
            Some("580") => 13000,
            Some("615") => 13040,
            _ => 12020,
        }
    }
}

impl Default for DriverVersion {
    /// No product's: nobody takes it for one.
    fn default() -> Self {
        Self { text: "535.000.00-simulated".to_owned() }
    }
}

impl std::fmt::Display for DriverVersion {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_from_other_texts() {
        for wrong in ["", "550", "550.", ".163", "driver.1", &format!("535.{}", "0".repeat(80))] {
            assert!(DriverVersion::parse(wrong).is_err(), "{wrong}");
        }
        let cuda = |text| DriverVersion::parse(text).map(|version| version.cuda());
        assert_eq!((cuda("555.58.02"), cuda("570.86.10")), (Ok(12050), Ok(12080)));
    }

    #[test]
    fn what_is_written_is_read_and_without_it_there_is_the_default() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        fs::create_dir_all(layout.state()).unwrap();
        assert_eq!(DriverVersion::read(&layout).unwrap(), DriverVersion::default());
        let version = DriverVersion::parse("550.163.01").unwrap();
        version.write(&layout).unwrap();
        assert_eq!(DriverVersion::read(&layout).unwrap(), version);
    }
}
