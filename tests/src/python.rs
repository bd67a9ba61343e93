//! Programs of Python's package index, as people install them, and how a container without a Python runs them: with this
//! machine's, which it sees read-only.

use crate::downloads::Downloads;
use crate::failure::{Context, Failure, Result};
use crate::host::{Engine, succeeded};
use std::path::PathBuf;
use std::process::Command;

/// Where the container sees this machine's Python.
const PYTHON: &str = "/python";
/// Below which it sees the programs, as those that a user has installed: some programs look for others only where
/// Python's own list of such places leads.
const USER: &str = "/programs";
/// Where it sees this machine's libraries, which Python's own need.
const LIBRARIES: &str = "/libraries";

/// Packages that are installed together into one directory.
#[derive(Debug, Clone, Copy)]
pub struct PythonPrograms {
    /// The directory's name.
    pub place: &'static str,
    /// Each with its version, and with all that it needs.
    pub packages: &'static [&'static str],
}

/// What shows people who uses their GPU.
pub const MONITORING: PythonPrograms = PythonPrograms {
    place: "monitoring-programs",
    packages: &[
        "nvidia-ml-py==13.615.71",
        "gpustat==1.1.1",
        "nvitop==1.7.2",
        "blessed==1.52.0",
        "jinxed==2.1.0",
        "psutil==7.2.2",
        "wcwidth==0.9.4",
    ],
};

/// What runs kernels on a GPU through the driver's own interface, with a compiler of CUDA 12.4: about 145 MB.
pub const CUDA: PythonPrograms = PythonPrograms {
    place: "cuda-programs",
    packages: &[
        "cuda-bindings==12.9.10",
        "cuda-core==1.2.2",
        "cuda-pathfinder==1.9.0",
        "llvmlite==0.50.0",
        "numba==0.68.1",
        "numba-cuda==0.30.4",
        "numpy==2.4.6",
        "nvidia-cuda-nvcc-cu12==12.4.131",
        "nvidia-cuda-nvrtc-cu12==12.4.127",
        "nvidia-cuda-runtime-cu12==12.4.127",
        "packaging==26.3",
        "typing_extensions==4.16.0",
    ],
};

impl PythonPrograms {
    /// Downloads them, unless they are here.
    ///
    /// # Errors
    /// When they cannot be reached, or this machine has no Python; the sentence says which.
    pub fn fetch(&self, downloads: &Downloads) -> Result<()> {
        Installed::here()?;
        downloads.fetch_python(self.place, self.packages)
    }

    /// What docker needs for a container that runs them.
    pub fn options(&self, downloads: &Downloads) -> Result<Vec<String>> {
        let programs = downloads.unpacked_wheel(self.place);
        let programs = programs.ok_or_else(|| Failure::new(format!("{} is not here", self.place)))?;
        let python = Installed::here()?;
        let place = format!("{USER}/lib/python{}/site-packages", python.version);
        let mounts = [
            (python.prefix, PYTHON.to_owned()),
            (programs, place),
            ("/usr/lib/x86_64-linux-gnu".into(), LIBRARIES.to_owned()),
        ];
        Ok(mounts.iter().map(|(from, to)| format!("-v{}:{to}:ro", from.display())).collect())
    }
}

/// Runs Python in a container that was started with those options.
///
/// # Errors
/// When it does not end well; the sentence is what it said on stderr.
pub fn ask(engine: &Engine, container: &str, arguments: &[&str]) -> Result<String> {
    let environment = [
        // First where gpool has put the driver: this machine may have one among its libraries.
        format!("LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu:{PYTHON}/lib:{LIBRARIES}"),
        format!("PYTHONHOME={PYTHON}"),
        format!("PYTHONUSERBASE={USER}"),
        "PYTHONDONTWRITEBYTECODE=1".to_owned(),
        "TERM=xterm".to_owned(),
        "COLUMNS=100".to_owned(),
    ];
    let python = format!("{PYTHON}/bin/python3");
    let mut command = vec!["exec"];
    command.extend(environment.iter().flat_map(|setting| ["-e", setting]));
    command.extend([container, &python]);
    command.extend(arguments);
    engine.docker_text(&command)
}

/// This machine's Python.
struct Installed {
    prefix: PathBuf,
    /// `3.11`, for example.
    version: String,
}

impl Installed {
    fn here() -> Result<Self> {
        let script = "import sys; print(sys.base_prefix); print('%d.%d' % sys.version_info[:2])";
        let asked = Command::new("python3").args(["-c", script]).output().context("python3")?;
        let said = succeeded("python3", asked)?;
        let (prefix, version) =
            said.split_once('\n').ok_or_else(|| Failure::new(format!("python3 says {said} of itself")))?;
        Ok(Self { prefix: prefix.into(), version: version.to_owned() })
    }
}
