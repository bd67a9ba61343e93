//! `gpool runtime configure|unconfigure|status` on files in a directory of the test's own, judged by the real engines
//! where they are installed.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A directory with an executable `gpool-runtime` in it.
struct Place {
    directory: TempDir,
    list: TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Place { directory: tempfile::tempdir().unwrap(), list: tempfile::tempdir().unwrap() };
        place.program("gpool-runtime", "exit 0");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn program(&self, name: &str, script: &str) {
        fs::write(self.path(name), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// `gpool runtime VERB --runtime ENGINE --config FILE MORE...`, with the directory first in PATH.
    fn gpool(&self, verb: &str, engine: &str, file: &str, more: &[&str]) -> Output {
        let mut command = self.command();
        command.args([verb, "--runtime", engine, "--config"]).arg(self.path(file)).args(more);
        if verb == "configure" {
            command.arg("--runtime-path").arg(self.path("gpool-runtime"));
        }
        command.output().unwrap()
    }

    /// `gpool runtime` with a list of the files that is beside the directory, and with the directory first in PATH.
    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpool"));
        command.args(["runtime", "--told-files"]).arg(self.list.path().join("engine-files"));
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.directory.path().display()));
        command
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[track_caller]
fn done(output: Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap() + &said
}

#[track_caller]
fn refused(output: Output, with: &str) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains(with), "{said}");
    assert!(said.contains("nothing was changed [GPOOL-E503]"), "{said}");
}

fn is_installed(program: &str) -> bool {
    let is_there = ["/usr/bin", "/usr/sbin"].iter().any(|directory| Path::new(directory).join(program).exists());
    if !is_there {
        eprintln!("skipped: no {program}");
    }
    is_there
}

#[test]
fn dockers_file_comes_back_byte_for_byte() {
    let place = Place::new();
    let before = "{\"log-driver\":   \"local\",\n\n\"runtimes\":{\"nvidia\":{\"path\":\"/usr/bin/n\"}} }";
    fs::write(place.path("daemon.json"), before).unwrap();
    fs::set_permissions(place.path("daemon.json"), fs::Permissions::from_mode(0o640)).unwrap();
    let shown = done(place.gpool("configure", "docker", "daemon.json", &["--dry-run"]));
    assert!(shown.contains("\n+") && shown.contains("gpool-runtime"), "{shown}");
    assert_eq!(fs::read_to_string(place.path("daemon.json")).unwrap(), before, "a dry run changes nothing");
    assert_eq!(place.names(), ["daemon.json", "gpool-runtime"]);

    let said = done(place.gpool("configure", "docker", "daemon.json", &[]));
    assert!(said.contains("systemctl reload docker"), "{said}");
    let after = fs::read_to_string(place.path("daemon.json")).unwrap();
    assert_eq!(fs::metadata(place.path("daemon.json")).unwrap().mode() & 0o777, 0o640);
    let inode = fs::metadata(place.path("daemon.json")).unwrap().ino();
    assert!(done(place.gpool("configure", "docker", "daemon.json", &[])).contains("already"));
    assert_eq!(fs::metadata(place.path("daemon.json")).unwrap().ino(), inode, "the second time nothing is written");
    assert!(done(place.gpool("status", "docker", "daemon.json", &[])).contains("configured"));

    // Another option in between, and the way back is still exact.
    done(place.gpool("configure", "docker", "daemon.json", &["--set-as-default"]));
    done(place.gpool("configure", "docker", "daemon.json", &[]));
    assert_eq!(fs::read_to_string(place.path("daemon.json")).unwrap(), after);
    done(place.gpool("unconfigure", "docker", "daemon.json", &[]));
    assert_eq!(fs::read_to_string(place.path("daemon.json")).unwrap(), before);
    assert_eq!(place.names(), ["daemon.json", "gpool-runtime"]);
    assert!(done(place.gpool("unconfigure", "docker", "daemon.json", &[])).contains("already"));
}

