//! The configuration that was taken over last, written down: a start at which the files cannot be used begins with it. A mistake in a file
//! would otherwise show at the next crash or upgrade, at some time of the night, and leave what runs unpaced until somebody comes.

use crate::events::About;
use crate::lease::Leases;
use crate::log::{self, Priority};
use crate::state_file;
use gpool_configuration::{Configuration, ConfigurationError, check, load, state_dir};
use gpool_protocol::EventKind;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// In `[paths] state_dir`.
const NAME: &str = "configuration.json";
/// How often it is looked whether the files can be used.
const LOOK_PERIOD: Duration = Duration::from_secs(10);

/// What the files at `path` say; or, where they cannot be used, what was written down, and why it has to be that.
///
/// # Errors
/// They cannot be used, and there is nothing else.
pub fn load_or_last(path: &Path) -> Result<(Configuration, Option<ConfigurationError>), ConfigurationError> {
    let error = match load(path) {
        Ok(configuration) => return Ok((configuration, None)),
        Err(error) => error,
    };
    match read(&state_dir(path)) {
        Some(last) => Ok((last, Some(error))),
        None => Err(error),
    }
}

fn read(state_dir: &Path) -> Option<Configuration> {
    let file = state_dir.join(NAME);
    let text = std::fs::read(&file).ok()?;
    let read = understood(&text).map_err(|cause| cause.to_string());
    let usable = read.and_then(|its| check(&its).map(|()| its).map_err(|cause| cause.to_string()));
    let unusable = |cause: String| {
        log::line(Priority::Error, format_args!("{} cannot be used either: {cause}", file.display()));
    };
    usable.map_err(unusable).ok()
}

/// What was written down, but for keys that a newer version has written and this one does not know: with those it would be of no use
/// after a way back to this version, when the files have them, too.
fn understood(text: &[u8]) -> Result<Configuration, serde_json::Error> {
    let whole = serde_json::from_slice(text);
    if whole.as_ref().err().is_none_or(|cause| !cause.to_string().starts_with(UNKNOWN)) {
        return whole;
    }
    let mut value: Value = serde_json::from_slice(text)?;
    leave_unknown_out(&mut value, "", &|inner| inner);
    serde_json::from_str(&value.to_string())
}

/// How serde begins a refusal of a key, before the key.
const UNKNOWN: &str = "unknown field `";

/// `within` makes a configuration of nothing but `value`, which stands at `name`.
fn leave_unknown_out(value: &mut Value, name: &str, within: &dyn Fn(Value) -> Value) {
    match value {
        Value::Object(table) => {
            let keys: Vec<String> = table.keys().cloned().collect();
            for key in keys {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                let within = |inner: Value| within(Value::Object([(key.clone(), inner)].into_iter().collect()));
                if is_unknown(&key, &within(Value::Null)) {
                    table.remove(&key);
                    log::line(
                        Priority::Warning,
                        format_args!(
                            "{name} was taken over by a newer version, is no key of this one, and is left out"
                        ),
                    );
                } else if let Some(inner) = table.get_mut(&key) {
                    leave_unknown_out(inner, &name, &within);
                }
            }
        }
        Value::Array(values) => {
            let within = |inner: Value| within(Value::Array(vec![inner]));
            values.iter_mut().for_each(|inner| leave_unknown_out(inner, name, &within));
        }
        _ => {}
    }
}

fn is_unknown(key: &str, alone: &Value) -> bool {
    let read = serde_json::from_str::<Configuration>(&alone.to_string());
    read.is_err_and(|cause| cause.to_string().starts_with(&format!("{UNKNOWN}{key}`")))
}

/// What is not as by default: a key that nobody has set is nothing that an older supervisor would have to know.
fn set_by_somebody(taken_over: &Configuration) -> Value {
    let as_value = |configuration: &Configuration| serde_json::to_value(configuration).unwrap_or(Value::Null);
    let mut value = as_value(taken_over);
    without_defaults(&mut value, &as_value(&Configuration::default()));
    value
}

fn without_defaults(value: &mut Value, default: &Value) {
    let (Value::Object(value), Value::Object(default)) = (value, default) else { return };
    value.retain(|key, its| default.get(key) != Some(its));
    for (key, its) in value {
        if let Some(default) = default.get(key) {
            without_defaults(its, default);
        }
    }
}

/// What is written down, and when the files were looked at.
#[derive(Default)]
pub struct LastConfiguration {
    written: Option<Arc<Configuration>>,
    is_failing: bool,
    next_look: Option<Instant>,
    /// Why they could not be used at the last look.
    seen: Option<String>,
}

