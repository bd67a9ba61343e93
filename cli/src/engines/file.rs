//! Reads, replaces and restores a configuration file, whole or not at all.

use std::ffi::OsString;
use std::fs::{File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Mode of a file that was not there before: everybody may read what an engine's configuration says.
const MODE: u32 = 0o644;

/// The file's text; none if there is none.
///
/// # Errors
/// If it cannot be read, or is no text.
pub fn read(path: &Path) -> io::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Where the file really lies: a symbolic link stays one.
///
/// # Errors
/// If a link cannot be followed.
pub fn resolved(path: &Path) -> io::Result<PathBuf> {
    match std::fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(path.to_owned()),
        other => other,
    }
}

/// Where the text from before gpool is kept: beside the file, with `.gpool.bak` behind its name.
pub fn backup_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".gpool.bak");
    name.into()
}

/// `text` in a file beside `path`, complete and on disk, with the mode and owner that `path` has. It goes away when
/// it is dropped. Its name ends in nothing that engines read.
///
/// # Errors
/// If the directory cannot be made or written.
pub fn candidate(path: &Path, text: &str) -> io::Result<NamedTempFile> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(directory)?;
    written(directory, path, text)
}

/// The same for a look only: nothing is left behind, not even a directory. Paths in the text that are relative to the
/// file hold as long as its directory is there.
///
/// # Errors
/// As [`candidate`].
pub fn trial(path: &Path, text: &str) -> io::Result<NamedTempFile> {
    match path.parent() {
        Some(directory) if directory.is_dir() => written(directory, path, text),
        _ => written(&std::env::temp_dir(), path, text),
    }
}

fn written(directory: &Path, path: &Path, text: &str) -> io::Result<NamedTempFile> {
    let prefix = format!(".{}.", path.file_name().unwrap_or_default().to_string_lossy());
    let mut made = tempfile::Builder::new().prefix(&prefix).suffix(".gpool-new").tempfile_in(directory)?;
    made.write_all(text.as_bytes())?;
    like(made.as_file(), std::fs::metadata(path).ok().as_ref())?;
    made.as_file().sync_all()?;
    Ok(made)
}

/// Puts a candidate in the place of `path`, in one step.
///
/// # Errors
/// If that cannot be done; then `path` is as it was.
pub fn replace(path: &Path, candidate: NamedTempFile) -> io::Result<()> {
    candidate.persist(path).map_err(|error| error.error)?;
    sync_directory(path)
}

/// Takes the file away.
///
/// # Errors
/// If it is there and cannot be removed.
pub fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync_directory(path),
    }
}

fn like(file: &File, original: Option<&Metadata>) -> io::Result<()> {
    let Some(original) = original else { return file.set_permissions(Permissions::from_mode(MODE)) };
    let made = file.metadata()?;
    if (made.uid(), made.gid()) != (original.uid(), original.gid()) {
        fchown(file, Some(original.uid()), Some(original.gid()))?;
    }
    file.set_permissions(original.permissions())
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}
