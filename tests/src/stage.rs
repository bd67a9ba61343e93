//! Where the built programs and libraries lie, and their copy in a run's own `/run`.

use crate::failure::{Context, Failure, Result};
use gpool_driver_abi::GENERATIONS;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory with `bin`, `libexec`, `lib` and `simulated`, as `make build` makes it.
#[derive(Debug, Clone)]
pub struct Stage {
    root: PathBuf,
}

/// Without these nothing can run; a missing one means that `make build` was not.
const NEEDED: [&str; 11] = [
    "bin/gpool",
    "bin/gpool-supervisor",
    "bin/gpool-device-plugin",
    "bin/gpool-simgpu",
    "bin/gpool-runtime",
    "bin/gpool-tenant",
    "libexec/gpool-hook",
    "lib/535/libgpool-cuda.so",
    "simulated/libcuda.so.1",
    "simulated/libnvidia-ml.so.1",
    "simulated/nvidia-cuda-mps-control",
];

/// What a package of gpool would install, the shims left out.
const OWN: [&str; 6] = [
    "bin/gpool",
    "bin/gpool-supervisor",
    "bin/gpool-runtime",
    "libexec/gpool-hook",
    "libexec/gpool-run",
    "libexec/gpool-gpu-test",
];

/// The shims of one generation.
pub const SHIMS: [&str; 2] = ["libgpool-cuda.so", "libgpool-nvml.so"];

impl Stage {
    /// The stage that the running program is part of.
    ///
    /// # Errors
    /// When the program was not started from a stage, or files are missing there.
    pub fn of_this_program() -> Result<Self> {
        let program = std::env::current_exe().context("this program's path")?;
        let root = program.parent().and_then(Path::parent).unwrap_or(Path::new("/")).to_owned();
        let stage = Self { root };
        match NEEDED.iter().find(|file| !stage.root.join(file).is_file()) {
            None => Ok(stage),
            Some(file) => {
                Err(Failure::new(format!("{} is missing; run `make build`", stage.root.join(file).display())))
            }
        }
    }

    /// Copies everything to `root`, so that a build that goes on meanwhile changes nothing for the run.
    pub fn copy_to(&self, root: &Path) -> Result<Self> {
        fs::create_dir_all(root).context(root.display())?;
        let copied = Command::new("cp").arg("-a").arg(self.root.join(".")).arg(root).status().context("cp")?;
        if !copied.success() {
            return Err(Failure::new(format!("{} cannot be copied to {}", self.root.display(), root.display())));
        }
        Ok(Self { root: root.to_owned() })
    }

    /// Replaces everything of gpool's own by another build, each file by renaming a new one over it, as package managers
    /// do. The other build differs in nothing but its build id, and so in what a file's identity is. How many files.
    pub fn install_another_build(&self) -> Result<usize> {
        let mut replaced = 0;
        let shims = GENERATIONS.iter().flat_map(|generation| SHIMS.map(|shim| self.shim(generation.name, shim)));
        for path in OWN.map(|file| self.root.join(file)).into_iter().chain(shims) {
            let mut content = fs::read(&path).context(path.display())?;
            let Some(id) = build_id(&content) else { continue };
            content[id] ^= 0xff;
            let new = path.with_extension("new");
            fs::write(&new, content).context(new.display())?;
            let mode = fs::metadata(&path).context(path.display())?.permissions();
            fs::set_permissions(&new, mode).context(new.display())?;
            fs::rename(&new, &path).context(path.display())?;
            replaced += 1;
        }
        Ok(replaced)
    }

    /// Where it lies.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where what tests download is kept: beside the stage, in cargo's target directory.
    pub fn downloads(&self) -> PathBuf {
        self.root.with_file_name("downloads")
    }

    /// A program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.root.join("bin").join(name)
    }

    /// The OCI hook.
    pub fn hook(&self) -> PathBuf {
        self.root.join("libexec/gpool-hook")
    }

    /// The directory of the shims: one below it for each generation of the driver.
    pub fn shims(&self) -> PathBuf {
        self.root.join("lib")
    }

    /// A shim of a generation.
    pub fn shim(&self, generation: &str, name: &str) -> PathBuf {
        self.shims().join(generation).join(name)
    }

    /// The directory of the simulated driver's libraries.
    pub fn simulated(&self) -> PathBuf {
        self.root.join("simulated")
    }
}

/// Where the build id of an ELF file begins: after the head of its note, which is the name's length, the length of the
/// id (SHA-1), the type NT_GNU_BUILD_ID and the name.
fn build_id(content: &[u8]) -> Option<usize> {
    const HEAD: [u8; 16] = *b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";
    let id = content.windows(HEAD.len()).position(|window| window == HEAD)? + HEAD.len();
    (id < content.len()).then_some(id)
}
