//! The wrapper in front of a real runc: containers with and without a share, and without a supervisor.
//!
//! Needs root and runc; says so and passes otherwise. The supervisor is a fake that gives one canned answer.

mod bundle;
mod fake_supervisor;

use bundle::{TestBundle, command_line, low_level_or_skip};
use fake_supervisor::FakeSupervisor;
use gpool_runtime_hook::{Installation, prepare, run};
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};

fn installation(dir: &Path, socket: &Path, low_level: &Path) -> Installation {
    let configuration = dir.join("config.toml");
    let text = format!("[socket]\npath = {socket:?}\n[runtime]\nlow_level = [{low_level:?}]\n");
    std::fs::write(&configuration, text).unwrap();
    Installation { configuration, low_level_link: dir.join("run/low-level-runtime") }
}

fn launch(installation: &Installation, bundle: &TestBundle) -> Output {
    let launch = prepare(installation, &command_line(bundle)).unwrap();
    Command::new(launch.program).args(launch.arguments).output().unwrap()
}

fn text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn without_a_request_nothing_is_touched_and_no_supervisor_needed() {
    let Some(runc) = low_level_or_skip() else { return };
    let bundle = TestBundle::new("plain", "echo hello; busybox env; busybox ls /dev; exit 7");
    bundle.change(|spec| spec["annotations"] = json!({"io.example/x": "gpool.io is only named here"}));
    let control = Command::new(&runc).args(command_line(&bundle)).output().unwrap();
    assert_eq!(control.status.code(), Some(7), "{:?}", text(&control));
    let before = bundle.config().metadata().unwrap();
    let bytes = std::fs::read(bundle.config()).unwrap();
    for configuration in ["[runtime]\n", "this is [[[ no toml"] {
        let installation = installation(bundle.dir(), Path::new("/proc/no/socket"), &runc);
        if configuration.starts_with("this") {
            std::fs::write(&installation.configuration, configuration).unwrap();
        }
        let output = launch(&installation, &bundle);
        assert_eq!((output.status.code(), text(&output)), (Some(7), text(&control)));
    }
    let after = bundle.config().metadata().unwrap();
    assert_eq!(
        (after.ino(), after.mtime_nsec(), after.ctime_nsec()),
        (before.ino(), before.mtime_nsec(), before.ctime_nsec())
    );
    assert_eq!(std::fs::read(bundle.config()).unwrap(), bytes);
    assert!(!bundle.log().exists() || std::fs::read(bundle.log()).unwrap().is_empty());
}

