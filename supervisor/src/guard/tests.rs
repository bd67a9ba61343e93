use super::shown::SHOWN;
use super::*;
use gpool_policy::mechanism::ComputeMode;
use gpool_protocol::{BuildId, ContainerId, LeaseId, ShimView};

fn shim(library: &str, build: &str) -> ShimView {
    ShimView {
        library: library.into(),
        path: "/usr/lib/gpool/535/x.so".into(),
        generation: "535".into(),
        build_id: Some(BuildId(build.into())),
    }
}

fn charge(shims: Vec<ShimView>) -> Charge {
    Charge {
        lease_id: LeaseId("01".into()),
        container_id: ContainerId("c".repeat(64)),
        action: BypassAction::Event,
        cgroup: None,
        registered: Vec::new(),
        shims,
        gpus: vec![0],
        cap_bytes: 1,
        highest_cap_bytes: None,
        context_bytes: 1,
        has_shims: true,
        mps_group: None,
    }
}

fn library(is_cuda: bool, build: Option<&str>) -> Library {
    Library {
        path: "/x/libcuda.so.1".into(),
        is_cuda,
        build_id: build.map(|build| BuildId(build.into())),
        is_unread: false,
    }
}

#[test]
fn a_shim_is_known_by_the_build_that_the_container_was_started_with() {
    let its = charge(vec![shim("libcuda.so.1", "aa"), shim("libnvidia-ml.so.1", "bb")]);
    assert!(its.is_shim(&library(true, Some("aa"))) && its.is_shim(&library(false, Some("bb"))));
    assert!(!its.is_shim(&library(true, Some("bb"))), "the other library's shim");
    assert!(!its.is_shim(&library(true, Some("cc"))) && !its.is_shim(&library(true, None)));
    let nameless = charge(vec![ShimView { build_id: None, ..shim("libcuda.so.1", "") }]);
    assert!(!nameless.is_shim(&library(true, None)), "what has no build id proves nothing");
}

#[test]
fn who_maps_more_than_is_read_is_judged_as_if_it_had_no_shim() {
    let its = charge(vec![shim("libcuda.so.1", "aa")]);
    let look = |libraries: &[Library], is_cut| Look { libraries: libraries.to_vec(), is_cut, is_unread: false };
    assert_eq!(its.mapped(&look(&[], false), true), Mapped::Nothing);
    assert_eq!(its.mapped(&look(&[], true), true), Mapped::Other);
    assert_eq!(its.mapped(&look(&[library(true, Some("aa"))], true), true), Mapped::Shim, "that one was read");
    let evidence = Evidence {
        has_context: false,
        holds_device: true,
        cuda: its.mapped(&look(&[], true), true),
        nvml: Mapped::Shim,
        is_registered: true,
        has_other_clock: false,
    };
    assert_eq!(judge(&evidence), Some(Bypass::NoShim));
}

#[test]
fn a_process_that_uses_no_gpu_is_not_looked_at_and_one_past_the_shims_is_named() {
    let me = HostPid(std::process::id());
    let mut guard = Guard::new(BTreeSet::new()).unwrap();
    let mut its = charge(vec![shim("libcuda.so.1", "aa")]);
    guard.maps.begin();
    assert!(guard.examine(&its, me, false).is_none());
    let (process, bypass) = guard.examine(&its, me, true).unwrap();
    assert_eq!(bypass, Some(Bypass::NoShim));
    let text = bypass_sentence(&process);
    for part in ["cccccccccccc uses a GPU past", &format!("process {me} ("), "no library named as libcuda"] {
        assert!(text.contains(part), "{text} lacks {part}");
    }
    let real = MappedLibrary { path: "/dev/gpool/real/libcuda.so.1".into(), build_id: None, is_shim: false };
    let behind = MappedLibrary { path: "/dev/gpool/real/libnvidia-ml.so.1".into(), ..real.clone() };
    let text = bypass_sentence(&GuardedProcess { libraries: vec![behind, real], ..process });
    assert!(text.ends_with("mapped /dev/gpool/real/libcuda.so.1"), "{text}");
    // The lease of a supervisor that knew no build ids: registration has to do.
    its.shims.clear();
    its.registered.push((me, None));
    assert_eq!(guard.examine(&its, me, true).unwrap().1, None);
    // What registered was another program, which the process has left by executing this one.
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    // Its stack may be laid out after it was started.
    let mark = std::iter::repeat_with(|| ProgramMark::of(HostPid(child.id()))).find(Option::is_some).flatten();
    its.registered = vec![(me, mark)];
    child.kill().and_then(|()| child.wait().map(drop)).unwrap();
    assert_eq!(guard.examine(&its, me, true).unwrap().1, Some(Bypass::NoShim));
    its.registered.push((me, ProgramMark::of(me)));
    assert_eq!(guard.examine(&its, me, true).unwrap().1, None, "this one has, too");
}