#[test]
fn what_was_changed_since_stays() {
    let place = Place::new();
    fs::write(place.path("daemon.json"), "{}\n").unwrap();
    done(place.gpool("configure", "docker", "daemon.json", &[]));
    let text = fs::read_to_string(place.path("daemon.json")).unwrap();
    fs::write(place.path("daemon.json"), text.replacen('{', "{\n  \"debug\": true,", 1)).unwrap();
    done(place.gpool("unconfigure", "docker", "daemon.json", &[]));
    let left: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(place.path("daemon.json")).unwrap()).unwrap();
    assert_eq!(left, serde_json::json!({"debug": true}));
    assert_eq!(place.names(), ["daemon.json", "gpool-runtime"]);
}

#[test]
fn nvidias_runtime_stays_the_default_unless_it_is_behind_gpool() {
    let place = Place::new();
    for runtimes in [r#""nvidia": {"path": "/usr/bin/n"}"#, r#""gpus": {"path": "/opt/nvidia-container-runtime.cdi"}"#]
    {
        let name = runtimes.split('"').nth(1).unwrap();
        let before = format!(r#"{{"default-runtime": "{name}", "runtimes": {{{runtimes}}}}}"#);
        fs::write(place.path("daemon.json"), &before).unwrap();
        let output = place.gpool("configure", "docker", "daemon.json", &["--set-as-default"]);
        refused(output, r#"low_level = ["/usr/bin/nvidia-container-runtime"]"#);
        assert_eq!(fs::read_to_string(place.path("daemon.json")).unwrap(), before);
        done(place.gpool("configure", "docker", "daemon.json", &[]));
        done(place.gpool("unconfigure", "docker", "daemon.json", &[]));
    }
}

#[test]
fn a_file_that_was_not_there_goes_again_and_a_link_stays_one() {
    let place = Place::new();
    done(place.gpool("configure", "docker", "new/daemon.json", &[]));
    done(place.gpool("unconfigure", "docker", "new/daemon.json", &[]));
    assert!(!place.path("new/daemon.json").exists());

    fs::write(place.path("managed.json"), "{}").unwrap();
    symlink("managed.json", place.path("daemon.json")).unwrap();
    done(place.gpool("configure", "docker", "daemon.json", &[]));
    assert!(fs::symlink_metadata(place.path("daemon.json")).unwrap().is_symlink());
    assert!(fs::read_to_string(place.path("managed.json")).unwrap().contains("gpool"));
}

#[test]
fn a_file_that_is_broken_is_left_alone() {
    let place = Place::new();
    fs::write(place.path("daemon.json"), "{\"debug\": true,}").unwrap();
    refused(place.gpool("configure", "docker", "daemon.json", &[]), "Docker cannot read it either");
    assert_eq!(fs::read_to_string(place.path("daemon.json")).unwrap(), "{\"debug\": true,}");
    assert!(done(place.gpool("status", "docker", "daemon.json", &[])).contains("broken"));
    // A runtime that is not there would stop every container that names it.
    fs::remove_file(place.path("gpool-runtime")).unwrap();
    let output = place.gpool("configure", "docker", "daemon.json", &[]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("--runtime-path"), "{output:?}");
    assert_eq!(output.status.code(), Some(2));
}

/// Stand-ins for engines that this machine's packages lack: they answer as the documented checkers do.
#[test]
fn what_the_engines_checker_refuses_is_not_put_in_place() {
    let place = Place::new();
    place.program("dockerd", "echo 'unable to configure the Docker daemon: no such directive' >&2; exit 1");
    place.program("crio", "echo 'invalid runtime_path' >&2; exit 1");
    place.program("conmon", "exit 0");
    fs::write(place.path("daemon.json"), "{}").unwrap();
    refused(place.gpool("configure", "docker", "daemon.json", &[]), "no such directive");
    refused(place.gpool("configure", "crio", "50-gpool.conf", &[]), "invalid runtime_path");
    assert_eq!(place.names(), ["conmon", "crio", "daemon.json", "dockerd", "gpool-runtime"]);

    place.program("dockerd", "test $1 != --version || echo 'Docker version 20.10.24+dfsg1, build 297e128'");
    let said = done(place.gpool("configure", "docker", "old.json", &["--set-as-default", "--dry-run"]));
    assert!(said.contains("\"buildkit\": true"), "{said}");

    place.program("dockerd", "test \"$1 $2\" = '--validate --config-file' && grep -q gpool-runtime \"$3\"");
    place.program(
        "crio",
        "test \"$1\" = --config && grep -q runtime_path \"$2\" && grep -q monitor_path \"$2\" && test \"$3\" = config",
    );
    let said = done(place.gpool("configure", "docker", "daemon.json", &[]));
    assert!(!said.contains("not checked"), "{said}");
    done(place.gpool("configure", "cri-o", "50-gpool.conf", &[]));
    done(place.gpool("unconfigure", "crio", "50-gpool.conf", &[]));
    assert!(!place.path("50-gpool.conf").exists());
}

#[test]
fn containerd_keeps_every_runtime_that_it_had() {
    if !is_installed("containerd") {
        return;
    }
    let place = Place::new();
    let before =
        "version = 2\n# a comment\n[plugins.\"io.containerd.internal.v1.opt\"]\npath = \"/var/lib/containerd/opt\"\n";
    fs::write(place.path("config.toml"), before).unwrap();
    let dump = |file: &str| -> toml::Table {
        let output = Command::new("containerd").arg("--config").arg(place.path(file)).args(["config", "dump"]).output();
        String::from_utf8(output.unwrap().stdout).unwrap().parse().unwrap()
    };
    let runtimes = |dump: &toml::Table| {
        let plugins = dump["plugins"].as_table().unwrap();
        let plugin = ["io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"]
            .into_iter()
            .find_map(|name| plugins.get(name)?.get("containerd")?.get("runtimes")?.as_table().cloned());
        plugin.unwrap()
    };
    let had = runtimes(&dump("config.toml"));
    let said = done(place.gpool("configure", "containerd", "config.toml", &[]));
    assert!(said.contains("systemctl restart containerd"), "{said}");
    let has = runtimes(&dump("config.toml"));
    let runtime = place.path("gpool-runtime");
    assert_eq!(has["gpool"]["options"]["BinaryName"].as_str(), runtime.to_str());
    assert_eq!(has["gpool"]["pod_annotations"][0].as_str(), Some("gpool.io/*"));
    for (name, runtime) in &had {
        assert_eq!(has[name]["runtime_type"], runtime["runtime_type"], "{name}");
    }
    assert!(had.contains_key("runc"));
    done(place.gpool("unconfigure", "containerd", "config.toml", &[]));
    assert_eq!(fs::read_to_string(place.path("config.toml")).unwrap(), before);
    assert_eq!(place.names(), ["config.toml", "gpool-runtime"]);
}

#[test]
fn an_import_that_would_hide_the_entry_is_found_out() {
    if !is_installed("containerd") {
        return;
    }
    let place = Place::new();
    let import = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.other]\nruntime_type = \"io.containerd.runc.v2\"\n";
    fs::write(place.path("other.toml"), import).unwrap();
    let before = format!("version = 2\nimports = [\"{}\"]\n", place.path("other.toml").display());
    fs::write(place.path("config.toml"), &before).unwrap();
    let output = place.gpool("configure", "containerd", "config.toml", &[]);
    // From 2.1 on sections are merged, and the entry holds.
    if !output.status.success() {
        refused(output, "imports");
        assert_eq!(fs::read_to_string(place.path("config.toml")).unwrap(), before);
        assert_eq!(place.names(), ["config.toml", "gpool-runtime", "other.toml"]);
    }
}

#[test]
fn podman_gets_a_file_of_gpools_own() {
    let place = Place::new();
    let said = done(place.gpool("configure", "podman", "50-gpool.conf", &[]));
    assert_eq!(is_installed("podman"), !said.contains("not checked"), "{said}");
    if is_installed("podman") {
        // Podman prints where it looks for hooks as the default of an option.
        let help = Command::new("podman").arg("--help").env("CONTAINERS_CONF", place.path("50-gpool.conf")).output();
        let help = String::from_utf8(help.unwrap().stdout).unwrap();
        let line = help.lines().find(|line| line.contains("--hooks-dir")).unwrap();
        assert!(line.contains("oci/hooks.d,/usr/share/gpool/oci-hooks.d]"), "{line}");
    }
    done(place.gpool("unconfigure", "podman", "50-gpool.conf", &[]));
    assert_eq!(place.names(), ["gpool-runtime"]);
    fs::write(place.path("50-gpool.conf"), "[engine]\n").unwrap();
    refused(place.gpool("configure", "podman", "50-gpool.conf", &[]), "was not written by gpool");
}

/// The file is in use for podman; CRI-O would not start again.
#[test]
fn crio_is_not_told_while_a_hook_of_podman_s_would_stop_it() {
    let place = Place::new();
    place.program("conmon", "exit 0");
    fs::create_dir_all(place.path("hooks")).unwrap();
    fs::write(place.path("hooks/50-gpool.json"), include_str!("../../configs/oci-hooks.d/50-gpool.json")).unwrap();
    let settings = format!("[crio.runtime]\nhooks_dir = [{:?}]\n", place.path("hooks"));
    fs::write(place.path("crio.conf"), settings).unwrap();
    refused(place.gpool("configure", "crio", "crio.conf.d/50-gpool.conf", &[]), "names the stage precreate");
    fs::remove_file(place.path("hooks/50-gpool.json")).unwrap();
    done(place.gpool("configure", "crio", "crio.conf.d/50-gpool.conf", &[]));
    fs::write(place.path("hooks/50-gpool.json"), include_str!("../../configs/oci-hooks.d/50-gpool.json")).unwrap();
    done(place.gpool("unconfigure", "crio", "crio.conf.d/50-gpool.conf", &[]));
    assert!(!place.path("crio.conf.d/50-gpool.conf").exists());
}

#[test]
fn files_that_were_named_are_remembered_until_they_are_as_before() {
    let place = Place::new();
    let list = place.list.path().join("engine-files");
    let rows = || {
        let shown = done(place.command().args(["status", "--runtime", "docker", "--format", "csv"]).output().unwrap());
        shown.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    done(place.gpool("configure", "docker", "daemon.json", &["--dry-run"]));
    assert!(!list.exists() && rows().len() == 1, "a dry run changes nothing");
    done(place.gpool("configure", "docker", "daemon.json", &[]));
    let file = place.path("daemon.json").display().to_string();
    let found = rows();
    assert!(found.len() == 2 && found[1].contains(",configured,no,") && found[1].contains(&file), "{found:?}");
    // Taken out by hand, then exactly.
    fs::write(&file, "{}").unwrap();
    assert_eq!(rows().len(), 1);
    fs::write(&file, "{").unwrap();
    assert!(rows()[1].contains(",broken,"));
    fs::write(&file, "{}").unwrap();
    done(place.gpool("unconfigure", "docker", "daemon.json", &[]));
    assert!(!list.exists());
}

#[test]
fn containers_that_keep_another_runtime_are_counted() {
    let place = Place::new();
    place.program("dockerd", "exit 0");
    let answers = "case \"$1\" in ps) echo a; echo b; echo c;; inspect) shift 5; \
                   for id in \"$@\"; do test $id = b && echo gpool || echo runc; done;; esac";
    place.program("docker", answers);
    assert!(
        !done(place.gpool("configure", "docker", "daemon.json", &[])).contains("keep the runtime"),
        "no default is changed"
    );
    let said = done(place.gpool("configure", "docker", "daemon.json", &["--set-as-default"]));
    assert!(said.contains("2 container(s) that are there already keep"), "{said}");
    place.program("docker", "exit 1");
    let said = done(place.gpool("configure", "docker", "daemon.json", &["--set-as-default"]));
    assert!(said.contains("until they are made anew"), "{said}");
}

#[test]
fn all_engines_have_a_state() {
    let place = Place::new();
    let output = place.command().args(["status", "--format", "json"]).output();
    let shown: serde_json::Value = serde_json::from_str(&done(output.unwrap())).unwrap();
    let engines: Vec<_> = shown["engines"].as_array().unwrap().iter().map(|state| state["engine"].clone()).collect();
    assert_eq!(engines, ["docker", "podman", "containerd", "crio"]);
}
