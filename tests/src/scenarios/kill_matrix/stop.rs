//! Making a container's start and stop stand still at a stage, without a change to gpool: the low-level runtime and the
//! hook are scripts of the test's in front of the real ones, the configuration is a FIFO, and the supervisor is stopped.

use crate::failure::{Context, Failure, Result};
use crate::host::Host;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// What the scripts and the test say to each other.
const SIGNS: &str = "/run/gpool-kill";
/// The script in front of runc.
pub const LOW_LEVEL: &str = "/run/gpool-kill/low-level";
const CONFIGURATION: &str = "/etc/gpool/config.toml";
/// How long a start may take to come to its stage.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where a container's life stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The wrapper reads its configuration; the supervisor knows of nothing.
    BeforeTheRequest,
    /// The supervisor is stopped and has the request in its socket.
    InTheRequest,
    /// The lease is granted and config.json edited; runc is about to be executed.
    BeforeRunc,
    /// In the createRuntime hook, the lease not bound.
    BeforeTheBinding,
    /// In the createRuntime hook, the lease bound.
    AfterTheBinding,
    /// The container runs.
    Running,
    /// runc is about to send the signal that ends the container.
    AtTheSignal,
    /// The container has ended and runc is about to delete it.
    AtTheDeletion,
}

impl Stage {
    /// What the scripts call it; none for stages that they do not make.
    fn sign(self) -> Option<&'static str> {
        match self {
            Stage::BeforeRunc => Some("create"),
            Stage::BeforeTheBinding => Some("before-bind"),
            Stage::AfterTheBinding => Some("after-bind"),
            Stage::AtTheSignal => Some("kill"),
            Stage::AtTheDeletion => Some("delete"),
            Stage::BeforeTheRequest | Stage::InTheRequest | Stage::Running => None,
        }
    }

    /// Whether a running container's stop is what stands still.
    pub fn is_of_the_stop(self) -> bool {
        matches!(self, Stage::AtTheSignal | Stage::AtTheDeletion)
    }
}

/// Whom a stage's process names.
#[derive(Debug, Clone, Copy, Default)]
pub struct Standing {
    /// The wrapper, which has become the script or runc by then.
    pub runtime: Option<u32>,
    /// containerd's shim.
    pub shim: Option<u32>,
    /// The script around the hook.
    pub hook: Option<u32>,
    /// The container's init.
    pub init: Option<u32>,
}

/// In front of runc; `$1` to the real one is what the engine said.
const LOW_LEVEL_SCRIPT: &str = r#"#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
for word; do
    case $word in create|kill|delete) . /run/gpool-kill/stand; stand "$word" "$$ $PPID"; break ;; esac
done
exec /usr/sbin/runc "$@"
"#;

/// Around the hook, which reads the container's state on stdin.
const HOOK_SCRIPT: &str = r#"#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
. /run/gpool-kill/stand
state=$(cat)
runtime=$PPID
parent=$(cut -d' ' -f4 /proc/$runtime/stat)
init=$(printf %s "$state" | sed 's/.*"pid": *\([0-9]*\).*/\1/')
stand before-bind "$runtime $parent $$ $init"
printf %s "$state" | "$0.real" "$@" || exit $?
stand after-bind "$runtime $parent $$ $init"
"#;

/// One start or stop at a time stands: who has taken the sign down.
const STAND: &str = r#"
stand() {
    [ "$(cat /run/gpool-kill/sign 2>/dev/null)" = "$1" ] || return 0
    rm /run/gpool-kill/sign || return 0
    echo "$2" > /run/gpool-kill/standing.new
    mv /run/gpool-kill/standing.new /run/gpool-kill/standing
    while [ -e /run/gpool-kill/hold ]; do sleep 0.02; done
}
"#;

/// Writes the script that configurations name as low-level runtime. Before the host is started.
pub fn install_low_level() -> Result<()> {
    fs::create_dir_all(SIGNS).context(SIGNS)?;
    fs::write(format!("{SIGNS}/stand"), STAND).context(SIGNS)?;
    script(Path::new(LOW_LEVEL), LOW_LEVEL_SCRIPT)
}

/// Puts the script in the hook's place.
pub fn install_hook(host: &Host) -> Result<()> {
    let hook = host.stage.hook();
    let real = format!("{}.real", hook.display());
    fs::rename(&hook, &real).context(&real)?;
    script(&hook, HOOK_SCRIPT)
}

