//! Programs in C, compiled by the machine's compiler when a test needs them: they load the driver as others do.

use crate::failure::{Context, Failure, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What programs include: to run with any glibc, and to use the driver.
const HEADERS: [(&str, &str); 2] = [
    ("any_glibc.h", include_str!("../programs/any_glibc.h")),
    ("driver_use.h", include_str!("../programs/driver_use.h")),
];

/// Compiles `source` to `directory`/`name`, with the compiler's further `arguments`.
///
/// # Errors
/// What the compiler said.
pub fn compile(source: &str, directory: &Path, name: &str, arguments: &[&str]) -> Result<PathBuf> {
    fs::create_dir_all(directory).context(directory.display())?;
    let (program, file) = (directory.join(name), directory.join(format!("{name}.c")));
    fs::write(&file, source).context(file.display())?;
    for (header, text) in HEADERS {
        fs::write(directory.join(header), text).context(header)?;
    }
    let output = Command::new("/usr/bin/cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, &file])
        .args(arguments)
        .output()
        .context("cc cannot be started")?;
    match output.status.success() {
        true => Ok(program),
        false => Err(Failure::new(format!("cc {name}: {}", String::from_utf8_lossy(&output.stderr)))),
    }
}

/// The same for a program that includes `any_glibc.h`.
pub fn compile_for_any_glibc(source: &str, directory: &Path, name: &str) -> Result<PathBuf> {
    compile_with(source, directory, name, &["-nostartfiles"], &[])
}

/// The same, linked with the libraries `more`.
pub fn compile_linked_for_any_glibc(source: &str, directory: &Path, name: &str, more: &[&str]) -> Result<PathBuf> {
    compile_with(source, directory, name, &["-nostartfiles"], more)
}

/// A library of the same kind, linked with the libraries `more`.
pub fn compile_library_for_any_glibc(source: &str, directory: &Path, name: &str, more: &[&str]) -> Result<PathBuf> {
    compile_with(source, directory, name, &["-shared", "-fPIC", "-DLIBRARY"], more)
}

fn compile_with(source: &str, directory: &Path, name: &str, kind: &[&str], more: &[&str]) -> Result<PathBuf> {
    let old = ["-Wl,--no-as-needed", "-l:libdl.so.2", "-l:libpthread.so.0"];
    compile(source, directory, name, &[kind, &old, more].concat())
}

/// The loader of [`compile_for_musl`], beside the program.
pub const MUSL_LOADER: &str = "ld-musl-x86_64.so.1";

/// The same for musl, unpacked in `musl` with its headers. The loader is copied beside the program, which looks for it at
/// `place`.
pub fn compile_for_musl(
    source: &str,
    directory: &Path,
    name: &str,
    musl: &Path,
    place: impl AsRef<Path>,
) -> Result<PathBuf> {
    let loader = directory.join(MUSL_LOADER);
    fs::copy(musl.join("usr/lib/x86_64-linux-musl/libc.so"), &loader).context("musl's loader")?;
    let path = |path: &str| musl.join(path).display().to_string();
    let libraries = path("usr/lib/x86_64-linux-musl");
    let arguments = [
        "-nostdinc".to_owned(),
        format!("-I{}", path("usr/include/x86_64-linux-musl")),
        "-nostdlib".to_owned(),
        "-no-pie".to_owned(),
        format!("-Wl,--dynamic-linker={}", place.as_ref().display()),
        format!("{libraries}/crt1.o"),
        format!("{libraries}/crti.o"),
        format!("-L{libraries}"),
        // By its name alone: the loader takes that for itself, wherever it lies.
        "-l:libc.so".to_owned(),
        format!("{libraries}/crtn.o"),
    ];
    compile(source, directory, name, &arguments.each_ref().map(String::as_str))
}
