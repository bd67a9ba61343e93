//! Looking into the image: where its loader searches for libraries, and which copies it brings.
//!
//! An image is somebody else's, its symbolic links included. Every look goes through `openat2` with the image's
//! root as root, so that no link leads out of it. Nothing is written but what a lease has to say to programs in it.

use crate::low_level::cause;
use gpool_protocol::{ErrorBody, ErrorCode};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, stat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, unlinkat};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The directory in which multiarch images keep libraries.
const MULTIARCH: &str = "/usr/lib/x86_64-linux-gnu";
/// A directory of the image is listed this far. Who must know all that is in one refuses a list that is as long.
pub const LISTING_LIMIT: usize = 100_000;

/// The root file system of a container that is about to be made.
#[derive(Debug)]
pub struct Image {
    root: OwnedFd,
}

/// An inode: device and number.
pub type Inode = (u64, u64);

impl Image {
    /// Opens the root of the image at `path`.
    pub fn open(path: &Path) -> Result<Self, ErrorBody> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = open(path, flags, Mode::empty()).map_err(|errno| {
            ErrorBody::new(
                ErrorCode::BundleInvalid,
                format!("the container's root {} cannot be opened ({})", path.display(), cause(&errno.into())),
                "the container engine has to mount the image before it makes the container",
            )
        })?;
        let image = Self { root };
        match image.look_up("/", OFlag::O_PATH) {
            Ok(_) => Ok(image),
            Err(errno) => Err(ErrorBody::new(
                ErrorCode::BundleInvalid,
                format!("the kernel cannot look into {} safely (openat2: errno {})", path.display(), errno as i32),
                "gpool needs Linux 5.6 or newer, with openat2 not filtered",
            )),
        }
    }

    /// The root below `directory`, which may already be in another mount namespace.
    pub fn within(directory: OwnedFd, path: &str) -> Result<Self, Errno> {
        let outer = Self { root: directory };
        Ok(Self { root: outer.look_up(path, OFlag::O_PATH | OFlag::O_DIRECTORY)? })
    }

    fn look_up(&self, path: &str, flags: OFlag) -> Result<OwnedFd, Errno> {
        self.open_with(path, flags, Mode::empty(), ResolveFlag::empty())
    }

    fn open_with(&self, path: &str, flags: OFlag, mode: Mode, more: ResolveFlag) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS | more;
        // EAGAIN: something was renamed elsewhere while ".." was being resolved.
        for _ in 0..64 {
            let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).mode(mode).resolve(resolve);
            match openat2(&self.root, path, how) {
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                other => return other,
            }
        }
        Err(Errno::EAGAIN)
    }

    fn stat(&self, path: &str, flags: OFlag) -> Option<FileStat> {
        fstat(self.look_up(path, flags | OFlag::O_PATH).ok()?).ok()
    }

    fn is_dir(&self, path: &str) -> bool {
        self.stat(path, OFlag::O_DIRECTORY).is_some()
    }

    /// The inode that `path` leads to in the end, if that is a regular file.
    pub fn file(&self, path: &str) -> Option<Inode> {
        self.stat(path, OFlag::empty())
            .filter(|stat| kind(stat) == SFlag::S_IFREG)
            .map(|stat| (stat.st_dev, stat.st_ino))
    }

    /// The inode of the directory at `path`.
    pub fn directory(&self, path: &str) -> Option<Inode> {
        self.stat(path, OFlag::O_DIRECTORY).map(|stat| (stat.st_dev, stat.st_ino))
    }

    /// Where on the host the regular file is that `path` leads to. Good for as long as nobody changes the image.
    pub fn host_path(&self, path: &str) -> Option<PathBuf> {
        self.file(path)?;
        let file = self.look_up(path, OFlag::O_PATH).ok()?;
        let real = |fd: &OwnedFd| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok();
        let (root, found) = (real(&self.root)?, real(&file)?);
        found.starts_with(&root).then_some(found)
    }

    /// What is in the regular file that `path` leads to; none if it is absent or longer than `limit` bytes.
    pub fn read(&self, path: &str, limit: usize) -> Option<Vec<u8>> {
        // Nothing but a file is opened: with a device that could do something.
        self.file(path)?;
        let file = self.look_up(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK).ok()?;
        let mut bytes = Vec::new();
        std::fs::File::from(file).take(limit as u64 + 1).read_to_end(&mut bytes).ok()?;
        (bytes.len() <= limit).then_some(bytes)
    }

    /// Whether it is no image at all but the host's own root.
    pub fn is_hosts_own(&self) -> bool {
        let root = stat("/").map(|root| (root.st_dev, root.st_ino)).ok();
        self.directory("/") == root
    }

    /// Whether nothing at all is at `path`, not even a link that leads nowhere.
    pub fn is_absent(&self, path: &str) -> bool {
        matches!(self.look_up(path, OFlag::O_PATH | OFlag::O_NOFOLLOW), Err(Errno::ENOENT))
    }

    /// Puts `bytes` in the place of the file `name` in `directory`, all at once, with its owner and rights, or with those of
    /// the directory's owner and for all to read. `aside` is the name under which it is written, which nothing else has.
    /// What is mounted in the image is not of it, and may be the host's: there nothing is written.
    ///
    /// # Errors
    /// The kernel's, for example of an image that cannot be written. Then nothing has changed.
    pub fn replace(&self, directory: &str, name: &str, bytes: &[u8], aside: &str) -> std::io::Result<()> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let folder = Self { root: self.open_with(directory, flags, Mode::empty(), ResolveFlag::RESOLVE_NO_XDEV)? };
        let former = folder.stat(name, OFlag::O_NOFOLLOW).filter(|stat| kind(stat) == SFlag::S_IFREG);
        let (owner, rights) = match &former {
            Some(former) => (former, Mode::from_bits_truncate(former.st_mode & 0o777)),
            None => (&fstat(&folder.root)?, Mode::from_bits_truncate(0o644)),
        };
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
        let mut file = std::fs::File::from(folder.open_with(aside, flags, rights, ResolveFlag::RESOLVE_NO_XDEV)?);
        let put = (|| -> std::io::Result<()> {
            let made = fstat(&file)?;
            if (made.st_uid, made.st_gid) != (owner.st_uid, owner.st_gid) {
                fchown(&file, Some(Uid::from_raw(owner.st_uid)), Some(Gid::from_raw(owner.st_gid)))?;
            }
            if Mode::from_bits_truncate(made.st_mode & 0o7777) != rights {
                fchmod(&file, rights)?;
            }
            file.write_all(bytes)?;
            // Or a loss of power soon afterwards leaves the new name with nothing in it. Once in a container's life.
            file.sync_data()?;
            Ok(renameat(&folder.root, aside, &folder.root, name)?)
        })();
        if put.is_err() {
            let _ = unlinkat(&folder.root, aside, UnlinkatFlags::NoRemoveDir);
        }
        put
    }

    /// Whether `path` itself is a symbolic link.
    pub fn is_link(&self, path: &str) -> bool {
        self.stat(path, OFlag::O_NOFOLLOW).is_some_and(|stat| kind(&stat) == SFlag::S_IFLNK)
    }

    /// The names in `directory`, sorted; none if it is absent.
    pub fn names(&self, directory: &str) -> Vec<OsString> {
        let opened = self.look_up(directory, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NONBLOCK);
        let Some(directory) = opened.ok().and_then(|fd| Dir::from_fd(fd).ok()) else { return Vec::new() };
        let entries = directory.into_iter().map_while(Result::ok);
        let names = entries.map(|entry| OsString::from_vec(entry.file_name().to_bytes().to_vec()));
        let mut names: Vec<_> = names.filter(|name| name != "." && name != "..").take(LISTING_LIMIT).collect();
        names.sort();
        names
    }

    /// The directory in which the image's loader looks without being told to.
    ///
    /// Debian's loader, wherever the image got it from, searches the multiarch directory; the loaders of Fedora
    /// and its relatives search /usr/lib64; musl's and all others search /usr/lib.
    pub fn library_directory(&self) -> &'static str {
        self.loader_directory().unwrap_or("/usr/lib")
    }

    /// The same; none of an image whose loader is at none of the usual places.
    pub fn loader_directory(&self) -> Option<&'static str> {
        let debian = [MULTIARCH, "/lib/x86_64-linux-gnu"].iter().any(|path| self.is_dir(path))
            || self.file("/etc/debian_version").is_some();
        if debian {
            return Some(MULTIARCH);
        }
        let has = |directory: &str, loader: &[u8]| {
            self.names(directory).iter().any(|name| name.as_encoded_bytes().starts_with(loader))
        };
        if ["/lib64", "/usr/lib64"].into_iter().any(|directory| has(directory, b"ld-linux")) {
            return Some("/usr/lib64");
        }
        has("/lib", b"ld-musl").then_some("/usr/lib")
    }
}

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::assert_presentable;
    use std::os::unix::fs::symlink;

    fn image(files: &[&str]) -> (tempfile::TempDir, Image) {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        let image = Image::open(dir.path()).unwrap();
        (dir, image)
    }

    #[test]
    fn the_directory_suits_the_images_loader() {
        for (files, want) in [
            (&["lib/x86_64-linux-gnu/libc.so.6", "lib64/ld-linux-x86-64.so.2"][..], MULTIARCH),
            (&["usr/lib/x86_64-linux-gnu/libc.so.6"], MULTIARCH),
            (&["etc/debian_version"], MULTIARCH),
            (&["lib64/ld-linux-x86-64.so.2"], "/usr/lib64"),
            (&["usr/lib64/ld-linux-x86-64.so.2"], "/usr/lib64"),
            (&["lib/ld-musl-x86_64.so.1", "lib64/other"], "/usr/lib"),
            (&[], "/usr/lib"),
        ] {
            assert_eq!(image(files).1.library_directory(), want, "{files:?}");
        }
        for (file, want) in [("opt/ld-linux-x86-64.so.2", None), ("lib/ld-musl-x86_64.so.1", Some("/usr/lib"))] {
            assert_eq!(image(&[file]).1.loader_directory(), want, "{file}");
        }
    }

    #[test]
    fn no_link_leads_out_of_the_image() {
        let (dir, image) = image(&["usr/lib/a"]);
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "x").unwrap();
        symlink(outside.path(), dir.path().join("absolute")).unwrap();
        symlink("../../../../../../../..", dir.path().join("upwards")).unwrap();
        symlink("/usr/lib/a", dir.path().join("inside")).unwrap();
        assert_eq!(image.file("/absolute/secret"), None);
        assert!(image.names("/absolute").is_empty());
        assert_eq!(image.directory("/upwards"), image.directory("/"));
        assert_eq!(image.file("/inside"), image.file("/usr/lib/a"));
        assert!(image.is_link("/inside") && !image.is_link("/usr/lib/a"));
        assert_eq!(image.host_path("/inside"), Some(dir.path().canonicalize().unwrap().join("usr/lib/a")));
        assert_eq!(image.host_path("/absolute/secret"), None);
        assert_eq!(image.read("/inside", 1), Some(b"x".to_vec()));
        assert_eq!(
            [image.read("/inside", 0), image.read("/absolute/secret", 9), image.read("/usr", 9)],
            [None, None, None]
        );
        assert_presentable(&Image::open(&dir.path().join("absent")).unwrap_err());
    }

    #[test]
    fn a_folder_that_becomes_a_link_while_it_is_looked_into_leads_nowhere() {
        let (dir, image) = image(&["usr/lib/libcuda.so.1", "elsewhere/x"]);
        let outside = tempfile::tempdir().unwrap();
        for name in ["libcuda.so.1", "only-outside"] {
            std::fs::write(outside.path().join(name), "x").unwrap();
        }
        let secret = Image::open(outside.path()).unwrap().file("/libcuda.so.1").unwrap();
        let (folder, aside, link) =
            (dir.path().join("usr/lib"), dir.path().join("usr/aside"), dir.path().join("usr/link"));
        symlink(outside.path(), &link).unwrap();
        // Another process swaps the two for as long as this one looks.
        let script = "while :; do mv -T $0 $1; mv -T $2 $0; mv -T $0 $2; mv -T $1 $0; done";
        let mut swapper = std::process::Command::new("/bin/sh");
        let mut swapper = swapper.args(["-c", script]).args([&folder, &aside, &link]).spawn().unwrap();
        let (mut found, mut absent) = (0, 0);
        let begun = std::time::Instant::now();
        while (found < 100 || absent < 100) && begun.elapsed() < std::time::Duration::from_secs(20) {
            for path in ["/usr/lib/libcuda.so.1", "/usr/lib/../lib/libcuda.so.1"] {
                match image.file(path) {
                    Some(inode) => {
                        assert_ne!(inode, secret);
                        found += 1;
                    }
                    None => absent += 1,
                }
            }
            assert!(!image.names("/usr/lib").iter().any(|name| name == "only-outside"));
        }
        swapper.kill().unwrap();
        swapper.wait().unwrap();
        assert!(found > 0 && absent > 0, "{found} looks found the folder, {absent} found the link");
    }
}
