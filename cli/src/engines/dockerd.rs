//! The dockerd of this host as it runs: what its command line says beside `daemon.json`, and what is there of its containers.

use super::{Defect, Engine, Entry, RUNTIME_NAME};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A program that hangs holds nobody up for longer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it is looked whether it has answered.
const LOOK_PERIOD: Duration = Duration::from_millis(5);

/// The command lines of the dockerds that run here and of the one that systemd starts.
pub fn command_lines() -> Vec<Vec<String>> {
    let mut lines = running(Path::new("/proc"));
    let unit = answer_of(Command::new("systemctl").args(["show", "--property=ExecStart", "docker.service"]));
    lines.extend(unit.as_deref().and_then(of_unit));
    lines
}

/// Those of processes that see this program's files: a dockerd in a container reads others. And of root's and the caller's: anybody
/// may have a process of that name, and put its command line where a reader waits for as long as he likes.
fn running(proc_dir: &Path) -> Vec<Vec<String>> {
    let files_of = |process: &Path| std::fs::read_link(process.join("ns/mnt")).ok();
    let own = files_of(&proc_dir.join("self"));
    let processes = std::fs::read_dir(proc_dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_dockerd = |process: &PathBuf| {
        std::fs::read(process.join("comm")).is_ok_and(|name| name.trim_ascii_end() == b"dockerd")
            && files_of(process) == own
            // Of the directory itself, which is its user's whatever the process lets others see.
            && std::fs::metadata(process).is_ok_and(|its| [0, rustix::process::geteuid().as_raw()].contains(&its.uid()))
    };
    let line = |process: PathBuf| {
        let line = std::fs::read(process.join("cmdline")).ok()?;
        Some(line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect())
    };
    processes.filter(is_dockerd).filter_map(line).collect()
}

/// The words of `ExecStart={ path=/usr/bin/dockerd ; argv[]=/usr/bin/dockerd -H fd:// ; ... }`, as systemctl prints it.
fn of_unit(said: &str) -> Option<Vec<String>> {
    let words = said.split_once("argv[]=")?.1.split_once(" ;")?.0;
    Some(words.split_whitespace().map(str::to_owned).collect())
}

/// The value of an option, after `=` or as the next word.
fn option<'a>(line: &'a [String], name: &str) -> Option<&'a str> {
    line.iter().enumerate().find_map(|(index, word)| match word.strip_prefix(name)? {
        "" => line.get(index + 1).map(String::as_str),
        rest => rest.strip_prefix('='),
    })
}

/// Refuses a change after which dockerd would not start, because it takes no setting from both its command line and its file; and, where
/// nobody has named the file, one of a file that no dockerd reads. None of both does its own checker see.
///
/// # Errors
/// So it would be; names the option.
pub fn require_agreement(lines: &[Vec<String>], file: &Path, is_named: bool, wanted: &Entry) -> Result<(), Defect> {
    let file_of =
        |line: &[String]| option(line, "--config-file").map_or(Engine::Docker.default_file().to_owned(), PathBuf::from);
    let is_same = |other: &Path| other == file || same_place(other, file);
    if let Some(other) = lines.first().map(|line| file_of(line))
        && !is_named
        && !lines.iter().any(|line| is_same(&file_of(line)))
    {
        let other = other.display();
        return Err(Defect(format!(
            "is not what dockerd reads, whose command line says --config-file={other}; say --config {other}"
        )));
    }
    let mut readers = lines.iter().filter(|line| is_same(&file_of(line)));
    match readers.find_map(|line| option(line, "--default-runtime")) {
        Some(name) if wanted.is_default => Err(Defect(format!(
            "would keep dockerd from starting: its command line says --default-runtime={name}, and it takes no setting from both; \
             take that away, or write --default-runtime={RUNTIME_NAME} there and leave --set-as-default out"
        ))),
        _ => Ok(()),
    }
}

fn same_place(one: &Path, other: &Path) -> bool {
    matches!((std::fs::canonicalize(one), std::fs::canonicalize(other)), (Ok(one), Ok(other)) if one == other)
}

/// How many containers there are that were made with another runtime than gpool; none if docker does not say so at once.
pub fn containers_of_others() -> Option<usize> {
    let ids = answer_of(Command::new("docker").args(["ps", "--all", "--quiet"]))?;
    if ids.trim().is_empty() {
        return Some(0);
    }
    let mut inspect = Command::new("docker");
    inspect.args(["inspect", "--type", "container", "--format", "{{.HostConfig.Runtime}}"]);
    let runtimes = answer_of(inspect.args(ids.split_whitespace()))?;
    Some(runtimes.lines().filter(|name| *name != RUNTIME_NAME).count())
}

/// What the dockerd that runs knows, whatever its file says by now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Today {
    /// The names of its runtimes.
    pub runtimes: Vec<String>,
    /// The one of containers that name none.
    pub default: String,
}

impl Today {
    /// Asks it; none if it does not answer at once, or something else answers in its place.
    pub fn of_this_host() -> Option<Self> {
        let mut docker = Command::new("docker");
        // Not the one that a context or the environment of whoever asks may name, on another host.
        docker.args(["--host", "unix:///var/run/docker.sock", "info", "--format"]);
        Self::read(&answer_of(docker.arg("{{json .Runtimes}} {{.DefaultRuntime}}"))?)
    }

    fn read(said: &str) -> Option<Self> {
        let (runtimes, default) = said.trim_end().rsplit_once(' ')?;
        let runtimes: serde_json::Map<String, serde_json::Value> = serde_json::from_str(runtimes).ok()?;
        Some(Self { runtimes: runtimes.keys().cloned().collect(), default: default.to_owned() })
    }

