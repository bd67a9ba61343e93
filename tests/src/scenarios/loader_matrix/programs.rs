//! The programs that load the driver, the ways in which they do, and what each must say.

use crate::c_program::{compile, compile_library_for_any_glibc, compile_linked_for_any_glibc};
use crate::failure::{Context, Result, ensure};
use crate::host::{DRIVER_LIBRARIES, SIMULATED_GPU};
use crate::stage::{SHIMS, Stage};
use gpool_driver_abi::GENERATIONS;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const LOADS: &str = include_str!("../../../programs/loads.c");
const LINKED: &str = include_str!("../../../programs/linked.c");
const STATICALLY: &str = include_str!("../../../programs/static.c");
/// Where the programs are, in the run and in the containers.
pub const DATA: &str = "/run/gpool-programs";
/// Where gpool puts the driver in an image of Debian.
pub const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
/// Where CUDA images keep a driver of their own.
pub const COMPAT: &str = "/usr/local/cuda-12.4/compat";
/// What a program says that came to the shim, and one that came to the device.
pub const LEASE: &str = "1024 MiB";
pub const DEVICE: &str = "24576 MiB";
/// What a container has to be given for the first; a small share, since ended containers keep theirs for a while.
pub const LEASED: [&str; 5] = ["--runtime=gpool", "-e", "GPOOL_FRACTION=0.02", "-e", "GPOOL_MEMORY=1GiB"];

/// Every way that must lead to the shim.
const WAYS: [&str; 28] = [
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
    "executed after use",
    "empty environment",
    "driver preloaded",
    "another driver in LD_LIBRARY_PATH",
    "another driver by its path",
    "setuid program",
    "a child of a child",
];
/// Another one, where the image has Python.
const PYTHON: &str = "Python's ctypes";
/// A program without a loader of its own says where it found a function, without calling it. Only with the glibc that it
/// was linked with can it load anything.
const STATIC: &str = "static program";
/// It runs everywhere.
const STATIC_ALONE: &str = "static program that loads nothing";
/// CUDA refuses a child that does not execute a program, and so does the shim.
const FORKED: &str = "forked after use";
/// A program that names gpool's own path itself goes past the shim; the host notices, the container does not.
const DELIBERATE: &str = "real library by its path";

/// What the image has that not every one has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    /// `python3`
    pub python: bool,
    /// The glibc of this machine.
    pub own_glibc: bool,
}

/// What the programs in a container said, by their ways.
pub type Answers = BTreeMap<String, String>;

/// Compiles the programs; `shims` is the directory of the shims.
pub fn compile_all(stage: &Stage) -> Result<()> {
    let directory = Path::new(DATA);
    fs::create_dir_all(directory).context(DATA)?;
    // Linked as in a container, where this name is the shim's too.
    fs::copy(stage.shim(GENERATIONS[0].name, SHIMS[0]), directory.join("libcuda.so")).context("the shim")?;
    let search = format!("-L{DATA}");
    compile_linked_for_any_glibc(LINKED, directory, "linked", &[&search, "-lcuda"])?;
    compile_library_for_any_glibc(LINKED, directory, "linked.so", &[&search, "-lcuda"])?;
    compile_linked_for_any_glibc(LOADS, directory, "loads", &[])?;
    compile_library_for_any_glibc(LOADS, directory, "loads.so", &[])?;
    compile(STATICALLY, directory, "static", &["-static"])?;
    let setuid = directory.join("setuid");
    fs::copy(directory.join("loads"), &setuid).context("setuid")?;
    fs::set_permissions(&setuid, fs::Permissions::from_mode(0o4755)).context("setuid")
}

