//! What somebody has said and what should outlive the supervisor and a boot: a value in memory that is in a file of `[paths] state_dir` as
//! well.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Such a value. Its lock is taken after the book's, and nobody holds it while a disk takes its time.
#[derive(Debug)]
pub struct StateFile<T> {
    file: PathBuf,
    /// Held by who changes it. Whether the file lacks a change that was made in memory.
    changing: Mutex<bool>,
    value: Mutex<T>,
}

impl<T: Clone + Default + PartialEq + Serialize + DeserializeOwned> StateFile<T> {
    /// What was written down under this name, which need not be there. What cannot be read is told with what follows of that, and left as
    /// it is, aside: a host that serves nobody because of it would be worse.
    pub fn open(state_dir: &Path, name: &str, otherwise: &str) -> Self {
        let file = state_dir.join(name);
        let value = read(&file).unwrap_or_else(|cause| {
            log!("{} cannot be read: {cause}; {otherwise}{}", file.display(), put_aside(&file));
            T::default()
        });
        Self { file, changing: Mutex::default(), value: Mutex::new(value) }
    }

    /// As it is now.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a change down, then makes it, and gives what it was made with and whether it was one.
    ///
    /// # Errors
    /// It cannot be written, and nothing has changed.
    pub fn change<A>(&self, make: impl FnOnce(&mut T) -> A) -> io::Result<(A, bool)> {
        let mut is_behind = self.changing();
        let old = self.lock().clone();
        let mut new = old.clone();
        let answer = make(&mut new);
        let is_one = new != old;
        if is_one {
            write(&self.file, &new)?;
            *is_behind = false;
            *self.lock() = new;
        }
        Ok((answer, is_one))
    }

    /// Makes a change that could not be written down. It is written by the next one that can be, or by [`Self::catch_up`].
    pub fn change_in_memory(&self, make: impl FnOnce(&mut T)) {
        let mut is_behind = self.changing();
        make(&mut self.lock());
        *is_behind = true;
    }

    /// Writes down what was changed in memory alone, if that can be done by now; to be called every few seconds.
    pub fn catch_up(&self) {
        let mut is_behind = self.changing();
        if !*is_behind {
            return;
        }
        let value = self.lock().clone();
        if write(&self.file, &value).is_ok() {
            *is_behind = false;
            log!("{} is written, which could not be before", self.file.display());
        }
    }

    fn changing(&self) -> MutexGuard<'_, bool> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read<T: Default + DeserializeOwned>(file: &Path) -> io::Result<T> {
    match fs::read(file) {
        Ok(text) => serde_json::from_slice(&text).map_err(io::Error::from),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(cause) => Err(cause),
    }
}

/// Keeps what cannot be read from being written over; where it lies then, as the end of a sentence.
pub fn put_aside(file: &Path) -> String {
    let aside = file.with_extension("json.unreadable");
    fs::rename(file, &aside).map_or(String::new(), |()| format!(", and lies in {}", aside.display()))
}

/// So that the file is either the old one or the new one, also after a power cut.
pub fn write(file: &Path, said: &impl Serialize) -> io::Result<()> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)?;
    let new = file.with_extension("json.new");
    let mut opened = fs::File::create(&new)?;
    opened.write_all(&serde_json::to_vec_pretty(said)?)?;
    opened.sync_all()?;
    fs::rename(&new, file)?;
    fs::File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_written_is_written_once_that_can_be() {
        let directory = tempfile::tempdir().unwrap();
        // Nobody can write below a file.
        let state_dir = directory.path().join("full");
        fs::write(&state_dir, "").unwrap();
        let open = || StateFile::<Vec<u32>>::open(&state_dir, "said.json", "nothing was");
        let said = StateFile { file: state_dir.join("said.json"), changing: Mutex::default(), value: Mutex::default() };
        assert!(said.change(|all: &mut Vec<u32>| all.push(1)).is_err());
        said.change_in_memory(|all| all.push(1));
        said.catch_up();
        assert_eq!(*said.lock(), [1]);
        fs::remove_file(&state_dir).unwrap();
        assert!(!said.change(|all| all.dedup()).unwrap().1, "it is no change, and nobody is told of one");
        assert!(open().lock().is_empty());
        said.catch_up();
        assert_eq!(*open().lock(), [1]);
        fs::remove_dir_all(&state_dir).unwrap();
        said.catch_up();
        assert!(!state_dir.exists(), "it is written once");
        said.change_in_memory(|all| all.push(2));
        said.change(|all| all.push(3)).unwrap();
        assert_eq!(*open().lock(), [1, 2, 3], "the next change takes it along");
    }
}
