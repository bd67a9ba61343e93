//! A container without a request, with the supervisor stopped: as under plain runc, byte for byte.

use super::finish;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Host, succeeded};
use crate::image;
use crate::namespaces::Inside;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// Compares both runtimes below docker, and directly on a bundle.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start_without_supervisor(inside, "")?;
    let outcome =
        below_docker(&host).and_then(|()| on_a_bundle(&host, &inside.cgroup_parent, Path::new("/usr/sbin/runc")));
    finish(host, outcome)
}

/// What a container sees of itself: its environment, its mounts, its devices and its cgroups' names.
const LOOK: &str = "env | sort; cut -d' ' -f4- /proc/self/mountinfo; ls /dev; cut -d: -f1,2 /proc/self/cgroup; \
                    cat /proc/self/status | grep -E '^(Cap|Seccomp|NoNewPrivs)'";

fn below_docker(host: &Host) -> Result<()> {
    let look = |runtime: &str| {
        let runtime = format!("--runtime={runtime}");
        let look = ["run", "--rm", &runtime, "--hostname", "same", image::NAME, "sh", "-c", LOOK];
        host.engine.docker_text(&look).map(|said| without_ids(&said))
    };
    let (plain, wrapped) = (look("runc")?, look("gpool")?);
    ensure(plain == wrapped, || format!("under runc:\n{plain}\nunder gpool-runtime:\n{wrapped}"))
}

/// Leaves out what differs between any two containers: ids, the names of layers, and the numbers of the groups in which
/// mounts propagate, which the kernel gives to whoever comes first.
fn without_ids(text: &str) -> String {
    let is_id = |word: &str| word.len() >= 26 && word.chars().all(|c| c.is_ascii_alphanumeric());
    let line = |line: &str| {
        let mut is_group = false;
        let keep = |word: &&str| {
            let was_group = std::mem::replace(&mut is_group, ["shared", "master", "from"].contains(word));
            !was_group && !is_id(word)
        };
        line.split(|c: char| !c.is_ascii_alphanumeric()).filter(keep).collect::<Vec<_>>().join(" ")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Compares gpool-runtime with `low_level`, which it has behind it.
pub fn on_a_bundle(host: &Host, cgroup_parent: &str, low_level: &Path) -> Result<()> {
    let bundle = Path::new("/run/bundle");
    image::lay_out(&host.stage, &bundle.join("rootfs"))?;
    let spec = Command::new("/usr/sbin/runc").arg("spec").current_dir(bundle).output().context("runc spec")?;
    succeeded("runc spec", spec)?;
    let file = bundle.join("config.json");
    let text = fs::read_to_string(&file).context("config.json")?;
    let mut config: serde_json::Value = serde_json::from_str(&text).context("config.json")?;
    config["process"]["terminal"] = false.into();
    config["process"]["args"] = serde_json::json!(["sh", "-c", "echo hello; exit 7"]);
    config["linux"]["cgroupsPath"] = format!("/{cgroup_parent}/bundle").into();
    // A newer field than any that gpool knows must survive as well.
    config["x-unknown"] = serde_json::json!({"b": 1, "a": [null]});
    fs::write(&file, format!("{config:#}  \n")).context("config.json")?;
    let identity = || -> Result<(u64, i64, i64, Vec<u8>)> {
        let facts = fs::metadata(&file).context("config.json")?;
        Ok((facts.ino(), facts.mtime(), facts.mtime_nsec(), fs::read(&file).context("config.json")?))
    };
    let before = identity()?;
    for program in [low_level.to_owned(), host.stage.program("gpool-runtime")] {
        let mut command = Command::new(&program);
        let output = command.args(["run", "--bundle"]).arg(bundle).arg("bundle").output().context(program.display())?;
        let is_same = output.status.code() == Some(7) && output.stdout == b"hello\n" && output.stderr.is_empty();
        if !is_same {
            return Err(Failure::new(format!("{} run: {output:?}", program.display())));
        }
    }
    ensure(identity()? == before, || "config.json was touched".to_owned())
}
