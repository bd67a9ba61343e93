//! An ordinary user of the run's own, and a podman that is run by that user: without root, with real subordinate ids and
//! newuidmap.

use super::{Engine, succeeded};
use crate::failure::{Context, Result};
use crate::image;
use crate::namespaces::PATH;
use crate::stage::Stage;
use std::fs;
use std::process::{Command, Output, Stdio};

/// The group whose members may lease without root here.
pub const GROUP: &str = "gpool-users";
const GROUP_ID: u32 = 4711;
const HOME: &str = "/run/gpool-users";

/// An ordinary user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: &'static str,
    /// Its id, and that of its own group.
    pub uid: u32,
    /// The first of its 65536 subordinate ids.
    pub subordinate: u32,
}

/// The user whose podman it is.
pub const USER: User = User { name: "gpool-user", uid: 4712, subordinate: 500_000 };
/// Another one of the same group.
pub const OTHER: User = User { name: "gpool-other", uid: 4713, subordinate: 600_000 };

/// Writes both users and their group into the run's private `/etc`.
pub fn add_users() -> Result<()> {
    let append = |file: &str, text: &str| {
        let before = fs::read_to_string(file).unwrap_or_default();
        fs::write(file, before + text).context(file)
    };
    append("/etc/group", &format!("{GROUP}:x:{GROUP_ID}:{},{}\n", USER.name, OTHER.name))?;
    for User { name, uid, subordinate } in [USER, OTHER] {
        append("/etc/passwd", &format!("{name}:x:{uid}:{uid}::{HOME}/{name}:/bin/sh\n"))?;
        append("/etc/group", &format!("{name}:x:{uid}:\n"))?;
        for file in ["/etc/subuid", "/etc/subgid"] {
            append(file, &format!("{name}:{subordinate}:65536\n"))?;
        }
    }
    Ok(())
}

impl User {
    /// `program` as this user runs it after logging in.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("/usr/bin/setpriv");
        let groups = format!("--groups={},{GROUP_ID}", self.uid);
        command.args([&format!("--reuid={}", self.uid), &format!("--regid={}", self.uid), &groups, "--inh-caps=-all"]);
        command.args(["--", program]).env_clear().env("PATH", PATH).env("PODMAN_IGNORE_CGROUPSV1_WARNING", "1");
        command.env("HOME", self.home()).env("XDG_RUNTIME_DIR", self.runtime_directory()).env("USER", self.name);
        command.current_dir("/").stdin(Stdio::null());
        command
    }

    fn home(&self) -> String {
        format!("{HOME}/{}", self.name)
    }

    fn runtime_directory(&self) -> String {
        format!("{HOME}/{}-runtime", self.name)
    }
}

/// The podman of [`USER`].
#[derive(Debug)]
pub struct RootlessPodman;

impl RootlessPodman {
    /// Sets it up with the engine's image and, for the whole host, the runtime `gpool`.
    pub fn set_up(engine: &Engine, stage: &Stage) -> Result<Self> {
        let settings = format!("{}/.config/containers", USER.home());
        fs::create_dir_all(&settings).context(&settings)?;
        let limits = "[containers]\ndefault_ulimits = [\"nofile=4096:4096\", \"nproc=4096:4096\"]\n";
        let text = format!("{limits}[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n");
        fs::write(format!("{settings}/containers.conf"), text).context("containers.conf")?;
        fs::write(format!("{settings}/storage.conf"), "[storage]\ndriver = \"vfs\"\n").context("storage.conf")?;
        let runtime_directory = USER.runtime_directory();
        fs::create_dir_all(&runtime_directory).context(&runtime_directory)?;
        let owner = format!("{0}:{0}", USER.uid);
        for directory in [USER.home(), runtime_directory] {
            let given = Command::new("chown").args(["-R", &owner, &directory]).output().context("chown")?;
            succeeded("chown", given)?;
            let closed = Command::new("chmod").args(["700", &directory]).output().context("chmod")?;
            succeeded("chmod", closed)?;
        }
        let mut gpool = Command::new(stage.program("gpool"));
        gpool.args(["runtime", "configure", "--runtime", "podman", "--runtime-path"]);
        let configured = gpool.arg(stage.program("gpool-runtime")).output().context("gpool")?;
        succeeded("gpool runtime configure", configured)?;
        let archive = format!("{HOME}/image.tar");
        engine.docker_text(&["save", "-o", &archive, image::NAME])?;
        succeeded("chmod", Command::new("chmod").args(["644", &archive]).output().context("chmod")?)?;
        let podman = Self;
        podman.text(&["load", "-q", "-i", &archive])?;
        Ok(podman)
    }

    /// Runs podman; its containers have no network, unless they are to have the host's.
    pub fn podman(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = USER.command("/usr/bin/podman");
        let until_verb = arguments.iter().position(|argument| *argument == "run").map_or(0, |verb| verb + 1);
        command.args(&arguments[..until_verb]);
        if until_verb > 0 && !arguments.contains(&"--network=host") {
            command.arg("--network=none");
        }
        command.args(&arguments[until_verb..]).output().context("podman cannot be started")
    }

    /// Runs podman and returns its stdout.
    ///
    /// # Errors
    /// Podman's own sentence.
    pub fn text(&self, arguments: &[&str]) -> Result<String> {
        succeeded(&format!("podman {}", arguments.join(" ")), self.podman(arguments)?)
    }

    /// Removes all containers and ends the process that holds the user's namespaces.
    pub fn clear(&self) -> Result<()> {
        self.text(&["rm", "-f", "-a", "-t", "0"])?;
        super::podman::wait_for_monitors()?;
        self.text(&["system", "migrate"]).map(drop)
    }
}
