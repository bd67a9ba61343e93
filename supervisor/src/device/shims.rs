//! The shims that are installed, and the choice among them for the driver that is installed beside them.
//!
//! Each lies at `paths.shim_dir`/GENERATION/NAME and is never written again: another build is another file, renamed over
//! it. A supervisor goes on with the build that it was started with ([`builds`]), and a container that runs keeps the file
//! that it was started with.

use super::builds::{self, Installed};
use super::driver_files::DriverFilesError;
use super::generation::{Coverage, DriverNames, choose};
use crate::elf;
use gpool_driver_abi::{GENERATIONS, Generation};
use gpool_protocol::{BuildId, ShimView};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the two shims stand in for, and their file names.
pub const SHIMMED: [(&str, &str); 2] =
    [("libcuda.so.1", "libgpool-cuda.so"), ("libnvidia-ml.so.1", "libgpool-nvml.so")];

/// A shim on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shim {
    /// The library that it stands in for.
    pub library: &'static str,
    /// Its file.
    pub path: PathBuf,
    /// Which build it is; none if its linker has not written that down.
    pub build_id: Option<BuildId>,
}

/// The shims for the driver that is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// In the order of [`SHIMMED`].
    pub shims: Vec<Shim>,
    /// How they go with the driver.
    pub coverage: Coverage,
}

/// A file as it was when it was read: another one under its name is read anew.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl Identity {
    fn of(path: &Path) -> Option<Self> {
        let file = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
        let changed = (file.ctime(), file.ctime_nsec());
        Some(Self { device: file.dev(), inode: file.ino(), bytes: file.len(), changed })
    }
}

/// Chooses the shims, and keeps the choice until a file that it rests on is another one.
#[derive(Debug, Default)]
pub struct Shims {
    state: Mutex<State>,
}

/// What is known of shims and driver.
#[derive(Debug, Default)]
struct State {
    /// Found once: a package that replaces files is followed by a restart.
    installed: Vec<Installed>,
    last: Option<Last>,
}

/// A choice, and the files that it rests on.
#[derive(Debug)]
struct Last {
    files: Vec<Option<Identity>>,
    chosen: Arc<Chosen>,
}

impl State {
    /// Looks for shims in `directory` where none are known, or one that was kept is gone.
    fn look(&mut self, directory: &Path) -> Result<(), DriverFilesError> {
        let mut known = self.installed.iter().flat_map(|(_, shims)| shims);
        if self.installed.is_empty() || known.any(|shim| !shim.path.is_file()) {
            self.installed = builds::keep_all(directory)?;
            self.last = None;
        }
        Ok(())
    }
}

impl Shims {
    /// The shims in `directory` for the driver whose two libraries are `real`, in the order of [`SHIMMED`].
    ///
    /// # Errors
    /// When no generation is installed, or a library cannot be read.
    pub fn for_driver(&self, directory: &Path, real: &[PathBuf; 2]) -> Result<Arc<Chosen>, DriverFilesError> {
        let mut state = self.state();
        state.look(directory)?;
        let identities: Vec<Option<Identity>> = real.iter().map(|path| Identity::of(path)).collect();
        if let Some(known) = state.last.as_ref().filter(|known| known.files == identities) {
            return Ok(known.chosen.clone());
        }
        let installed: Vec<&'static Generation> = state.installed.iter().map(|(generation, _)| *generation).collect();
        let driver = DriverNames { cuda: names(&real[0])?, nvml: names(&real[1])? };
        let no_shim = || directory.join(GENERATIONS[0].name).join(SHIMMED[0].1).display().to_string();
        let coverage = choose(&installed, &driver).ok_or_else(|| DriverFilesError::Shim { path: no_shim() })?;
        let mut its = state.installed.iter().filter(|(generation, _)| generation.name == coverage.generation.name);
        let shims = its.next().map(|(_, shims)| shims.clone()).unwrap_or_default();
        let chosen = Arc::new(Chosen { shims, coverage });
        state.last = Some(Last { files: identities, chosen: chosen.clone() });
        Ok(chosen)
    }

