//! The shims of this supervisor's build, kept under names that no package replaces.
//!
//! A package puts other shims in the places of these while containers run and while starts are under way that have been
//! told these paths. So each shim is linked at `paths.shim_dir`/builds/BUILD_ID/NAME when the supervisor starts, and mounted
//! from there: such a path names one build for ever, and a supervisor grants leases with the build that it was started
//! with. A build goes when no lease names it any more.

use super::driver_files::DriverFilesError;
use super::kept_nvml;
use super::shims::{SHIMMED, Shim};
use crate::elf;
use gpool_driver_abi::{GENERATIONS, Generation};
use gpool_protocol::BuildId;
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Directory of the kept builds, below `paths.shim_dir`.
pub const BUILDS_DIR: &str = "builds";

/// A generation's shims, in the order of [`SHIMMED`].
pub type Installed = (&'static Generation, Vec<Shim>);

/// Keeps every generation of which both shims are installed in `directory`.
///
/// # Errors
/// When a shim cannot be read as a library.
pub fn keep_all(directory: &Path) -> Result<Vec<Installed>, DriverFilesError> {
    let files = |generation: &Generation| SHIMMED.map(|(_, file)| directory.join(generation.name).join(file));
    let is_whole = |generation: &&Generation| files(generation).iter().all(|path| path.is_file());
    let shims = |generation: &'static Generation| {
        let kept = SHIMMED.iter().zip(files(generation)).map(|((library, _), path)| keep(directory, library, &path));
        Ok((generation, kept.collect::<Result<Vec<Shim>, _>>()?))
    };
    GENERATIONS.iter().filter(is_whole).map(shims).collect()
}

/// Removes the builds that are not among `used`. What cannot be removed is tried again the next time.
pub fn remove_all_but(directory: &Path, used: &BTreeSet<String>) {
    let builds = fs::read_dir(directory.join(BUILDS_DIR)).into_iter().flatten().flatten();
    let is_used = |name: &str| name == kept_nvml::NAME || used.contains(name);
    for build in builds.filter(|build| !is_used(build.file_name().to_string_lossy().as_ref())) {
        let _ = fs::remove_dir_all(build.path());
    }
}

/// The shim at `path` under the name of its build. Where that cannot be had, because it has no build id or the directory
/// cannot be written, it stays where it is.
fn keep(directory: &Path, library: &'static str, path: &Path) -> Result<Shim, DriverFilesError> {
    let unreadable =
        |cause: io::Error| DriverFilesError::Unreadable { path: path.display().to_string(), cause: cause.to_string() };
    let shim = |path: PathBuf, build_id| Shim { library, path, build_id };
    match keep_file(&directory.join(BUILDS_DIR), path) {
        Ok((build_id, kept)) => Ok(shim(kept, Some(build_id))),
        Err(cause) => {
            log!("{} is mounted from its own place, which a package replaces ({cause})", path.display());
            let build_id = File::open(path).and_then(|file| elf::build_id(&file)).map_err(unreadable)?;
            Ok(shim(path.to_owned(), build_id))
        }
    }
}

/// Links or copies `path` into the directory of its build, unless it is there.
fn keep_file(builds: &Path, path: &Path) -> io::Result<(BuildId, PathBuf)> {
    make_directory(builds)?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    // Which build it is, is read of the link: the file may be replaced at any time.
    let link = builds.join(format!("new-{}", std::process::id()));
    let _ = fs::remove_file(&link);
    fs::hard_link(path, &link).or_else(|_| fs::copy(path, &link).map(drop))?;
    let kept = File::open(&link).and_then(|file| elf::build_id(&file)).and_then(|build_id| {
        let build_id = build_id.ok_or_else(|| io::Error::other("it has no build id"))?;
        let place = builds.join(&build_id.0);
        make_directory(&place)?;
        let kept = place.join(name);
        if !kept.is_file() {
            fs::rename(&link, &kept)?;
        }
        Ok((build_id, kept))
    });
    let _ = fs::remove_file(&link);
    kept
}

/// Everybody may look into it, whatever the umask of a service is.
fn make_directory(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    match DirBuilder::new().mode(0o755).create(path) {
        Ok(()) => fs::set_permissions(path, PermissionsExt::from_mode(0o755)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}