    /// Whether it has read of `entry`.
    pub fn knows(&self, entry: &Entry) -> bool {
        self.runtimes.iter().any(|name| name == RUNTIME_NAME) && (!entry.is_default || self.default == RUNTIME_NAME)
    }
}

/// What a program prints, if it comes to a good end in time.
fn answer_of(command: &mut Command) -> Option<String> {
    let mut asked = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut said = asked.stdout.take()?;
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        said.read_to_string(&mut text).ok().map(|_| text)
    });
    let start = Instant::now();
    loop {
        match asked.try_wait() {
            Ok(Some(status)) => return reader.join().ok().flatten().filter(|_| status.success()),
            Ok(None) if start.elapsed() < PATIENCE => std::thread::sleep(LOOK_PERIOD),
            _ => {
                // What it has begun may hold its end of the pipe: nobody waits for that.
                let _ = asked.kill();
                let _ = asked.wait();
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn wanted(is_default: bool) -> Entry {
        Entry { runtime: "/usr/bin/gpool-runtime".into(), is_default }
    }

    const FILE: &str = "/etc/docker/daemon.json";

    #[test]
    fn a_default_that_the_command_line_has_already_is_refused() {
        for said in ["--default-runtime=nvidia", "--default-runtime nvidia"] {
            let lines = [line(&format!("/usr/bin/dockerd -H fd:// {said} --add-runtime=a=/b"))];
            assert_eq!(require_agreement(&lines, Path::new(FILE), false, &wanted(false)), Ok(()));
            let refusal = require_agreement(&lines, Path::new(FILE), false, &wanted(true)).unwrap_err();
            assert!(refusal.0.contains("says --default-runtime=nvidia"), "{refusal}");
            // Another dockerd's file.
            assert_eq!(require_agreement(&lines, Path::new("/opt/daemon.json"), true, &wanted(true)), Ok(()));
        }
        assert_eq!(require_agreement(&[], Path::new(FILE), false, &wanted(true)), Ok(()));
        assert_eq!(require_agreement(&[line("dockerd")], Path::new(FILE), false, &wanted(true)), Ok(()));
    }

    #[test]
    fn a_file_that_no_dockerd_reads_has_to_be_meant() {
        let snap = [line("dockerd --config-file=/var/snap/daemon.json --default-runtime x")];
        let both = [snap[0].clone(), line("dockerd")];
        let refusal = require_agreement(&snap, Path::new(FILE), false, &wanted(false)).unwrap_err();
        assert!(refusal.0.ends_with("say --config /var/snap/daemon.json"), "{refusal}");
        assert_eq!(require_agreement(&snap, Path::new(FILE), true, &wanted(true)), Ok(()));
        assert_eq!(require_agreement(&both, Path::new(FILE), false, &wanted(true)), Ok(()));
        assert!(require_agreement(&snap, Path::new("/var/snap/daemon.json"), true, &wanted(true)).is_err());
    }

    #[test]
    fn command_lines_are_those_of_processes_with_the_same_files_and_of_the_unit() {
        let root = tempfile::tempdir().unwrap();
        for (pid, name, files) in [
            ("self", "gpool", "mnt:[1]"),
            ("7", "dockerd", "mnt:[1]"),
            ("8", "dockerd", "mnt:[2]"),
            ("9", "dockerd", "mnt:[1]"),
        ] {
            let process = root.path().join(pid);
            std::fs::create_dir_all(process.join("ns")).unwrap();
            std::os::unix::fs::symlink(files, process.join("ns/mnt")).unwrap();
            std::fs::write(process.join("comm"), format!("{name}\n")).unwrap();
            std::fs::write(process.join("cmdline"), format!("/usr/bin/{name}\0--config-file\0/{pid}\0")).unwrap();
        }
        // Another user's, where this test may give files away.
        let is_anothers = std::os::unix::fs::chown(root.path().join("9"), Some(1000), None).is_ok();
        if !is_anothers || rustix::process::geteuid().as_raw() == 1000 {
            std::fs::remove_dir_all(root.path().join("9")).unwrap();
        }
        let found = running(root.path());
        assert_eq!(found.len(), 1);
        assert_eq!(option(&found[0], "--config-file"), Some("/7"));
        let unit = "ExecStart={ path=/usr/bin/dockerd ; argv[]=/usr/bin/dockerd -H fd:// $DOCKER_OPTS ; ignore_errors=no ; }\n";
        assert_eq!(of_unit(unit), Some(line("/usr/bin/dockerd -H fd:// $DOCKER_OPTS")));
        assert_eq!(of_unit("ExecStart=\n"), None);
    }

    #[test]
    fn what_dockerd_knows_is_what_it_has_read() {
        let today =
            Today::read("{\"gpool\":{\"path\":\"/usr/bin/gpool-runtime\"},\"runc\":{\"path\":\"runc\"}} runc\n")
                .unwrap();
        assert!(today.knows(&wanted(false)) && !today.knows(&wanted(true)), "{today:?}");
        let today = Today::read("{\"runc\":{}} runc\n").unwrap();
        assert!(!today.knows(&wanted(false)));
        assert_eq!(Today::read("null runc\n"), None);
        assert_eq!(Today::read("\n"), None);
    }

    #[test]
    fn who_answers_too_late_or_badly_has_said_nothing() {
        assert_eq!(answer_of(Command::new("sh").args(["-c", "echo a"])).as_deref(), Some("a\n"));
        assert_eq!(answer_of(Command::new("sh").args(["-c", "echo a; exit 1"])), None);
        assert_eq!(answer_of(Command::new("sleep").arg("60")), None);
        assert_eq!(answer_of(&mut Command::new("/nonexistent")), None);
    }
}
