//! The container engines of this host, and how each is told of gpool's runtime.
//!
//! Each engine's file is changed as a text: a pure function takes what is there and gives what shall be there
//! ([`Engine::with_entry`], [`Engine::without_entry`]). Around that lie [`change`], which decides what is done,
//! [`checker`], which lets the engine judge the new text before it is in force, and [`file`], which puts it there. [`told_files`] has
//! the files where nobody would look.

pub mod change;
pub mod checker;
mod containerd;
pub mod crio;
mod docker;
pub mod dockerd;
pub mod file;
pub mod oci_hooks;
pub mod podman;
pub mod told_files;

use std::path::{Path, PathBuf};

/// The name under which engines know gpool's runtime. A name with a dot would be taken for a containerd shim.
pub const RUNTIME_NAME: &str = "gpool";

/// The first line of files that are wholly gpool's.
const OWN_FILE: &str = "# Written by gpool runtime configure; gpool runtime unconfigure takes it away.\n";

/// A container engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Engine {
    /// Docker: `daemon.json`.
    Docker,
    /// Podman: a file of its own in `containers.conf.d`.
    Podman,
    /// containerd for Kubernetes (CRI): its `config.toml`.
    Containerd,
    /// CRI-O: a file of its own in `crio.conf.d`.
    #[value(alias = "cri-o")]
    Crio,
}

/// What an engine is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where `gpool-runtime` lies.
    pub runtime: PathBuf,
    /// Whether containers that name no runtime get it.
    pub is_default: bool,
}

/// What an engine does today, as far as the new text depends on it.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// containerd: its whole configuration, defaults and imports included, as `containerd config dump` prints it.
    pub effective: Option<toml::Table>,
    /// podman: the names of runtimes that are given `--log`, by what its other files say; none stands for its default.
    pub json_runtimes: Option<Vec<String>>,
    /// podman: where it looks for hook files by what its other files say; none stands for its default.
    pub hooks_dirs: Option<Vec<String>>,
    /// CRI-O: the conmon that it is to start.
    pub monitor: Option<PathBuf>,
}

/// Why a text cannot be read or changed: lower case, no full stop, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Defect(pub String);

impl Engine {
    /// All of them.
    pub const ALL: [Engine; 4] = [Engine::Docker, Engine::Podman, Engine::Containerd, Engine::Crio];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Docker => "docker",
            Engine::Podman => "podman",
            Engine::Containerd => "containerd",
            Engine::Crio => "crio",
        }
    }

    /// The program that reads the file.
    pub fn program(self) -> &'static str {
        match self {
            Engine::Docker => "dockerd",
            Engine::Podman => "podman",
            Engine::Containerd => "containerd",
            Engine::Crio => "crio",
        }
    }

    /// The file that is changed where the command line names none.
    pub fn default_file(self) -> &'static Path {
        Path::new(match self {
            Engine::Docker => "/etc/docker/daemon.json",
            Engine::Podman => "/etc/containers/containers.conf.d/50-gpool.conf",
            Engine::Containerd => "/etc/containerd/config.toml",
            Engine::Crio => "/etc/crio/crio.conf.d/50-gpool.conf",
        })
    }

    /// What makes a running engine read its file again.
    pub fn reload(self) -> Option<&'static str> {
        match self {
            Engine::Docker => Some("systemctl reload docker"),
            Engine::Podman => None,
            Engine::Containerd => Some("systemctl restart containerd"),
            Engine::Crio => Some("systemctl restart crio"),
        }
    }

    /// Whether the whole file is gpool's.
    fn owns_file(self) -> bool {
        matches!(self, Engine::Podman | Engine::Crio)
    }

    /// What `text` tells the engine of gpool.
    ///
    /// # Errors
    /// If the text cannot be read as what it should be, or its entry is one that gpool cannot work with.
    pub fn entry(self, text: &str) -> Result<Option<Entry>, Defect> {
        match self {
            Engine::Docker => docker::entry(text),
            Engine::Podman => podman::entry(text),
            Engine::Containerd => containerd::entry(text),
            Engine::Crio => crio::entry(text),
        }
    }

    /// `text` (none: there is no file) with `entry` in it. Everything else stays, in its order, with its comments.
    ///
    /// # Errors
    /// If the text cannot be read, belongs to somebody else, or leaves no place for the entry.
    pub fn with_entry(self, text: Option<&str>, entry: &Entry, facts: &Facts) -> Result<String, Defect> {
        match self {
            Engine::Docker => docker::with_entry(text, entry),
            Engine::Podman => podman::with_entry(text, entry, facts),
            Engine::Containerd => containerd::with_entry(text, entry, facts),
            Engine::Crio => crio::with_entry(text, entry, facts),
        }
    }

    /// The runtime beside gpool's that has another cgroup driver than gpool's by `text`, of containerd's; none if there is none.
    pub fn other_cgroup_driver(self, text: &str) -> Option<String> {
        if self == Engine::Containerd { containerd::other_cgroup_driver(text) } else { None }
    }

    /// The runtime of containers that name none as `text` and `facts` have it, where that is NVIDIA's: it gives GPUs to
    /// containers that ask for nothing of gpool.
    pub fn default_of_nvidia(self, text: Option<&str>, facts: &Facts) -> Option<String> {
        let (name, program) = match self {
            Engine::Docker => docker::default_runtime(text?)?,
            Engine::Containerd => containerd::default_runtime(facts.effective.as_ref()?)?,
            Engine::Podman | Engine::Crio => return None,
        };
        let is_nvidias = name.starts_with("nvidia") || program.is_some_and(|path| is_of_nvidia(&path));
        is_nvidias.then_some(name)
    }

    /// Whether images are built by the default runtime as `text` has it, too; this asks the engine for its version.
    pub fn builds_with_runtime(self, text: &str) -> bool {
        self == Engine::Docker && docker::builds_with_runtime(text, checker::docker_version())
    }

    /// `text` without gpool's entry; none if nothing of the file should stay. `original` is the text before gpool,
    /// where that is known: the default runtime is taken from it.
    ///
    /// # Errors
    /// If the text cannot be read.
    pub fn without_entry(self, text: &str, original: Option<&str>) -> Result<Option<String>, Defect> {
        match self {
            Engine::Docker => docker::without_entry(text, original).map(Some),
            Engine::Containerd => containerd::without_entry(text, original).map(Some),
            Engine::Podman | Engine::Crio => Ok(None),
        }
    }
}

/// Refuses a file of gpool's name that gpool did not write.
fn require_own(text: Option<&str>) -> Result<(), Defect> {
    match text {
        Some(text) if !text.starts_with(OWN_FILE) => {
            Err(Defect("was not written by gpool; move it away or name another file with --config".into()))
        }
        _ => Ok(()),
    }
}

/// Whether a low-level runtime is one of NVIDIA's toolkit, which puts GPUs into containers: `nvidia-container-runtime` and
/// `nvidia-container-runtime.cdi` are two of them.
pub fn is_of_nvidia(program: &Path) -> bool {
    program.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"nvidia-container-runtime"))
}

/// The path as text. A path that is none cannot be written into a configuration file.
fn path_text(path: &Path) -> Result<&str, Defect> {
    path.to_str().ok_or_else(|| Defect(format!("the path {} is no valid UTF-8", path.display())))
}
