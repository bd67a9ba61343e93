//! Which builds mapped files are. Our own shims are known by device and inode and are not opened again; whatever else a
//! tenant has mapped is read by a thread that may hang, and is not replaced: nothing else is opened for tenants while it does.

use super::process::FileId;
use super::reader::{Reader, Reading};
use crate::elf;
use gpool_protocol::{BuildId, ShimView};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// A shim on this host. That its file is held open keeps its inode from being given to another file.
#[derive(Debug)]
struct KnownShim {
    build_id: Option<BuildId>,
    /// When its inode was changed last: what is written over in place is another build.
    changed: (i64, i64),
    _file: File,
}

/// What is known of files.
#[derive(Debug)]
pub struct Builds {
    shims: BTreeMap<FileId, KnownShim>,
    reader: Reader<FileId, Option<BuildId>>,
}

impl Builds {
    /// Nothing is known yet.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new() -> io::Result<Self> {
        Ok(Self { shims: BTreeMap::new(), reader: Reader::start(1)? })
    }

    /// A look begins at containers that were started with these shims. Those of none of them are forgotten.
    pub fn begin<'a>(&mut self, shims: impl Iterator<Item = &'a ShimView> + Clone) {
        self.reader.begin();
        let is_wanted = |known: &KnownShim| shims.clone().any(|shim| shim.build_id == known.build_id);
        self.shims.retain(|_, known| is_wanted(known));
        let mut paths: Vec<&str> = shims.map(|shim| shim.path.as_str()).collect();
        paths.sort_unstable();
        paths.dedup();
        // One that has been taken away is read like any other file.
        paths.into_iter().for_each(|path| drop(self.learn(path)));
    }

    /// Learns the shim that is at `path` now: a container may have been started with one that was there before.
    fn learn(&mut self, path: &str) -> io::Result<()> {
        let found = std::fs::metadata(path)?;
        let changed = (found.ctime(), found.ctime_nsec());
        if self.shims.get(&id(&found)).is_some_and(|known| known.changed == changed) {
            return Ok(());
        }
        let file = File::open(path)?;
        let found = file.metadata()?;
        let build_id = elf::build_id(&file)?;
        let changed = (found.ctime(), found.ctime_nsec());
        self.shims.insert(id(&found), KnownShim { build_id, changed, _file: file });
        Ok(())
    }

    /// Which build the file is, which can be opened at `path` if it is none of ours.
    pub fn of(&mut self, file: FileId, path: PathBuf) -> Reading<Option<BuildId>> {
        match self.shims.get(&file) {
            Some(known) => Reading::Answer(known.build_id.clone()),
            None => {
                self.reader.read(file, move || File::open(path).and_then(|file| elf::build_id(&file)).ok().flatten())
            }
        }
    }
}

fn id(found: &std::fs::Metadata) -> FileId {
    FileId { device: (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev())), inode: found.ino() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::process::Command;

    fn library(path: &Path, build: &str) -> ShimView {
        let source = path.with_extension("c");
        std::fs::write(&source, "int f(void) { return 0; }\n").unwrap();
        let made = path.with_extension("new");
        let build_option = format!("-Wl,--build-id=0x{build}");
        let options = ["-shared", "-fPIC", "-nostdlib", &build_option, "-o"];
        assert!(Command::new("cc").args(options).args([&made, &source]).status().unwrap().success());
        std::fs::rename(made, path).unwrap();
        ShimView {
            library: "libcuda.so.1".into(),
            path: path.display().to_string(),
            generation: "535".into(),
            build_id: Some(BuildId(build.into())),
        }
    }

    #[test]
    fn our_shims_are_known_without_being_opened_also_when_another_build_is_installed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shim.so");
        let mut builds = Builds::new().unwrap();
        let absent = || PathBuf::from("/proc/self/no-such-file");
        let first = library(&path, "aa01");
        let first_id = id(&path.metadata().unwrap());
        assert_eq!(builds.of(first_id, absent()), Reading::Unread, "nothing has begun");
        builds.begin([&first].into_iter());
        assert_eq!(builds.of(first_id, absent()), Reading::Answer(first.build_id.clone()));
        let second = library(&path, "aa02");
        let second_id = id(&path.metadata().unwrap());
        assert_ne!(first_id, second_id, "the first is held");
        builds.begin([&first, &second].into_iter());
        assert_eq!(builds.of(first_id, absent()), Reading::Answer(first.build_id));
        assert_eq!(builds.of(second_id, absent()), Reading::Answer(second.build_id.clone()));
        builds.begin([&second].into_iter());
        assert_eq!(builds.of(first_id, absent()), Reading::Answer(None), "no container has it any more");
    }
}
