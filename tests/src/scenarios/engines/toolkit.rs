//! gpool beside NVIDIA's container toolkit, for which a program of our own stands in that makes the toolkit's edits of
//! config.json: gpool alone brings the driver into a leased container, whatever was added before or would be behind it. The
//! real toolkit has not run.

use super::life::{CAP, COMMAND};
use super::{Client, configure, wait_for_lease};
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host, SIMULATED_GPU};
use crate::namespaces::Inside;
use crate::scenarios::finish_found;
use crate::tenant::report_of;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const STAND_IN: &str = include_str!("../../../programs/toolkit_stand_in.py");
const HOOK_STAND_IN: &str = include_str!("../../../programs/toolkit_hook_stand_in.py");
const HOME: &str = "/run/gpool-toolkit";

/// With the toolkit's edits made before gpool, and with a runtime behind gpool that would make them.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start_with(inside, 2, "")?;
    let outcome = before_gpool(&host).and_then(|()| behind_gpool(&host));
    finish_found(host, outcome)
}

/// An engine with CDI devices has made its edits when gpool is called; one without has added a hook.
fn before_gpool(host: &Host) -> Result<()> {
    let docker = Client::docker(host);
    host.engine.add_runtime("toolkit", &stand_in("before", &host.stage.program("gpool-runtime"))?)?;
    let leased = start(host, "leased", &["--runtime=toolkit", "-e", "STAND_IN=cdi"])?;
    has_its_lease_and_nothing_else(host, &docker, &leased)?;
    // What the toolkit does to libraries that are not the lease's is done.
    let link = ["exec", &leased.name, "readlink", "/usr/lib/x86_64-linux-gnu/gbm/nvidia-drm_gbm.so"];
    let link = docker.text(&link)?;
    ensure(link == "../libnvidia-allocator.so.1", || format!("the toolkit's own link leads to {link:?}"))?;

    let whole = ["-d", "--runtime=toolkit", "-e", "STAND_IN=cdi", "--name", "whole"];
    docker.text(&[&["run"], &whole[..], &[crate::image::NAME], &COMMAND].concat())?;
    let nodes = nodes(&docker, "whole")?;
    ensure(nodes == ["nvidia0", "nvidia1"], || format!("without a request the toolkit's container has {nodes:?}"))?;
    let whole = docker.container("whole")?;
    let seen = seen(host, &whole)?;
    ensure(seen > 2 << 30, || format!("without a request it sees {seen} bytes"))?;
    docker.text(&["rm", "-f", "whole", "leased"])?;

    // Its own keys beside what --gpus adds: there is no such hook that could be executed.
    let beside = start(host, "beside", &["--runtime=toolkit", "-e", "STAND_IN=legacy"])?;
    has_its_lease_and_nothing_else(host, &docker, &beside)?;
    docker.text(&["rm", "-f", "beside"])?;

    // Whoever says nothing of gpool, where the host has something for that.
    configure("[default_request]\nfraction = \"0.25\"\nmemory = \"2GiB\"\nvisible_devices = true")?;
    for (name, by) in [("hooked", "STAND_IN=legacy"), ("by-cdi", "STAND_IN=cdi-whole")] {
        let options = ["run", "-d", "--runtime=toolkit", "--name", name, "-e", by, "-e", "NVIDIA_VISIBLE_DEVICES=all"];
        docker.text(&[&options[..], &[crate::image::NAME], &COMMAND].concat())?;
        has_its_lease_and_nothing_else(host, &docker, &docker.container(name)?)?;
    }
    // Beside nodes of MIG instances nobody knows which of both is meant.
    let options = ["run", "-d", "--runtime=toolkit", "--name", "divided", "-e", "STAND_IN=cdi"];
    docker.text(&[&options[..], &[crate::image::NAME], &COMMAND].concat())?;
    let left = self::nodes(&docker, "divided")?;
    ensure(left == ["nvidia0", "nvidia1"], || format!("with an instance it has {left:?}"))?;
    docker.text(&["rm", "-f", "hooked", "by-cdi", "divided"]).map(drop)
}

