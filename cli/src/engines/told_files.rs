//! The files other than an engine's usual one through which engines were told of gpool: without this list nobody would look at them
//! again, and a removal of the package would leave an engine that calls a program that is gone.

use super::{Engine, file};
use clap::ValueEnum;
use std::io;
use std::path::{Path, PathBuf};

/// In `[paths] state_dir`: an engine and a file a line.
pub const NAME: &str = "engine-files";

/// What the list says. A line that says nothing, such as one of an engine that only a newer gpool knows, is passed over.
pub fn read(list: &Path) -> Vec<(Engine, PathBuf)> {
    let text = file::read(list).ok().flatten().unwrap_or_default();
    let entry = |line: &str| {
        let (engine, path) = line.split_once(' ')?;
        Some((Engine::from_str(engine, false).ok()?, PathBuf::from(path)))
    };
    text.lines().filter_map(entry).collect()
}

/// Puts the file on the list, unless it is the one where everybody looks.
///
/// # Errors
/// If the list cannot be written.
pub fn note(list: &Path, engine: Engine, path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let mut entries = read(list);
    if path == engine.default_file() || entries.contains(&(engine, path.clone())) {
        return Ok(());
    }
    entries.push((engine, path));
    write(list, &entries)
}

/// Takes it off again.
///
/// # Errors
/// If the list cannot be written.
pub fn forget(list: &Path, engine: Engine, path: &Path) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let entries = read(list);
    let left: Vec<_> = entries.iter().filter(|entry| **entry != (engine, path.clone())).cloned().collect();
    if left.len() == entries.len() {
        return Ok(());
    }
    if left.is_empty() { file::remove(list) } else { write(list, &left) }
}

fn write(list: &Path, entries: &[(Engine, PathBuf)]) -> io::Result<()> {
    let line = |(engine, path): &(Engine, PathBuf)| {
        // The scripts of the packages take what `gpool runtime status` prints of it apart at commas.
        let path = path.to_str().filter(|path| !path.contains(['\n', ',', '"']));
        path.map(|path| format!("{} {path}\n", engine.name())).ok_or(io::ErrorKind::InvalidFilename)
    };
    let lines = entries.iter().map(line).collect::<Result<String, _>>()?;
    file::replace(list, file::candidate(list, &lines)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_are_on_the_list_until_they_are_as_before() {
        let directory = tempfile::tempdir().unwrap();
        let list = directory.path().join("state/engine-files");
        let snap = Path::new("/var/snap/docker/current/config/daemon with spaces.json");
        assert_eq!(read(&list), []);
        note(&list, Engine::Docker, Engine::Docker.default_file()).unwrap();
        assert!(!list.exists(), "everybody looks there");
        for _ in 0..2 {
            note(&list, Engine::Docker, snap).unwrap();
            note(&list, Engine::Crio, Path::new("/opt/crio.conf")).unwrap();
        }
        assert_eq!(read(&list), [(Engine::Docker, snap.into()), (Engine::Crio, "/opt/crio.conf".into())]);
        forget(&list, Engine::Containerd, snap).unwrap();
        forget(&list, Engine::Docker, snap).unwrap();
        assert_eq!(read(&list), [(Engine::Crio, "/opt/crio.conf".into())]);
        for odd in ["/a\nb", "/a,b"] {
            assert!(note(&list, Engine::Docker, Path::new(odd)).is_err());
        }
        forget(&list, Engine::Crio, Path::new("/opt/crio.conf")).unwrap();
        assert!(!list.exists());
    }
}
