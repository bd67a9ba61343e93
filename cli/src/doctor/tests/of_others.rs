//! A supervisor that keeps silent, leases without shims, and those who have none.

use super::*;
use gpool_protocol::{Mechanism, OutsideProcess};
use std::os::unix::fs::symlink;

#[test]
fn who_takes_the_connection_and_says_nothing_is_asked_once() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("gpool.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let host = Surroundings::of_this_host(&root.path().join("config.toml"), Some(&socket));
    let client = gpool_protocol::Client::new(&socket);
    let text: String =
        contents(&host, &client, &[]).iter().map(|(_, content)| String::from_utf8_lossy(content)).collect();
    assert_eq!(text.matches("does not answer").count(), 7, "{text}");
    assert_eq!((of(&host, "supervisor").0, of(&host, "leases").0), (State::Fail, State::Skip));
    assert!(matches!(&host.driver, Err(error) if error.code == ErrorCode::SupervisorAbsent));
    listener.set_nonblocking(true).unwrap();
    assert_eq!(std::iter::from_fn(|| listener.accept().ok()).count(), 1);
}

#[test]
fn who_has_no_shims_is_not_counted_as_idle() {
    let root = tempfile::tempdir().unwrap();
    let mut host = healthy(root.path());
    assert!(of(&host, "leases").1.contains("1 of running containers, 1 of them without a process on a GPU"));
    host.leases.as_mut().unwrap()[0].mechanism = Mechanism::TimeSlice;
    assert!(of(&host, "leases").1.contains("1 of running containers, 0 of them without a process on a GPU"));
}

#[test]
fn processes_without_a_lease_are_named() {
    let root = tempfile::tempdir().unwrap();
    let mut host = healthy(root.path());
    let process = OutsideProcess {
        pid: HostPid(4211),
        name: "python3".into(),
        cgroup: "/user.slice".into(),
        asks: None,
        memory_nvml_bytes: None,
    };
    host.outside = Ok(vec![process.clone()]);
    let (state, words) = of(&host, "neighbours");
    assert!(state == State::Warn && words.contains("process 4211 (python3, of the cgroup /user.slice)"), "{words}");
    assert!(!words.contains("--runtime=gpool"), "{words}");
    host.outside = Ok(vec![OutsideProcess { asks: Some("fraction=0.3".into()), ..process }]);
    let words = of(&host, "neighbours").1;
    assert!(words.contains("container asks for fraction=0.3") && words.contains("add --runtime=gpool"), "{words}");
    host.outside = Err(ErrorBody::new(ErrorCode::MessageInvalid, "an older one", "none"));
    assert_eq!(of(&host, "neighbours").0, State::Ok);
}

#[test]
fn memory_that_nobody_has_is_told() {
    let root = tempfile::tempdir().unwrap();
    let mut host = healthy(root.path());
    host.gpus.as_mut().unwrap()[0].memory_outside_bytes = (1 << 20) - 1;
    assert_eq!(of(&host, "neighbours").0, State::Ok);
    host.gpus.as_mut().unwrap()[0].memory_outside_bytes = 300 << 20;
    let (state, words) = of(&host, "neighbours");
    assert!(state == State::Warn && words.contains("300MiB of GPU 0") && words.contains("headroom_bytes"), "{words}");
    let process =
        OutsideProcess { pid: HostPid(1), name: "a".into(), cgroup: "/".into(), asks: None, memory_nvml_bytes: None };
    host.outside = Ok(vec![process]);
    assert!(of(&host, "neighbours").1.contains("process 1"), "its process is named where there is one");
}

/// Process 7 becomes a daemon of MPS.
pub(super) fn mps_runs(host: &mut Surroundings) {
    write_text(&host.path("/proc/7/comm"), "nvidia-cuda-mps\n");
    write_text(&host.path("/proc/7/stat"), "7 (nvidia) cuda-mps) S 6 7 7 0 -1\n");
    symlink("/usr/bin/nvidia-cuda-mps-control", host.path("/proc/7/exe")).unwrap();
    fs::create_dir_all(host.path("/proc/7/ns")).unwrap();
    fs::create_dir_all(host.path("/proc/self/ns")).unwrap();
    symlink("pid:[1]", host.path("/proc/7/ns/pid")).unwrap();
    symlink("pid:[1]", host.path("/proc/self/ns/pid")).unwrap();
}

#[test]
fn servers_of_mps_are_gpools_own_by_what_is_written_down() {
    for (record, is_own) in [
        (r#"{"daemon":{"pid":7,"start_ticks":1}}"#, true),
        (r#"{"daemon":{"pid":3,"start_ticks":1},"server":{"pid":7,"start_ticks":1}}"#, true),
        (r#"{"daemon":{"pid":6,"start_ticks":1},"server":null}"#, true),
        (r#"{"daemon":{"pid":3,"start_ticks":1}}"#, false),
        ("", false),
    ] {
        let root = tempfile::tempdir().unwrap();
        let mut host = healthy(root.path());
        mps_runs(&mut host);
        write_text(&host.path("/run/gpool/mps/01/group.json"), record);
        // What a process says of itself counts for nothing.
        write_text(&host.path("/proc/7/environ"), "CUDA_MPS_PIPE_DIRECTORY=/run/gpool/mps/01/shared/pipe\0");
        assert_eq!(of(&host, "neighbours").0 == State::Ok, is_own, "{record}");
    }
}

#[test]
fn a_name_alone_is_no_mps_and_hides_nobody() {
    let root = tempfile::tempdir().unwrap();
    let mut host = healthy(root.path());
    mps_runs(&mut host);
    let process = OutsideProcess {
        pid: HostPid(4211),
        name: "a".into(),
        cgroup: "/".into(),
        asks: None,
        memory_nvml_bytes: None,
    };
    host.outside = Ok(vec![process]);
    let (state, words) = of(&host, "neighbours");
    assert!(state == State::Warn && words.contains("(process 7); and without a lease"), "{words}");
    assert!(words.contains("process 4211") && words.contains("echo quit") && words.contains("end it, or"), "{words}");
    let becomes = |path: &str, target: &str| {
        fs::remove_file(host.path(path)).unwrap();
        symlink(target, host.path(path)).unwrap();
        of(&host, "neighbours").1
    };
    let in_a_container = becomes("/proc/7/ns/pid", "pid:[2]");
    assert!(!in_a_container.contains("MPS") && in_a_container.contains("process 4211"), "{in_a_container}");
    assert!(becomes("/proc/7/ns/pid", "pid:[1]").contains("MPS"));
    assert!(!becomes("/proc/7/exe", "/usr/bin/python3").contains("MPS"));
    let ended = host.path("/proc/7/exe");
    fs::remove_file(ended).unwrap();
    assert!(!of(&host, "neighbours").1.contains("MPS"), "a zombie has no program");
}
