//! Where the built programs and libraries lie, and their copy in a run's own `/run`.

use crate::failure::{Context, Failure, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory with `bin`, `libexec`, `lib` and `simulated`, as `make build` makes it.
#[derive(Debug, Clone)]
pub struct Stage {
    root: PathBuf,
}

/// Without these nothing can run; a missing one means that `make build` was not.
const NEEDED: [&str; 9] = [
    "bin/gpool",
    "bin/gpool-supervisor",
    "bin/gpool-simgpu",
    "bin/gpool-runtime",
    "bin/gpool-tenant",
    "libexec/gpool-hook",
    "lib/libgpool-cuda.so",
    "simulated/libcuda.so.1",
    "simulated/libnvidia-ml.so.1",
];

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

    /// A program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.root.join("bin").join(name)
    }

    /// The OCI hook.
    pub fn hook(&self) -> PathBuf {
        self.root.join("libexec/gpool-hook")
    }

    /// The directory of the shims.
    pub fn shims(&self) -> PathBuf {
        self.root.join("lib")
    }

    /// The directory of the simulated driver's libraries.
    pub fn simulated(&self) -> PathBuf {
        self.root.join("simulated")
    }
}
