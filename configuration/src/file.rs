//! Reading the file.

use crate::keys::{Configuration, HANG_SECONDS_MAX};
use std::fmt;
use std::path::{Path, PathBuf};

/// Where the configuration lies unless told otherwise.
pub const DEFAULT_PATH: &str = "/etc/gpool/config.toml";

/// A configuration file that cannot be used; the text names the file, the line and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigurationError {
    path: PathBuf,
    cause: String,
}

impl fmt::Display for ConfigurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.cause)
    }
}

impl std::error::Error for ConfigurationError {}

/// Reads the file at `path`. A file that is not there is an empty one.
///
/// # Errors
/// An unreadable file, a syntax error, an unknown key, or a relative path where an absolute one is needed.
pub fn load(path: &Path) -> Result<Configuration, ConfigurationError> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(path, &text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Configuration::default()),
        Err(error) => {
            Err(ConfigurationError { path: path.to_owned(), cause: format!("cannot be read ({})", error.kind()) })
        }
    }
}

/// Reads `text`, naming `path` in errors.
pub fn parse(path: &Path, text: &str) -> Result<Configuration, ConfigurationError> {
    let failed = |cause: String| ConfigurationError { path: path.to_owned(), cause };
    let configuration: Configuration =
        toml::from_str(text).map_err(|error| failed(error.to_string().trim_end().to_owned()))?;
    for (key, value) in absolute_paths(&configuration) {
        if !value.is_absolute() {
            return Err(failed(format!("{key} = {:?} must be an absolute path", value.display().to_string())));
        }
    }
    check_hang_times(&configuration).map_err(failed)?;
    Ok(configuration)
}

/// Whether the times after which a container counts as hung make sense; if not, the key and what to write.
fn check_hang_times(configuration: &Configuration) -> Result<(), String> {
    for (class, policy) in configuration.class.all() {
        let usual = policy.hang_seconds;
        if !(1..=HANG_SECONDS_MAX).contains(&usual) {
            return Err(format!(
                "class.{class}.hang_seconds = {usual} is out of range; write 1 to {HANG_SECONDS_MAX} seconds"
            ));
        }
        let shorter = policy.hang_seconds_while_latency_waits();
        if !(1..=usual).contains(&shorter) {
            return Err(format!(
                "class.{class}.hang_seconds_latency_waits = {shorter} is out of range; write 1 to {usual} seconds, which \
                 is class.{class}.hang_seconds, or leave it out"
            ));
        }
    }
    Ok(())
}