/// The runtime behind gpool injects what NVIDIA_VISIBLE_DEVICES names, which an image may set.
fn behind_gpool(host: &Host) -> Result<()> {
    let docker = Client::docker(host);
    let behind = stand_in("behind", Path::new("/usr/sbin/runc"))?;
    configure(&format!("[runtime]\nlow_level = [{behind:?}]"))?;
    let leased = start(host, "behind", &["-e", "NVIDIA_VISIBLE_DEVICES=all"])?;
    has_its_lease_and_nothing_else(host, &docker, &leased)?;
    docker.text(&["rm", "-f", "behind"])?;
    Ok(())
}

/// A script that calls the stand-in, which calls `next`.
fn stand_in(name: &str, next: &Path) -> Result<PathBuf> {
    fs::create_dir_all(HOME).context(HOME)?;
    let program = format!("{HOME}/toolkit_stand_in.py");
    let hook = executable(&format!("{HOME}/nvidia-cdi-hook"), HOOK_STAND_IN)?;
    fs::write(&program, STAND_IN).context(&program)?;
    let call = format!("{program} {SIMULATED_GPU} {} {}", hook.display(), next.display());
    executable(&format!("{HOME}/{name}"), &format!("#!/bin/sh\nexec /usr/bin/python3 {call} \"$@\"\n"))
}

fn executable(path: &str, text: &str) -> Result<PathBuf> {
    fs::write(path, text).context(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).context(path)?;
    Ok(path.into())
}

fn start(host: &Host, name: &str, options: &[&str]) -> Result<Container> {
    host.run_container(name, &[("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", CAP)], options, &COMMAND)
}

/// One node of two, by the cgroup too, its cap through both libraries, a shim that the guard believes, and a word to any
/// other injector that there is nothing to do.
fn has_its_lease_and_nothing_else(host: &Host, docker: &Client<'_>, leased: &Container) -> Result<()> {
    let lease = wait_for_lease(host, leased)?;
    ensure(lease.enforcement == "co-operative", || format!("it is {}", lease.enforcement))?;
    let nodes = nodes(docker, &leased.name)?;
    ensure(nodes.len() == 1, || format!("{} has the nodes {nodes:?}", leased.name))?;
    let other = if nodes[0] == "nvidia0" { "1" } else { "0" };
    for (number, what) in
        [(format!("195 {other}"), "the other GPU"), ("507 3".into(), "an instance"), ("506 0".into(), "a channel")]
    {
        let opening = format!("rm -f /tmp/other; mknod /tmp/other c {number}; true < /tmp/other");
        let opened = docker.refusal(&["exec", &leased.name, "sh", "-c", &opening])?;
        ensure(opened.contains("not permitted"), || format!("{what}: {opened}"))?;
    }
    let listed = docker.text(&["exec", &leased.name, "ls", "/dev"])?;
    ensure(!listed.contains("nvidia-caps"), || format!("{} has {listed}", leased.name))?;
    let seen = seen(host, leased)?;
    ensure(seen == 2 << 30, || format!("{} sees {seen} bytes", leased.name))?;
    let env = docker.text(&["exec", &leased.name, "sh", "-c", "tr '\\0' '\\n' < /proc/1/environ"])?;
    let words: Vec<&str> = env.lines().filter_map(|entry| entry.strip_prefix("NVIDIA_VISIBLE_DEVICES=")).collect();
    ensure(words.last() == Some(&"void"), || format!("NVIDIA_VISIBLE_DEVICES is {words:?}"))
}

/// The nodes of GPUs, in the order of their numbers.
fn nodes(docker: &Client<'_>, name: &str) -> Result<Vec<String>> {
    let listed = docker.text(&["exec", name, "ls", "/dev"])?;
    let is_gpu = |node: &&str| node.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok());
    Ok(listed.split_whitespace().filter(is_gpu).map(str::to_owned).collect())
}

/// How much memory its program sees on its device.
fn seen(host: &Host, container: &Container) -> Result<u64> {
    let seen = report_of(host, container)?;
    ensure(seen.cuda_total_bytes == seen.nvml_total_bytes, || {
        format!("through CUDA {} bytes, through NVML {}", seen.cuda_total_bytes, seen.nvml_total_bytes)
    })?;
    Ok(seen.cuda_total_bytes)
}
