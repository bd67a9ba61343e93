//! Programs that load the driver in every way there is, in a leased container and in a plain one. Each says how much
//! memory its GPU has: the lease's if it came to the shim, the device's if it did not.

use super::finish_found;
use crate::c_program::compile;
use crate::failure::{Context, Result, ensure};
use crate::host::{DRIVER_LIBRARIES, Host, SIMULATED_GPU, succeeded};
use crate::image;
use crate::namespaces::Inside;
use crate::stage::SHIMS;
use gpool_driver_abi::GENERATIONS;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const LOADS: &str = include_str!("../../programs/loads.c");
const LINKED: &str = include_str!("../../programs/linked.c");
const STATICALLY: &str = include_str!("../../programs/static.c");
/// Where the programs are, in the run and in the containers.
const DATA: &str = "/run/gpool-programs";
/// Where gpool puts the driver in an image without one.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
/// Where CUDA images keep a driver of their own.
const COMPAT: &str = "/usr/local/cuda-12.4/compat";
/// What a program says that came to the shim, and one that came to the device.
const LEASE: &str = "1024 MiB";
const DEVICE: &str = "24576 MiB";

/// Every way that must lead to the shim.
const ROWS: [&str; 26] = [
    "linked",
    "linked, bound at start",
    "linked, preloaded",
    "dlopen lazy",
    "dlopen now",
    "dlopen global, RTLD_DEFAULT",
    "dlopen deep-bound",
    "dlopen without version",
    "dlopen by path",
    "dlopen by path without version",
    "dlmopen",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuGetProcAddress through itself",
    "plugin that loads",
    "plugin that is linked",
    "deep-bound plugin that loads",
    "deep-bound plugin that is linked",
    "dlclose three times",
    "8 threads",
    "atexit handler",
    "empty environment",
    "driver preloaded",
    "another driver in LD_LIBRARY_PATH",
    "setuid program",
    "a child of a child",
];
/// A program without a loader of its own says where it found a function, without calling it.
const STATIC: &str = "static program";
/// A program that names gpool's own path itself goes past the shim; the host notices, the container does not.
const DELIBERATE: &str = "real library by its path";

/// Compiles the programs, runs them in both containers and compares.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = judge(&host);
    // One of the programs goes past the shim on purpose, and on a busy machine lives for two looks of the guard.
    finish_found(host, outcome)
}

fn judge(host: &Host) -> Result<()> {
    for generation in &GENERATIONS {
        needs_old_glibc(&host.stage.shims().join(generation.name))?;
    }
    compile_all(&host.stage.shims().join(GENERATIONS[0].name))?;
    let plain = ask_natively(host)?;
    let leased = ask_leased(host)?;
    let wrong = |answers: &BTreeMap<String, String>, wanted: &str| {
        let answer = |row: &&&str| answers.get(**row).map_or("no answer", String::as_str) == wanted;
        ROWS.iter().filter(|row| !answer(row)).map(|row| format!("{row}: {:?}", answers.get(*row))).collect::<Vec<_>>()
    };
    let (without, with) = (wrong(&plain, DEVICE), wrong(&leased, LEASE));
    ensure(without.is_empty(), || format!("without gpool: {}", without.join("; ")))?;
    ensure(with.is_empty(), || format!("did not come to the shim: {}", with.join("; ")))?;
    let found = [&plain, &leased].map(|answers| answers.get(STATIC).map_or("no answer", String::as_str));
    ensure(found == ["the driver's", "the shim's"], || format!("{STATIC}: {found:?}"))?;
    let past = leased.get(DELIBERATE).map_or("no answer", String::as_str);
    ensure(past == DEVICE, || format!("{DELIBERATE}: {past}"))?;
    ensure(leased.len() == ROWS.len() + 2, || format!("answers that nobody expects: {leased:?}"))
}

/// The shims load wherever NVIDIA's libraries do that CUDA 11 needs: with glibc 2.17 and newer.
fn needs_old_glibc(shims: &Path) -> Result<()> {
    for name in SHIMS {
        let mut readelf = Command::new("/usr/bin/readelf");
        readelf.args(["--wide", "--version-info"]).arg(shims.join(name));
        let listed = succeeded("readelf", readelf.output().context("readelf")?)?;
        let versions = listed.split("Name: GLIBC_").skip(1).filter_map(|rest| rest.split_whitespace().next());
        let numbers = versions.map(|version| version.split('.').map(|part| part.parse().unwrap_or(u32::MAX)));
        let newest = numbers.map(Iterator::collect::<Vec<_>>).max().unwrap_or_default();
        ensure(!newest.is_empty() && newest.as_slice() <= [2, 17].as_slice(), || {
            format!("{name} needs glibc {newest:?}")
        })?;
    }
    Ok(())
}

