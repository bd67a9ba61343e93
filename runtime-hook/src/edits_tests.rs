use super::*;
use crate::report::assert_presentable;
use gpool_protocol::PERCENT_ANNOTATION;
use serde_json::json;

fn edits() -> Vec<Edit> {
    let text = |s: &str| s.to_owned();
    vec![
        Edit::Device {
            path: text("/dev/nvidia0"),
            source: text("/dev/nvidia0"),
            major: 195,
            minor: 0,
            access: text("rw"),
        },
        Edit::Mount {
            source: text("/run/gpool/leases/L/control"),
            destination: text("/dev/gpool/control"),
            options: vec![text("bind"), text("ro")],
        },
        Edit::Mount {
            source: text("/usr/lib/libcuda.so.580"),
            destination: text("/dev/gpool/real/libcuda.so.1"),
            options: vec![text("bind"), text("ro")],
        },
        Edit::Library { source: text("/usr/lib/gpool/535/libgpool-cuda.so"), file_name: text("libcuda.so.1") },
        Edit::Env { name: text("NVIDIA_VISIBLE_DEVICES"), value: text("void") },
        Edit::Hook {
            path: text("/usr/libexec/gpool/gpool-hook"),
            args: vec![text("gpool-hook"), text("create-runtime"), text("L")],
            env: vec![text("GPOOL_HOOK=1")],
        },
    ]
}

fn image() -> (tempfile::TempDir, Image) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("lib/x86_64-linux-gnu")).unwrap();
    let image = Image::open(dir.path()).unwrap();
    (dir, image)
}

fn applied(text: &str) -> Value {
    let mut spec: Value = serde_json::from_str(text).unwrap();
    apply(&mut spec, &image().1, &LeaseId("L".into()), &edits()).unwrap();
    spec
}

fn destinations(spec: &Value) -> Vec<&str> {
    spec["mounts"].as_array().unwrap().iter().map(|mount| mount["destination"].as_str().unwrap()).collect()
}

