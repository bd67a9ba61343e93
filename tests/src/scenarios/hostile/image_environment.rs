//! An image sets LD_PRELOAD and the like: the loader's variables may reach its own programs and nothing on the host. And
//! nothing of gpool's is open in what it starts.

use crate::c_program;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const MARKS: &str = "/run/gpool-marks";
/// Notes its environment and descriptors and becomes runc.
pub const LOW_LEVEL: &str = "/run/gpool-marks/low-level";
const LOW_LEVEL_SCRIPT: &str = r#"#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
for word; do [ "$word" = create ] && ls -l /proc/$$/fd > /run/gpool-marks/descriptors; done
exec /usr/sbin/runc "$@"
"#;
/// A hook that a loader would load into, unlike ours, which is static.
const HOOK_SCRIPT: &str = r#"#!/bin/sh
cat /proc/$$/environ > /run/gpool-marks/hook-environment
exec "$0.real" "$@"
"#;
const ATTACK: [&str; 5] = [
    "LD_PRELOAD=/run/gpool-marks/evil.so",
    "LD_AUDIT=/run/gpool-marks/evil.so",
    "LD_LIBRARY_PATH=/run/gpool-marks",
    "GLIBC_TUNABLES=glibc.malloc.check=3",
    "PATH=/run/gpool-marks:/bin",
];

/// The script that the configuration names as low-level runtime.
pub fn prepare() -> Result<()> {
    fs::create_dir_all(MARKS).context(MARKS)?;
    script(Path::new(LOW_LEVEL), LOW_LEVEL_SCRIPT)
}

fn script(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).context(path.display())?;
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).context(path.display())
}

/// Runs a container whose environment attacks, with a hook that could be attacked.
pub fn reaches_nobody(host: &Host) -> Result<()> {
    let source = include_str!("../../../programs/marks_its_host.c");
    c_program::compile(source, Path::new(MARKS), "evil.so", &["-shared", "-fPIC"])?;
    let hook = host.stage.hook();
    let real = format!("{}.real", hook.display());
    fs::rename(&hook, &real).context(&real)?;
    script(&hook, HOOK_SCRIPT)?;
    let ran = attacked(host);
    fs::rename(&real, &hook).context(&real)?;
    ran
}

fn attacked(host: &Host) -> Result<()> {
    // What the descriptors are without gpool: the engine's own.
    host.engine.add_runtime("noting", Path::new(LOW_LEVEL))?;
    host.engine.docker_text(&["run", "--rm", "--runtime=noting", crate::image::NAME, "true"])?;
    let native: BTreeSet<String> = descriptors()?.into_iter().map(|open| open.kind).collect();
    let mut options: Vec<&str> = ATTACK.iter().flat_map(|entry| ["-e", entry]).collect();
    options.extend(["-v", "/run/gpool-marks:/run/gpool-marks"]);
    let request = [("GPOOL_FRACTION", "0.01"), ("GPOOL_MEMORY", "1GiB")];
    let container = host.run_container("attacker", &request, &options, &["/bin/gpool-tenant", "--kernel-us", "500"])?;
    super::super::wait_until_running(host, std::slice::from_ref(&container))?;
    let engines = open_in_the_engine(&container)?;
    let more: Vec<Open> = descriptors()?
        .into_iter()
        .filter(|open| !native.contains(&open.kind) && !engines.contains(&open.target))
        .collect();
    ensure(more.is_empty(), || format!("the low-level runtime has {more:?} open beyond {native:?}"))?;
    let marks: BTreeSet<String> = fs::read_dir(MARKS)?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok()?.strip_prefix("loaded-by-").map(str::to_owned))
        .collect();
    // The tenant's own program is the control: there the attack works.
    let own = BTreeSet::from(["gpool-tenant".to_owned()]);
    ensure(marks == own, || format!("the image's library was loaded into {marks:?}"))?;
    let environment = fs::read(format!("{MARKS}/hook-environment")).context("the hook's environment")?;
    let environment = String::from_utf8_lossy(&environment).into_owned();
    let is_ours = environment.split('\0').filter(|entry| !entry.is_empty()).all(|entry| entry == "GPOOL_HOOK=1");
    ensure(is_ours, || format!("the hook's environment is {environment:?}"))?;
    no_descriptor_stays(&container)?;
    host.engine.docker_text(&["rm", "-f", "attacker"]).map(drop)
}

/// A descriptor that the low-level runtime had open at its start.
#[derive(Debug)]
struct Open {
    /// Its number, and what it is: numbers of sockets and pipes differ from call to call.
    kind: String,
    target: String,
}

fn descriptors() -> Result<Vec<Open>> {
    let path = format!("{MARKS}/descriptors");
    let text = fs::read_to_string(&path).context(&path)?;
    fs::remove_file(&path).context(&path)?;
    let open = |line: &str| {
        let (name, target) = line.split_once(" -> ")?;
        let number = name.rsplit(' ').next()?;
        let kind = format!("{number} {}", target.split([':', '/']).next().unwrap_or_default());
        Some(Open { kind, target: target.to_owned() })
    };
    Ok(text.lines().filter_map(open).collect())
}

/// The shim of containerd leaves the socket that it listens on open in what it starts, until its garbage is collected.
fn open_in_the_engine(container: &Container) -> Result<BTreeSet<String>> {
    let stat = format!("/proc/{}/stat", container.init_pid);
    let text = fs::read_to_string(&stat).context(&stat)?;
    let parent = text.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)).unwrap_or_default();
    let directory = format!("/proc/{parent}/fd");
    let open = fs::read_dir(&directory).context(&directory)?.flatten();
    Ok(open.filter_map(|entry| Some(fs::read_link(entry.path()).ok()?.display().to_string())).collect())
}

/// A tenant opens the region and the GPU itself; everything else that is open in it came from outside.
fn no_descriptor_stays(container: &Container) -> Result<()> {
    let directory = format!("/proc/{}/fd", container.init_pid);
    for entry in fs::read_dir(&directory).context(&directory)?.flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_default().display().to_string();
        let is_of_the_host =
            ["/run/gpool/", "/etc/gpool", "/var/lib", "/run/gpool-docker"].iter().any(|own| target.starts_with(own));
        if is_of_the_host || target.contains("config.json") {
            return Err(Failure::new(format!("{target} is open in the container")));
        }
    }
    Ok(())
}
