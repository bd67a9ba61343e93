//! The image's loader cache (/etc/ld.so.cache) learns of the lease's libraries.
//!
//! The loader finds them without it, in the directory where it looks by itself. But programs ask the cache what there is:
//! Triton, and with it torch.compile, runs `/sbin/ldconfig -p` to find libcuda and gives up where it is not listed; Python's
//! `ctypes.util.find_library` does the same, and the entrypoints of NVIDIA's images tell from it whether there is a driver.
//! NVIDIA's toolkit runs ldconfig in the container for that. Here the file itself is written, in some milliseconds and
//! without running anything over files of a stranger.
//!
//! What is written lies in the container's own layer, as what ldconfig in the container would write, and nothing keeps an
//! image from running ldconfig later.

mod format;

use crate::image::Image;
use crate::libraries::unversioned;
use format::LoaderCache;
use gpool_protocol::LeaseId;

const DIRECTORY: &str = "/etc";
const NAME: &str = "ld.so.cache";
/// A longer cache is none that ldconfig has written.
pub const LIMIT_BYTES: usize = 8 << 20;
/// Where images have the program that others ask.
const LDCONFIG: [&str; 2] = ["/sbin/ldconfig", "/usr/sbin/ldconfig"];
/// Where glibc's loader is; musl's has no cache.
const GLIBC: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/usr/lib64/ld-linux-x86-64.so.2"];

/// Enters `libraries`, file names of the lease's such as `libcuda.so.1`, into the image's cache, before all others of their names.
///
/// An image that cannot be written, and a cache that ldconfig has not written, stay as they are: a container works without
/// it but for those who ask the cache, and a start does not fail for them.
pub fn enter(image: &Image, libraries: &[&str], lease: &LeaseId) {
    if image.is_hosts_own() {
        return;
    }
    if let Some(bytes) = with(image, libraries) {
        // A name that no other start has.
        let _ = image.replace(DIRECTORY, NAME, &bytes, &format!(".{NAME}.{}", lease.0));
    }
}

/// The cache with these libraries in it; none if there can be none, or if they are in it.
fn with(image: &Image, libraries: &[&str]) -> Option<Vec<u8>> {
    let path = format!("{DIRECTORY}/{NAME}");
    let is_there = |paths: &[&str]| paths.iter().any(|path| image.file(path).is_some());
    let found = image.read(&path, LIMIT_BYTES);
    let mut cache = match &found {
        Some(_) if image.is_link(&path) => return None,
        // An empty one is what a loss of power leaves; the loader takes it for none.
        Some(bytes) if !bytes.is_empty() => LoaderCache::read(bytes)?,
        None if !image.is_absent(&path) => return None,
        // Without one, who asks would be told that there is none.
        _ if is_there(&LDCONFIG) && is_there(&GLIBC) => LoaderCache::default(),
        _ => return None,
    };
    let directory = image.library_directory();
    let mut is_changed = false;
    // What has the driver's own version for a name is asked for by that driver alone, and has another one after an update.
    let has_interface = |name: &&&str| name.rsplit_once(".so.").is_none_or(|(_, version)| !version.contains('.'));
    for name in libraries.iter().filter(has_interface) {
        for name in [unversioned(name), name] {
            if cache.first(name).is_some_and(|first| leads_to(image, first, directory, name)) {
                continue;
            }
            is_changed |= cache.enter(name, &format!("{directory}/{name}"));
        }
    }
    is_changed.then(|| cache.write()).filter(|bytes| bytes.len() <= LIMIT_BYTES)
}

/// Whether `path` is `name` in `directory`, which may have several names itself. The file need not be there yet.
fn leads_to(image: &Image, path: &str, directory: &str, name: &str) -> bool {
    let Some((its, file_name)) = path.rsplit_once('/') else { return false };
    file_name == name && image.directory(its).is_some_and(|inode| image.directory(directory) == Some(inode))
}

#[cfg(test)]
#[path = "loader_cache/tests.rs"]
mod tests;