/// A process that waits for a file server within mmap(2) keeps its mappings from being read: here a pipe that nobody writes
/// into stands for them.
#[test]
fn a_process_whose_mappings_cannot_be_read_holds_nobody_up_and_is_judged_by_its_registration() {
    let (directory, me) = (tempfile::tempdir().unwrap(), HostPid(std::process::id()));
    let process = directory.path().join(me.to_string());
    std::fs::create_dir(&process).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, process.join("maps"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let mut guard = Guard::new(BTreeSet::new()).unwrap();
    guard.maps = Maps::new(directory.path().into()).unwrap();
    let mut its = charge(vec![shim("libcuda.so.1", "aa")]);
    // The first look waits for a while, the second does not ask again.
    for _ in 0..2 {
        guard.maps.begin();
        let (process, bypass) = guard.examine(&its, me, true).unwrap();
        assert_eq!(bypass, Some(Bypass::NoShim), "it has a context and has not registered");
        assert!(bypass_sentence(&process).contains("cannot be read now"), "{}", bypass_sentence(&process));
    }
    its.registered.push((me, None));
    assert_eq!(guard.examine(&its, me, true).unwrap().1, None, "what it has mapped may be the shim");
    assert!(guard.proven.is_empty());
    drop(std::fs::File::options().write(true).open(process.join("maps")).unwrap());
}

/// As a worker that a program has forked: it has the GPU's device open and the shim mapped, and has not registered.
#[test]
fn what_a_worker_has_open_and_mapped_is_not_read_at_each_look() {
    use std::process::{Command, Stdio};
    let directory = tempfile::tempdir().unwrap();
    let (source, library, program) =
        (directory.path().join("a.c"), directory.path().join("libcuda.so.1"), directory.path().join("program"));
    let text = "#ifdef MAIN\nint pause(void); int f(void);\nint main(void) { pause(); return f(); }\n\
                #else\nint f(void) { return 0; }\n#endif\n";
    std::fs::write(&source, text).unwrap();
    let cc = |arguments: &[&str], output: &std::path::Path, last: &[&std::path::Path]| {
        let made = Command::new("cc").args(arguments).arg("-o").arg(output).arg(&source).args(last).status();
        assert!(made.unwrap().success());
    };
    cc(&["-shared", "-fPIC", "-Wl,--build-id=0xfeed"], &library, &[]);
    cc(&["-DMAIN"], &program, &[&library]);
    let mut child =
        Command::new(&program).env("LD_LIBRARY_PATH", directory.path()).stdin(Stdio::null()).spawn().unwrap();
    let pid = HostPid(child.id());
    // The device that it holds is the null device here.
    let mut guard = Guard::new(BTreeSet::from([(1, 3)])).unwrap();
    let its = charge(vec![shim("libcuda.so.1", "feed")]);
    let look = |guard: &mut Guard, its: &Charge, has_context| {
        guard.builds.begin([].into_iter());
        guard.maps.begin();
        guard.examine(its, pid, has_context).map(|(process, bypass)| (process.libraries.len(), bypass))
    };
    let first = (0..1000).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        look(&mut guard, &its, false).filter(|(libraries, bypass)| *libraries > 0 && bypass.is_none())
    });
    // From now on nothing is there to be read.
    guard.maps = Maps::new(directory.path().join("nothing")).unwrap();
    let seen = [false, true].map(|has_context| look(&mut guard, &its, has_context));
    let of_another = look(&mut guard, &Charge { lease_id: LeaseId("02".into()), ..charge(Vec::new()) }, false);
    guard.unregistered.begin(Instant::now() + std::time::Duration::from_secs(9));
    let soon = look(&mut guard, &its, false);
    guard.unregistered.begin(Instant::now() + std::time::Duration::from_secs(11));
    let later = look(&mut guard, &its, false);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(first, Some((1, None)));
    assert_eq!(seen, [Some((1, None)), None], "who has a context is read");
    assert_eq!((of_another, soon, later), (None, Some((1, None)), None));
}

