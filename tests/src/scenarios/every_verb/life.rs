//! One container's life in calls of a low-level runtime, and what each call answers.

use crate::failure::{Context, Result, ensure};
use crate::host::{Host, succeeded};
use crate::image;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const HOME: &str = "/run/gpool-verbs";
/// The container. The same for all runtimes, so that their words are the same.
pub const ID: &str = "verbs";
/// BUNDLE stands for the bundle's folder, LOG for a log of the call's own.
const LIFE: &[&[&str]] = &[
    &["--version"],
    &["--help"],
    &["features"],
    &["list"],
    &["state", ID],
    &["create", "--bundle", "/run/gpool-verbs/absent", ID],
    &["--log", "LOG", "--log-format", "json", "create", "--bundle", "BUNDLE", "--pid-file", "PIDFILE", ID],
    &["--log", "LOG", "--log-format", "json", "create", "--bundle", "BUNDLE", ID],
    &["state", ID],
    &["--log", "LOG", "--log-format", "json", "start", ID],
    &["state", ID],
    &["list"],
    &["list", "--format", "json"],
    &["--log", "LOG", "--log-format", "json", "exec", ID, "sh", "-c", "echo out; echo err >&2; exit 5"],
    &["exec", ID, "no-such-program"],
    &["exec", "--cwd", "/tmp", ID, "pwd"],
    &["ps", "--format", "json", ID],
    &["pause", ID],
    &["state", ID],
    &["resume", ID],
    &["update", "--resources", "RESOURCES", ID],
    &["update", "--no-such-option", ID],
    &["events", "--stats", ID],
    &["checkpoint", "--image-path", "/run/gpool-verbs/absent", "nobody"],
    &["restore", "--bundle", "/run/gpool-verbs/absent", "--image-path", "/run/gpool-verbs/absent", "nobody"],
    &["delete", ID],
    &["--log", "LOG", "--log-format", "json", "kill", ID, "KILL"],
    &["--log", "LOG", "--log-format", "json", "delete", "--force", ID],
    &["delete", ID],
    &["delete", "--force", ID],
    &["run", "--bundle", "BUNDLE", "short"],
    &["kill", "short", "9"],
    &["delete", "--force", "short"],
    &["frobnicate"],
    &["--no-such-option", "state", ID],
    &[],
];

/// What a call answers, with the numbers left out that differ from process to process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    call: String,
    /// Its exit status.
    pub status: Option<i32>,
    stdout: String,
    stderr: String,
    log: Option<String>,
}

/// Everything that a container is made of.
pub struct Bundle {
    directory: PathBuf,
}

impl Bundle {
    /// A root and a config.json without a request.
    pub fn lay_out(host: &Host, cgroup_parent: &str) -> Result<Self> {
        let directory = Path::new(HOME).join("bundle");
        image::lay_out(&host.stage, &directory.join("rootfs"))?;
        let spec = Command::new(super::RUNC).arg("spec").current_dir(&directory).output().context("runc spec")?;
        succeeded("runc spec", spec)?;
        let file = directory.join("config.json");
        let text = fs::read_to_string(&file).context("config.json")?;
        let mut config: serde_json::Value = serde_json::from_str(&text).context("config.json")?;
        config["process"]["terminal"] = false.into();
        config["process"]["args"] = serde_json::json!(["sh", "-c", "test -e /short || exec sleep 1000"]);
        config["linux"]["cgroupsPath"] = format!("/{cgroup_parent}/verbs").into();
        fs::write(&file, config.to_string()).context("config.json")?;
        fs::write(Path::new(HOME).join("resources"), r#"{"pids":{"limit":77}}"#).context("resources")?;
        Ok(Self { directory })
    }

    /// One call of `runtime`, whose container does not hold what it writes to.
    pub fn call(&self, runtime: &Path, words: &[&str]) -> Result<Answer> {
        let home = Path::new(HOME);
        let [log, pid_file, resources] = ["log", "pid", "resources"].map(|name| home.join(name).display().to_string());
        let _ = fs::remove_file(&log);
        let own = self.directory.display().to_string();
        let words: Vec<&str> = (words.iter())
            .map(|word| match *word {
                "BUNDLE" => own.as_str(),
                "LOG" => log.as_str(),
                "PIDFILE" => pid_file.as_str(),
                "RESOURCES" => resources.as_str(),
                word => word,
            })
            .collect();
        let said = [home.join("stdout"), home.join("stderr")];
        let files = [File::create(&said[0]).context(HOME)?, File::create(&said[1]).context(HOME)?];
        let [stdout, stderr] = files;
        let mut command = Command::new(runtime);
        command.args(&words).stdin(Stdio::null()).stdout(stdout).stderr(stderr).current_dir(HOME);
        let status = command.status().context(runtime.display())?;
        let read = |path: &Path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(Answer {
            call: words.join(" "),
            status: status.code(),
            stdout: alike(&read(&said[0]).context(HOME)?),
            stderr: alike(&read(&said[1]).context(HOME)?),
            log: read(Path::new(&log)).ok().map(|text| alike(&text)),
        })
    }

    /// The whole life. config.json is looked at and not touched.
    pub fn lead(&self, runtime: &Path) -> Result<Vec<Answer>> {
        let file = self.directory.join("config.json");
        let identity = || -> Result<(u64, i64, i64, i64)> {
            let facts = fs::metadata(&file).context("config.json")?;
            Ok((facts.ino(), facts.mtime(), facts.mtime_nsec(), facts.ctime_nsec()))
        };
        let before = identity()?;
        let short = self.directory.join("rootfs/short");
        // `checkpoint` makes its folder also when it fails.
        let _ = fs::remove_dir_all(Path::new(HOME).join("absent"));
        let mut answers = Vec::new();
        for words in LIFE {
            // What `run` starts ends by itself.
            match words.first() {
                Some(&"run") => fs::write(&short, "").context("short")?,
                _ => drop(fs::remove_file(&short)),
            }
            answers.push(self.call(runtime, words)?);
            if words.contains(&"kill") {
                self.wait_until_stopped(runtime)?;
            }
        }
        ensure(identity()? == before, || format!("{} touched config.json", runtime.display()))?;
        Ok(answers)
    }

    /// A container is stopped a moment after its signal.
    fn wait_until_stopped(&self, runtime: &Path) -> Result<()> {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while self.call(runtime, &["state", ID])?.stdout.contains("\"running\"") {
            ensure(std::time::Instant::now() < deadline, || "a container outlives SIGKILL".to_owned())?;
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Ok(())
    }
}

/// Without pids, times and the spaces that go with their length.
fn alike(text: &str) -> String {
    let mut alike = String::with_capacity(text.len());
    for letter in text.chars() {
        let letter = if letter.is_ascii_digit() { '0' } else { letter };
        if matches!(letter, '0' | ' ') && alike.ends_with(letter) {
            continue;
        }
        alike.push(letter);
    }
    alike
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_and_spaces_are_left_out() {
        assert_eq!(alike("pid 4711   at 10:03.5\n"), "pid 0 at 0:0.0\n");
        assert_ne!(alike("one"), alike("two"));
    }
}
