//! Containers made of one image: plain and leased, with and without another driver in the image, entered later, with a
//! read-only root and as another user.

use crate::failure::{Context, Result, ensure};
use crate::host::{Host, SIMULATED_GPU};
use crate::scenarios::loader_matrix::programs::{self, COMPAT, DATA, Image, LEASED, LIBRARIES};
use crate::tenant::report;
use serde_json::Value;
use std::path::Path;

const IMAGE: Image = Image { python: true, own_glibc: false };
const CAP_BYTES: u64 = 1 << 30;

/// Runs everything in the image that `archive` holds.
pub fn look_into(host: &Host, suite: &str, archive: &Path) -> Result<()> {
    let name = format!("gpool-{suite}:1");
    host.engine.docker_text(&["import", &archive.display().to_string(), &name])?;
    who_asks_the_cache_is_told(host, &name).context("the loader's cache")?;
    let mounted = format!("{SIMULATED_GPU}/lib/libcuda.so.1:{COMPAT}/libcuda.so.1:ro");
    let mount = ["-v", &mounted];
    in_each_container(host, &name, &mount).context("another driver is mounted")?;
    // The driver of an image for CUDA, which its loader finds before any other.
    let with_driver = with_its_own_driver(host, suite, &name)?;
    in_each_container(host, &with_driver, &[]).context("another driver is in the image")?;
    in_a_running_container(host, &with_driver).context("entered later")?;
    let restricted = ["--read-only", "--user", "65534:65534"];
    ask(host, &with_driver, &[&LEASED[..], &restricted].concat(), true).context("read-only, another user")?;
    a_tenant_works(host, &name).context("the tenant")
}

/// Triton, NVIDIA's entrypoints and Python's find_library look for the driver in what ldconfig prints. It is there without
/// anybody having run ldconfig, of a read-only root as well, and ldconfig and restarts work as ever.
fn who_asks_the_cache_is_told(host: &Host, image: &str) -> Result<()> {
    const ASKS: &str = "/sbin/ldconfig -p | grep -F libcuda.so.1; python3 -c 'from ctypes.util import find_library; \
                        print(find_library(\"cuda\"), find_library(\"nvidia-ml\"), find_library(\"c\"))'";
    let told =
        format!("libcuda.so.1 (libc6,x86-64) => {LIBRARIES}/libcuda.so.1\nlibcuda.so.1 libnvidia-ml.so.1 libc.so.6");
    let lines =
        |text: String| text.replace("=> /lib/", "=> /usr/lib/").lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let run = |options: &[&str], script: &str| {
        host.engine.docker_text(&[&["run"], options, &[image, "sh", "-c", script]].concat()).map(lines)
    };
    let plain = run(&["--rm", "--runtime=runc"], ASKS)?;
    ensure(plain == "None None libc.so.6", || format!("without gpool: {plain:?}"))?;
    let read_only = [&["--rm", "--read-only"], &LEASED[..]].concat();
    ensure(run(&read_only, ASKS)? == told, || "of a read-only root it is not told".to_owned())?;
    let script = format!("{ASKS}; ldconfig && {ASKS}; ls -a /etc | grep -F ld.so.cache");
    let stays = [&["--name", "asked"], &LEASED[..]].concat();
    let wanted = format!("{told}\n{told}\nld.so.cache");
    let said = run(&stays, &script)?;
    ensure(said == wanted, || format!("leased: {said}"))?;
    let again = host.engine.docker_text(&["start", "-a", "asked"]).map(lines)?;
    ensure(again == wanted, || format!("started again: {again}"))?;
    host.engine.docker_text(&["rm", "asked"]).map(drop)
}

fn in_each_container(host: &Host, image: &str, options: &[&str]) -> Result<()> {
    let plain = programs::plain_options(LIBRARIES);
    let plain: Vec<&str> = plain.iter().map(String::as_str).chain(options.iter().copied()).collect();
    ask(host, image, &plain, false).context("without gpool")?;
    ask(host, image, &[&LEASED, options].concat(), true).context("leased")
}

fn ask(host: &Host, image: &str, options: &[&str], is_leased: bool) -> Result<()> {
    let data = format!("{DATA}:{DATA}:ro");
    let script = programs::script(IMAGE);
    let arguments = [&["run", "--rm", "-v", &data][..], options, &[image, "sh", "-c", &script]].concat();
    programs::judge(&programs::answers(&host.engine.docker_text(&arguments)?), IMAGE, is_leased)
}

/// A new image with a libcuda of its own, of which ld.so.conf.d and the loader's cache know.
fn with_its_own_driver(host: &Host, suite: &str, image: &str) -> Result<String> {
    let library = "libcuda.so.990.1";
    let source = format!("{SIMULATED_GPU}/lib/libcuda.so.1:/driver:ro");
    let script = format!(
        "mkdir -p {COMPAT} && cp /driver {COMPAT}/{library} && ln -s {library} {COMPAT}/libcuda.so.1 && \
         echo {COMPAT} > /etc/ld.so.conf.d/000_cuda.conf && ldconfig && ldconfig -p | grep libcuda.so.1"
    );
    let name = format!("gpool-{suite}-with-driver");
    let run = ["run", "--runtime=runc", "--name", &name, "-v", &source, image, "sh", "-c", &script];
    let cached = host.engine.docker_text(&run)?;
    ensure(cached.lines().next().is_some_and(|line| line.ends_with(&format!("{COMPAT}/libcuda.so.1"))), || {
        format!("the loader's cache has {cached:?}")
    })?;
    host.engine.docker_text(&["commit", &name, &format!("{name}:1")])?;
    host.engine.docker_text(&["rm", &name])?;
    Ok(format!("{name}:1"))
}

/// `docker exec`, before and after the container's own ldconfig has looked at everything anew.
fn in_a_running_container(host: &Host, image: &str) -> Result<()> {
    let data = format!("{DATA}:{DATA}:ro");
    let script = programs::script(IMAGE);
    let arguments = [&["run", "-d", "--name", "entered", "-v", &data][..], &LEASED, &[image, "sleep", "1000"]].concat();
    host.engine.docker_text(&arguments)?;
    for what in ["docker exec", "after ldconfig"] {
        let printed = host.engine.docker_text(&["exec", "entered", "sh", "-c", &script])?;
        programs::judge(&programs::answers(&printed), IMAGE, true).context(what)?;
        host.engine.docker_text(&["exec", "entered", "ldconfig"])?;
    }
    host.engine.docker_text(&["rm", "-f", "entered"]).map(drop)
}

/// Allocates up to its cap, with context and all, and launches for a second through its gate.
fn a_tenant_works(host: &Host, image: &str) -> Result<()> {
    let program = format!("{}:/usr/bin/gpool-tenant:ro", host.stage.program("gpool-tenant").display());
    let command = ["gpool-tenant", "--nvml", "--kernel-us", "500", "--seconds", "1"];
    let arguments = [&["run", "--rm", "-v", &program][..], &LEASED, &[image], &command].concat();
    let said = host.engine.docker_text(&arguments)?;
    let report = report(&said)?;
    let seen = [report.cuda_total_bytes, report.nvml_total_bytes];
    ensure(seen == [CAP_BYTES; 2] && (1..=CAP_BYTES).contains(&report.allocated_bytes), || format!("{report:?}"))?;
    let events = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let launched = events.filter_map(|event| event["launched"].as_u64()).max();
    ensure(launched > Some(0), || format!("it launched nothing: {said}"))
}