fn absolute_paths(configuration: &Configuration) -> Vec<(&'static str, &PathBuf)> {
    let mut all = vec![
        ("paths.run_dir", &configuration.paths.run_dir),
        ("paths.shim_dir", &configuration.paths.shim_dir),
        ("paths.hook", &configuration.paths.hook),
        ("socket.path", &configuration.socket.path),
        ("driver.device_dir", &configuration.driver.device_dir),
    ];
    all.extend(configuration.driver.library_dirs.iter().map(|path| ("driver.library_dirs", path)));
    all.extend(configuration.runtime.low_level.iter().map(|path| ("runtime.low_level", path)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{ClassName, Compat, HangAction, LiarAction};

    fn parsed(text: &str) -> Result<Configuration, ConfigurationError> {
        parse(Path::new("/etc/gpool/config.toml"), text)
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(parsed("").unwrap(), Configuration::default());
        assert_eq!(load(Path::new("/proc/no/such/gpool.toml")).unwrap(), Configuration::default());
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line_and_the_known_ones() {
        let text = parsed("[lease]\nhold_mss = 3\n").unwrap_err().to_string();
        assert!(text.contains("config.toml") && text.contains("line 2") && text.contains("hold_ms"), "{text}");
    }

    #[test]
    fn a_relative_runtime_is_refused() {
        let text = parsed("[runtime]\nlow_level = [\"runc\"]\n").unwrap_err().to_string();
        assert!(text.contains("runtime.low_level") && text.contains("absolute"), "{text}");
    }

    #[test]
    fn the_image_s_libcuda_is_taken_only_where_it_is_said() {
        assert_eq!(Configuration::default().driver.compat, Compat::Host);
        assert_eq!(parsed("[driver]\ncompat = \"image\"\n").unwrap().driver.compat, Compat::Image);
        let text = parsed("[driver]\ncompat = \"newest\"\n").unwrap_err().to_string();
        assert!(["line 2", "`newest`", "`host`", "`image`"].iter().all(|part| text.contains(part)), "{text}");
    }

    #[test]
    fn classes_are_set_one_by_one_and_mistyped_ones_are_refused() {
        let text = "[policy]\nclasses = [\"latency\", \"batch\"]\n[class.latency]\nfail_open = false\n\
                    [class.train]\nliar_action = \"event\"\n";
        let configuration = parsed(text).unwrap();
        assert_eq!(configuration.policy.classes, [ClassName::Latency, ClassName::Batch]);
        assert!(!configuration.class.of(ClassName::Latency).fail_open && configuration.class.batch.fail_open);
        assert_eq!(configuration.class.train.liar_action, LiarAction::Event);
        for (text, names) in [
            ("[policy]\nclasses = [\"bach\"]\n", "`batch`"),
            ("[class.bach]\nfail_open = true\n", "`batch`"),
            ("[class.batch]\nfail_opn = true\n", "`fail_open`"),
            ("[class.batch]\nliar_action = \"kill\"\n", "`debt`"),
            ("[class.batch]\nbypass_action = \"stop\"\n", "`freeze`"),
            ("[class.batch]\nhang_action = \"kill\"\n", "`stop`"),
            ("[class.batch]\nhang_second = 3\n", "`hang_seconds`"),
        ] {
            let error = parsed(text).unwrap_err().to_string();
            assert!(error.contains("line 2") || error.contains("line 1"), "{error}");
            assert!(error.contains(names), "{error}");
        }
    }

    #[test]
    fn hang_times_lie_within_their_bounds() {
        let text = "[class.train]\nhang_action = \"stop\"\nhang_seconds = 20\nhang_seconds_latency_waits = 2\n\
                    [class.notebook]\nhang_seconds = 3600\n";
        let class = parsed(text).unwrap().class;
        assert_eq!((class.train.hang_action, class.train.hang_seconds), (HangAction::Stop, 20));
        assert_eq!(class.train.hang_seconds_while_latency_waits(), 2);
        assert_eq!(class.notebook.hang_seconds_while_latency_waits(), 3600, "no shorter unless it is said");
        assert_eq!((class.batch.hang_action, class.batch.hang_seconds), (HangAction::Event, 30));
        for (text, names) in [
            ("[class.batch]\nhang_seconds = 0\n", ["class.batch.hang_seconds = 0", "1 to 3600"]),
            ("[class.train]\nhang_seconds = 3601\n", ["class.train.hang_seconds = 3601", "1 to 3600"]),
            ("[class.latency]\nhang_seconds_latency_waits = 0\n", ["hang_seconds_latency_waits = 0", "1 to 30"]),
            ("[class.notebook]\nhang_seconds_latency_waits = 31\n", ["class.notebook.", "1 to 30"]),
        ] {
            let error = parsed(text).unwrap_err().to_string();
            assert!(names.iter().all(|name| error.contains(name)), "{error}");
        }
    }

    #[test]
    fn the_environment_may_ask_for_nothing_that_another_pays_for() {
        let allowed = Configuration::default().policy.env.allow;
        assert_eq!(allowed, ["fraction", "limit", "memory", "gpus", "model", "min-memory", "class", "wait"]);
    }

    #[test]
    fn the_shipped_file_states_the_defaults() {
        let shipped = include_str!("../../configs/config.toml");
        assert_eq!(parsed(shipped).unwrap(), Configuration::default());
        let active: String =
            shipped.lines().map(|line| line.strip_prefix("#: ").unwrap_or(line)).collect::<Vec<_>>().join("\n");
        assert_eq!(parsed(&active).unwrap(), Configuration::default(), "the commented defaults must be the real ones");
    }
}
