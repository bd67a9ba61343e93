//! The packages as `make package` makes them, held against those that cargo-deb and cargo-generate-rpm make of the same
//! manifest: the same files with the same modes and sizes, scripts, configuration files, dependencies and words.

use crate::booted::{Packages, pack_one};
use crate::failure::{Context, Result, ensure};
use crate::host::succeeded;
use crate::stage::Stage;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const FIELDS: [&str; 10] = [
    "Package",
    "Version",
    "Architecture",
    "Maintainer",
    "Depends",
    "Recommends",
    "Suggests",
    "Section",
    "Priority",
    "Description",
];
const CONTROL_FILES: [&str; 5] = ["conffiles", "preinst", "postinst", "prerm", "postrm"];
/// What is asked of an .rpm: files, then one by one.
const FILES: &str = "[%{FILEMODES:perms} %{FILESIZES} %{FILENAMES}\n]";
const WORDS: &str = "%{NAME} %{VERSION} %{RELEASE} %{ARCH} %{LICENSE} %{SUMMARY}\n";
const QUERIES: [&str; 4] = ["--requires", "--recommends", "--scripts", "--configfiles"];

/// Packs both ways, with those tools that are installed.
pub fn run() -> Result<()> {
    let (has_deb, has_rpm) = (is_installed("cargo-deb"), is_installed("cargo-generate-rpm"));
    if !has_deb && !has_rpm {
        println!("skipped: cargo-deb and cargo-generate-rpm are not installed");
        return Ok(());
    }
    let stage = Stage::of_this_program()?;
    let packages = Packages::for_comparison(&stage);
    pack_one(&stage, &packages)?;
    let mut prepare = Command::new(house().join("packaging/prepare.sh"));
    said("prepare.sh", prepare.arg(stage.root()).arg(stage.root().join("package")))?;
    if has_deb {
        for (variant, name) in [(None, "gpool"), (Some("simulated"), "gpool-simulated-gpu")] {
            let other = by_cargo_deb(&packages, variant)?;
            let own = packages.new_one(name).0;
            same(name, &deb_facts(&own)?, &deb_facts(&other)?)?;
        }
    } else {
        println!("skipped in part: cargo-deb is not installed");
    }
    if has_rpm {
        let other = by_cargo_generate_rpm(&packages)?;
        same("gpool.rpm", &rpm_facts(&packages.new_rpm().0)?, &rpm_facts(&other)?)?;
    } else {
        println!("skipped in part: cargo-generate-rpm is not installed");
    }
    Ok(())
}

fn house() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn said(what: &str, command: &mut Command) -> Result<String> {
    succeeded(what, command.current_dir(house()).env("CARGO_NET_OFFLINE", "true").output().context(what)?)
}

fn by_cargo_deb(packages: &Packages, variant: Option<&str>) -> Result<PathBuf> {
    let file = packages.beside_them(&format!("by-cargo{}.deb", variant.unwrap_or_default()));
    let mut command = Command::new("cargo-deb");
    command.args(["deb", "--no-build", "--no-strip", "--package", "gpool-packaging", "--output"]).arg(&file);
    command.args(variant.map(|variant| format!("--variant={variant}")));
    said("cargo-deb", &mut command)?;
    Ok(file)
}

fn by_cargo_generate_rpm(packages: &Packages) -> Result<PathBuf> {
    let file = packages.beside_them("by-cargo.rpm");
    let mut command = Command::new("cargo-generate-rpm");
    said("cargo-generate-rpm", command.args(["generate-rpm", "--package", "packaging", "--output"]).arg(&file))?;
    Ok(file)
}

/// What can be said of a .deb, one fact a line.
fn deb_facts(file: &Path) -> Result<BTreeSet<String>> {
    let ask = |arguments: &[&str], more: &[&str]| {
        said("dpkg-deb", Command::new("dpkg-deb").args(arguments).arg(file).args(more))
    };
    let mut facts = BTreeSet::new();
    for line in ask(&["--contents"], &[])?.lines().filter(|line| !line.starts_with('d')) {
        // Mode, owner, size, day, time, name. Root has no name in cargo-deb's archives, and it writes a file of its own
        // in place of the licence.
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = words.last().map_or("", |name| name.trim_start_matches("./").trim_start_matches('/'));
        let owner = words[1].replace("root", "0");
        let size = if name.ends_with("/copyright") { "" } else { words[2] };
        facts.insert(format!("file {} {owner} {size} {name}", words[0]));
    }
    for field in FIELDS {
        facts.insert(format!("{field}: {}", ask(&["--field"], &[field])?.trim()));
    }
    for control in CONTROL_FILES {
        facts.insert(format!("{control}: {}", ask(&["--info"], &[control]).unwrap_or_default().trim()));
    }
    Ok(facts)
}

/// What can be said of an .rpm. Directories are listed by rpmbuild alone; what the format itself asks for, the scripts'
/// shell included, each of both says in its own words; and the description is the summary once more to one of them.
fn rpm_facts(file: &Path) -> Result<BTreeSet<String>> {
    let ask =
        |arguments: &[&str]| said("rpm", Command::new("rpm").args(["-qp", "--nosignature"]).args(arguments).arg(file));
    let files = ask(&["--queryformat", FILES])?;
    let mut facts: BTreeSet<String> =
        files.lines().filter(|line| !line.starts_with('d')).map(|line| format!("file {line}")).collect();
    facts.insert(ask(&["--queryformat", WORDS])?.trim().to_owned());
    for query in QUERIES {
        let answer = ask(&[query])?;
        let of_format = ["rpmlib(", "config(", "/bin/sh"];
        let is_own = |line: &&str| !line.trim().is_empty() && !of_format.iter().any(|start| line.starts_with(start));
        let without_shell = |line: &str| line.trim_end().replace(" (using /bin/sh):", ":");
        let mut lines: Vec<String> = answer.lines().filter(is_own).map(without_shell).collect();
        lines.dedup();
        facts.insert(format!("{query}: {}", lines.join("\n")));
    }
    Ok(facts)
}

fn same(name: &str, own: &BTreeSet<String>, others: &BTreeSet<String>) -> Result<()> {
    let only = |one: &BTreeSet<String>, other: &BTreeSet<String>| one.difference(other).cloned().collect::<Vec<_>>();
    let (here, there) = (only(own, others), only(others, own));
    ensure(own.len() > FIELDS.len() && here.is_empty() && there.is_empty(), || {
        format!("{name}: make package alone says\n{}\nand the tool alone\n{}", here.join("\n"), there.join("\n"))
    })
}