#[test]
fn the_edits_of_a_lease_are_seen_inside_the_container() {
    let Some(runc) = low_level_or_skip() else { return };
    let bundle = TestBundle::new(
        "leased",
        "echo $GPOOL_TEST; busybox cat /dev/gpool/control /usr/lib/libcuda.so.1 /usr/lib/libcuda.so \
         /usr/lib64/libcuda.so.580.1; busybox ls -l /dev/leased; busybox head -c 1 /dev/leased | busybox wc -c",
    );
    bundle.put("rootfs/usr/lib64/libcuda.so.580.1", "the image's own\n");
    bundle.put("control", "control page\n");
    bundle.put("shim", "shim\n");
    bundle.change(|spec| {
        spec["annotations"] = json!({"gpool.io/fraction": "0.3"});
        spec["futureField"] = json!({"x": u64::MAX});
        spec["process"]["env"].as_array_mut().unwrap().push(json!("GPOOL_MEMORY=4GiB"));
    });
    let supervisor = FakeSupervisor::start(&bundle.dir().join("s"), bundle.granted(false));
    let installation = installation(bundle.dir(), supervisor.socket(), &runc);
    let output = launch(&installation, &bundle);
    let (stdout, stderr) = text(&output);
    assert_eq!(output.status.code(), Some(0), "{stdout} {stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines[..5], ["from the lease", "control page", "shim", "shim", "shim"], "{stdout}");
    assert!(lines[5].starts_with("crw-rw-rw-") && lines[5].contains("1,   5"), "{stdout}");
    assert_eq!(lines[6].trim(), "1", "the device opens");

    let posts = supervisor.received();
    let asked: Value = serde_json::from_str(&posts[0].1).unwrap();
    assert_eq!(posts[0].0, "POST /v1/leases HTTP/1.1");
    assert_eq!(asked["container_id"], bundle.id());
    assert_eq!(asked["request"]["fraction_permille"], 300);
    let bound: Value = serde_json::from_str(&posts[1].1).unwrap();
    assert_eq!(posts[1].0, "POST /v1/leases/01TEST/bind HTTP/1.1");
    assert!(bound["init_pid"].as_u64().unwrap() > 1);

    let spec: Value = serde_json::from_slice(&std::fs::read(bundle.config()).unwrap()).unwrap();
    assert_eq!(spec["futureField"]["x"], json!(u64::MAX));
    assert_eq!(spec["annotations"]["gpool.io/injected"], "01TEST");
    let edited = std::fs::read(bundle.config()).unwrap();
    launch(&installation, &bundle);
    assert_eq!(std::fs::read(bundle.config()).unwrap(), edited, "a second pass adds nothing");
    assert!(supervisor.received()[2..].iter().all(|(line, _)| line.ends_with("/bind HTTP/1.1")), "and asks nothing");
}

#[test]
fn what_docker_adds_beside_a_share_is_asked_for_and_taken_out() {
    let Some(runc) = low_level_or_skip() else { return };
    let (bundle, id) = (TestBundle::new("gpus", "true"), "b".repeat(64));
    bundle.put("control", "control page\n");
    bundle.put("shim", "shim\n");
    let folder = bundle.dir().join(&id).display().to_string();
    bundle.change(|spec| {
        spec["process"]["env"] = json!(["GPOOL_FRACTION=0.3", "NVIDIA_VISIBLE_DEVICES=0,1"]);
        spec["hooks"] = json!({"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}, {"path": "/other"}]});
        let hostname = json!({"destination": "/etc/hostname", "type": "bind", "source": format!("{folder}/hostname")});
        spec["mounts"].as_array_mut().unwrap().push(hostname);
    });
    let supervisor = FakeSupervisor::start(&bundle.dir().join("s"), bundle.granted(false));
    let installation = installation(bundle.dir(), supervisor.socket(), &runc);
    let mut line = command_line(&bundle);
    *line.last_mut().unwrap() = id.into();
    prepare(&installation, &line).unwrap();
    let asked: Value = serde_json::from_str(&supervisor.received()[0].1).unwrap();
    assert_eq!((&asked["request"]["gpus"], &asked["container_dir"]), (&json!(2), &json!(folder)));
    let spec: Value = serde_json::from_slice(&std::fs::read(bundle.config()).unwrap()).unwrap();
    assert_eq!(spec["hooks"]["prestart"], json!([{"path": "/other"}]));
}

#[test]
fn a_library_that_lies_over_the_shim_stops_the_start() {
    let Some(runc) = low_level_or_skip() else { return };
    let bundle = TestBundle::new("covered", "echo started");
    bundle.put("control", "c");
    bundle.put("shim", "shim\n");
    bundle.put("driver", "driver\n");
    bundle.change(|spec| spec["annotations"] = json!({"gpool.io/fraction": "0.3"}));
    let supervisor = FakeSupervisor::start(&bundle.dir().join("s"), bundle.granted(true));
    let output = launch(&installation(bundle.dir(), supervisor.socket(), &runc), &bundle);
    let (stdout, stderr) = text(&output);
    assert!(!output.status.success() && !stdout.contains("started"), "{stdout} {stderr}");
    assert!(std::fs::read_to_string(bundle.log()).unwrap().contains("GPOOL-E303"), "{stderr}");
    assert_eq!(supervisor.received().len(), 1, "nothing is bound");
}

/// The edits of a lease with the host's library, a file of the bundle, behind the shim.
fn with_real_library(bundle: &TestBundle, file: &str) -> Value {
    let mut granted = bundle.granted(false);
    let (source, place) = (bundle.dir().join(file), "/dev/gpool/real/libcuda.so.1");
    let mount = json!({"kind": "mount", "source": source, "destination": place, "options": ["bind", "ro"]});
    granted["edits"].as_array_mut().unwrap().insert(0, mount);
    granted
}

/// Engines differ in what they clear away of an image's links before the low-level runtime sees them.
#[test]
fn nothing_is_made_where_a_link_of_the_image_leads_on_the_host() {
    let Some(runc) = low_level_or_skip() else { return };
    for (name, held) in [("usr/lib", true), ("dev", false)] {
        let bundle = TestBundle::new("linked", "busybox cat /usr/lib/libcuda.so.1 /dev/gpool/control");
        let outside = tempfile::tempdir().unwrap();
        let link = bundle.dir().join("rootfs").join(name);
        let _ = std::fs::remove_dir_all(&link);
        std::os::unix::fs::symlink(outside.path(), &link).unwrap();
        // The image has that place too.
        let inside = bundle.dir().join("rootfs").join(outside.path().strip_prefix("/").unwrap());
        std::fs::create_dir_all(inside).unwrap();
        bundle.put("control", "control page\n");
        bundle.put("shim", "shim\n");
        bundle.put("driver", "driver\n");
        bundle.change(|spec| spec["annotations"] = json!({"gpool.io/fraction": "0.3"}));
        let granted = with_real_library(&bundle, "driver");
        let supervisor = FakeSupervisor::start(&bundle.dir().join("s"), granted);
        match prepare(&installation(bundle.dir(), supervisor.socket(), &runc), &command_line(&bundle)) {
            Ok(launch) => {
                let output = Command::new(launch.program).args(launch.arguments).output().unwrap();
                assert_eq!(text(&output).0, "shim\ncontrol page\n", "{name}: {:?}", text(&output));
                assert!(held, "{name}");
            }
            Err(error) => assert!(!held && error.to_string().contains("GPOOL-E303"), "{name}: {error}"),
        }
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0, "{name}: something went out of the image");
    }
}

/// `[driver] compat = "image"`: the file behind the shim is the image's own, and the shim lies over that all the same.
#[test]
fn a_newer_libcuda_of_the_image_is_behind_the_shim() {
    let Some(runc) = low_level_or_skip() else { return };
    let script = "cd /usr/local/cuda/compat; busybox cat /dev/gpool/real/libcuda.so.1 libcuda.so.1 libcuda.so.575.9";
    let bundle = TestBundle::new("compat", script);
    std::fs::create_dir_all(bundle.dir().join("rootfs/usr/local/cuda/compat")).unwrap();
    bundle.put("rootfs/usr/local/cuda/compat/libcuda.so.575.9", "the image's own\n");
    let link = bundle.dir().join("rootfs/usr/local/cuda/compat/libcuda.so.1");
    std::os::unix::fs::symlink("libcuda.so.575.9", link).unwrap();
    bundle.put("control", "c");
    bundle.put("shim", "shim\n");
    bundle.put("libcuda.so.550.54.14", "the host's\n");
    bundle.change(|spec| spec["annotations"] = json!({"gpool.io/fraction": "0.3"}));
    let granted = with_real_library(&bundle, "libcuda.so.550.54.14");
    for (compat, behind) in [("image", "the image's own"), ("host", "the host's")] {
        let supervisor = FakeSupervisor::start(&bundle.dir().join("s"), granted.clone());
        let installation = installation(bundle.dir(), supervisor.socket(), &runc);
        let text_before = std::fs::read_to_string(&installation.configuration).unwrap();
        let configured = format!("{text_before}[driver]\ncompat = {compat:?}\n");
        std::fs::write(&installation.configuration, configured).unwrap();
        let before = std::fs::read(bundle.config()).unwrap();
        let (stdout, stderr) = text(&launch(&installation, &bundle));
        assert_eq!(stdout.lines().collect::<Vec<_>>(), [behind, "shim", "shim"], "{compat}: {stderr}");
        std::fs::write(bundle.config(), before).unwrap();
        drop(supervisor);
        let _ = std::fs::remove_file(bundle.dir().join("s"));
    }
}

#[test]
fn without_a_supervisor_there_is_one_line_and_nothing_is_touched() {
    let Some(runc) = low_level_or_skip() else { return };
    let bundle = TestBundle::new("absent", "echo started");
    bundle.change(|spec| spec["annotations"] = json!({"gpool.io/fraction": "0.3"}));
    let bytes = std::fs::read(bundle.config()).unwrap();
    let before = bundle.config().metadata().unwrap();
    let installation = installation(bundle.dir(), &bundle.dir().join("absent.sock"), &runc);
    assert_eq!(run(&installation, &command_line(&bundle)), 1);
    let log = std::fs::read_to_string(bundle.log()).unwrap();
    assert_eq!(log.lines().count(), 1, "{log}");
    let line: Value = serde_json::from_str(&log).unwrap();
    assert_eq!(line["level"], "error");
    assert!(line["msg"].as_str().unwrap().ends_with("[GPOOL-E001]"), "{log}");
    assert_eq!(std::fs::read(bundle.config()).unwrap(), bytes);
    assert_eq!(bundle.config().metadata().unwrap().ino(), before.ino());
    // A broken configuration is only told to who needs it.
    std::fs::write(&installation.configuration, "[socket]\npathh = 1\n").unwrap();
    std::fs::remove_file(bundle.log()).unwrap();
    assert_eq!(run(&installation, &command_line(&bundle)), 1);
    assert!(std::fs::read_to_string(bundle.log()).unwrap().contains("GPOOL-E004"));
}
