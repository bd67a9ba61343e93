//! What the types of the keys cannot say: paths that must be absolute, numbers with a range.

use crate::error::ConfigurationError;
use crate::keys::{Configuration, HANG_SECONDS_MAX};
use crate::layers::{DEFAULT_PATH, Origin};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A value that its key cannot have.
pub struct Breach {
    key: String,
    cause: String,
}

impl Breach {
    /// With the file and line that gave the key its value.
    pub fn located(self, origins: &BTreeMap<String, Origin>) -> ConfigurationError {
        match origins.get(&self.key) {
            Some(origin) => ConfigurationError::new(&origin.path, Some(origin.line), self.cause),
            None => ConfigurationError::new(Path::new(DEFAULT_PATH), None, self.cause),
        }
    }
}

/// The first key whose value is out of bounds, with what to write.
pub fn check(configuration: &Configuration) -> Result<(), Breach> {
    for (key, value) in absolute_paths(configuration) {
        if !value.is_absolute() {
            let cause = format!("{key} = {:?} must be an absolute path", value.display().to_string());
            return Err(Breach { key: key.to_owned(), cause });
        }
    }
    check_hang_times(configuration)
}

/// Whether the times after which a container counts as hung make sense.
fn check_hang_times(configuration: &Configuration) -> Result<(), Breach> {
    for (class, policy) in configuration.class.all() {
        let usual = policy.hang_seconds;
        if !(1..=HANG_SECONDS_MAX).contains(&usual) {
            let key = format!("class.{class}.hang_seconds");
            let cause = format!("{key} = {usual} is out of range; write 1 to {HANG_SECONDS_MAX} seconds");
            return Err(Breach { key, cause });
        }
        let shorter = policy.hang_seconds_while_latency_waits();
        if !(1..=usual).contains(&shorter) {
            let key = format!("class.{class}.hang_seconds_latency_waits");
            let cause = format!(
                "{key} = {shorter} is out of range; write 1 to {usual} seconds, which is class.{class}.hang_seconds, \
                 or leave it out"
            );
            return Err(Breach { key, cause });
        }
    }
    Ok(())
}

fn absolute_paths(configuration: &Configuration) -> Vec<(&'static str, &PathBuf)> {
    let mut all = vec![
        ("paths.run_dir", &configuration.paths.run_dir),
        ("paths.shim_dir", &configuration.paths.shim_dir),
        ("paths.hook", &configuration.paths.hook),
        ("socket.path", &configuration.socket.path),
        ("driver.device_dir", &configuration.driver.device_dir),
        ("driver.proc_dir", &configuration.driver.proc_dir),
    ];
    all.extend(configuration.mig.layout.iter().map(|path| ("mig.layout", path)));
    all.extend(configuration.driver.library_dirs.iter().map(|path| ("driver.library_dirs", path)));
    all.extend(configuration.runtime.low_level.iter().map(|path| ("runtime.low_level", path)));
    all
}