fn script(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).context(path.display())?;
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).context(path.display())
}

/// A stage that the next start or stop will stand at.
pub struct Armed {
    stage: Stage,
    configuration: Option<String>,
    supervisor: Option<Pid>,
}

impl Armed {
    /// Prepares `stage`.
    pub fn new(host: &Host, stage: Stage) -> Result<Self> {
        let _ = fs::remove_file(format!("{SIGNS}/standing"));
        let mut armed = Self { stage, configuration: None, supervisor: None };
        if let Some(sign) = stage.sign() {
            fs::write(format!("{SIGNS}/hold"), "").context("hold")?;
            fs::write(format!("{SIGNS}/sign"), sign).context("sign")?;
        }
        if stage == Stage::BeforeTheRequest {
            armed.configuration = Some(fs::read_to_string(CONFIGURATION).context(CONFIGURATION)?);
            fs::remove_file(CONFIGURATION).context(CONFIGURATION)?;
            rustix::fs::mknodat(rustix::fs::CWD, CONFIGURATION, rustix::fs::FileType::Fifo, 0o600.into(), 0)
                .context(CONFIGURATION)?;
        }
        if stage == Stage::InTheRequest {
            let pid = host.supervisor_pid().and_then(|pid| Pid::from_raw(pid as i32));
            let pid = pid.ok_or_else(|| Failure::new("no supervisor runs"))?;
            kill_process(pid, Signal::STOP).context("stop the supervisor")?;
            armed.supervisor = Some(pid);
        }
        Ok(armed)
    }

    /// Waits until somebody stands at the stage.
    pub fn reached(&self) -> Result<Standing> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = if self.stage.sign().is_some() { standing_script() } else { standing_wrapper() };
            if let Some(found) = found {
                // What is asked before an answer is in the socket a moment after the program has begun.
                std::thread::sleep(Duration::from_millis(if self.stage.sign().is_some() { 0 } else { 100 }));
                return Ok(found);
            }
            if Instant::now() > deadline {
                return Err(Failure::new(format!("nothing came to the stage {:?}", self.stage)));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Lets everything that still stands go on. A supervisor that is gone by now needs no waking.
    pub fn release(mut self) -> Result<()> {
        self.let_go()
    }

    fn let_go(&mut self) -> Result<()> {
        let _ = fs::remove_file(format!("{SIGNS}/hold"));
        let _ = fs::remove_file(format!("{SIGNS}/sign"));
        if let Some(pid) = self.supervisor.take() {
            let _ = kill_process(pid, Signal::CONT);
        }
        let Some(text) = self.configuration.take() else { return Ok(()) };
        let plain = format!("{CONFIGURATION}.new");
        fs::write(&plain, &text).context(&plain)?;
        // Who stands at the FIFO reads nothing, which is an empty configuration; nobody else finds it any more.
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
        let reader = rustix::fs::open(CONFIGURATION, flags, rustix::fs::Mode::empty());
        fs::rename(&plain, CONFIGURATION).context(CONFIGURATION)?;
        if let Ok(fifo) = reader {
            match rustix::io::write(&fifo, text.as_bytes()) {
                // It was killed, and there it went.
                Err(rustix::io::Errno::PIPE) => {}
                written => written.context("the configuration").map(drop)?,
            }
        }
        Ok(())
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        let _ = self.let_go();
    }
}

fn standing_script() -> Option<Standing> {
    let text = fs::read_to_string(format!("{SIGNS}/standing")).ok()?;
    let pids: Vec<Option<u32>> = text.split_whitespace().map(|pid| pid.parse().ok()).collect();
    let pid = |index: usize| pids.get(index).copied().flatten();
    Some(Standing { runtime: pid(0), shim: pid(1), hook: pid(2), init: pid(3) })
}

/// The wrapper, as long as it is itself.
fn standing_wrapper() -> Option<Standing> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_wrapper = |pid: &u32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
            let mut words = line.split(|byte| *byte == 0);
            words.next().is_some_and(|program| program.ends_with(b"/gpool-runtime"))
                && words.any(|word| word == b"create")
        })
    };
    let pid = pids.into_iter().find(is_wrapper)?;
    Some(Standing { runtime: Some(pid), shim: parent_of(pid), ..Standing::default() })
}

/// The parent of a process.
pub fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}
