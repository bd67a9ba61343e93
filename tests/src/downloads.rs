//! Software of others that tests look at and that is never part of the repository: NVIDIA's libraries and other glibcs
//! from Debian's packages, and NVIDIA's CUDA runtimes from Python's. Downloaded once into cargo's target directory by the
//! ordinary clients, installed nowhere.

mod kubernetes;

pub use kubernetes::Kubernetes;

use crate::failure::{Context, Failure, Result, ensure};
use crate::host::succeeded;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Longest time for one client's call, in seconds.
const LIMIT_S: &str = "40";
/// The same for a whole image, which takes half a minute and ten times that where others keep the machine busy.
const IMAGE_LIMIT_S: &str = "400";
/// What no program needs of an image.
const LEFT_OUT: [&str; 3] = ["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*"];

/// Longest time for packages that are downloaded, unpacked and compiled here, in seconds.
const INSTALLING_S: &str = "150";

/// In a directory of Python's packages, and beside a system: which they are.
const PACKAGES: &str = "packages.txt";

/// Debian's keys, of the package that apt itself depends on.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The directory in which downloads are kept.
#[derive(Debug, Clone)]
pub struct Downloads {
    root: PathBuf,
}

/// Debian packages of one suite and component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packages {
    /// `stable`, for example.
    pub suite: &'static str,
    /// `main` or `non-free`.
    pub component: &'static str,
    /// Their names.
    pub names: &'static [&'static str],
}

impl Downloads {
    /// What is kept in `root`.
    pub fn in_directory(root: PathBuf) -> Self {
        Self { root }
    }

    /// Where `packages` are unpacked, if they are here.
    pub fn unpacked(&self, packages: &Packages) -> Option<PathBuf> {
        Some(self.place_of(packages)).filter(|place| place.is_dir())
    }

    /// Directories with the libraries of further drivers, which somebody has put into `drivers` beside the downloads.
    pub fn drivers(&self) -> Vec<PathBuf> {
        let found = fs::read_dir(self.root.join("drivers")).into_iter().flatten().flatten();
        let mut directories: Vec<PathBuf> = found.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
        directories.sort();
        directories
    }

    /// Where the Python package `name` is unpacked, if it is here.
    pub fn unpacked_wheel(&self, name: &str) -> Option<PathBuf> {
        Some(self.root.join(name)).filter(|place| place.is_dir())
    }

    /// Downloads and unpacks `packages` unless they are here.
    ///
    /// # Errors
    /// When they cannot be reached; the sentence is the client's.
    pub fn fetch(&self, packages: &Packages) -> Result<()> {
        self.once(&self.place_of(packages), |directory| {
            write_sources(directory, "deb", packages.suite, packages.component)?;
            call(apt(directory).args(["-qq", "update"]))?;
            call(apt(directory).args(["-qq", "download"]).args(packages.names))?;
            let unpacked = directory.join("unpacked");
            fs::create_dir_all(&unpacked).context("unpacked")?;
            for package in files(directory, "deb")? {
                call(limited("dpkg-deb").arg("-x").arg(package).arg(&unpacked))?;
            }
            Ok(unpacked)
        })
    }

