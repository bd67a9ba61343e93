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
    /// Held by who changes it.
    changing: Mutex<()>,
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
        let _turn = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.lock().clone();
        let mut new = old.clone();
        let answer = make(&mut new);
        let is_one = new != old;
        if is_one {
            write(&self.file, &new)?;
            *self.lock() = new;
        }
        Ok((answer, is_one))
    }

    /// Makes a change that could not be written down.
    pub fn change_in_memory(&self, make: impl FnOnce(&mut T)) {
        let _turn = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        make(&mut self.lock());
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
