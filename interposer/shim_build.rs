// Shared by the build scripts of both shims (included, because a build script cannot depend on a sibling file).
//
// Makes the table of entry points: hooked names first, then those that are passed on with a look at the lease, then the rest of a
// driver generation's export list as trampolines;
// and a stub library whose SONAME is the absolute path of the real library in a container, so that the linker
// writes exactly that path into DT_NEEDED.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Functions that glibc 2.34 moved into libc.so.6, and the libraries that had them before. Linked against those, which
/// every glibc still brings, the shims ask for the first version that there was on x86-64 and not for that of the
/// glibc that they are built with. Nothing else that they call is younger than glibc 2.17.
const MOVED: [(&str, &[&str]); 1] = [("libdl.so.2", &["dlopen", "dlsym"])];
/// The version that these functions have had since the first glibc for x86-64.
const FIRST_VERSION: &str = "GLIBC_2.2.5";

/// Names the generation of the driver whose names the shim exports: a file of driver-abi/symbols.
const GENERATION: &str = "GPOOL_DRIVER_GENERATION";
/// All generations, the oldest first; every supported driver has its names. For the one that is built and those before
/// it `driver_NNN` is set, which exports the functions that have come with it.
const GENERATIONS: [&str; 4] = ["535", "550", "555", "580"];

/// By its build id the host tells which build a process has mapped. Linkers differ in whether they give one unasked.
const BUILD_ID: &str = "-Wl,--build-id=sha1";

/// What the shim refers to of its own functions is its own, whatever another library of the process exports under their
/// names; and the loader need not search all libraries for each of them when it loads the shim.
const SYMBOLIC: &str = "-Wl,-Bsymbolic-functions";

struct Shim {
    /// SONAME of the library that the shim stands in for.
    soname: &'static str,
    /// Path of the real library in a container.
    real: &'static str,
    /// What the files with its export lists begin with.
    symbols: &'static str,
    /// The file with the names that are passed on once the lease is there, if there are such.
    touched: Option<&'static str>,
}

fn lines(path: &str) -> Vec<String> {
    println!("cargo::rerun-if-changed={path}");
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).map(String::from).collect()
}

/// The names one after the other, as the inside of a byte string literal: how many bytes each shares with the one
/// before it, how many more it has, and these. Half as long as the names.
fn front_coded(names: &[&String]) -> String {
    let (mut text, mut before) = (String::new(), "");
    for name in names {
        let shared = before.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
        write!(text, "\\x{shared:02x}\\x{:02x}{}", name.len() - shared, &name[shared..]).unwrap();
        before = name;
    }
    text
}

/// The hash by which a library's table of exports has a name: GNU's, which begins with 5381 and times 33 adds each byte.
fn gnu_hash(name: &str) -> u32 {
    name.bytes().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)))
}

