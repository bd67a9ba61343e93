//! `gpool config`

use crate::arguments::{ConfigVerb, Format};
use crate::exit::{ExitStatus, Failure, unusable};
use crate::follower::say;
use crate::output::{self, text};
use gpool_configuration::{
    Configuration, DEFAULT_PATH, Effect, Layered, SHIPPED, differences, flat, load, load_layered, load_strictly,
    parse_strictly,
};
use gpool_protocol::{ChangedKey, Client, ConfigurationView, Reloaded};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Looks at the files; only `diff --running` and `reload` ask the supervisor, at `socket` or where the files say it is.
pub fn run(verb: &ConfigVerb, socket: Option<&Path>) -> Result<(), Failure> {
    match verb {
        ConfigVerb::Show { origin, files, format } => show(&files.config, *origin, *format),
        ConfigVerb::Validate { file, files } => validate(file.as_deref(), &files.config),
        ConfigVerb::Defaults => output::print(SHIPPED),
        ConfigVerb::Diff { running, files, format } => diff(&files.config, *running, socket, *format),
        ConfigVerb::Reload { format } => reload(socket, *format),
    }
}

/// A key as it is shown.
#[derive(Debug, Serialize)]
struct Shown {
    key: String,
    value: serde_json::Value,
    /// The file and line that set it; none for a default.
    origin: Option<String>,
    #[serde(skip)]
    toml: String,
}

fn show(path: &Path, with_origin: bool, format: Format) -> Result<(), Failure> {
    let Layered { configuration, origins, .. } = load_layered(path).map_err(|error| unusable(&error))?;
    let shown: Vec<Shown> = flat(&configuration)
        .into_iter()
        .map(|(key, value)| Shown {
            origin: origins.get(&key).map(ToString::to_string),
            toml: value.to_string(),
            value: output::to_value(&value),
            key,
        })
        .collect();
    let origin = |key: &Shown| key.origin.clone().unwrap_or_else(|| "default".into());
    match format {
        // Lines of TOML, with and without origins.
        Format::Table | Format::Wide => output::print(
            &shown
                .iter()
                .map(|key| match with_origin || format == Format::Wide {
                    true => format!("{} = {}  # {}\n", key.key, key.toml, origin(key)),
                    false => format!("{} = {}\n", key.key, key.toml),
                })
                .collect::<String>(),
        ),
        Format::Json => output::print_json("keys", &shown),
        Format::Csv => output::print(&output::csv(
            &["key", "value", "origin"],
            shown.iter().map(|key| vec![key.key.clone(), key.toml.clone(), origin(key)]),
        )),
    }
}

fn validate(file: Option<&Path>, path: &Path) -> Result<(), Failure> {
    let Some(file) = file else {
        let layered = load_strictly(path).map_err(|error| unusable(&error))?;
        return output::print(&match layered.files.as_slice() {
            [] if path != Path::new(DEFAULT_PATH) => {
                let sentence =
                    format!("gpool: {} is not there, nor drop-ins beside it; name another file", path.display());
                return Err(Failure::Refused(ExitStatus::Usage, sentence));
            }
            [] => format!("{DEFAULT_PATH} is not there, and every key has its default\n"),
            files => files.iter().map(|file| format!("{} can be used\n", file.display())).collect(),
        });
    };
    let read = std::fs::read_to_string(file).map_err(|error| {
        let sentence = format!("gpool: {} cannot be read ({}); name another file", file.display(), error.kind());
        Failure::Refused(ExitStatus::Usage, sentence)
    })?;
    parse_strictly(file, &read).map_err(|error| unusable(&error))?;
    output::print(&format!("{} can be used\n", file.display()))
}

/// Says on stderr that the supervisor works with another file than the one that is looked at, and what to do about it, as
/// where `gpool-simulated-gpu` is installed: what follows would be a comparison of files that have nothing to do with each other.
pub(super) fn tell_of_another_file(works_with: &str, looked_at: &Path, remedy: impl Fn(&str) -> String) {
    if let Some(sentence) = of_another_file(works_with, looked_at, remedy) {
        say(&sentence);
    }
}

fn of_another_file(works_with: &str, looked_at: &Path, remedy: impl Fn(&str) -> String) -> Option<String> {
    // One file has several paths where a link leads to it.
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let differ = real(Path::new(works_with)) != real(looked_at);
    differ.then(|| {
        let remedy = remedy(works_with);
        format!("gpool: the supervisor works with {works_with} and not with {}; {remedy}", looked_at.display())
    })
}

