//! `gpool runtime configure|unconfigure|status`

use crate::arguments::{Format, RuntimeVerb};
use crate::engines::change::{self, Change};
use crate::engines::checker::{self, Verdict};
use crate::engines::{Defect, Engine, Entry, dockerd, file, told_files};
use crate::exit::{ExitStatus, Failure, unusable as unusable_configuration};
use crate::output::{self, text};
use gpool_protocol::ErrorCode;
use serde::Serialize;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Tells engines of gpool, or shows what they have been told. No supervisor is asked.
pub fn run(verb: &RuntimeVerb, told: Option<&Path>) -> Result<(), Failure> {
    let of_host =
        || gpool_configuration::state_dir(Path::new(gpool_configuration::DEFAULT_PATH)).join(told_files::NAME);
    let told = told.map_or_else(of_host, Path::to_owned);
    match verb {
        RuntimeVerb::Configure { engine, config, runtime_path, set_as_default, dry_run } => {
            let path = config.as_deref().unwrap_or(engine.default_file());
            require_runtime(runtime_path)?;
            let configuration = gpool_configuration::load(Path::new(gpool_configuration::DEFAULT_PATH));
            let configuration = configuration.map_err(|error| unusable_configuration(&error))?;
            let low_level = low_level(&configuration.runtime)?;
            let wanted = Entry { runtime: runtime_path.clone(), is_default: *set_as_default };
            if *engine == Engine::Docker {
                let agree = dockerd::require_agreement(&dockerd::command_lines(), path, config.is_some(), &wanted);
                agree.map_err(|defect| refusal(path, &defect))?;
            }
            let change = change::configure(*engine, path, &wanted, &low_level);
            let change = change.map_err(|defect| refusal(path, &defect))?;
            if *set_as_default && change.after.as_ref().is_some_and(|text| engine.builds_with_runtime(text)) {
                eprintln!(
                    "docker build runs the steps of an image with this default too, and one that names a share has it meanwhile, or \
                     cannot be built: set \"features\": {{\"buildkit\": true}} in {}",
                    path.display()
                );
            }
            // Before the change: a file too many on the list does no harm.
            if !dry_run && let Err(error) = told_files::note(&told, *engine, path) {
                eprintln!(
                    "{} cannot be written ({error}): neither gpool doctor nor a removal of the package will know of {}",
                    told.display(),
                    path.display()
                );
            }
            finish(&change, path, *dry_run, "knows gpool")?;
            if *set_as_default && !dry_run && *engine == Engine::Docker {
                tell_of_old_containers(dockerd::containers_of_others());
            }
            Ok(())
        }
        RuntimeVerb::Unconfigure { engine, config, dry_run } => {
            let path = config.as_deref().unwrap_or(engine.default_file());
            let change = change::unconfigure(*engine, path).map_err(|defect| refusal(path, &defect))?;
            finish(&change, path, *dry_run, "knows nothing of gpool")?;
            if !dry_run && let Err(error) = told_files::forget(&told, *engine, path) {
                eprintln!("{} cannot be written ({error})", told.display());
            }
            Ok(())
        }
        RuntimeVerb::Status { engine, config, format } => {
            let engines = engine.map_or(Engine::ALL.to_vec(), |engine| vec![engine]);
            let others = if config.is_none() { told_files::read(&told) } else { Vec::new() };
            let states = engines.into_iter().flat_map(|engine| {
                let others = others.iter().filter(move |(its, _)| *its == engine);
                // One that was told of gpool and knows nothing of it any more is a file like all others.
                let others = others.map(move |(_, path)| state(engine, Some(path))).filter(State::is_told);
                std::iter::once(state(engine, config.as_deref())).chain(others)
            });
            show(states.collect(), *format)
        }
    }
}

/// A container keeps the runtime that it was made with.
fn tell_of_old_containers(others: Option<usize>) {
    match others {
        Some(0) => {}
        Some(count) => eprintln!(
            "{count} container(s) that are there already keep the runtime that they were made with, also when they are started again: \
             make them anew for gpool to be theirs"
        ),
        None => eprintln!(
            "containers that are there already keep the runtime that they were made with, until they are made anew"
        ),
    }
}

fn finish(change: &Change, path: &Path, dry_run: bool, end: &str) -> Result<(), Failure> {
    if !change.is_needed() {
        if !dry_run {
            change.make().map_err(|defect| refusal(path, &defect))?;
        }
        eprintln!("{} {end} already", path.display());
        return Ok(());
    }
    if let Verdict::NotChecked(why) = &change.verdict {
        eprintln!("not checked by the engine: {why}");
    }
    if dry_run {
        return output::print(&change.difference());
    }
    change.make().map_err(|defect| refusal(path, &defect))?;
    eprintln!("{} {end} now", path.display());
    if let Some(reload) = change.reload() {
        eprintln!("a running engine sees it after: {reload}");
    }
    Ok(())
}