#[test]
fn a_bare_spec_gets_every_section_that_the_edits_need() {
    let spec = applied(r#"{"process": {}, "linux": {}, "root": {"path": "rootfs"}, "mounts": null}"#);
    let shim = "/usr/lib/gpool/535/libgpool-cuda.so";
    assert_eq!(
        destinations(&spec),
        [
            "/dev/gpool/control",
            "/dev/gpool/real/libcuda.so.1",
            "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
            "/usr/lib/x86_64-linux-gnu/libcuda.so",
        ]
    );
    assert_eq!(
        spec["mounts"][0],
        json!({
            "destination": "/dev/gpool/control", "type": "bind", "source": "/run/gpool/leases/L/control",
            "options": ["bind", "ro"]
        })
    );
    assert_eq!(spec["mounts"][1]["source"], "/usr/lib/libcuda.so.580", "the real library keeps its own source");
    assert_eq!((&spec["mounts"][2]["source"], &spec["mounts"][3]["source"]), (&json!(shim), &json!(shim)));
    assert_eq!(spec["process"]["env"], json!(["NVIDIA_VISIBLE_DEVICES=void"]));
    assert_eq!(
        spec["hooks"]["createRuntime"],
        json!([{
            "path": "/usr/libexec/gpool/gpool-hook", "args": ["gpool-hook", "create-runtime", "L"], "env": ["GPOOL_HOOK=1"]
        }])
    );
    assert_eq!(spec["annotations"], json!({"gpool.io/injected": "L"}));
    assert_eq!(spec["linux"]["devices"][0]["path"], "/dev/nvidia0");
}

#[test]
fn applying_twice_is_applying_once() {
    let once = applied(r#"{"process": {"env": ["A=1"]}, "linux": {}, "mounts": [{"destination": "/proc"}]}"#);
    assert_eq!(applied(&once.to_string()).to_string(), once.to_string());
}

#[test]
fn unknown_fields_order_and_big_integers_survive() {
    let text = concat!(
        r#"{"ociVersion":"1.3.0","zNew":{"b":1,"a":[null,1.50]},"process":{"args":["x"],"rlimits":"#,
        r#"[{"type":"RLIMIT_NOFILE","hard":18446744073709551615,"soft":18446744073709551615}],"later":1e400},"#,
        r#""linux":{"futureThing":{"deep":[{"x":-0}]},"resources":{"unified":{"k":"v"}}}}"#
    );
    let after = applied(text).to_string();
    for kept in [
        r#"{"ociVersion":"1.3.0","zNew":{"b":1,"a":[null,1.50]},"process":{"args":["x"],"#,
        r#""hard":18446744073709551615,"soft":18446744073709551615}],"later":1e400"#,
        r#""linux":{"futureThing":{"deep":[{"x":-0}]},"resources":{"unified":{"k":"v"}"#,
    ] {
        // Numbers outside 64 bits may gain a sign in the exponent, which means the same.
        assert!(after.replace("1e+400", "1e400").contains(kept), "{kept}\nin {after}");
    }
}

#[test]
fn env_of_the_same_name_goes_and_mounts_of_the_same_place_are_replaced_on_top() {
    let spec = applied(
        r#"{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES_X=1", "NVIDIA_VISIBLE_DEVICES=0"]},
            "linux": {}, "mounts": [
              {"destination": "/dev/gpool//control/", "source": "/evil"},
              {"destination": "/usr/lib64/libcuda.so.580.1", "source": "/driver/libcuda.so.580.1", "type": "bind"},
              {"destination": "/data", "source": "/data", "type": "bind"}]}"#,
    );
    assert_eq!(spec["process"]["env"], json!(["NVIDIA_VISIBLE_DEVICES_X=1", "NVIDIA_VISIBLE_DEVICES=void"]));
    assert_eq!(
        destinations(&spec),
        [
            "/data",
            "/dev/gpool/control",
            "/dev/gpool/real/libcuda.so.1",
            "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
            "/usr/lib/x86_64-linux-gnu/libcuda.so",
            "/usr/lib64/libcuda.so.580.1",
        ]
    );
    assert_eq!(spec["mounts"][5]["source"], "/usr/lib/gpool/535/libgpool-cuda.so");
}

#[test]
fn what_no_edit_can_make_safe_is_refused() {
    let good = json!({"process": {}, "linux": {}, "root": {"path": "rootfs"}});
    assert_eq!(check(&good), Ok(()));
    for part in ["process", "linux", "root"] {
        let mut bad = good.clone();
        bad[part] = Value::Null;
        assert_presentable(&check(&bad).unwrap_err());
    }
    assert_presentable(&root_path(&json!({"root": {}}), Path::new("/b")).unwrap_err());
    assert_eq!(root_path(&json!({"root": {"path": "r"}}), Path::new("/b")), Ok("/b/r".into()));
    assert_eq!(root_path(&json!({"root": {"path": "/r"}}), Path::new("/b")), Ok("/r".into()));
}

#[test]
fn a_driver_is_brought_by_nobody_else() {
    let mut spec = json!({"hooks": {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}, {"path": "/x"}]}});
    assert!(has_legacy_hook(&spec));
    without_legacy_hooks(&mut spec);
    assert_eq!(spec, json!({"hooks": {"prestart": [{"path": "/x"}]}}));
    assert!(!has_legacy_hook(&spec));
}