#[test]
fn a_context_is_as_old_as_its_process_and_not_as_its_pid() {
    let mut guard = Guard::new(BTreeSet::new()).unwrap();
    let start = Instant::now();
    let mut note = |seconds, contexts: &[(u32, Option<u64>)]| {
        let now = start + std::time::Duration::from_secs(seconds);
        guard.note_contexts(contexts.iter().map(|(pid, ticks)| (HostPid(*pid), *ticks)), now);
        let age = |(since, _): &(Instant, Option<u64>)| now.duration_since(*since).as_secs();
        guard.contexts.values().map(age).collect::<Vec<_>>()
    };
    assert_eq!(note(1, &[(7, Some(100)), (8, Some(100))]), [0, 0]);
    assert_eq!(note(2, &[(7, Some(100)), (8, None)]), [1, 0]);
    assert_eq!(note(3, &[(7, Some(100)), (8, Some(300))]), [2, 0], "another one has the pid of one that has ended");
    assert_eq!(note(4, &[(8, Some(300))]), [1]);
    assert_eq!(note(5, &[(7, Some(100)), (8, Some(300))]), [0, 2]);
}

#[test]
fn of_a_lease_with_many_processes_those_are_shown_that_go_past_its_shims() {
    let process = |lease: &str, pid: u32, finding: Option<&str>| GuardedProcess {
        lease_id: LeaseId(lease.into()),
        container_id: ContainerId("c".into()),
        pid: HostPid(pid),
        name: "python3".into(),
        is_registered: true,
        libraries: Vec::new(),
        finding: finding.map(str::to_owned),
        memory_charged_bytes: None,
        memory_nvml_bytes: None,
    };
    let mut seen: Vec<GuardedProcess> = (0..1000).map(|pid| process("01", pid, None)).collect();
    seen.push(process("01", 1000, Some("it has not mapped the shim")));
    seen.push(process("02", 1001, None));
    let all = shown(seen, |pid| (pid.0 == 1001).then_some(7));
    let pids: Vec<u32> = all.iter().map(|process| process.pid.0).collect();
    let expected: Vec<u32> = (0..SHOWN as u32 - 1).chain([1000, 1001]).collect();
    assert_eq!(pids, expected);
    let listed = all.iter().filter_map(|process| process.memory_nvml_bytes.map(|bytes| (process.pid.0, bytes)));
    assert_eq!(listed.collect::<Vec<_>>(), [(1001, 7)]);
}

#[test]
fn what_nvml_lists_for_a_process_is_without_what_its_contexts_take_beside_that_and_of_all_gpus() {
    let on_one = |pid: u32, bytes: u64| Occupancy {
        used_bytes: 0,
        is_still: true,
        by_process: BTreeMap::from([(HostPid(pid), bytes + 9)]),
        listed: BTreeMap::from([(HostPid(pid), bytes)]),
        present: BTreeSet::from([HostPid(pid)]),
        inherited: BTreeSet::new(),
        compute_mode: ComputeMode::Default,
        energy: None,
    };
    let mut gpus = [Some(on_one(7, 520)), None, Some(on_one(7, 30)), Some(on_one(8, 1))];
    let listed = |gpus: &[Option<Occupancy>]| [7, 8, 9].map(|pid| listed_bytes(gpus, HostPid(pid)));
    assert_eq!(listed(&gpus), [Some(550), Some(1), None]);
    gpus[3].as_mut().unwrap().note_inherited(BTreeSet::from([HostPid(8)]), |_| false);
    assert_eq!(listed(&gpus), [Some(550), None, None], "that was the one which had the pid before");
}