    /// Removes the builds in `directory` that are neither among `used` nor those for new containers.
    pub fn remove_unused(&self, directory: &Path, used: impl Iterator<Item = BuildId>) {
        let state = self.state();
        let own = state.installed.iter().flat_map(|(_, shims)| shims).filter_map(|shim| shim.build_id.clone());
        let kept: BTreeSet<String> = own.chain(used).map(|build_id| build_id.0).collect();
        builds::remove_all_but(directory, &kept);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Chosen {
    /// As it goes into records and over the socket.
    pub fn views(&self) -> Vec<ShimView> {
        let view = |shim: &Shim| ShimView {
            library: shim.library.into(),
            path: shim.path.display().to_string(),
            generation: self.coverage.generation.name.into(),
            build_id: shim.build_id.clone(),
        };
        self.shims.iter().map(view).collect()
    }
}

fn names(library: &Path) -> Result<std::collections::BTreeSet<String>, DriverFilesError> {
    File::open(library).and_then(|file| elf::exported_names(&file)).map_err(unreadable(library))
}

fn unreadable(path: &Path) -> impl FnOnce(std::io::Error) -> DriverFilesError {
    move |cause| DriverFilesError::Unreadable { path: path.display().to_string(), cause: cause.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn library(path: &Path, names: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let source = path.with_extension("c");
        let functions: String = names.lines().map(|name| format!("void {name}(void) {{}}\n")).collect();
        std::fs::write(&source, functions).unwrap();
        let made = path.with_extension("new");
        let linker = ["-shared", "-fPIC", "-nostdlib", "-w", "-Wl,--build-id=sha1", "-o"];
        assert!(Command::new("cc").args(linker).args([&made, &source]).status().unwrap().success());
        std::fs::rename(made, path).unwrap();
    }

    #[test]
    fn the_choice_follows_the_driver_and_the_build_that_are_installed() {
        let root = tempfile::tempdir().unwrap();
        let (directory, real) = (root.path().join("lib"), ["a.so", "b.so"].map(|name| root.path().join(name)));
        let install = |generation: &Generation| {
            library(&real[0], generation.cuda);
            library(&real[1], generation.nvml);
        };
        install(&GENERATIONS[0]);
        let shims = Shims::default();
        let refused = shims.for_driver(&directory, &real).unwrap_err().to_string();
        assert!(refused.contains("535/libgpool-cuda.so"), "{refused}");
        for generation in &GENERATIONS {
            SHIMMED.iter().for_each(|(_, shim)| library(&directory.join(generation.name).join(shim), shim_names(shim)));
        }
        let first = shims.for_driver(&directory, &real).unwrap();
        assert_eq!(first.coverage.generation.name, "535");
        assert!(first.shims.iter().all(|shim| shim.build_id.is_some() && shim.path.is_file()));
        assert!(Arc::ptr_eq(&first, &shims.for_driver(&directory, &real).unwrap()), "nothing is read twice");
        install(&GENERATIONS[3]);
        assert_eq!(shims.for_driver(&directory, &real).unwrap().coverage.generation.name, "580");
    }

    #[test]
    fn a_supervisor_keeps_its_build_until_it_is_another_one_and_no_lease_needs_it() {
        let root = tempfile::tempdir().unwrap();
        let (directory, real) = (root.path().join("lib"), ["a.so", "b.so"].map(|name| root.path().join(name)));
        library(&real[0], GENERATIONS[0].cuda);
        library(&real[1], GENERATIONS[0].nvml);
        let installed = |shim: &str| directory.join("535").join(shim);
        SHIMMED.iter().for_each(|(_, shim)| library(&installed(shim), shim_names(shim)));
        let cuda = |shims: &Shims| shims.for_driver(&directory, &real).unwrap().shims[0].clone();
        let one = Shims::default();
        let before = cuda(&one);
        assert_eq!(Identity::of(&before.path).unwrap().inode, Identity::of(&installed(SHIMMED[0].1)).unwrap().inode);
        library(&installed(SHIMMED[0].1), "another_build");
        assert_eq!(cuda(&one), before, "files are replaced before the supervisor is");
        let other = Shims::default();
        let after = cuda(&other);
        assert!(after.build_id != before.build_id && after.path != before.path && before.path.is_file());
        other.remove_unused(&directory, before.build_id.clone().into_iter());
        assert!(before.path.is_file(), "a lease has it");
        other.remove_unused(&directory, std::iter::empty());
        assert!(!before.path.exists() && after.path.is_file());
        std::fs::remove_file(&after.path).unwrap();
        assert!(cuda(&other).path.is_file(), "what somebody took away is made anew");
    }

    fn shim_names(shim: &str) -> &'static str {
        if shim.contains("cuda") { "one_build" } else { "one_build_of_nvml" }
    }
}