/// What a shell in the container runs; it ends well whatever is answered.
pub fn script(image: Image) -> String {
    let mut lines = vec![
        "./linked linked".to_owned(),
        "LD_BIND_NOW=1 ./linked 'linked, bound at start'".to_owned(),
        format!("LD_PRELOAD={DATA}/linked.so ./loads 'linked, preloaded'"),
        format!("./loads ways {DATA} {LIBRARIES} {COMPAT}"),
        format!("./static '{STATIC_ALONE}'"),
        "env -i ./loads 'empty environment'".to_owned(),
        "LD_PRELOAD=libcuda.so.1 ./loads 'driver preloaded'".to_owned(),
        format!("LD_LIBRARY_PATH={COMPAT} ./loads 'another driver in LD_LIBRARY_PATH'"),
        format!("./loads 'as nobody' {DATA}/setuid 'setuid program'"),
        "(./loads 'a child of a child')".to_owned(),
        format!("LD_PRELOAD=/dev/gpool/real/libcuda.so.1 ./loads '{DELIBERATE}'"),
    ];
    if image.own_glibc {
        lines.push("./static".to_owned());
    }
    if image.python {
        let script = "import ctypes; cuda = ctypes.CDLL(\"libcuda.so.1\"); size = ctypes.c_size_t(); cuda.cuInit(0); \
                      cuda.cuDeviceTotalMem_v2(ctypes.byref(size), 0); print(size.value >> 20, \"MiB\")";
        lines.push(format!("echo \"{PYTHON}: $(python3 -c '{script}' 2>&1)\""));
    }
    format!("cd {DATA}; {}; echo", lines.join("; "))
}

/// Reads what was printed, a way and its answer on each line.
pub fn answers(printed: &str) -> Answers {
    printed.lines().filter_map(|line| line.split_once(": ")).map(|(way, said)| (way.into(), said.into())).collect()
}

/// Docker's options for a plain container that has the simulated driver in `directory`, as NVIDIA's own toolkit would
/// give it.
pub fn plain_options(directory: &str) -> Vec<String> {
    let [cuda, nvml] = DRIVER_LIBRARIES;
    let libraries = [(nvml, nvml), (cuda, cuda), (cuda, "libcuda.so")]
        .map(|(name, place)| format!("{SIMULATED_GPU}/lib/{name}:{directory}/{place}:ro"));
    let devices =
        ["nvidia0", "nvidiactl", "nvidia-uvm"].map(|node| format!("{SIMULATED_GPU}/dev/{node}:/dev/{node}:rw"));
    let mut options = vec!["--runtime=runc".to_owned(), "-v".to_owned()];
    options.push(format!("{SIMULATED_GPU}/state:{SIMULATED_GPU}/state"));
    options.extend(libraries.into_iter().flat_map(|mount| ["-v".to_owned(), mount]));
    options.extend(devices.into_iter().flat_map(|device| ["--device".to_owned(), device]));
    options
}

/// Judges what the programs in a container said that has a lease, or only the device.
pub fn judge(answers: &Answers, image: Image, is_leased: bool) -> Result<()> {
    let mut wanted: BTreeMap<&str, &str> =
        WAYS.iter().map(|way| (*way, if is_leased { LEASE } else { DEVICE })).collect();
    wanted.extend([(STATIC_ALONE, "runs"), (DELIBERATE, DEVICE), (FORKED, "cuInit 3, cuDeviceTotalMem 3")]);
    if image.python {
        wanted.insert(PYTHON, wanted[WAYS[0]]);
    }
    if image.own_glibc {
        wanted.insert(STATIC, if is_leased { "the shim's" } else { "the driver's" });
    }
    let said = |way: &str| answers.get(way).map_or("no answer", String::as_str);
    let wrong: Vec<String> = (wanted.iter().filter(|(way, want)| said(way) != **want))
        .map(|(way, want)| format!("{way}: {:?} instead of {want:?}", said(way)))
        .collect();
    ensure(wrong.is_empty(), || wrong.join("; "))?;
    ensure(answers.len() == wanted.len(), || format!("answers that nobody expects: {answers:?}"))
}