impl LastConfiguration {
    /// Writes down what was taken over, and looks now and then whether the next start could; to be called every few seconds.
    pub fn tend(&mut self, leases: &Leases) {
        let taken_over = leases.settings.taken_over();
        if self.written.as_ref().is_none_or(|written| !Arc::ptr_eq(written, &taken_over)) {
            match state_file::write(&taken_over.paths.state_dir.join(NAME), &set_by_somebody(&taken_over)) {
                Ok(()) => (self.written, self.is_failing) = (Some(taken_over), false),
                // It is tried again, and told once.
                Err(cause) if !std::mem::replace(&mut self.is_failing, true) => {
                    log!("the configuration that was taken over cannot be written to {NAME}: {cause}");
                }
                Err(_) => {}
            }
        }
        let now = Instant::now();
        if self.next_look.is_some_and(|at| now < at) {
            return;
        }
        // What a start has begun with is told once as well.
        let begins_so = self.next_look.replace(now + LOOK_PERIOD).is_none() && leases.settings.unusable().is_some();
        let _alone = leases.settings.trying();
        let unusable = load(leases.settings.path()).err().map(|error| error.to_string());
        // Who is writing a file is let finish.
        let is_settled = std::mem::replace(&mut self.seen, unusable.clone()) == unusable;
        if !begins_so && !is_settled {
            return;
        }
        if (leases.settings.note_unusable(unusable.clone()) || begins_so)
            && let Some(error) = unusable
        {
            let message = format!(
                "the files of the configuration cannot be used, and what was taken over before is in force: {error}"
            );
            leases.events.note(EventKind::ConfigurationRefused, About::default(), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_start_with_a_mistake_in_a_file_begins_with_what_served_last() {
        let directory = tempfile::tempdir().unwrap();
        let (file, state) = (directory.path().join("config.toml"), directory.path().join("state"));
        let paths = format!("[paths]\nstate_dir = {:?}\n", state.display().to_string());
        fs::write(&file, format!("{paths}[lease]\nhold_ms = 7000\n")).unwrap();
        let (good, error) = load_or_last(&file).unwrap();
        assert!(error.is_none());
        state_file::write(&state.join(NAME), &set_by_somebody(&good)).unwrap();
        // Of a file that is TOML it is known where its state lies.
        fs::write(&file, format!("{paths}[lease]\nhold_mss = 9000\n")).unwrap();
        let (last, error) = load_or_last(&file).unwrap();
        assert_eq!(last, good);
        assert!(error.unwrap().to_string().contains("hold_mss"));
        // Also where the mistake is one of TOML itself.
        fs::write(&file, format!("{paths}[lease\nhold_ms = 9000\n")).unwrap();
        assert_eq!(load_or_last(&file).unwrap().0, good);
        fs::write(&file, format!("{paths}[lease]\nhold_mss = 9000\n")).unwrap();
        fs::write(state.join(NAME), "{").unwrap();
        assert!(load_or_last(&file).unwrap_err().to_string().contains("hold_mss"));
        fs::remove_file(state.join(NAME)).unwrap();
        assert!(load_or_last(&file).is_err(), "there is nothing else");
    }

    #[test]
    fn every_key_survives() {
        let directory = tempfile::tempdir().unwrap();
        let text = "[quota.team.vision]\ngpus = \"1.5\"\nmemory = \"40GiB\"\ngpu_hours = \"100/month\"\n\
                    [reservation.serving]\nteams = [\"a\"]\ngpus = 1\nfraction = \"0.5\"\n\
                    [rates]\ncurrency = \"EUR\"\nprice = [{ per_gpu_hour = \"1.25\" }]\n\
                    [[driver.mount]]\nsource = \"/run/x\"\nread_only = false\n[audit]\nkeep_days = 5\n";
        let configuration = gpool_configuration::parse(Path::new("x"), text).unwrap();
        state_file::write(&directory.path().join(NAME), &set_by_somebody(&configuration)).unwrap();
        assert_eq!(read(directory.path()), Some(configuration));
        // All keys of the shipped file, those included that have no default.
        let uncommented = |line: &str| {
            let line = line.strip_prefix("#: ").or(line.strip_prefix("#+ ")).unwrap_or(line);
            format!("{line}\n")
        };
        let shipped: String = gpool_configuration::SHIPPED.lines().map(uncommented).collect();
        let all = gpool_configuration::parse(Path::new("x"), &shipped).unwrap();
        assert_ne!(all, Configuration::default());
        for configuration in [all, Configuration::default()] {
            state_file::write(&directory.path().join(NAME), &set_by_somebody(&configuration)).unwrap();
            assert_eq!(read(directory.path()), Some(configuration));
        }
        assert_eq!(set_by_somebody(&Configuration::default()), serde_json::json!({}));
        let mut beyond = Configuration::default();
        beyond.queue.places = usize::MAX;
        state_file::write(&directory.path().join(NAME), &set_by_somebody(&beyond)).unwrap();
        assert_eq!(read(directory.path()), None, "what this version does not take");
    }

    #[test]
    fn keys_of_a_newer_version_are_left_out_and_the_rest_holds() {
        let directory = tempfile::tempdir().unwrap();
        let text = "[lease]\nhold_ms = 7000\n[class.batch]\nfail_open = false\n[quota.team.a]\ngpus = \"1\"\n\
                    [[driver.mount]]\nsource = \"/run/x\"\n[reservation.serving]\nteams = [\"a\"]\ngpus = 1\nfraction = \"0.5\"\n";
        let configuration = gpool_configuration::parse(Path::new("x"), text).unwrap();
        let written = set_by_somebody(&configuration);
        let mut newer = written.clone();
        newer["novel"] = serde_json::json!({"a": {"b": [1, 2]}});
        newer["lease"]["novel"] = serde_json::json!(0.5);
        newer["class"]["batch"]["novel"] = serde_json::json!("x");
        newer["quota"]["team"]["a"]["novel"] = serde_json::json!(null);
        newer["driver"]["mount"][0]["novel"] = serde_json::json!(true);
        newer["reservation"]["serving"]["novel"] = serde_json::json!([]);
        state_file::write(&directory.path().join(NAME), &newer).unwrap();
        assert_eq!(read(directory.path()), Some(configuration));
        // What it does know, and not so, is not made out.
        newer["lease"]["hold_ms"] = serde_json::json!("soon");
        state_file::write(&directory.path().join(NAME), &newer).unwrap();
        assert_eq!(read(directory.path()), None);
    }
}
