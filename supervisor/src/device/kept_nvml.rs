//! NVML as it last worked on this host.
//!
//! A package replaces the driver's libraries while its kernel module cannot be: something uses it, a training of weeks or
//! this supervisor. New libraries do not speak to an old module (`NVML_ERROR_LIB_RM_VERSION_MISMATCH`, nvml.h), so that a
//! supervisor that starts then would have no NVML until the host is booted, and nobody would pace the containers that run.
//! They have the old libraries, and the supervisor takes its own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Its name in the directory of kept builds, where libraries may be loaded from: `/run` is often mounted `noexec`.
pub const NAME: &str = "nvml";

/// Where the library is kept.
#[derive(Debug, Clone)]
pub struct KeptNvml(PathBuf);

impl KeptNvml {
    /// In this directory, which need not be there.
    pub fn in_directory(directory: &Path) -> Self {
        Self(directory.join(NAME))
    }

    /// The library, if one is kept.
    pub fn library(&self) -> Option<&Path> {
        Some(self.0.as_path()).filter(|path| path.is_file())
    }

    /// Keeps `library`, which has just worked, in place of what is kept.
    ///
    /// # Errors
    /// When it cannot be read, or the directory cannot be written; what was kept stays.
    pub fn keep(&self, library: &Path) -> io::Result<()> {
        // A link to a link would be to whatever the name means later.
        let library = fs::canonicalize(library)?;
        if self.library().is_some() && fs::read(&self.0)? == fs::read(&library)? {
            return Ok(());
        }
        if let Some(directory) = self.0.parent() {
            fs::create_dir_all(directory)?;
        }
        let new = self.0.with_extension("new");
        let _ = fs::remove_file(&new);
        // A package replaces names, not what is in a file.
        fs::hard_link(&library, &new).or_else(|_| fs::copy(&library, &new).map(drop))?;
        fs::rename(&new, &self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_worked_is_kept_when_its_name_means_something_else() {
        let directory = tempfile::tempdir().unwrap();
        let named = |name: &str| directory.path().join(name);
        fs::write(named("library.so.1.2"), "old").unwrap();
        symlink("library.so.1.2", named("library.so")).unwrap();
        let kept = KeptNvml::in_directory(&named("builds"));
        assert_eq!(kept.library(), None);
        kept.keep(&named("library.so")).unwrap();
        fs::remove_file(named("library.so.1.2")).unwrap();
        fs::write(named("library.so.1.3"), "new").unwrap();
        fs::remove_file(named("library.so")).unwrap();
        symlink("library.so.1.3", named("library.so")).unwrap();
        assert_eq!(fs::read(kept.library().unwrap()).unwrap(), b"old");
        kept.keep(&named("library.so")).unwrap();
        assert_eq!(fs::read(kept.library().unwrap()).unwrap(), b"new");
        kept.keep(&named("library.so")).unwrap();
        assert!(kept.keep(&named("nothing")).is_err());
        assert_eq!(fs::read(kept.library().unwrap()).unwrap(), b"new");
    }
}
