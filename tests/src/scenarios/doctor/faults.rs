//! The faults: where each lies, the number of the check that finds it, and words that its finding and remedy must hold.

use super::Examined;
use super::mischief::{self, Mischief, kernel_says, missing, mode, process, replaced, written};
use crate::failure::{Context, Result, ensure};
use crate::host::{Host, SIMULATED_GPU};
use gpool_simulated_hardware::DriverVersion;
use std::fs;
use std::path::Path;
use std::process::Command;

const DROP_IN: &str = "/etc/gpool/conf.d/50-fault.toml";
const CONFIGURATION: &str = "/etc/gpool/config.toml";
const SOCKET: &str = "/run/gpool/gpool.sock";
pub const DAEMON: &str = "/etc/docker/daemon.json";
const HOOK_FILE: &str = "/etc/containers/oci/hooks.d/50-gpool.json";
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// A fault: the check that finds it, its state, words of finding and remedy, and how it is made.
struct Fault<'a> {
    number: usize,
    state: &'static str,
    words: &'static [&'static str],
    make: Box<dyn Fn() -> Result<Mischief> + 'a>,
}

fn fail<'a>(number: usize, words: &'static [&'static str], make: impl Fn() -> Result<Mischief> + 'a) -> Fault<'a> {
    Fault { number, state: "fail", words, make: Box::new(make) }
}

fn warn<'a>(number: usize, words: &'static [&'static str], make: impl Fn() -> Result<Mischief> + 'a) -> Fault<'a> {
    Fault { number, state: "warn", words, make: Box::new(make) }
}

/// Makes each fault, looks, and takes it back. How many there were.
pub fn one_after_the_other(host: &Host) -> Result<usize> {
    let faults = [configuration(), kernel(), device(host), engines(host), modes(host)].concat_all();
    let mut made = 0;
    for Fault { number, state, words, make } in faults {
        let mischief = make()?;
        let examined = Examined::of(host, &[])?;
        drop(mischief);
        found(&examined, number, state, words)?;
        made += 1;
    }
    made += leftovers(host)?;
    Ok(made)
}

/// Whether the check says so, and the exit code with it.
fn found(examined: &Examined, number: usize, state: &str, words: &[&str]) -> Result<()> {
    let (its_state, said) = examined.check(number);
    let lacks = words.iter().find(|word| !said.contains(**word));
    ensure(its_state == state && lacks.is_none(), || {
        format!("check {number} should be {state} and say {words:?}; it is {its_state}: {said}")
    })?;
    let status = if state == "fail" { Some(1) } else { examined.status.filter(|status| [1, 10].contains(status)) };
    ensure(examined.status == status, || format!("with check {number} {state} the exit code is {:?}", examined.status))
}

trait ConcatAll<'a> {
    fn concat_all(self) -> Vec<Fault<'a>>;
}

impl<'a, const N: usize> ConcatAll<'a> for [Vec<Fault<'a>>; N] {
    fn concat_all(self) -> Vec<Fault<'a>> {
        self.into_iter().flatten().collect()
    }
}

fn configuration<'a>() -> Vec<Fault<'a>> {
    let drop_in = |text: &'static str| move || written(DROP_IN, text);
    vec![
        fail(
            1,
            &["50-fault.toml: line 2", "did you mean `lease.hold_ms`", "gpool config validate"],
            drop_in("[lease]\nhold_mss = 3\n"),
        ),
        fail(1, &["50-fault.toml: line 1", "invalid type"], drop_in("lease.hold_ms = \"long\"\n")),
        fail(2, &["/nonexistent/runc", "install runc"], drop_in("[runtime]\nlow_level = [\"/nonexistent/runc\"]\n")),
        fail(
            14,
            &["/nonexistent/gpool-hook", "is not there", "install gpool"],
            drop_in("[paths]\nhook = \"/nonexistent/gpool-hook\"\n"),
        ),
    ]
}

fn kernel<'a>() -> Vec<Fault<'a>> {
    let mut faults = vec![
        fail(3, &["without the controller devices and freezer", "mount it"], || mischief::emptied("/sys/fs/cgroup")),
        fail(12, &["Linux 5.4.0-1-amd64", "5.6"], || kernel_says("/proc/sys/kernel/osrelease", "5.4.0-1-amd64\n")),
        fail(19, &["KiB left where /run/gpool lies", "make room"], mischief::run_is_full),
        fail(19, &["0 KiB left where /proc/gpool lies", "the ledger cannot be written"], || {
            written(DROP_IN, "[ledger]\npath = \"/proc/gpool/ledger.db\"\n")
        }),
        fail(19, &["0 KiB left where /proc/gpool lies", "the audit cannot be written"], || {
            written(DROP_IN, "[audit]\ndirectory = \"/proc/gpool\"\n")
        }),
        warn(20, &["MPS daemon", "quit"], || process("nvidia-cuda-mps-control")),
        warn(20, &["libvgpu.so of HAMi-core", "take the line out"], || {
            written("/etc/ld.so.preload", "/usr/local/vgpu/libvgpu.so\n")
        }),
    ];
    if Path::new(CLOCK_SOURCE).exists() {
        faults.push(warn(18, &["hpet", "clocksource=tsc"], || kernel_says(CLOCK_SOURCE, "hpet\n")));
    }
    faults
}

