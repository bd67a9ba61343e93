// Shared by the build scripts of both shims (included, because a build script cannot depend on a sibling file).
//
// Makes the table of entry points: hooked names first, then the rest of the baseline's export list as trampolines;
// and a stub library whose SONAME is the absolute path of the real library in a container, so that the linker
// writes exactly that path into DT_NEEDED.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

struct Shim {
    /// SONAME of the library that the shim stands in for.
    soname: &'static str,
    /// Path of the real library in a container.
    real: &'static str,
    /// The baseline's export list.
    symbols: &'static str,
}

fn lines(path: &str) -> Vec<String> {
    println!("cargo::rerun-if-changed={path}");
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).map(String::from).collect()
}

/// `cuMemAlloc_v2_ptds` -> `cuMemAlloc`: the name that a program gives to cuGetProcAddress.
fn base_name(name: &str) -> String {
    let name = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    match name.rsplit_once("_v") {
        Some((base, digits)) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => base.to_owned(),
        _ => name.to_owned(),
    }
}

/// The names one after the other, as the inside of a byte string literal: how many bytes each shares with the one
/// before it, the rest of its bytes, a zero. Half as long as the names.
fn front_coded(names: &[&String]) -> String {
    let (mut text, mut before) = (String::new(), "");
    for name in names {
        let shared = before.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
        write!(text, "\\x{shared:02x}{}\\0", &name[shared..]).unwrap();
        before = name;
    }
    text
}

fn table(shim: &Shim) -> String {
    let hooked = lines("hooked.txt");
    let baseline = lines(shim.symbols);
    let rest: Vec<&String> = baseline.iter().filter(|name| !hooked.contains(name)).collect();
    let all: Vec<&String> = hooked.iter().chain(rest.iter().copied()).collect();
    let mut text = String::new();
    writeln!(text, "pub const COUNT: usize = {};\npub const HOOKED: usize = {};", all.len(), hooked.len()).unwrap();
    writeln!(text, "pub static NAMES: &[u8] = b\"{}\";", front_coded(&all)).unwrap();
    writeln!(text, "pub const LONGEST: usize = {};", all.iter().map(|name| name.len()).max().unwrap_or(0)).unwrap();
    text.push_str("pub static OURS: [crate::entry::Ours; HOOKED] = [\n");
    hooked.iter().for_each(|name| writeln!(text, "    crate::entry::Ours(crate::exports::{name} as *const core::ffi::c_void),").unwrap());
    text.push_str("];\npub mod index {\n");
    all.iter().enumerate().for_each(|(i, name)| writeln!(text, "    pub const {name}: usize = {i};").unwrap());
    let bases: BTreeSet<String> = hooked.iter().map(|name| base_name(name)).collect();
    writeln!(text, "}}\npub static BASES: [&core::ffi::CStr; {}] = [", bases.len()).unwrap();
    bases.iter().for_each(|name| writeln!(text, "    c\"{name}\",").unwrap());
    text.push_str("];\n");
    for (i, name) in rest.iter().enumerate() {
        let offset = (hooked.len() + i) * 8;
        writeln!(
            text,
            "#[unsafe(naked)]\n#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn {name}() {{\n    \
             core::arch::naked_asm!(\"jmp qword ptr [rip + {{slots}} + {offset}]\", slots = sym crate::entry::SLOTS)\n}}"
        )
        .unwrap();
    }
    text
}

fn build(shim: &Shim) {
    let out = std::env::var("OUT_DIR").unwrap();
    let out = Path::new(&out);
    println!("cargo::rerun-if-changed=../shim_build.rs");
    println!("cargo::rerun-if-changed=build.rs");
    std::fs::write(out.join("table.rs"), table(shim)).unwrap();
    let (source, stub) = (out.join("stub.c"), out.join("libgpoolreal.so"));
    std::fs::write(&source, "int gpool_real_library_stub;\n").unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(&compiler)
        .args(["-shared", "-o"])
        .args([&stub, &source])
        .arg(format!("-Wl,-soname,{}", shim.real))
        .status()
        .unwrap_or_else(|error| panic!("{compiler}: {error}; a C compiler is needed to link"));
    assert!(status.success(), "{compiler} could not link {}", stub.display());
    for argument in [format!("-Wl,-soname,{}", shim.soname), "-Wl,-z,now".into(), "-Wl,-z,nodelete".into()] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,--push-state,--no-as-needed");
    println!("cargo::rustc-cdylib-link-arg={}", stub.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,--pop-state");
}
