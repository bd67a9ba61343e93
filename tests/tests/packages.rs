//! What the manifest of the packages says twice, because its readers want it so, is the same both times.

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging")
}

fn metadata() -> Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let arguments = ["metadata", "--offline", "--no-deps", "--format-version", "1"];
    let output = Command::new(cargo).args(arguments).current_dir(packaging()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = all["packages"].as_array().unwrap().iter().find(|package| package["name"] == "gpool-packaging");
    found.unwrap()["metadata"].clone()
}

/// Source, place and mode of each file.
fn files(assets: &Value) -> Vec<(String, String, String)> {
    let text = |asset: &Value, key: &str| asset[key].as_str().unwrap().to_owned();
    let assets = assets.as_array().unwrap().iter();
    assets.map(|asset| (text(asset, "source"), text(asset, "dest"), text(asset, "mode"))).collect()
}

#[test]
fn both_packages_hold_the_same_files() {
    let metadata = metadata();
    let (deb, rpm) = (files(&metadata["deb"]["assets"]), files(&metadata["generate-rpm"]["assets"]));
    // Debian's own helper enables the units there.
    let is_preset = |file: &(String, String, String)| file.1.contains("system-preset");
    assert_eq!(rpm.iter().filter(|file| is_preset(file)).count(), 1);
    // Each zsh looks in one of these by itself: Debian's in the first, others in the second.
    let is_for_zsh = |file: &(String, String, String)| file.1.starts_with("/usr/share/zsh/");
    let for_zsh =
        |files: &[(String, String, String)]| files.iter().filter(|file| is_for_zsh(file)).cloned().collect::<Vec<_>>();
    let [(source, place, _)] = for_zsh(&deb).try_into().unwrap();
    let [(same, other, _)] = for_zsh(&rpm).try_into().unwrap();
    assert_eq!(
        (source, place.as_str(), other.as_str()),
        (same, "/usr/share/zsh/vendor-completions/", "/usr/share/zsh/site-functions/")
    );
    let shared = |files: Vec<(String, String, String)>| {
        files.into_iter().filter(|file| !is_preset(file) && !is_for_zsh(file)).collect::<Vec<_>>()
    };
    assert_eq!(shared(deb), shared(rpm));
    let kept = metadata["deb"]["conf-files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap().to_owned());
    let assets = metadata["generate-rpm"]["assets"].as_array().unwrap();
    let marked = assets.iter().filter(|asset| !asset["config"].is_null()).map(|asset| {
        let name = Path::new(asset["source"].as_str().unwrap()).file_name().unwrap().to_str().unwrap().to_owned();
        format!("{}{name}", asset["dest"].as_str().unwrap())
    });
    assert_eq!(kept.collect::<Vec<_>>(), marked.collect::<Vec<_>>());
}

#[test]
fn the_scripts_know_the_layout_of_regions_that_this_version_reads() {
    for script in ["debian/preinst", "rpm/pre"] {
        let text = std::fs::read_to_string(packaging().join(script)).unwrap();
        let line = format!("newest={}", gpool_shared_region::VERSION);
        assert!(text.lines().any(|found| found == line), "{script} lacks {line}");
    }
}

/// apt and rpm take no package for newer whose version is the same.
#[test]
fn a_package_of_a_later_commit_is_newer() {
    let output = Command::new(packaging().join("version.sh")).output().unwrap();
    let version = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    assert!(output.status.success() && version.starts_with(env!("CARGO_PKG_VERSION")), "{version}");
    if packaging().join("../.git").exists() {
        let commit = version.strip_prefix(concat!(env!("CARGO_PKG_VERSION"), "+")).unwrap();
        let (time, name) = commit.split_once(".g").unwrap();
        assert!(time.len() == 14 && time.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty(), "{version}");
    }
    let release = env!("CARGO_PKG_VERSION");
    let later = format!("{release}+20261201000000.g00000000");
    let order = [release, &format!("{release}+20261130235959.gffffffff"), &later, &format!("{later}.changed"), "9.0.0"];
    for pair in order.windows(2) {
        let status = Command::new("dpkg").args(["--compare-versions", pair[0], "lt", pair[1]]).status();
        assert!(status.is_ok_and(|status| status.success()), "{pair:?}");
    }
}

/// What a script leaves in the place of gpool-runtime.
fn left(script: &str) -> String {
    let text = std::fs::read_to_string(packaging().join(script)).unwrap();
    text.split_once("<< 'END'\n").unwrap().1.split_once("END\n").unwrap().0.to_owned()
}

/// An engine that has not been restarted calls it for new containers as well: those with a share would run without a GPU.
#[test]
fn what_a_removal_leaves_stops_containers_and_makes_none_with_a_share() {
    let text = left("debian/postrm");
    assert_eq!(text, left("rpm/postun"));
    let variables = gpool_configuration::REQUEST_KEYS.map(|key| key.to_uppercase().replace('-', "_")).join("|");
    assert!(text.contains(&format!("GPOOL_({variables})=")), "variables are {variables}");

    let directory = tempfile::tempdir().unwrap();
    let (runtime, low_level) = (directory.path().join("gpool-runtime"), directory.path().join("low level"));
    std::fs::write(&runtime, text.replace("LOW_LEVEL", low_level.to_str().unwrap())).unwrap();
    std::fs::write(&low_level, "#!/bin/sh\nprintf '%s|' \"$@\"\n").unwrap();
    std::fs::set_permissions(&low_level, std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = |folder: &str, text: &str| {
        std::fs::create_dir(directory.path().join(folder)).unwrap();
        std::fs::write(directory.path().join(folder).join("config.json"), text).unwrap();
    };
    config(
        "plain",
        r#"{"process":{"env":["PATH=/bin","GPOOL_SERVICE_HOST=10.0.0.1","GPOOL_PORT=tcp://10.0.0.1:80"]}}"#,
    );
    config("marked", r#"{"annotations":{"gpool.io/injected":"01LEASE"}}"#);
    config("noted", r#"{"annotations":{"gpool.io/injected":"01LEASE","gpool.io/fraction.web": "0.3"}}"#);
    config("counted", r#"{"annotations":{"gpool.io\/resource":"percent=30"}}"#);
    config("create", "{\n\"process\": {\"env\": [\n\"GPOOL_MIN_MEMORY=4GiB\"\n]}}");
    config(
        "labelled",
        r#"{"process":{"args":["label","gpool.io/x"]},"annotations":{"labels":"{\"gpool.io/team\":\"a\"}"}}"#,
    );
    let calls = |folder: &str, arguments: &[&str]| {
        let mut command = Command::new("sh");
        command.arg(&runtime).args(arguments).current_dir(directory.path().join(folder));
        let output = command.output().unwrap();
        let words = String::from_utf8(output.stderr).unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).unwrap()),
            false => Err(words),
        }
    };
    let passes = |folder: &str, arguments: &[&str]| {
        let as_they_came = arguments.iter().map(|word| format!("{word}|")).collect();
        assert_eq!(calls(folder, arguments), Ok(as_they_came), "{folder}");
    };
    passes("plain", &["--root", "/run/a b", "create", "--bundle", ".", "id"]);
    passes("marked", &["create", "id"]);
    passes("labelled", &["create", "id"]);
    passes("noted", &["--log", "create", "--root=/run", "delete", "--force", "create"]);
    passes("noted", &["--root", "run", "state", "id"]);
    passes("noted", &["exec", "--process", "p", "run"]);
    passes("noted", &["--version"]);
    passes("noted", &["run", "-b=../plain", "id"]);
    for (folder, arguments) in [
        ("noted", &["create", "id"][..]),
        ("plain", &["--root", "state", "create", "--bundle", "../noted", "--pid-file", "p", "id"]),
        ("plain", &["run", "--bundle=../counted", "id"]),
        ("plain", &["--systemd-cgroup", "create", "-b", "../create", "id"]),
    ] {
        let words = calls(folder, arguments).unwrap_err();
        assert!(words.starts_with("gpool was removed") && words.lines().count() == 1, "{words}");
    }
    // containerd and conmon show what stands there, and nothing of what is on stderr.
    calls("noted", &["--log", "../log.json", "--log-format", "json", "create", "id"]).unwrap_err();
    let line: Value =
        serde_json::from_str(&std::fs::read_to_string(directory.path().join("log.json")).unwrap()).unwrap();
    let time = line["time"].as_str().unwrap();
    assert!(line["level"] == "error" && line["msg"].as_str().unwrap().contains("was removed"), "{line}");
    assert!(time.len() == 20 && time.ends_with('Z') && time.contains('T'), "{line}");
}

#[test]
fn every_file_that_is_not_built_is_there() {
    let metadata = metadata();
    let deb = &metadata["deb"];
    for (source, ..) in files(&deb["assets"]).into_iter().chain(files(&deb["variants"]["simulated"]["assets"])) {
        let is_built = source.starts_with("../target/gpool/");
        assert!(is_built || is_there(&packaging().join(&source)), "{source}");
    }
}

/// What a page of the packaged manual leads to within it is in the package as well.
#[test]
fn what_the_manual_links_to_in_itself_is_packed() {
    let house = packaging().join("..").canonicalize().unwrap();
    let metadata = metadata();
    let packed: Vec<PathBuf> = files(&metadata["deb"]["assets"])
        .iter()
        .map(|(source, ..)| house.join(source.trim_start_matches("../")))
        .collect();
    let is_packed = |file: &Path| {
        packed.iter().any(|source| match source.file_name().and_then(|name| name.to_str()?.strip_prefix('*')) {
            Some(ending) => source.parent() == file.parent() && file.to_string_lossy().ends_with(ending),
            None => source == file,
        })
    };
    let mut checked = 0;
    for page in gpool_tests::manual::pages().unwrap() {
        let path = page.path.canonicalize().unwrap();
        for (line, link) in page.links.iter().filter(|_| is_packed(&path)) {
            let file = path.parent().unwrap().join(link.split('#').next().unwrap());
            let Ok(file) = file.canonicalize() else { continue };
            if file.is_file() && file.starts_with(house.join("docs")) {
                assert!(is_packed(&file), "{}:{line}: {link}", page.name());
                checked += 1;
            }
        }
    }
    assert!(checked > 100, "only {checked} links were found");
}

/// Whether a file is there, or of `*.md` any that ends so.
fn is_there(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_str().unwrap();
    let Some(ending) = name.strip_prefix('*') else { return path.is_file() };
    let mut entries = std::fs::read_dir(path.parent().unwrap()).into_iter().flatten().flatten();
    entries.any(|entry| entry.file_name().to_string_lossy().ends_with(ending))
}
