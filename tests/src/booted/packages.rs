//! The packages of the files that were built, as `make package` makes them, and those of another build before them.

use crate::failure::{Context, Result, ensure};
use crate::host::succeeded;
use crate::stage::Stage;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version of the packages of the other build.
const EARLIER: &str = "0.0.9";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Packages of two builds.
#[derive(Debug, Clone)]
pub struct Packages {
    root: PathBuf,
}

impl Packages {
    /// Where they are kept beside `stage`.
    pub fn beside(stage: &Stage) -> Self {
        Self { root: stage.downloads().with_file_name("package-tests") }
    }

    /// Where those for virtual machines are kept beside `stage`, of one build alone.
    pub fn for_virtual_machines(stage: &Stage) -> Self {
        Self { root: stage.downloads().with_file_name("package-machine") }
    }

    /// Where those are kept beside `stage` that are held against another tool's.
    pub fn for_comparison(stage: &Stage) -> Self {
        Self { root: stage.downloads().with_file_name("package-comparison") }
    }

    /// A file beside them.
    pub fn beside_them(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A package of the build that is tested, and its name for people.
    pub fn new_one(&self, package: &str) -> (PathBuf, String) {
        self.deb("new", package, VERSION)
    }

    /// The package of the build before it.
    pub fn earlier(&self, package: &str) -> (PathBuf, String) {
        self.deb("earlier", package, EARLIER)
    }

    /// The same as an .rpm.
    pub fn new_rpm(&self) -> (PathBuf, String) {
        self.rpm("new", VERSION)
    }

    /// The .rpm of the build before it.
    pub fn earlier_rpm(&self) -> (PathBuf, String) {
        self.rpm("earlier", EARLIER)
    }

    fn rpm(&self, directory: &str, version: &str) -> (PathBuf, String) {
        let name = format!("gpool-{version}-1.x86_64.rpm");
        (self.root.join(directory).join(&name), name)
    }

    fn deb(&self, directory: &str, package: &str, version: &str) -> (PathBuf, String) {
        let name = format!("{package}_{version}_amd64.deb");
        (self.root.join(directory).join(&name), name)
    }
}

/// Packs `stage`, and a build that differs from it by its build ids under a lower version. Packed again, a build gives the
/// same bytes.
pub fn pack(stage: &Stage) -> Result<Packages> {
    let packages = Packages::beside(stage);
    let root = &packages.root;
    if root.exists() {
        fs::remove_dir_all(root).context(root.display())?;
    }
    let other = stage.copy_to(&root.join("stage"))?;
    other.install_another_build()?;
    // At the same time: they compress, each in one thread.
    let packing = [("new", stage, VERSION), ("again", stage, VERSION), ("earlier", &other, EARLIER)];
    let packed: Vec<Result<()>> = std::thread::scope(|scope| {
        let one = |(directory, stage, version)| scope.spawn(move || pack_into(stage, &root.join(directory), version));
        let threads = packing.map(one);
        threads.map(|thread| thread.join().expect("no thread panics")).into_iter().collect()
    });
    packed.into_iter().collect::<Result<Vec<()>>>()?;
    same_bytes(&root.join("new"), &root.join("again"))?;
    Ok(packages)
}

/// Packs `stage` alone, anew, as `packages`.
///
/// # Errors
/// When `packaging/pack.sh` fails; the sentence is its.
pub fn pack_one(stage: &Stage, packages: &Packages) -> Result<()> {
    let root = &packages.root;
    if root.exists() {
        fs::remove_dir_all(root).context(root.display())?;
    }
    pack_into(stage, &root.join("new"), VERSION)
}

fn pack_into(stage: &Stage, destination: &Path, version: &str) -> Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/pack.sh");
    let mut command = Command::new(&script);
    // Three times twenty seconds of a processor at the level for others.
    command.arg(stage.root()).arg(destination).arg(version).env("PACK_LEVEL", "1");
    let output = command.output();
    succeeded("packaging/pack.sh", output.context(script.display())?).map(drop)
}

fn same_bytes(one: &Path, other: &Path) -> Result<()> {
    let names = |directory: &Path| -> Result<Vec<String>> {
        let entries = fs::read_dir(directory).context(directory.display())?.flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        Ok(names)
    };
    let packed = names(one)?;
    let has = |ending: &str| packed.iter().filter(|name| name.ends_with(ending)).count();
    ensure((has(".deb"), has(".rpm")) == (2, 1) && packed == names(other)?, || format!("packed were {packed:?}"))?;
    for name in packed {
        let read = |directory: &Path| fs::read(directory.join(&name)).context(&name);
        ensure(read(one)? == read(other)?, || format!("{name} packed twice has different bytes"))?;
    }
    Ok(())
}
