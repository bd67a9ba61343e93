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

    /// Keeps `library`, which this process has just loaded and which works, in place of what is kept. A plain name is one that
    /// the loader has looked up.
    ///
    /// # Errors
    /// When it cannot be read, or the directory cannot be written; what was kept stays.
    pub fn keep(&self, library: &Path) -> io::Result<()> {
        let is_plain = library.components().count() == 1 && !library.is_absolute();
        // A link to a link would be to whatever the name means later.
        let library = if is_plain { loaded_file(library)? } else { fs::canonicalize(library)? };
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

/// The file that this process has mapped for the library of this name, `libnvidia-ml.so.1`; the file's own has the version
/// behind `.so` that the library has.
fn loaded_file(name: &Path) -> io::Result<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let found = file_of(name, &maps).ok_or_else(|| format!("no file of {} is mapped", name.display()));
    found.map_err(io::Error::other)
}

/// The file in the lines of proc_pid_maps(5) that is of this library.
fn file_of(name: &Path, maps: &str) -> Option<PathBuf> {
    let name = name.to_str()?;
    let stem = name.find(".so").map_or(name, |at| &name[..at + 3]);
    let is_its = |file: &str| file == stem || file.strip_prefix(stem).is_some_and(|version| version.starts_with('.'));
    let mut paths = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
    paths.find(|path| path.file_name().and_then(|file| file.to_str()).is_some_and(is_its)).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_plain_name_is_the_file_that_the_loader_has_mapped_for_it() {
        let maps = "7f10-7f20 r--p 00000000 fe:00 12    /usr/lib/libnvidia-ml-other.so.1\n\
                    7f20-7f30 r-xp 00001000 fe:00 13    /usr/lib/x86 64/libnvidia-ml.so.580.95.05\n\
                    7f30-7f40 rw-p 00000000 00:00 0     [heap]\n";
        let found = |name: &str| file_of(Path::new(name), maps);
        assert_eq!(found("libnvidia-ml.so.1"), Some("/usr/lib/x86 64/libnvidia-ml.so.580.95.05".into()));
        assert_eq!(found("libcuda.so.1"), None);
        let directory = tempfile::tempdir().unwrap();
        let kept = KeptNvml::in_directory(directory.path());
        // Every program here has it.
        kept.keep(Path::new("libc.so.6")).unwrap();
        assert!(fs::read(kept.library().unwrap()).unwrap().starts_with(b"\x7fELF"));
        let cause = kept.keep(Path::new("libnothing.so.1")).unwrap_err().to_string();
        assert_eq!(cause, "no file of libnothing.so.1 is mapped");
    }

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