    /// Downloads and unpacks the newest Python package `name` unless one is here.
    ///
    /// # Errors
    /// When it cannot be reached; the sentence is the client's.
    pub fn fetch_wheel(&self, name: &str) -> Result<()> {
        self.once(&self.root.join(name), |directory| {
            let options = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"];
            call(limited("pip3").args(options).arg(directory).arg(name))?;
            let unpacked = directory.join("unpacked");
            for wheel in files(directory, "whl")? {
                call(limited("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(&unpacked))?;
            }
            Ok(unpacked)
        })
    }

    /// Installs Python's `packages`, and nothing that they need besides, into a directory called `place` unless these are
    /// there.
    ///
    /// # Errors
    /// When they cannot be reached; the sentence is the client's.
    pub fn fetch_python(&self, place: &str, packages: &[&str]) -> Result<()> {
        let place = self.root.join(place);
        let list = place.join(PACKAGES);
        if place.is_dir() && fs::read_to_string(&list).is_ok_and(|installed| installed == packages.join("\n")) {
            return Ok(());
        }
        if place.is_dir() {
            fs::remove_dir_all(&place).context(place.display())?;
        }
        self.once(&place, |directory| {
            let unpacked = directory.join("unpacked");
            let options = ["install", "--quiet", "--no-deps", "--prefer-binary", "--target"];
            call(limited_to(INSTALLING_S, "pip3").args(options).arg(&unpacked).args(packages))?;
            fs::write(unpacked.join(PACKAGES), packages.join("\n")).context(PACKAGES)?;
            Ok(unpacked)
        })
    }

    /// The archive with the root of an image of the Debian release `suite`, if it is here.
    pub fn image(&self, suite: &str) -> Option<PathBuf> {
        Some(self.place_of_image(suite).join("root.tar")).filter(|archive| archive.is_file())
    }

    /// Makes the root of an image of the Debian release `suite`, with its essential packages and Python, unless it is
    /// here: about 100 MB.
    ///
    /// # Errors
    /// When they cannot be reached; the sentence is mmdebstrap's.
    pub fn fetch_image(&self, suite: &str) -> Result<()> {
        self.once(&self.place_of_image(suite), |directory| {
            let unpacked = directory.join("unpacked");
            fs::create_dir_all(&unpacked).context("unpacked")?;
            let mut command = mmdebstrap("essential", "python3");
            command.arg(suite).arg(unpacked.join("root.tar")).arg(mirror()?);
            call(&mut command)?;
            Ok(unpacked)
        })
    }

    /// The files of a Debian release that `fetch_tree` has laid out under this name, if they are here.
    pub fn tree(&self, name: &str) -> Option<PathBuf> {
        Some(self.root.join(name)).filter(|tree| tree.join("usr/bin").is_dir())
    }

    /// Lays out `packages` of the Debian release `suite` with all that they need, as files and without running anything of
    /// theirs, unless they are here.
    ///
    /// # Errors
    /// When they cannot be reached; the sentence is mmdebstrap's.
    pub fn fetch_tree(&self, name: &str, suite: &str, packages: &[&str]) -> Result<()> {
        self.once(&self.root.join(name), |directory| {
            let unpacked = directory.join("unpacked");
            let mut command = limited_to(IMAGE_LIMIT_S, "mmdebstrap");
            command.args(["--quiet", "--variant=extract", "--format=directory"]);
            command.arg(format!("--include={}", packages.join(",")));
            // Mirrors may be snapshots.
            command.arg("--aptopt=Acquire::Check-Valid-Until \"false\"");
            command.arg(suite).arg(&unpacked).arg(mirror()?);
            call(&mut command)?;
            Ok(unpacked)
        })
    }

    /// The root of a system of the Debian release `suite` that can be booted, if it is here.
    pub fn system(&self, suite: &str) -> Option<PathBuf> {
        Some(self.place_of_system(suite)).filter(|root| root.is_dir())
    }

    /// Makes the root of a system of the Debian release `suite` with `packages`, unless it is here: about 400 MB.
    ///
    /// # Errors
    /// When they cannot be reached; the sentence is mmdebstrap's.
    pub fn fetch_system(&self, suite: &str, packages: &[&str]) -> Result<()> {
        let place = self.place_of_system(suite);
        let list = place.with_extension(PACKAGES);
        let is_of_others = fs::read_to_string(&list).map_or(true, |made_of| made_of != packages.join("\n"));
        if place.is_dir() && is_of_others {
            fs::remove_dir_all(&place).context(place.display())?;
        }
        self.once(&place, |directory| {
            let unpacked = directory.join("unpacked");
            let mut command = mmdebstrap("apt", &packages.join(","));
            command.arg(suite).arg(&unpacked).arg(mirror()?);
            call(&mut command)?;
            fs::write(&list, packages.join("\n")).context(list.display())?;
            Ok(unpacked)
        })
    }

    fn place_of_system(&self, suite: &str) -> PathBuf {
        self.root.join(format!("system-{suite}"))
    }

    fn place_of_image(&self, suite: &str) -> PathBuf {
        self.root.join(format!("image-{suite}"))
    }

    fn place_of(&self, packages: &Packages) -> PathBuf {
        self.root.join(format!("{}-{}", packages.suite, packages.names[0]))
    }

    /// Makes `place` by what `fetch` unpacks in a directory of its own, whole or not at all.
    fn once(&self, place: &Path, fetch: impl FnOnce(&Path) -> Result<PathBuf>) -> Result<()> {
        fs::create_dir_all(&self.root).context(self.root.display())?;
        // Scenarios that run together may want the same; who comes second finds it here.
        let lock = place.with_extension("lock");
        let lock = File::create(&lock).and_then(|file| file.lock().map(|()| file)).context(lock.display())?;
        if place.is_dir() {
            return Ok(());
        }
        let work = place.with_extension("new");
        if work.exists() {
            fs::remove_dir_all(&work).context(work.display())?;
        }
        fs::create_dir_all(&work).context(work.display())?;
        let fetched =
            fetch(&work).and_then(|unpacked| fs::rename(&unpacked, place).context(format!("{}", place.display())));
        let _ = fs::remove_dir_all(&work);
        drop(lock);
        fetched
    }
}

/// mmdebstrap, with what every image and system here has in common.
fn mmdebstrap(variant: &str, packages: &str) -> Command {
    let mut command = limited_to(IMAGE_LIMIT_S, "mmdebstrap");
    command.args(["--quiet", &format!("--variant={variant}"), &format!("--include={packages}")]);
    command.args(LEFT_OUT.map(|files| format!("--dpkgopt=path-exclude={files}")));
    // Mirrors may be snapshots.
    command.arg("--aptopt=Acquire::Check-Valid-Until \"false\"");
    command
}

/// Debian's mirror as the machine's own apt knows it: of the source that brings the suite of this release, without its
/// updates, in the component main.
fn mirror() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let codename = codename.ok_or_else(|| Failure::new("this is no Debian: /etc/os-release names no release"))?;
    let mut command = limited("apt-get");
    command.args(["indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]);
    let listed = succeeded("apt-get indextargets", command.output().context("apt-get")?)?;
    let wanted = format!(" {codename} main");
    let found = listed.lines().find_map(|line| line.strip_suffix(&wanted));
    found.map(str::to_owned).ok_or_else(|| Failure::new(format!("apt has no source for {codename} main")))
}

/// Lets apt find packages of this kind, `deb` or `deb-src`, below `directory`.
fn write_sources(directory: &Path, kind: &str, suite: &str, component: &str) -> Result<()> {
    let sources = directory.join("sources.list");
    let line = format!("{kind} [signed-by={KEYRING}] {} {suite} {component}\n", mirror()?);
    fs::write(&sources, line).context(sources.display())?;
    for kept in ["state/lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(directory.join(kept)).context(kept)?;
    }
    fs::write(directory.join("state/status"), "").context("state/status")
}

/// apt-get with sources, lists and archives below `directory` alone.
fn apt(directory: &Path) -> Command {
    let mut command = limited("apt-get");
    let path = |name: &str| directory.join(name).display().to_string();
    for (key, value) in [
        ("Dir::Etc::SourceList", path("sources.list")),
        ("Dir::Etc::SourceParts", "-".to_owned()),
        ("Dir::State", path("state")),
        // What is installed here must not be preferred to what the suite has.
        ("Dir::State::Status", path("state/status")),
        ("Dir::Cache", path("cache")),
        ("APT::Sandbox::User", "root".to_owned()),
        ("Acquire::Languages", "none".to_owned()),
        ("Acquire::Retries", "1".to_owned()),
        ("Acquire::http::Timeout", "10".to_owned()),
        ("Acquire::https::Timeout", "10".to_owned()),
        // Without it, apt goes on with no lists when a mirror does not answer.
        ("APT::Update::Error-Mode", "any".to_owned()),
    ] {
        command.arg("-o").arg(format!("{key}={value}"));
    }
    command.current_dir(directory);
    command
}

fn limited(program: &str) -> Command {
    limited_to(LIMIT_S, program)
}

/// `program`, to be killed after so many seconds.
fn limited_to(limit_s: &str, program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args([limit_s, program]);
    command
}

fn call(command: &mut Command) -> Result<()> {
    let what = command.get_args().nth(1).map(|program| program.to_string_lossy().into_owned()).unwrap_or_default();
    let output = command.output().context(&what)?;
    let ended = output.status;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure(ended.success(), || format!("{what}: {}", said.lines().last().unwrap_or(&ended.to_string())))
}

fn files(directory: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).context(directory.display())?.flatten().map(|entry| entry.path());
    Ok(entries.filter(|path| path.extension().is_some_and(|found| found == extension)).collect())
}
