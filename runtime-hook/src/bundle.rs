//! Reading and replacing `config.json` of a bundle.

use crate::low_level::cause;
use gpool_protocol::{ErrorBody, ErrorCode};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, renameat};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, unlinkat};
use serde_json::Value;
use std::fs::{File, Metadata};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// No config.json of an engine comes near this.
pub const CONFIG_LIMIT_BYTES: u64 = 16 << 20;
const CONFIG: &str = "config.json";

/// The directory that an engine hands to an OCI runtime.
#[derive(Debug)]
pub struct Bundle {
    path: PathBuf,
    directory: OwnedFd,
}

/// `config.json` as it lies in the bundle.
#[derive(Debug)]
pub struct Config {
    /// Its bytes.
    pub bytes: Vec<u8>,
    metadata: Metadata,
    behind_link: bool,
}

impl Bundle {
    /// Opens the bundle at `path`; an empty path is the working directory.
    pub fn open(path: &Path) -> Result<Self, ErrorBody> {
        let path = if path.as_os_str().is_empty() { PathBuf::from(".") } else { path.to_owned() };
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        match open(&path, flags, Mode::empty()) {
            Ok(directory) => Ok(Self { path, directory }),
            Err(errno) => Err(refused(&path, &format!("cannot be opened ({})", cause(&errno.into())))),
        }
    }

    /// The bundle's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads config.json, without judging yet whether it may be edited. None if nothing there can be opened.
    pub fn read(&self) -> Result<Option<Config>, ErrorBody> {
        // Never blocks, whatever lies there: a FIFO would keep the engine waiting.
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let (opened, behind_link) = match openat(&self.directory, CONFIG, flags | OFlag::O_NOFOLLOW, Mode::empty()) {
            Err(Errno::ELOOP) => (openat(&self.directory, CONFIG, flags, Mode::empty()), true),
            opened => (opened, false),
        };
        let Ok(file) = opened.map(File::from) else { return Ok(None) };
        let unreadable = |error: std::io::Error| self.refuse(&format!("cannot be read ({})", cause(&error)));
        let metadata = file.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(self.refuse("is no regular file"));
        }
        let mut bytes = Vec::with_capacity(metadata.len().min(CONFIG_LIMIT_BYTES) as usize + 1);
        file.take(CONFIG_LIMIT_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > CONFIG_LIMIT_BYTES {
            return Err(self.refuse("is larger than 16 MiB"));
        }
        Ok(Some(Config { bytes, metadata, behind_link }))
    }

    /// Refuses a config.json that must not be edited: replacing a symbolic link would leave its target, which
    /// others may read, without the edits.
    pub fn check_editable(&self, config: &Config) -> Result<(), ErrorBody> {
        if config.behind_link { Err(self.refuse("is a symbolic link")) } else { Ok(()) }
    }

    /// Parses `config`.
    pub fn parse(&self, config: &Config) -> Result<Value, ErrorBody> {
        serde_json::from_slice(&config.bytes).map_err(|error| self.refuse(&format!("is no JSON ({error})")))
    }

    /// Puts `value` in the place of `config` in one step, with its mode and owner.
    pub fn replace(&self, config: &Config, value: &Value) -> Result<(), ErrorBody> {
        let temporary = format!(".{CONFIG}.gpool.{}", std::process::id());
        let written = self.write(&temporary, config, value).and_then(|()| {
            renameat(&self.directory, temporary.as_str(), &self.directory, CONFIG).map_err(std::io::Error::from)
        });
        written.map_err(|error| {
            let _ = unlinkat(&self.directory, temporary.as_str(), UnlinkatFlags::NoRemoveDir);
            self.refuse(&format!("cannot be replaced ({})", cause(&error)))
        })
    }

    fn write(&self, name: &str, config: &Config, value: &Value) -> std::io::Result<()> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(&self.directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
        file.write_all(&serde_json::to_vec(value)?)?;
        let (uid, gid) = (config.metadata.uid(), config.metadata.gid());
        let made = file.metadata()?;
        if (made.uid(), made.gid()) != (uid, gid) {
            fchown(&file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        // After the change of owner, which clears bits of the mode.
        fchmod(&file, Mode::from_bits_truncate(config.metadata.mode() & 0o7777))?;
        Ok(())
    }

    fn refuse(&self, what: &str) -> ErrorBody {
        refused(&self.path.join(CONFIG), what)
    }
}

fn refused(path: &Path, what: &str) -> ErrorBody {
    ErrorBody::new(
        ErrorCode::BundleInvalid,
        format!("{} {what}", path.display()),
        "the container engine has to write a valid bundle; start the container anew",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::assert_presentable;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_replaced_file_keeps_mode_and_owner_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CONFIG);
        std::fs::write(&path, r#"{"a":1}"#).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(1234), Some(4321)).unwrap();
        }
        let before = path.metadata().unwrap();
        let bundle = Bundle::open(dir.path()).unwrap();
        let config = bundle.read().unwrap().unwrap();
        bundle.replace(&config, &serde_json::json!({"a": 2})).unwrap();
        let after = path.metadata().unwrap();
        assert_eq!((after.uid(), after.gid(), after.mode()), (before.uid(), before.gid(), before.mode()));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), r#"{"a":2}"#);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_plain_small_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let bundle = Bundle::open(dir.path()).unwrap();
        let path = dir.path().join(CONFIG);
        assert!(bundle.read().unwrap().is_none());
        std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
        let linked = bundle.check_editable(&bundle.read().unwrap().unwrap()).unwrap_err();
        assert_presentable(&linked);
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_presentable(&bundle.read().unwrap_err());
        std::fs::remove_dir(&path).unwrap();
        let file = File::create(&path).unwrap();
        file.set_len(CONFIG_LIMIT_BYTES + 1).unwrap();
        assert_presentable(&bundle.read().unwrap_err());
        std::fs::write(&path, "{").unwrap();
        assert_presentable(&bundle.parse(&bundle.read().unwrap().unwrap()).unwrap_err());
        assert_presentable(&Bundle::open(&dir.path().join("absent")).unwrap_err());
    }
}
