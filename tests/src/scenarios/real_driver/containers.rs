//! The same questions to the same libraries, in a container that has nothing of gpool and in a leased one.

use super::answers::Answers;
use super::{GLIBCS, MUSL, RUNTIMES, verdicts};
use crate::c_program::{MUSL_LOADER, compile_for_any_glibc, compile_for_musl};
use crate::downloads::Downloads;
use crate::exports;
use crate::failure::{Context, Failure, Result};
use crate::host::{DRIVER_LIBRARIES, Host, SIMULATED_GPU, succeeded};
use crate::image;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("../../../programs/driver_answers.c");
const MUSL_SOURCE: &str = include_str!("../../../programs/musl.c");
/// Where gpool puts the driver in an image without one.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
/// Where the program and its questions are, in the run and in the containers.
const DATA: &str = "/run/gpool-answers";

/// The program, the names to ask for, the other glibcs and the CUDA runtimes.
#[derive(Debug)]
pub struct Data {
    /// What the containers run: a heading for each question, then its answers.
    script: String,
}

impl Data {
    /// Compiles the program and copies what has been downloaded beside it.
    pub fn lay_out(downloads: &Downloads) -> Result<Self> {
        let directory = Path::new(DATA);
        let program = compile_for_any_glibc(SOURCE, directory, "answers")?;
        let mut script = String::new();
        questions(&mut script, "", &program.display().to_string());
        for packages in GLIBCS {
            let Some(unpacked) = downloads.unpacked(&packages) else { continue };
            let libraries = directory.join(packages.suite);
            copy(&libraries_in(&unpacked)?, &libraries)?;
            let loader = libraries.join("ld-linux-x86-64.so.2");
            let started = format!("{} --library-path {} {}", loader.display(), libraries.display(), program.display());
            questions(&mut script, &format!(" glibc-{}", packages.suite), &started);
        }
        if let Some(musl) = downloads.unpacked(&MUSL) {
            let program = compile_for_musl(MUSL_SOURCE, directory, "musl", &musl, directory.join(MUSL_LOADER))?;
            script += &format!("echo '## musl'; LD_LIBRARY_PATH={LIBRARIES} {}\n", program.display());
        }
        // The newest runtime is written in C++; apt is too, so that Debian always has its library.
        copy(Path::new("/usr/lib/x86_64-linux-gnu/libstdc++.so.6"), &directory.join("libstdc++.so.6"))?;
        for name in RUNTIMES {
            let Some(library) = downloads.unpacked_wheel(name).as_deref().and_then(runtime_in) else { continue };
            let file = directory.join(library.file_name().unwrap_or_default());
            fs::copy(&library, &file).context(library.display())?;
            let asked = format!("LD_LIBRARY_PATH={DATA} {} runtime {}", program.display(), file.display());
            script += &format!("echo '## runtime {name}'; {asked}\n");
        }
        // The script ends well whatever was answered: answers are judged by comparison.
        script += "echo '## end'; echo end\n";
        Ok(Self { script })
    }

    /// Writes what the libraries of `driver` define, by their own files.
    pub fn write_names(&self, driver: &Path) -> Result<()> {
        for library in DRIVER_LIBRARIES {
            let names: Vec<String> = exports::of(&driver.join(library))?.into_iter().collect();
            // What programs ask cuGetProcAddress for has no version.
            let asked: Vec<&str> = names.iter().flat_map(|name| [name, verdicts::base_name(name)]).collect();
            fs::write(format!("{DATA}/{library}.asked"), asked.join("\n")).context(library)?;
            fs::write(format!("{DATA}/{library}.names"), names.join("\n")).context(library)?;
        }
        Ok(())
    }
}

/// All questions that need nothing but the driver.
fn questions(script: &mut String, suffix: &str, program: &str) {
    for library in DRIVER_LIBRARIES {
        *script +=
            &format!("echo '## exports {library}{suffix}'; {program} exports {library} {DATA}/{library}.names\n");
    }
    *script += &format!("echo '## lookups{suffix}'; {program} lookups {DATA}/libcuda.so.1.asked\n");
    *script += &format!("echo '## begin{suffix}'; {program} begin\n");
}

/// The answers of NVIDIA's libraries themselves, with the same device nodes.
pub fn ask_natively(host: &Host, data: &Data, driver: &Path) -> Result<Answers> {
    let mounts = DRIVER_LIBRARIES.map(|library| format!("{}:{LIBRARIES}/{library}:ro", driver.join(library).display()));
    let devices =
        ["nvidia0", "nvidiactl", "nvidia-uvm"].map(|node| format!("{SIMULATED_GPU}/dev/{node}:/dev/{node}:rw"));
    let mounts = mounts.iter().flat_map(|mount| ["-v", mount]);
    let options: Vec<&str> = mounts.chain(devices.iter().flat_map(|device| ["--device", device])).collect();
    ask(host, data, "runc", &options)
}

/// The answers in a leased container.
pub fn ask_leased(host: &Host, data: &Data) -> Result<Answers> {
    ask(host, data, "gpool", &["-e", "GPOOL_FRACTION=0.1", "-e", "GPOOL_MEMORY=1GiB"])
}

fn ask(host: &Host, data: &Data, runtime: &str, options: &[&str]) -> Result<Answers> {
    let (runtime, mount) = (format!("--runtime={runtime}"), format!("{DATA}:{DATA}:ro"));
    let fixed = ["run", "--rm", &runtime, "-v", &mount];
    let command = [image::NAME, "sh", "-c", &data.script];
    let arguments: Vec<&str> = fixed.iter().chain(options).chain(&command).copied().collect();
    Ok(Answers::read(&succeeded("the container that asks", host.docker(&arguments)?)?))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let copied = Command::new("cp").arg("-aL").args([from, to]).status().context("cp")?;
    if copied.success() { Ok(()) } else { Err(Failure::new(format!("{} cannot be copied", from.display()))) }
}

/// glibc's directory below an unpacked package: with a merged /usr or without.
fn libraries_in(unpacked: &Path) -> Result<PathBuf> {
    let places = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|place| unpacked.join(place));
    let found = places.iter().find(|place| place.join("libc.so.6").exists());
    found.cloned().ok_or_else(|| Failure::new(format!("{} has no libc.so.6", unpacked.display())))
}

/// The CUDA runtime below an unpacked wheel.
fn runtime_in(unpacked: &Path) -> Option<PathBuf> {
    let below = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let libraries = below(&unpacked.join("nvidia")).flat_map(|package| below(&package.join("lib")).collect::<Vec<_>>());
    let is_runtime =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcudart.so."));
    libraries.into_iter().find(is_runtime)
}
