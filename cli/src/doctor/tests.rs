use super::*;
use gpool_protocol::{
    BuildId, ContainerId, DriverView, ErrorBody, ErrorCode, GpuUuid, GpuView, GuardedProcess, HostPid, LeaseId,
    LeaseView, MappedLibrary, ShimView, SupervisorInfo,
};
use std::fs;
use std::path::Path;

fn write(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "").unwrap();
}

fn lease(id: &str, init_pid: Option<u32>) -> LeaseView {
    let text = format!(
        r#"{{"lease_id":"{id}","container_id":"{id}","state":"active","gpu_uuid":"GPU-1","fraction_permille":300,
        "received_permille":1,"charged_gpu_ns":2,"memory_cap_bytes":3,"memory_used_bytes":4,"allocations_refused":5,
        "gate_wait_ns":6,"launches":7,"processes":0,"init_pid":{},"cgroup":null,"enforcement":"co-operative",
        "owner_uid":0,"created_unix_ms":9}}"#,
        init_pid.map_or("null".to_owned(), |pid| pid.to_string())
    );
    serde_json::from_str(&text).unwrap()
}

/// A host in `root` on which everything is as it should be.
fn healthy(root: &Path) -> Surroundings {
    for file in [
        "etc/gpool/config.toml",
        "usr/bin/runc",
        "sys/fs/cgroup/cgroup.controllers",
        "usr/lib64/libcuda.so.1",
        "usr/lib64/libnvidia-ml.so.1",
        "usr/lib/gpool/535/libgpool-cuda.so",
        "usr/lib/gpool/535/libgpool-nvml.so",
        "run/gpool/leases/01A/lease.json",
        "proc/7/stat",
        "proc/self/mountinfo",
    ] {
        write(&root.join(file));
    }
    fs::create_dir_all(root.join("dev")).unwrap();
    // Links to a character device that every machine has.
    for node in ["nvidiactl", "nvidia-uvm", "nvidia0"] {
        std::os::unix::fs::symlink("/dev/null", root.join("dev").join(node)).unwrap();
    }
    let info = r#"{"version":"VERSION","pid":81,"started_unix_ms":1,"region_version":1,"handoff_ns":2,"slice_ns":3}"#;
    let info: SupervisorInfo = serde_json::from_str(&info.replace("VERSION", env!("CARGO_PKG_VERSION"))).unwrap();
    let shim = ShimView {
        library: "libcuda.so.1".into(),
        path: "/usr/lib/gpool/535/libgpool-cuda.so".into(),
        generation: "535".into(),
        build_id: Some(BuildId("feed".repeat(10))),
    };
    let driver = DriverView {
        version: "535.261.03".into(),
        libraries: Vec::new(),
        shims: vec![shim],
        missing: Vec::new(),
        uncounted: Vec::new(),
        unclassified: Vec::new(),
    };
    let gpu = GpuView {
        index: 0,
        uuid: GpuUuid("GPU-1".into()),
        name: "a GPU".into(),
        driver_version: driver.version.clone(),
        memory_total_bytes: 1,
        memory_used_bytes: 0,
        memory_leased_bytes: 0,
        fraction_leased_permille: 0,
        leases: 1,
    };
    let mapped = MappedLibrary {
        path: "/usr/lib/libcuda.so.1".into(),
        build_id: Some(BuildId("feed".repeat(10))),
        is_shim: true,
    };
    let process = GuardedProcess {
        lease_id: LeaseId("01A".into()),
        container_id: ContainerId("01A".into()),
        pid: HostPid(7),
        name: "train".into(),
        is_registered: true,
        libraries: vec![mapped],
        finding: None,
    };
    Surroundings {
        root: root.to_owned(),
        configuration_path: root.join("etc/gpool/config.toml"),
        configuration: Ok(Default::default()),
        info: Ok(info),
        driver: Ok(driver),
        gpus: Ok(vec![gpu]),
        leases: Ok(vec![lease("01A", Some(7))]),
        guarded: Ok(vec![process]),
    }
}

/// State and words of the check with this name.
fn of(host: &Surroundings, name: &str) -> (State, String) {
    let checked = check_all(host).into_iter().find(|check| check.name == name).unwrap();
    let text = format!("{}; {}", checked.outcome.found, checked.outcome.remedy.unwrap_or_default());
    (checked.outcome.state, text)
}