fn compile_all(shims: &Path) -> Result<()> {
    let directory = Path::new(DATA);
    fs::create_dir_all(directory).context(DATA)?;
    // Linked as in a container, where this name is the shim's too.
    fs::copy(shims.join(SHIMS[0]), directory.join("libcuda.so")).context("the shim")?;
    let search = format!("-L{DATA}");
    compile(LINKED, directory, "linked", &[&search, "-lcuda"])?;
    compile(LINKED, directory, "linked.so", &["-shared", "-fPIC", &search, "-lcuda"])?;
    compile(LOADS, directory, "loads", &[])?;
    compile(LOADS, directory, "loads.so", &["-shared", "-fPIC", "-DONLY_LOADS"])?;
    compile(STATICALLY, directory, "static", &["-static"])?;
    let setuid = directory.join("setuid");
    fs::copy(directory.join("loads"), &setuid).context("setuid")?;
    fs::set_permissions(&setuid, fs::Permissions::from_mode(0o4755)).context("setuid")
}

fn script() -> String {
    let lines = [
        "./linked linked".to_owned(),
        "LD_BIND_NOW=1 ./linked 'linked, bound at start'".to_owned(),
        format!("LD_PRELOAD={DATA}/linked.so ./loads 'linked, preloaded'"),
        format!("./loads ways {DATA} {LIBRARIES}"),
        "./static".to_owned(),
        "env -i ./loads 'empty environment'".to_owned(),
        "LD_PRELOAD=libcuda.so.1 ./loads 'driver preloaded'".to_owned(),
        format!("LD_LIBRARY_PATH={COMPAT} ./loads 'another driver in LD_LIBRARY_PATH'"),
        format!("./loads 'as nobody' {DATA}/setuid 'setuid program'"),
        "(./loads 'a child of a child')".to_owned(),
        format!("LD_PRELOAD=/dev/gpool/real/libcuda.so.1 ./loads '{DELIBERATE}'"),
    ];
    format!("cd {DATA}; {}; echo", lines.join("; "))
}

fn ask_natively(host: &Host) -> Result<BTreeMap<String, String>> {
    let library = |name: &str, place: &str| format!("{SIMULATED_GPU}/lib/{name}:{place}:ro");
    let [cuda, nvml] = DRIVER_LIBRARIES;
    let places = [(nvml, nvml), (cuda, cuda), (cuda, "libcuda.so")];
    let libraries = places.map(|(name, place)| library(name, &format!("{LIBRARIES}/{place}")));
    let devices =
        ["nvidia0", "nvidiactl", "nvidia-uvm"].map(|node| format!("{SIMULATED_GPU}/dev/{node}:/dev/{node}:rw"));
    let state = format!("{SIMULATED_GPU}/state:{SIMULATED_GPU}/state");
    let mut options = vec!["--runtime=runc", "-v", &state];
    options.extend(libraries.iter().flat_map(|mount| ["-v", mount]));
    options.extend(devices.iter().flat_map(|device| ["--device", device]));
    ask(host, &options)
}

fn ask_leased(host: &Host) -> Result<BTreeMap<String, String>> {
    ask(host, &["--runtime=gpool", "-e", "GPOOL_FRACTION=0.5", "-e", "GPOOL_MEMORY=1GiB"])
}

fn ask(host: &Host, options: &[&str]) -> Result<BTreeMap<String, String>> {
    let programs = format!("{DATA}:{DATA}:ro");
    let compat = format!("{SIMULATED_GPU}/lib/libcuda.so.1:{COMPAT}/libcuda.so.1:ro");
    let script = script();
    let fixed = ["run", "--rm", "-v", &programs, "-v", &compat];
    let arguments: Vec<&str> =
        fixed.iter().chain(options).chain(&[image::NAME, "sh", "-c", &script]).copied().collect();
    let printed = succeeded("the container with the programs", host.docker(&arguments)?)?;
    Ok(printed.lines().filter_map(|line| line.split_once(": ")).map(|(row, said)| (row.into(), said.into())).collect())
}