#[test]
fn a_dev_of_the_host_is_refused_and_one_of_the_container_is_not() {
    let mounted = |kind: &str, place: &str, options: &[&str]| {
        let mount = json!({"destination": place, "type": kind, "source": "/dev", "options": options});
        check_dev(&json!({"mounts": [{"destination": "/proc", "type": "proc"}, mount]}))
    };
    assert_eq!(mounted("tmpfs", "/dev", &["nosuid"]), Ok(()));
    assert_eq!(mounted("bind", "/dev/shm", &["rbind"]), Ok(()));
    assert_eq!(mounted("bind", "/hostdev", &["rbind"]), Ok(()));
    for (kind, place) in [("bind", "/dev"), ("none", "/dev/"), ("bind", "//dev"), ("bind", "/dev/gpool")] {
        let error = mounted(kind, place, &["rbind", "rprivate"]).unwrap_err();
        assert_presentable(&error);
        assert!(error.remedy.contains("--device"), "{error}");
    }
}

#[test]
fn what_lies_over_the_mps_folder_is_replaced_and_nothing_is_made_on_the_host() {
    let host = tempfile::tempdir().unwrap();
    let with = |mounts: Value| {
        let mut spec = json!({"process": {}, "linux": {}, "root": {"path": "rootfs"}, "mounts": mounts});
        let options = ["bind", "ro"].map(String::from).to_vec();
        let cover = Edit::Mount { source: "/run/gpool/empty".into(), destination: MPS_DIR.into(), options };
        apply(&mut spec, &image().1, &LeaseId("L".into()), &[cover]).unwrap();
        let its =
            |mount: &Value| Some((mount["destination"].as_str()?.to_owned(), mount["source"].as_str()?.to_owned()));
        spec["mounts"].as_array().unwrap().iter().filter_map(its).next_back().unwrap()
    };
    let cover = (MPS_DIR.to_owned(), "/run/gpool/empty".to_owned());
    let of_toolkit = json!({"destination": "/tmp/nvidia-mps", "type": "bind", "source": "/tmp/nvidia-mps"});
    assert_eq!(with(json!([of_toolkit])), cover);
    assert_eq!(with(json!([{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}])), cover);
    let folder = host.path().display().to_string();
    let shared = json!([{"destination": "/tmp", "type": "bind", "source": folder, "options": ["rbind"]}]);
    assert_eq!(with(shared.clone()), ("/tmp".to_owned(), folder.clone()), "no folder is made in the host's");
    let place = host.path().join("nvidia-mps");
    std::fs::write(&place, "").unwrap();
    assert_eq!(with(shared.clone()).0, "/tmp", "a file that somebody has put there");
    std::fs::remove_file(&place).unwrap();
    std::os::unix::fs::symlink("/etc", &place).unwrap();
    assert_eq!(with(shared.clone()).0, "/tmp", "and a link");
    std::fs::remove_file(&place).unwrap();
    std::fs::create_dir(&place).unwrap();
    assert_eq!(with(shared), cover, "one that is there is covered");
}

#[test]
fn the_seal_of_what_was_counted_does_not_stay_in_the_bundle() {
    let (sealed, instance) = (Seal::of(7).put_on("percent=30"), "gpool.io/resource-mig.1g.10gb");
    let spec = json!({"process": {}, "annotations": {PERCENT_ANNOTATION: sealed, instance: sealed, "example.com/a": ";seal="}});
    let annotations = applied(&spec.to_string())["annotations"].take();
    assert_eq!(
        annotations,
        json!({PERCENT_ANNOTATION: "percent=30", instance: "percent=30", "example.com/a": ";seal=", INJECTED: "L"})
    );
}

#[test]
fn another_library_is_not_loaded_beside_the_lease_s() {
    let mut spec = json!({"mounts": [
        {"destination": "/etc/ld.so.preload", "source": "/usr/local/vgpu/ld.so.preload"},
        {"destination": "/etc//ld.so.preload/", "source": "/x"},
        {"destination": "/usr/local/vgpu/libvgpu.so", "source": "/usr/local/vgpu/libvgpu.so"},
    ]});
    without_preloads(&mut spec);
    assert_eq!(spec["mounts"].as_array().unwrap().len(), 1);
    without_preloads(&mut json!({}));
}
