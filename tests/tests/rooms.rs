//! The rules of the house: which room may depend on which, and how large a file may be.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What each package may depend on; everything that is not named is forbidden. Packages of the same room are listed
/// by their full names. `tests` may depend on everything.
const ALLOWED: [(&str, &[&str]); 20] = [
    ("gpool-driver-abi", &[]),
    ("gpool-shared-region", &[]),
    ("gpool-device-model", &[]),
    ("gpool-protocol", &[]),
    ("gpool-configuration", &[]),
    ("gpool-policy", &[]),
    ("gpool-policy-simulator", &["gpool-policy", "gpool-device-model"]),
    ("gpool-interposer-logic", &["gpool-driver-abi", "gpool-shared-region"]),
    ("gpool-interposer-cuda", &["gpool-driver-abi", "gpool-shared-region", "gpool-interposer-logic"]),
    ("gpool-interposer-nvml", &["gpool-driver-abi", "gpool-shared-region", "gpool-interposer-logic"]),
    ("gpool-simulated-hardware", &["gpool-driver-abi", "gpool-device-model"]),
    ("gpool-simulated-ptx", &[]),
    (
        "gpool-simulated-cuda",
        &["gpool-driver-abi", "gpool-device-model", "gpool-simulated-hardware", "gpool-simulated-ptx"],
    ),
    ("gpool-simulated-nvml", &["gpool-driver-abi", "gpool-device-model", "gpool-simulated-hardware"]),
    (
        "gpool-supervisor",
        &["gpool-driver-abi", "gpool-shared-region", "gpool-policy", "gpool-protocol", "gpool-configuration"],
    ),
    // Its own tests have its kernels executed.
    ("gpool-gpu-test", &["gpool-driver-abi", "gpool-protocol", "gpool-simulated-ptx"]),
    ("gpool-packaging", &["gpool-cli", "gpool-supervisor", "gpool-kubernetes"]),
    ("gpool-kubernetes", &["gpool-protocol"]),
    ("gpool-runtime-hook", &["gpool-protocol", "gpool-configuration"]),
    (
        "gpool-cli",
        &["gpool-device-model", "gpool-policy", "gpool-policy-simulator", "gpool-protocol", "gpool-configuration"],
    ),
];

/// Async runtimes and what brings them: the wire protocol stays usable from a hook.
const NEVER_IN_PROTOCOL: [&str; 5] = ["tokio", "async-std", "futures", "hyper", "reqwest"];

const MAIN_FILE_LINES: usize = 15;
const FILE_LINES: usize = 500;
const FORBIDDEN_NAMES: [&str; 7] = ["utils", "common", "helpers", "misc", "manager", "core", "types"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn packages() -> Vec<Value> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let arguments = ["metadata", "--offline", "--no-deps", "--format-version", "1"];
    let output = Command::new(cargo).args(arguments).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

fn name(value: &Value) -> &str {
    value["name"].as_str().unwrap()
}

#[test]
fn rooms_depend_only_on_what_the_design_allows() {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.into_iter().collect();
    let mut wrong = Vec::new();
    for package in packages().iter().filter(|package| name(package) != "gpool-tests") {
        let Some(may) = allowed.get(name(package)) else {
            wrong.push(format!("{} has no place in the house", name(package)));
            continue;
        };
        for dependency in package["dependencies"].as_array().unwrap() {
            let is_ours = name(dependency).starts_with("gpool-");
            if is_ours && !may.contains(&name(dependency)) {
                wrong.push(format!("{} must not depend on {}", name(package), name(dependency)));
            }
            if name(package) == "gpool-protocol" && NEVER_IN_PROTOCOL.contains(&name(dependency)) {
                wrong.push(format!("the protocol must not depend on {}", name(dependency)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_rule_is_about_a_package_that_exists() {
    let packages = packages();
    let names: BTreeSet<&str> = packages.iter().map(name).collect();
    let unknown: Vec<&str> =
        ALLOWED.iter().map(|(package, _)| *package).filter(|package| !names.contains(package)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn programs_are_thin() {
    let packages = packages();
    let targets = packages.iter().flat_map(|package| package["targets"].as_array().unwrap());
    let is_program = |target: &&Value| target["kind"].as_array().unwrap().iter().any(|kind| kind == "bin");
    for program in targets.filter(is_program) {
        let path = program["src_path"].as_str().unwrap();
        let lines = fs::read_to_string(path).unwrap().lines().count();
        assert!(lines <= MAIN_FILE_LINES, "{path} has {lines} lines");
    }
}

/// The tenant stands for any program, so it finds the driver as any program does and shares no code with the rest.
#[test]
fn the_tenant_knows_nothing_of_gpool() {
    let folder = root().join("tests/src/workload");
    let files: Vec<PathBuf> = source_files().into_iter().filter(|file| file.starts_with(&folder)).collect();
    assert!(!files.is_empty());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let foreign = ["gpool_", "crate::", "GPOOL_"].iter().find(|name| text.contains(**name));
        assert!(foreign.is_none(), "{} uses {foreign:?}", file.display());
    }
}

#[test]
fn files_are_short_and_say_what_they_hold() {
    for file in source_files() {
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= FILE_LINES, "{} has {lines} lines", file.display());
        let parts = file.strip_prefix(root()).unwrap().with_extension("");
        let forbidden = parts.iter().find(|part| FORBIDDEN_NAMES.iter().any(|name| part == name));
        assert!(forbidden.is_none(), "{} is named {forbidden:?}, which says nothing", file.display());
    }
}

/// Every Rust file of the packages.
fn source_files() -> Vec<PathBuf> {
    let packages = packages();
    let manifests = packages.iter().map(|package| Path::new(package["manifest_path"].as_str().unwrap()));
    let mut folders: Vec<PathBuf> = manifests.map(|manifest| manifest.parent().unwrap().to_owned()).collect();
    let mut files = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            match entry.file_type().unwrap().is_dir() {
                true if path.file_name().is_some_and(|name| name != "target") => folders.push(path),
                false if path.extension().is_some_and(|extension| extension == "rs") => drop(files.insert(path)),
                _ => {}
            }
        }
    }
    files.into_iter().collect()
}