fn table(shim: &Shim) -> String {
    let (hooked, mut touched) = (lines("hooked.txt"), shim.touched.map_or_else(Vec::new, lines));
    // The more a name shares with the one before, the less room it takes.
    touched.sort_unstable();
    println!("cargo::rerun-if-env-changed={GENERATION}");
    let generation = std::env::var(GENERATION).unwrap_or_else(|_| GENERATIONS[0].into());
    let place = GENERATIONS.iter().position(|known| *known == generation);
    let place = place.unwrap_or_else(|| panic!("{GENERATION}={generation} is none of {GENERATIONS:?}"));
    GENERATIONS.iter().for_each(|known| println!("cargo::rustc-check-cfg=cfg(driver_{known})"));
    GENERATIONS[..=place].iter().for_each(|known| println!("cargo::rustc-cfg=driver_{known}"));
    let baseline = lines(&format!("../../driver-abi/symbols/{}-{generation}.txt", shim.symbols));
    let rest: Vec<&String> = baseline.iter().filter(|name| !hooked.contains(name) && !touched.contains(name)).collect();
    let all: Vec<&String> = hooked.iter().chain(&touched).chain(rest.iter().copied()).collect();
    let mut text = String::new();
    let replaced = hooked.len() + touched.len();
    writeln!(text, "pub const COUNT: usize = {};\npub const HOOKED: usize = {};", all.len(), hooked.len()).unwrap();
    writeln!(text, "pub const REPLACED: usize = {replaced};").unwrap();
    writeln!(text, "pub static NAMES: &[u8] = b\"{}\";", front_coded(&all)).unwrap();
    let hashes: Vec<u32> = all.iter().map(|name| gnu_hash(name)).collect();
    writeln!(text, "pub static HASHES: [u32; COUNT] = {hashes:?};").unwrap();
    writeln!(text, "pub const LONGEST: usize = {};", all.iter().map(|name| name.len()).max().unwrap_or(0)).unwrap();
    // Distances, because an address would need a relocation of 24 bytes.
    text.push_str("core::arch::global_asm!(\"\t.pushsection .rodata.gpool_ours,\\\"a\\\",@progbits\\n\t.balign 4\\n\\\n");
    text.push_str("\t.hidden gpool_ours\\n\t.globl gpool_ours\\ngpool_ours:\\n\\\n");
    all[..replaced].iter().for_each(|name| writeln!(text, "\t.long {{{name}}} - gpool_ours\\n\\").unwrap());
    text.push_str("\t.popsection\",\n");
    hooked.iter().for_each(|name| writeln!(text, "    {name} = sym crate::exports::{name},").unwrap());
    touched.iter().for_each(|name| writeln!(text, "    {name} = sym {name},").unwrap());
    text.push_str(");\npub mod index {\n");
    all.iter().enumerate().for_each(|(i, name)| writeln!(text, "    pub const {name}: usize = {i};").unwrap());
    text.push_str("}\n");
    for (i, name) in touched.iter().enumerate() {
        let offset = (hooked.len() + i) * 8;
        // As of those that are answered, only what the driver exports is exported.
        let export = if baseline.contains(name) { "#[unsafe(no_mangle)]\n" } else { "" };
        writeln!(
            text,
            "#[unsafe(naked)]\n{export}pub unsafe extern \"C\" fn {name}() {{\n    \
             core::arch::naked_asm!(\"lea r11, [rip + {{slots}} + {offset}]\", \"jmp {{pass}}\", \
             slots = sym crate::entry::SLOTS, pass = sym crate::touched::pass)\n}}"
        )
        .unwrap();
    }
    for (i, name) in rest.iter().enumerate() {
        let offset = (replaced + i) * 8;
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
    let real = stub(out, "gpoolreal", shim.real, "int gpool_real_library_stub;\n", &[]);
    let soname = format!("-Wl,-soname,{}", shim.soname);
    for argument in [soname.as_str(), "-Wl,-z,now", "-Wl,-z,nodelete", SYMBOLIC, BUILD_ID] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    // Zstandard calls these where the program has them, which is not ours to find out.
    for weak in ["ZSTD_trace_decompress_begin", "ZSTD_trace_decompress_end"] {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--defsym={weak}=0");
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,--push-state,--no-as-needed");
    println!("cargo::rustc-cdylib-link-arg={}", real.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,--pop-state");
    println!("cargo::rustc-link-search=native={}", out.display());
    for (soname, functions) in MOVED {
        let name = format!("gpool{}", soname.split('.').next().unwrap());
        let versions = out.join(format!("{name}.versions"));
        std::fs::write(&versions, format!("{FIRST_VERSION} {{ global: {}; local: *; }};\n", functions.join("; "))).unwrap();
        let source: String = functions.iter().map(|function| format!("void {function}(void) {{}}\n")).collect();
        stub(out, &name, soname, &source, &[format!("-Wl,--version-script={}", versions.display())]);
        // Before libc on the linker's command line, as a library of the crate itself is.
        println!("cargo::rustc-link-lib=dylib={name}");
    }
}

/// Makes lib`name`.so in `out`, which only the linker ever sees: it says `soname` and defines what `source` does.
fn stub(out: &Path, name: &str, soname: &str, source: &str, more: &[String]) -> PathBuf {
    let (file, library) = (out.join(format!("{name}.c")), out.join(format!("lib{name}.so")));
    std::fs::write(&file, source).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    // Without the standard libraries: a function here has the name, and not the type, of one that is built in.
    let status = Command::new(&compiler)
        .args(["-shared", "-nostdlib", "-fno-builtin", "-w", "-o"])
        .args([&library, &file])
        .arg(format!("-Wl,-soname,{soname}"))
        .args(more)
        .status()
        .unwrap_or_else(|error| panic!("{compiler}: {error}; a C compiler is needed to link"));
    assert!(status.success(), "{compiler} could not link {}", library.display());
    library
}