#[test]
fn on_a_healthy_host_every_check_is_ok() {
    let root = tempfile::tempdir().unwrap();
    let checked = check_all(&healthy(root.path()));
    assert!(checked.iter().all(|check| check.outcome.state == State::Ok), "{checked:#?}");
    assert!(checked.iter().enumerate().all(|(index, check)| check.number == index + 1));
    assert!(checked.iter().any(|check| check.outcome.found.contains("feedfeedfeed in 1")), "{checked:#?}");
}

#[test]
fn what_is_wrong_is_said_with_what_to_do() {
    let wrong = |name: &'static str, state: State, parts: &[&str], change: &dyn Fn(&mut Surroundings)| {
        let root = tempfile::tempdir().unwrap();
        let mut host = healthy(root.path());
        change(&mut host);
        let (found, text) = of(&host, name);
        assert_eq!(found, state, "{name}: {text}");
        parts.iter().for_each(|part| assert!(text.contains(part), "{name}: {text} lacks {part}"));
        assert!(!text.ends_with("; "), "{name} gives no remedy: {text}");
    };
    let remove = |path: &'static str| move |host: &mut Surroundings| fs::remove_file(host.path(path)).unwrap();
    wrong("low-level runtime", State::Fail, &["/usr/bin/runc", "install runc"], &remove("/usr/bin/runc"));
    let cgroups = remove("/sys/fs/cgroup/cgroup.controllers");
    wrong("cgroups", State::Fail, &["devices and freezer", "mount it"], &cgroups);
    wrong("device nodes", State::Fail, &["nvidiactl", "modprobe nvidia"], &remove("/dev/nvidiactl"));
    wrong("device nodes", State::Fail, &["nodes of 0", "shows 1"], &remove("/dev/nvidia0"));
    wrong("device nodes", State::Warn, &["modprobe nvidia-uvm"], &remove("/dev/nvidia-uvm"));
    wrong("driver", State::Fail, &["libcuda.so.1 is in none"], &remove("/usr/lib64/libcuda.so.1"));
    wrong("driver", State::Fail, &["no GPU"], &|host| host.gpus = Ok(Vec::new()));
    wrong("shims", State::Fail, &["no shims"], &remove("/usr/lib/gpool/535/libgpool-nvml.so"));
    wrong("shims", State::Warn, &["1 names that it lacks: cuOld"], &|host| {
        host.driver.as_mut().unwrap().missing = vec!["cuOld".into()];
    });
    wrong("shims", State::Fail, &["no build id"], &|host| host.driver.as_mut().unwrap().shims[0].build_id = None);
    wrong("uncounted calls", State::Warn, &["10 calls are not counted", "and 2 more", "1 are newer"], &|host| {
        let driver = host.driver.as_mut().unwrap();
        driver.uncounted = (0..10).map(|number| format!("cuNew{number}")).collect();
        driver.unclassified = vec!["cuNewer".into()];
    });
    wrong("mapped builds", State::Fail, &["process 7 (train) of 01A: it has not", "bypass_action"], &|host| {
        host.guarded.as_mut().unwrap()[0].finding = Some("it has not mapped the shim".into());
    });
    wrong("leases", State::Warn, &["01B", "end by themselves"], &|host| {
        host.leases.as_mut().unwrap().push(lease("01B", Some(8)));
    });
    wrong("leftovers", State::Warn, &["1 of leases", "/run/gpool/leases/01A", "restart"], &|host| {
        host.leases.as_mut().unwrap().clear();
    });
    wrong("supervisor", State::Warn, &["version 9.9.9"], &|host| host.info.as_mut().unwrap().version = "9.9.9".into());
    wrong("configuration", State::Fail, &["hold_mss", "--check-config"], &|host| {
        host.configuration = gpool_configuration::parse(Path::new("/etc/gpool/config.toml"), "[lease]\nhold_mss = 1\n");
    });
}

#[test]
fn without_a_supervisor_that_fails_and_what_it_knows_is_skipped() {
    let root = tempfile::tempdir().unwrap();
    let gone = || ErrorBody::new(ErrorCode::SupervisorAbsent, "the supervisor does not answer", "start it");
    let mut host = healthy(root.path());
    host.info = Err(gone());
    (host.driver, host.gpus) = (Err(gone()), Err(gone()));
    (host.leases, host.guarded) = (Err(gone()), Err(gone()));
    assert_eq!(of(&host, "supervisor"), (State::Fail, "the supervisor does not answer; start it".into()));
    for name in ["driver", "shims", "uncounted calls", "mapped builds", "leases", "leftovers"] {
        assert_eq!(of(&host, name).0, State::Skip, "{name}");
    }
    for name in ["configuration", "low-level runtime", "cgroups", "device nodes"] {
        assert_eq!(of(&host, name).0, State::Ok, "{name}");
    }
}
