//! Asks the engine itself: what it does today, and whether it can read a new text.

use super::{Defect, Engine, Entry, Facts, containerd, crio, podman};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Where an engine's program is looked for besides `PATH`, which sudo may have shortened.
const DIRECTORIES: [&str; 5] = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/opt/bin"];

/// What came of a check that found nothing wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The engine has read the text and accepts it.
    Accepted,
    /// Nobody could be asked: why.
    NotChecked(String),
}

/// The engine's program on this host.
pub fn program(engine: Engine) -> Option<PathBuf> {
    places(engine.program()).into_iter().find(|program| program.is_absolute() && program.is_file())
}

/// Where a program of this name may be.
fn places(name: &str) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(DIRECTORIES.iter().map(PathBuf::from));
    directories.map(|directory| directory.join(name)).collect()
}

/// What the engine does with the file as `text`.
///
/// # Errors
/// If the engine cannot read what is there today, or would not start with it.
pub fn facts(engine: Engine, file: &Path, text: Option<&str>) -> Result<Facts, Defect> {
    match engine {
        Engine::Docker => Ok(Facts::default()),
        Engine::Crio => {
            crio::require_startable(file, Path::new("/"))?;
            let places = places(crio::MONITOR).into_iter().chain(crio::OWN_MONITORS.map(PathBuf::from));
            Ok(Facts { monitor: Some(crio::monitor(file, places)?), ..Facts::default() })
        }
        Engine::Podman => {
            let roots = [Path::new("/usr/share/containers"), Path::new("/etc/containers")];
            let hooks_dirs = Some(podman::hooks_dirs(Some(file), roots));
            Ok(Facts { json_runtimes: Some(podman::json_runtimes(file, roots)), hooks_dirs, ..Facts::default() })
        }
        Engine::Containerd => {
            let Some(program) = program(engine) else { return Ok(Facts::default()) };
            // A file that does not exist stands for containerd's defaults.
            let made = super::file::trial(file, text.unwrap_or("version = 2\n")).map_err(unwritable)?;
            Ok(Facts { effective: Some(containerd_dump(&program, made.path())?), ..Facts::default() })
        }
    }
}

/// Lets the engine judge `candidate`, a complete new file beside the one that it shall replace.
///
/// # Errors
/// If the engine refuses it, or would do something else with it than was meant.
pub fn check(engine: Engine, candidate: &Path, wanted: Option<&Entry>, facts: &Facts) -> Result<Verdict, Defect> {
    let Some(program) = program(engine) else {
        return Ok(Verdict::NotChecked(format!("{} is not installed", engine.program())));
    };
    match engine {
        Engine::Docker => docker(&program, candidate),
        Engine::Podman => {
            // Podman reads its configuration before anything else; this command touches no storage (tried with 4.3.1).
            let mut command = Command::new(&program);
            command.env("CONTAINERS_CONF", candidate).args([
                "--log-level=error",
                "version",
                "--format",
                "{{.Version}}",
            ]);
            accepted(run(&mut command)?, &program)
        }
        Engine::Containerd => {
            let after = containerd_dump(&program, candidate)?;
            if let (Some(before), Some(wanted)) = (&facts.effective, wanted) {
                containerd::require_effect(before, &after, wanted)?;
            }
            Ok(Verdict::Accepted)
        }
        Engine::Crio => accepted(run(Command::new(&program).arg("--config").arg(candidate).arg("config"))?, &program),
    }
}

/// dockerd has `--validate` from 23.0 on; an older one does not know the flag.
fn docker(program: &Path, candidate: &Path) -> Result<Verdict, Defect> {
    let output = run(Command::new(program).arg("--validate").arg("--config-file").arg(candidate))?;
    if !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("unknown flag") {
        let why = "this dockerd is older than 23.0 and cannot check a file without starting";
        return Ok(Verdict::NotChecked(why.into()));
    }
    accepted(output, program)
}

/// The first number of dockerd's version, as in `Docker version 20.10.24+dfsg1, build 297e128`.
pub fn docker_version() -> Option<u32> {
    let output = run(Command::new(program(Engine::Docker)?).arg("--version")).ok()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.split_once("version ")?.1.split('.').next()?.parse().ok()
}

fn containerd_dump(program: &Path, file: &Path) -> Result<toml::Table, Defect> {
    let output = run(Command::new(program).arg("--config").arg(file).args(["config", "dump"]))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    accepted(output, program)?;
    text.parse().map_err(|error| Defect(format!("{} config dump printed no TOML ({error})", program.display())))
}

fn run(command: &mut Command) -> Result<Output, Defect> {
    let program = command.get_program().to_owned();
    command.output().map_err(|error| Defect(format!("{} cannot be executed ({error})", Path::new(&program).display())))
}

fn accepted(output: Output, program: &Path) -> Result<Verdict, Defect> {
    if output.status.success() {
        return Ok(Verdict::Accepted);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing").trim();
    Err(Defect(format!("{} refuses it and says: {last}", program.display())))
}

fn unwritable(error: std::io::Error) -> Defect {
    Defect(format!("no file can be made beside it ({error}); run this as root"))
}
