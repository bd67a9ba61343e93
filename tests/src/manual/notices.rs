//! The crates that are part of what gpool ships, with their licences, as cargo knows them.

use super::repository;
use crate::failure::{Context, Failure, Result};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages that are shipped; what only tests or the simulated GPU need is not part of them.
const SHIPPED: [&str; 6] = [
    "gpool-cli",
    "gpool-supervisor",
    "gpool-kubernetes",
    "gpool-runtime-hook",
    "gpool-interposer-cuda",
    "gpool-interposer-nvml",
];

const BEGIN: &str = "\
# Third-party software

gpool's programs and shims are built with the crates below, in the versions of Cargo.lock. `make licences` writes the texts
of their licences, as their packages have them, into a file that goes with the programs. Crates that only generate code or
run while building are not listed, nor are those of the tests and of the simulated GPU, which are not shipped.

| crate | version | licence |
|---|---|---|
";

/// The page.
///
/// # Errors
/// When cargo does not answer.
pub fn page() -> Result<String> {
    let metadata = metadata()?;
    let mut rows: Vec<String> = shipped(&metadata)
        .into_iter()
        .map(|package| {
            let text = |field: &str| package[field].as_str().unwrap_or("not stated").to_owned();
            format!("| {} | {} | {} |", text("name"), text("version"), text("license"))
        })
        .collect();
    rows.sort();
    rows.dedup();
    Ok(format!("{BEGIN}{}\n", rows.join("\n")))
}

/// The licences of these crates in full, as their packages have them, for whoever ships programs without sources. A text
/// that several have stands once.
///
/// # Errors
/// When cargo does not answer, or a package has no text of a licence.
pub fn texts() -> Result<String> {
    let metadata = metadata()?;
    let mut by_text: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut without = Vec::new();
    for package in shipped(&metadata) {
        let text = |field: &str| package[field].as_str().unwrap_or_default().to_owned();
        let name = format!("{} {} ({})", text("name"), text("version"), text("license"));
        let manifest = PathBuf::from(text("manifest_path"));
        let found = licence_texts(manifest.parent().unwrap_or(Path::new("/")));
        if found.is_empty() {
            without.push(name.clone());
        }
        for text in found {
            by_text.entry(text).or_default().insert(name.clone());
        }
    }
    let line = "=".repeat(80);
    let section = |(text, names): (&String, &BTreeSet<String>)| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        format!("{line}\n{}\n{line}\n\n{}\n\n", names.join("\n"), text.trim_end())
    };
    let sections: String = by_text.iter().map(section).collect();
    // The expression in their manifests is all that these have.
    Ok(format!("{sections}{line}\nWithout a text of their own: {}\n", without.join(", ")))
}

/// The files of a package that hold licences or notices.
fn licence_texts(directory: &Path) -> Vec<String> {
    let names = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE", "COPYRIGHT"];
    let is_licence = |name: &str| names.iter().any(|start| name.to_ascii_uppercase().starts_with(start));
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let licences = files.filter(|entry| entry.file_name().to_str().is_some_and(is_licence));
    licences.filter_map(|entry| fs::read_to_string(entry.path()).ok()).collect()
}

/// What cargo knows, without asking a registry if it has everything already.
fn metadata() -> Result<Value> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let ask = |more: &[&str]| {
        let mut command = Command::new(&cargo);
        command.args(["metadata", "--locked", "--format-version", "1"]);
        command.args(["--filter-platform", "x86_64-unknown-linux-gnu"]).args(more).current_dir(repository());
        command.output().context("cargo metadata")
    };
    let mut output = ask(&["--offline"])?;
    if !output.status.success() {
        output = ask(&[])?;
    }
    if !output.status.success() {
        return Err(Failure::new(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr))));
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata")
}

/// The packages of others that are part of what is shipped.
fn shipped(metadata: &Value) -> Vec<&Value> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let by_id: BTreeMap<&str, &Value> =
        packages.filter_map(|package| Some((package["id"].as_str()?, package))).collect();
    let nodes = metadata["resolve"]["nodes"].as_array().into_iter().flatten();
    let nodes: BTreeMap<&str, &Value> = nodes.filter_map(|node| Some((node["id"].as_str()?, node))).collect();
    let name = |id: &str| by_id.get(id).and_then(|package| package["name"].as_str()).unwrap_or_default();
    let is_macro = |id: &str| {
        let targets = by_id.get(id).map(|package| list(&package["targets"])).unwrap_or_default();
        targets.iter().any(|target| list(&target["kind"]).iter().any(|kind| kind == "proc-macro"))
    };
    let mut open: Vec<&str> = nodes.keys().copied().filter(|id| SHIPPED.contains(&name(id))).collect();
    let mut reached: BTreeSet<&str> = open.iter().copied().collect();
    while let Some(id) = open.pop() {
        let Some(Value::Array(dependencies)) = nodes.get(id).map(|node| &node["deps"]) else { continue };
        for dependency in dependencies {
            // A kind of null is a dependency of the program itself.
            let is_part = list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            let Some(its) = dependency["pkg"].as_str().filter(|its| is_part && !is_macro(its)) else { continue };
            if reached.insert(its) {
                open.push(its);
            }
        }
    }
    let packages = reached.into_iter().filter_map(|id| by_id.get(id).copied());
    packages.filter(|package| !package["source"].is_null()).collect()
}