fn device(host: &Host) -> Vec<Fault<'_>> {
    let node = |name: &'static str| move || missing(format!("{SIMULATED_GPU}/dev/{name}"));
    let shim = |generation: &'static str| host.stage.shim(generation, "libgpool-cuda.so");
    vec![
        fail(4, &["nvidiactl", "modprobe nvidia"], node("nvidiactl")),
        fail(4, &["nodes of 0 GPUs", "NVML shows 1", "nvidia-smi"], node("nvidia0")),
        fail(4, &["nvidia-uvm", "nvidia-modprobe -u -c 0"], node("nvidia-uvm")),
        fail(6, &["libcuda.so.1 is in none", "install the driver"], || {
            missing(format!("{SIMULATED_GPU}/lib/libcuda.so.1"))
        }),
        fail(7, &["lacks libgpool-cuda.so", "install gpool again"], move || missing(shim("550"))),
        fail(7, &["is no shim of gpool", "install gpool again"], move || {
            replaced(shim("555"), &host.stage.simulated().join("libcuda.so.1"))
        }),
    ]
}

fn engines(host: &Host) -> Vec<Fault<'_>> {
    vec![
        warn(13, &["no engine knows", "gpool runtime configure --runtime docker"], || missing(DAEMON)),
        fail(13, &["daemon.json of docker", "repair"], || written(DAEMON, "{\"runtimes\": {")),
        fail(13, &["/nonexistent/gpool-runtime, which is not there", "--runtime-path"], || {
            written(DAEMON, r#"{"runtimes": {"gpool": {"path": "/nonexistent/gpool-runtime"}}}"#)
        }),
        fail(14, &["gpool-hook (paths.hook) is not executable"], || mode(host.stage.hook(), 0o644)),
        fail(14, &["names /nonexistent/gpool-hook", "without a word", "remove"], || {
            written(HOOK_FILE, r#"{"version": "1.0.0", "hook": {"path": "/nonexistent/gpool-hook"}}"#)
        }),
    ]
}

fn modes(host: &Host) -> Vec<Fault<'_>> {
    vec![
        warn(15, &["mode 600", "chmod 666"], || mode(SOCKET, 0o600)),
        warn(15, &["only root may enter /run/gpool", "chmod 755"], || mode("/run/gpool", 0o700)),
        warn(15, &["no group gpool", "groupadd"], || {
            let groups = fs::read_to_string("/etc/group").context("/etc/group")?;
            let without: Vec<&str> = groups.lines().filter(|line| !line.starts_with("gpool:")).collect();
            written("/etc/group", without.join("\n") + "\n")
        }),
        fail(16, &["config.toml has mode 666", "chmod go-w"], || mode(CONFIGURATION, 0o666)),
        fail(16, &["has mode 777"], || mode(host.stage.shims().join("535"), 0o777)),
    ]
}

/// What a lease has left, with something mounted in it; `--fix` clears it away, and modes with it.
fn leftovers(host: &Host) -> Result<usize> {
    let left = "/run/gpool/leases/01LEFTOVER";
    let region = format!("{left}/region");
    fs::create_dir_all(&region).context(&region)?;
    rustix::mount::mount("left", &*region, "tmpfs", rustix::mount::MountFlags::empty(), c"size=64k")
        .context(&region)?;
    found(&Examined::of(host, &[])?, 11, "warn", &["1 of leases", "01LEFTOVER", "--fix"])?;
    // One that is new may belong to a lease that is being made.
    let young = Examined::of(host, &["--fix"])?;
    found(&young, 11, "warn", &["01LEFTOVER"])?;
    let aged = Command::new("touch").args(["-d", "10 minutes ago", left]).status().context("touch")?;
    ensure(aged.success(), || format!("touch ended with {aged}"))?;
    let open = mode(SOCKET, 0o600)?;
    let repaired = Examined::of(host, &["--fix"])?;
    drop(open);
    for number in [11, 15] {
        let (state, said) = repaired.check(number);
        ensure(state == "ok", || format!("after --fix check {number} is {state}: {said}"))?;
    }
    ensure(!Path::new(left).exists(), || format!("{left} is still there"))?;
    Ok(1)
}

/// Another driver, and no supervisor at all.
pub fn of_the_supervisor(host: &mut Host) -> Result<()> {
    let known_bad = DriverVersion::parse("535.54.03").context("a version")?;
    host.set_driver_version(&known_bad)?;
    host.stop_supervisor()?;
    found(&Examined::of(host, &[])?, 5, "fail", &["the supervisor is not running", "start gpool-supervisor"])?;
    host.start_supervisor()?;
    found(&Examined::of(host, &[])?, 17, "fail", &["535.54.03", "64-bit AND", "release notes", "install 535.104.05"])?;
    host.set_driver_version(&DriverVersion::default())?;
    host.stop_supervisor()?;
    host.start_supervisor()
}