/// The supervisor's socket: as the command line says, or as the files do.
fn client(socket: Option<&Path>, configuration: &Configuration) -> Client {
    Client::new(socket.unwrap_or(&configuration.socket.path))
}

fn diff(path: &Path, running: bool, socket: Option<&Path>, format: Format) -> Result<(), Failure> {
    let wanted = load(path).map_err(|error| unusable(&error))?;
    if !running {
        let changes = differences(&Configuration::default(), &wanted);
        let changes = changes.into_iter().map(|it| ChangedKey { key: it.key, old: it.old, new: it.new });
        return print_changes(&changes.collect::<Vec<_>>(), ["DEFAULT", "HERE"], format);
    }
    let view: ConfigurationView = client(socket, &wanted).get("/v1/configuration")?;
    tell_of_another_file(&view.path, path, |file| {
        format!("compare with that: gpool config diff --running --config {file}")
    });
    let wanted: BTreeMap<String, String> =
        flat(&wanted).into_iter().map(|(key, value)| (key, value.to_string())).collect();
    let mut names: Vec<&String> = view.keys.keys().chain(wanted.keys()).collect();
    names.sort();
    names.dedup();
    let differing = names.into_iter().filter(|key| view.keys.get(*key) != wanted.get(*key));
    let change =
        |key: &String| ChangedKey { key: key.clone(), old: view.keys.get(key).cloned(), new: wanted.get(key).cloned() };
    print_changes(&differing.map(change).collect::<Vec<_>>(), ["RUNNING", "HERE"], format)
}

fn reload(socket: Option<&Path>, format: Format) -> Result<(), Failure> {
    // Where the socket is is read from the files, and these may be what is broken: the supervisor says so too.
    let configuration = match socket {
        Some(_) => Configuration::default(),
        None => load(Path::new(DEFAULT_PATH)).map_err(|error| unusable(&error))?,
    };
    let client = client(socket, &configuration);
    let reloaded: Reloaded = client.post("/v1/configuration/reload", &())?;
    if let Ok(view) = client.get::<ConfigurationView>("/v1/configuration") {
        tell_of_another_file(&view.path, Path::new(DEFAULT_PATH), |file| {
            format!(
                "that was read again: make changes there or in conf.d beside it, gpool config diff --config {file} shows them"
            )
        });
    }
    match format {
        Format::Json => return output::print_json("reloaded", &reloaded),
        _ => print_changes(&reloaded.applied, ["BEFORE", "NOW"], format)?,
    }
    match reloaded.needs_restart.as_slice() {
        [] => {}
        waiting => {
            let keys: Vec<&str> = waiting.iter().map(|change| change.key.as_str()).collect();
            eprintln!("gpool: in force after a restart of the supervisor: {}", keys.join(", "));
        }
    }
    if reloaded.applied.is_empty() && reloaded.needs_restart.is_empty() {
        eprintln!("gpool: nothing has changed");
    }
    Ok(())
}

fn print_changes(changes: &[ChangedKey], [before, after]: [&'static str; 2], format: Format) -> Result<(), Failure> {
    let cell = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".into());
    let row = |change: &ChangedKey| {
        let effect = Effect::of(&change.key).text().to_owned();
        vec![change.key.clone(), cell(&change.old), cell(&change.new), effect]
    };
    match format {
        Format::Json => output::print_json("changes", &changes),
        Format::Csv => output::print(&output::csv(&["key", "old", "new", "in_force_after"], changes.iter().map(row))),
        Format::Table | Format::Wide if changes.is_empty() => Ok(()),
        Format::Table | Format::Wide => {
            let columns = [text("KEY"), text(before), text(after), text("IN FORCE AFTER")];
            output::print(&output::borderless(&columns, changes.iter().map(row)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_than_the_supervisors_is_told_of_and_a_link_to_it_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("config.toml"), directory.path().join("link.toml"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let told =
            |looked_at: &Path| of_another_file(file.to_str().unwrap(), looked_at, |its| format!("--config {its}"));
        assert_eq!((told(&file), told(&link)), (None, None));
        let sentence = told(&directory.path().join("absent.toml")).unwrap();
        assert!(sentence.ends_with(&format!("absent.toml; --config {}", file.display())), "{sentence}");
        assert!(of_another_file("/absent", Path::new("/absent"), str::to_owned).is_none());
    }
}