/// A path that the engine cannot execute would stop every container of this runtime.
fn require_runtime(path: &Path) -> Result<(), Failure> {
    match unusable(path) {
        None => Ok(()),
        Some(why) => Err(Failure::Refused(
            ExitStatus::Usage,
            format!("gpool: --runtime-path {} {why}; install gpool-runtime there or name where it is", path.display()),
        )),
    }
}

/// The program that will make the containers; without one every start of this runtime would fail.
fn low_level(runtime: &gpool_configuration::Runtime) -> Result<PathBuf, Failure> {
    let usable = runtime.low_level.iter().find(|path| unusable(path).is_none());
    let none = || {
        let all: Vec<String> = runtime.low_level.iter().map(|path| path.display().to_string()).collect();
        let code = ErrorCode::LowLevelRuntimeAbsent;
        Failure::Refused(
            code.into(),
            format!(
                "gpool: none of the low-level runtimes is there: {}; install runc or crun, or name one in [runtime] \
                 low_level of /etc/gpool/config.toml; nothing was changed [{}]",
                all.join(", "),
                code.text()
            ),
        )
    };
    usable.cloned().ok_or_else(none)
}

fn unusable(path: &Path) -> Option<&'static str> {
    if !path.is_absolute() {
        return Some("is no absolute path");
    }
    match std::fs::metadata(path) {
        Err(_) => Some("is not there"),
        Ok(found) if !found.is_file() || found.permissions().mode() & 0o111 == 0 => Some("is no executable file"),
        Ok(_) => None,
    }
}

fn refusal(path: &Path, defect: &Defect) -> Failure {
    let code = ErrorCode::EngineConfiguration;
    Failure::Refused(code.into(), format!("gpool: {} {defect}; nothing was changed [{}]", path.display(), code.text()))
}

/// What one engine has been told.
#[derive(Debug, Serialize)]
struct State {
    engine: &'static str,
    installed: bool,
    state: &'static str,
    file: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<PathBuf>,
    default: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl State {
    /// Whether the file says something of gpool, or cannot be read.
    fn is_told(&self) -> bool {
        self.state != NOT_CONFIGURED
    }
}

const NOT_CONFIGURED: &str = "not configured";

fn state(engine: Engine, config: Option<&Path>) -> State {
    let path = config.unwrap_or(engine.default_file());
    let found = file::read(path)
        .map_err(|error| Defect(format!("cannot be read ({error})")))
        .and_then(|text| text.map_or(Ok(None), |text| engine.entry(&text)));
    let (entry, mut problem) = match found {
        Ok(entry) => (entry, None),
        Err(defect) => (None, Some(defect.0)),
    };
    if let Some(entry) = &entry {
        problem = unusable(&entry.runtime).map(|why| format!("{} {why}", entry.runtime.display()));
    }
    let state = match (&entry, &problem) {
        (_, Some(_)) => "broken",
        (Some(_), None) => "configured",
        (None, None) => NOT_CONFIGURED,
    };
    let default = entry.as_ref().is_some_and(|entry| entry.is_default);
    State {
        engine: engine.name(),
        installed: checker::program(engine).is_some(),
        state,
        file: path.to_owned(),
        runtime: entry.map(|entry| entry.runtime),
        default,
        problem,
    }
}

fn show(states: Vec<State>, format: Format) -> Result<(), Failure> {
    if format == Format::Json {
        return output::print_json("engines", &states);
    }
    let rows = states.iter().map(|state| {
        let runtime = state.runtime.as_ref().map_or("-".into(), |path| path.display().to_string());
        let yes_no = |is: bool| if is { "yes" } else { "no" }.to_owned();
        let mut row =
            vec![state.engine.to_owned(), yes_no(state.installed), state.state.to_owned(), yes_no(state.default)];
        row.extend([runtime, state.file.display().to_string(), state.problem.clone().unwrap_or_default()]);
        row
    });
    match format {
        Format::Csv => {
            let header = ["engine", "installed", "state", "default", "runtime", "file", "problem"];
            output::print(&output::csv(&header, rows))
        }
        _ => {
            let columns = ["ENGINE", "INSTALLED", "STATE", "DEFAULT", "RUNTIME", "FILE", "PROBLEM"].map(text);
            output::print(&output::borderless(&columns, rows))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_engine_is_told_of_gpool_while_nothing_could_make_its_containers() {
        let directory = tempfile::tempdir().unwrap();
        let (crun, absent) = (directory.path().join("crun"), directory.path().join("runc"));
        let runtime = gpool_configuration::Runtime { low_level: vec![absent, crun.clone()], ..Default::default() };
        let Err(Failure::Refused(_, said)) = low_level(&runtime) else { panic!("neither is there") };
        assert!(said.contains("install runc or crun") && said.contains("[GPOOL-E502]"), "{said}");
        std::fs::write(&crun, "").unwrap();
        std::fs::set_permissions(&crun, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(low_level(&runtime).is_ok_and(|found| found == crun));
    }
}
