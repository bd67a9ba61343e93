use super::*;
use gpool_protocol::{
    BuildId, Drain, DrainedGpu, DriverView, ErrorBody, ErrorCode, GpuUuid, GpuView, GuardedProcess, HealthFinding,
    HostPid, LeaseId, LeaseView, MappedLibrary, MemoryLimits, MemoryLimitsState, ReservationView, ShimView, SilentGpu,
    SupervisorInfo, TimeSlices,
};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

mod of_others;

fn write(path: &Path) {
    write_text(path, "");
}

fn write_text(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
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
pub(super) fn healthy(root: &Path) -> Surroundings {
    for file in [
        "etc/gpool/config.toml",
        "usr/bin/runc",
        "sys/fs/cgroup/cgroup.controllers",
        "usr/lib64/libcuda.so.1",
        "usr/lib64/libnvidia-ml.so.1",
        "usr/bin/dockerd",
        "usr/bin/gpool-runtime",
        "usr/libexec/gpool/gpool-hook",
        "proc/7/stat",
        "proc/self/mountinfo",
    ] {
        write(&root.join(file));
    }
    for (name, real) in [("cuda", "libcuda.so.1"), ("nvml", "libnvidia-ml.so.1")] {
        let shim = root.join(format!("usr/lib/gpool/535/libgpool-{name}.so"));
        write_text(&shim, &format!("\x7fELF...\0/dev/gpool/real/{real}\0"));
    }
    for (file, text) in [
        ("proc/sys/kernel/osrelease", "6.1.0-28-amd64\n"),
        ("proc/7/comm", "train\n"),
        ("proc/7/cgroup", "0::/docker/01A\n"),
        ("run/gpool/leases/01A/lease.json", r#"{"boot_id":"b","init":null,"cgroup":"/docker/01A"}"#),
        ("etc/group", "root:x:0:\ngpool:x:990:\n"),
        ("etc/docker/daemon.json", r#"{"runtimes":{"gpool":{"path":"/usr/bin/gpool-runtime"}}}"#),
        ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
    ] {
        write_text(&root.join(file), text);
    }
    for program in ["usr/bin/runc", "usr/bin/dockerd", "usr/bin/gpool-runtime", "usr/libexec/gpool/gpool-hook"] {
        set_mode(&root.join(program), 0o755);
    }
    drop(UnixListener::bind(root.join("run/gpool/gpool.sock")).unwrap());
    set_mode(&root.join("run/gpool/gpool.sock"), 0o666);
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
        health: Some(Vec::new()),
        uuid: GpuUuid("GPU-1".into()),
        driver_version: driver.version.clone(),
        leases: 1,
        ..crate::samples::gpu(0, "a GPU", 1)
    };
    let mapped = MappedLibrary {
        path: "/usr/lib/libcuda.so.1".into(),
        build_id: Some(BuildId("feed".repeat(10))),
        is_shim: true,
    };
    let process = GuardedProcess {
        lease_id: LeaseId("01A".into()),
        name: "train".into(),
        libraries: vec![mapped],
        ..crate::samples::guarded(7, "01A")
    };
    Surroundings {
        root: root.to_owned(),
        configuration_path: root.join("etc/gpool/config.toml"),
        configuration_files: vec!["/etc/gpool/config.toml".into()],
        configuration: Ok(Default::default()),
        docker: None,
        now_unix_ms: 1_700_000_000_000,
        info: Ok(info),
        driver: Ok(driver),
        gpus: Ok(vec![gpu]),
        silent: Ok(Vec::new()),
        drained: Ok(Vec::new()),
        reservations: Ok(Vec::new()),
        leases: Ok(vec![lease("01A", Some(7))]),
        guarded: Ok(vec![process]),
        outside: Ok(Vec::new()),
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
    wrong("low-level runtime", State::Fail, &["/usr/bin/runc is not there", "install runc"], &remove("/usr/bin/runc"));
    wrong("low-level runtime", State::Fail, &["written by others than root"], &|host: &mut Surroundings| {
        set_mode(&host.path("/usr/bin/runc"), 0o777);
    });
    wrong("low-level runtime", State::Warn, &["gpool run works without"], &|host: &mut Surroundings| {
        fs::remove_file(host.path("/usr/bin/runc")).unwrap();
        fs::remove_file(host.path("/usr/bin/dockerd")).unwrap();
    });
    let cgroups = remove("/sys/fs/cgroup/cgroup.controllers");
    wrong("cgroups", State::Fail, &["devices and freezer", "mount it"], &cgroups);
    wrong("device nodes", State::Fail, &["nvidiactl", "modprobe nvidia", "-c 255"], &remove("/dev/nvidiactl"));
    wrong("device nodes", State::Fail, &["nodes of 0", "shows 1"], &remove("/dev/nvidia0"));
    wrong("device nodes", State::Fail, &["nvidia-modprobe -u -c 0"], &remove("/dev/nvidia-uvm"));
    let instance = "/proc/driver/nvidia/capabilities/gpu0/mig/gi9/ci0/access";
    wrong("device nodes", State::Fail, &["nvidia-cap85 is missing", "nvidia-modprobe -f", instance], &|host| {
        write_text(&host.path(instance), "DeviceFileMinor: 85\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
    });
    wrong("driver", State::Fail, &["libcuda.so.1 is in none"], &remove("/usr/lib64/libcuda.so.1"));
    wrong("driver", State::Fail, &["no GPU"], &|host| host.gpus = Ok(Vec::new()));
    let named = "GPU-51313131-0000-4000-8000-000000000007";
    wrong("driver", State::Warn, &[named, "driver.gpus", "restart"], &|host| {
        host.configuration.as_mut().unwrap().driver.gpus = vec![named.to_owned()].try_into().unwrap();
    });
    wrong("shims", State::Fail, &["535 lacks libgpool-nvml.so"], &remove("/usr/lib/gpool/535/libgpool-nvml.so"));
    wrong("shims", State::Fail, &["no shims"], &|host| fs::remove_dir_all(host.path("/usr/lib/gpool/535")).unwrap());
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
        write_text(&host.path("/proc/7/cgroup"), "0::/docker/01B\n");
    });
    wrong("leftovers", State::Fail, &["1 of containers that run", "/run/gpool/leases/01A", "restart"], &|host| {
        host.leases.as_mut().unwrap().clear();
    });
    wrong("supervisor", State::Warn, &["version 9.9.9"], &|host| host.info.as_mut().unwrap().version = "9.9.9".into());
    wrong("configuration", State::Fail, &["hold_mss", "gpool config validate"], &|host| {
        host.configuration = gpool_configuration::parse(Path::new("/etc/gpool/config.toml"), "[lease]\nhold_mss = 1\n");
    });
    let becomes =
        |path: &'static str, text: &'static str| move |host: &mut Surroundings| write_text(&host.path(path), text);
    let mode = |path: &'static str, mode: u32| move |host: &mut Surroundings| set_mode(&host.path(path), mode);
    let shim = "/usr/lib/gpool/535/libgpool-cuda.so";
    wrong("shims", State::Fail, &["libgpool-cuda.so is no shim", "install gpool again"], &becomes(shim, "\x7fELF"));
    wrong("shims", State::Fail, &["no shim fits", "look"], &|host| {
        host.driver = Err(ErrorBody::new(ErrorCode::SupervisorFailed, "no shim fits", "look"));
    });
    let release = "/proc/sys/kernel/osrelease";
    wrong("kernel", State::Fail, &["Linux 5.4.0-42 has no openat2", "5.6"], &becomes(release, "5.4.0-42\n"));
    wrong("kernel", State::Fail, &["4.19.0"], &becomes(release, "4.19.0\n"));
    let docker = "/etc/docker/daemon.json";
    wrong("engines", State::Warn, &["docker installed", "docker, then systemctl reload docker"], &remove(docker));
    wrong("engines", State::Fail, &["daemon.json of docker", "repair"], &becomes(docker, "{\"runtimes\":"));
    wrong(
        "engines",
        State::Fail,
        &["/usr/bin/gpool-runtime, which is not there", "--runtime-path"],
        &remove("/usr/bin/gpool-runtime"),
    );
    wrong("engines", State::Fail, &["no executable file"], &mode("/usr/bin/gpool-runtime", 0o644));
    wrong("engines", State::Warn, &["none of docker"], &remove("/usr/bin/dockerd"));
    let hook = "/usr/libexec/gpool/gpool-hook";
    wrong("hook", State::Fail, &["gpool-hook (paths.hook) is not there", "install"], &remove(hook));
    wrong("hook", State::Fail, &["is not executable"], &mode(hook, 0o644));
    let hook_file = "/usr/share/containers/oci/hooks.d/50-gpool.json";
    let names = becomes(hook_file, r#"{"hook":{"path":"/usr/local/libexec/gpool-hook"}}"#);
    wrong(
        "hook",
        State::Fail,
        &["names /usr/local/libexec/gpool-hook, which is not there", "remove /usr/share"],
        &names,
    );
    let own_file = "/usr/share/gpool/oci-hooks.d/50-gpool.json";
    wrong("hook", State::Fail, &["oci-hooks.d/50-gpool.json names /nowhere/gpool-hook", "remove"], &|host| {
        write_text(&host.path(own_file), r#"{"hook":{"path":"/nowhere/gpool-hook"}}"#);
        let told = "[engine]\nhooks_dir = [\"/usr/share/gpool/oci-hooks.d\"]\n";
        write_text(&host.path("/etc/containers/containers.conf.d/50-gpool.conf"), told);
    });
    wrong("hook", State::Fail, &["CRI-O does not start with /usr/share/containers", "precreate", "move it"], &|host| {
        write_text(&host.path("/usr/bin/crio"), "");
        write_text(&host.path(hook_file), include_str!("../../../configs/oci-hooks.d/50-gpool.json"));
    });
    wrong("socket", State::Warn, &["mode 600", "chmod 666"], &mode("/run/gpool/gpool.sock", 0o600));
    wrong("socket", State::Warn, &["only root may enter /run/gpool", "chmod 755"], &mode("/run/gpool", 0o700));
    wrong("socket", State::Warn, &["no group gpool", "groupadd"], &becomes("/etc/group", "root:x:0:\n"));
    wrong("socket", State::Fail, &["is no socket"], &|host| {
        fs::remove_file(host.path("/run/gpool/gpool.sock")).unwrap();
        write(&host.path("/run/gpool/gpool.sock"));
    });
    wrong("owners", State::Fail, &["config.toml has mode 666", "chmod go-w"], &mode("/etc/gpool/config.toml", 0o666));
    wrong("owners", State::Fail, &["/usr/lib/gpool/535 has mode 775"], &mode("/usr/lib/gpool/535", 0o775));
    let version =
        |text: &'static str| move |host: &mut Surroundings| host.driver.as_mut().unwrap().version = text.into();
    wrong("driver version", State::Fail, &["64-bit AND", "release notes", "install 535.104.05"], &version("535.54.03"));
    wrong("driver version", State::Warn, &["branch 470", "535, 550, 555"], &version("470.1.2"));
    wrong("driver version", State::Warn, &["no version", "nvidia-smi"], &version(""));
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    wrong("clock", State::Warn, &["hpet", "clocksource=tsc"], &becomes(source, "hpet\n"));
    wrong("clock", State::Warn, &["set back", "NTP"], &|host| {
        host.info.as_mut().unwrap().started_unix_ms = 1_700_000_060_000
    });
    wrong(
        "neighbours",
        State::Warn,
        &["/usr/local/vgpu/libvgpu.so of HAMi-core", "take the line out"],
        &becomes("/etc/ld.so.preload", "/usr/local/vgpu/libvgpu.so\n"),
    );
    wrong("neighbours", State::Warn, &["MPS daemon runs (process 7)", "quit"], &of_others::mps_runs);
    let slices = |kept: bool, told: &'static str| {
        move |host: &mut Surroundings| {
            host.configuration.as_mut().unwrap().policy.timeslice_shares = true;
            let verdict = TimeSlices { kept, is_final: true, told: told.into() };
            host.gpus.as_mut().unwrap()[0].time_slices = (!told.is_empty()).then_some(verdict);
        }
    };
    wrong("time slices", State::Warn, &["GPU 0: had 501", "mode=slice"], &slices(false, "had 501"));
    wrong("time slices", State::Warn, &["GPU 0: not tried yet", "each minute"], &slices(false, ""));
    let limits = |state: MemoryLimitsState| {
        move |host: &mut Surroundings| {
            let told = "what NVML says".to_owned();
            host.gpus.as_mut().unwrap()[0].memory_limits = Some(MemoryLimits { state, told });
        }
    };
    let refused = limits(MemoryLimitsState::Refused);
    wrong("memory limits", State::Warn, &["shims alone: GPU 0: what NVML says", "memory_limits"], &refused);
    wrong("compute mode", State::Warn, &["GPU 0: EXCLUSIVE_PROCESS", "nvidia-smi -c DEFAULT"], &|host| {
        host.gpus.as_mut().unwrap()[0].compute_mode = Some("EXCLUSIVE_PROCESS".to_owned());
    });
    wrong("silent GPUs", State::Fail, &["GPU 3 is left out: lost", "restart it"], &|host| {
        let gpu = SilentGpu { index: 3, uuid: None, cause: "lost".into(), remedy: "restart it".into() };
        host.silent = Ok(vec![gpu]);
    });
    wrong("drained GPUs", State::Warn, &["GPU 3 (GPU-1) takes no new leases", "by user 7", "undrain"], &|host| {
        let drain = Drain { since_unix_ms: 1, uid: Some(7), reason: "new fans".into(), fault: None };
        host.drained = Ok(vec![DrainedGpu { uuid: GpuUuid("GPU-1".into()), index: Some(3), drain, leases: 0 }]);
    });
    let reserved = |state: &str| -> Vec<ReservationView> {
        let its = serde_json::json!({"name": "serving", "gpus": 2, "share_permille": 500, "state": state, "seats": []});
        vec![serde_json::from_value(its).unwrap()]
    };
    wrong(
        "reservations",
        State::Warn,
        &["reservation serving lacks 2 of 2 GPUs, share 1", "what falls free is kept"],
        &|host| host.reservations = Ok(reserved("open")),
    );
    let root = tempfile::tempdir().unwrap();
    let mut host = healthy(root.path());
    host.reservations = Ok(reserved("closed"));
    assert_eq!(of(&host, "reservations").0, State::Ok, "it is not its time");
    slices(true, "had 943")(&mut host);
    assert_eq!(of(&host, "time slices").0, State::Ok);
    for (state, part) in [
        (MemoryLimitsState::Absent, "shims alone: GPU 0"),
        (MemoryLimitsState::Untried, "may keep"),
        (MemoryLimitsState::Kept, "the driver keeps"),
    ] {
        limits(state)(&mut host);
        let (found, said) = of(&host, "memory limits");
        assert!(found == State::Ok && said.contains(part), "{state:?}: {said}");
    }
}

#[test]
fn a_kubelet_should_be_told_by_gpool_and_by_nobody_else() {
    let root = tempfile::tempdir().unwrap();
    let host = healthy(root.path());
    assert_eq!(of(&host, "kubelet").0, State::Ok, "there is none");
    let at = |path: &str| root.path().join(path.trim_start_matches('/'));
    let listens = |path: &str| {
        fs::create_dir_all(at(path).parent().unwrap()).unwrap();
        UnixListener::bind(at(path)).unwrap()
    };
    let plugins = "/var/lib/kubelet/device-plugins";
    let kubelet = listens(&format!("{plugins}/kubelet.sock"));
    let (state, words) = of(&host, "kubelet");
    assert!(state == State::Warn && words.contains("enable --now gpool-device-plugin"), "{words}");
    let own = listens(&format!("{plugins}/gpool-percent.sock"));
    assert_eq!(of(&host, "kubelet").0, State::Ok);
    for other in ["/var/lib/kubelet/device-plugins/nvidia-gpu.sock", "/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock"]
    {
        let nvidias = listens(other);
        let (state, words) = of(&host, "kubelet");
        let name = other.rsplit('/').next().unwrap();
        assert!(state == State::Warn && words.contains(name) && words.contains("off this node"), "{words}");
        drop(nvidias);
        assert_eq!(of(&host, "kubelet").0, State::Ok, "what was killed leaves its socket behind");
    }
    drop(own);
    assert_eq!(of(&host, "kubelet").0, State::Warn);
    let mut host = host;
    host.configuration.as_mut().unwrap().policy.counted_pods = true;
    let (state, words) = of(&host, "kubelet");
    assert!(state == State::Fail && words.contains("counted_pods"), "{words}");
    // Where another scheduler places pods it is gpool that has to be silent.
    host.configuration.as_mut().unwrap().policy.placed_by = gpool_configuration::Placer::Kai;
    let (state, words) = of(&host, "kubelet");
    assert!(state == State::Warn && words.contains("install NVIDIA's device plugin"), "{words}");
    let nvidias = listens(&format!("{plugins}/nvidia-another.sock"));
    assert_eq!(of(&host, "kubelet").0, State::Ok);
    let own = listens(&format!("{plugins}/gpool-mig.sock"));
    let (state, words) = of(&host, "kubelet");
    assert!(state == State::Fail && words.contains("disable --now gpool-device-plugin"), "{words}");
    drop((own, nvidias));
    host.configuration.as_mut().unwrap().policy.placed_by = gpool_configuration::Placer::Hami;
    assert_eq!(of(&host, "kubelet").0, State::Ok, "its plugin has had several names");
    host.configuration.as_mut().unwrap().policy.counted_pods = false;
    let (state, words) = of(&host, "kubelet");
    assert!(state == State::Warn && words.contains("counted_pods"), "{words}");
    drop(kubelet);
    assert_eq!(of(&host, "kubelet").0, State::Ok);
}

#[test]
fn without_a_supervisor_that_fails_and_what_it_knows_is_skipped() {
    let root = tempfile::tempdir().unwrap();
    let gone = || ErrorBody::new(ErrorCode::SupervisorAbsent, "the supervisor does not answer", "start it");
    let mut host = healthy(root.path());
    host.info = Err(gone());
    (host.driver, host.gpus, host.silent) = (Err(gone()), Err(gone()), Err(gone()));
    (host.leases, host.guarded, host.drained) = (Err(gone()), Err(gone()), Err(gone()));
    host.reservations = Err(gone());
    assert_eq!(of(&host, "supervisor"), (State::Fail, "the supervisor does not answer; start it".into()));
    for name in [
        "driver",
        "shims",
        "uncounted calls",
        "mapped builds",
        "leases",
        "leftovers",
        "silent GPUs",
        "drained GPUs",
        "compute mode",
        "reservations",
    ] {
        assert_eq!(of(&host, name).0, State::Skip, "{name}");
    }
    assert_eq!(of(&host, "driver version").0, State::Skip);
    for name in ["configuration", "low-level runtime", "cgroups", "device nodes", "kernel", "engines", "hook", "socket"]
    {
        assert_eq!(of(&host, name).0, State::Ok, "{name}");
    }
}

#[test]
fn repairs_are_modes_and_leftovers_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let mut host = healthy(root.path());
    set_mode(&host.path("/run/gpool"), 0o700);
    set_mode(&host.path("/etc/gpool/config.toml"), 0o666);
    host.leases.as_mut().unwrap().clear();
    host.guarded.as_mut().unwrap().clear();
    write(&host.path("/run/gpool/leases/01B/region/control"));
    let fixes: Vec<Fix> = check_all(&host).into_iter().flat_map(|check| check.outcome.fixes).collect();
    let client = gpool_protocol::Client::new(root.path().join("nobody.sock"));
    let done: Vec<Result<String, String>> = fixes.iter().map(|fix| fix.apply(&client)).collect();
    assert_eq!(fixes.len(), 3, "{fixes:#?}");
    assert!(done[0].as_ref().unwrap_err().contains("may belong to a lease that is being made"), "{done:?}");
    assert!(done[1..].iter().all(Result::is_ok), "{done:?}");
    for name in ["socket", "owners"] {
        assert_eq!(of(&host, name).0, State::Ok, "{name}");
    }
    assert_eq!(of(&host, "leftovers").0, State::Fail, "nothing was removed without an answer of the supervisor");
}

#[test]
fn planted_secrets_are_in_no_archive() {
    let root = tempfile::tempdir().unwrap();
    let mut host = healthy(root.path());
    write_text(&host.path("/proc/sys/kernel/hostname"), "gpu-node-seventeen\n");
    write_text(&host.path("/proc/7/environ"), "DB_PASSWORD=planted-one\0");
    let mounts =
        "40 1 0:3 / /run/gpool/leases/01A/region rw - tmpfs gpool rw\n41 1 0:4 / /home/planted-two rw - x x x\n";
    write_text(&host.path("/proc/self/mountinfo"), mounts);
    write_text(&host.configuration_path, "# token = planted-three\n[socket]\ngroup = \"gpu-node-seventeen\"\n");
    write_text(&host.path("/etc/docker/daemon.json"), r#"{"registry-mirrors":["https://u:planted-four@example"]}"#);
    host.guarded.as_mut().unwrap()[0].finding = Some("it ran with hf_planted-five-planted-five".into());
    let checked = check_all(&host);
    let client = gpool_protocol::Client::new(root.path().join("nobody.sock"));
    let files = contents(&host, &client, &checked);
    let text: String = files.iter().map(|(_, content)| String::from_utf8_lossy(content)).collect();
    for secret in ["planted", "gpu-node-seventeen"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    for wanted in ["socket.group = \"HOST\"", "leases/01A/region", "\"mapped builds\"", "REDACTED", "GPOOL-E001"] {
        assert!(text.contains(wanted), "{wanted} not in {text}");
    }
    let archive = root.path().join("support.tar");
    write_bundle(&archive, &files, 1_700_000_000).unwrap();
    let listed = std::process::Command::new("tar").arg("-tf").arg(&archive).output().unwrap();
    assert_eq!(String::from_utf8(listed.stdout).unwrap().lines().count(), files.len());
    assert_eq!(fs::metadata(&archive).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(write_bundle(&archive, &files, 0).unwrap_err().contains("name another file"));
}

#[test]
fn a_gpu_that_shows_something_is_named_with_what_to_do_and_fails_where_no_reset_mends_it() {
    let root = tempfile::tempdir().unwrap();
    let mut host = healthy(root.path());
    let mut shows = |found: Option<&[&str]>| {
        let finding = |kind: &&str| HealthFinding {
            kind: (*kind).into(),
            since_unix_ms: 1,
            cause: "memory has failed".into(),
            remedy: "reset it".into(),
            accepted: false,
        };
        host.gpus.as_mut().unwrap()[0].health = found.map(|found| found.iter().map(finding).collect());
        of(&host, "GPU health")
    };
    assert_eq!((shows(None).0, shows(Some(&[])).0), (State::Skip, State::Ok));
    let (state, said) = shows(Some(&["remap-pending", "thermal"]));
    let want = "GPU 0 (GPU-1) shows remap-pending: memory has failed, GPU 0 (GPU-1) shows thermal: memory has failed; reset it";
    assert_eq!((state, said.as_str()), (State::Warn, want));
    assert_eq!(shows(Some(&["remap-failure"])).0, State::Fail);
}
