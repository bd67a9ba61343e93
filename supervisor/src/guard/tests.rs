use super::*;
use gpool_protocol::BuildId;

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
        class: Class::Batch,
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
    let look = |libraries: &[Library], is_cut| Look { libraries: libraries.to_vec(), is_cut };
    assert_eq!(its.mapped(&look(&[], false), true), Mapped::Nothing);
    assert_eq!(its.mapped(&look(&[], true), true), Mapped::Other);
    assert_eq!(its.mapped(&look(&[library(true, Some("aa"))], true), true), Mapped::Shim, "that one was read");
    let evidence = Evidence {
        has_context: false,
        holds_device: true,
        cuda: its.mapped(&look(&[], true), true),
        nvml: Mapped::Shim,
        is_registered: true,
    };
    assert_eq!(judge(&evidence), Some(Bypass::NoShim));
}

#[test]
fn a_process_that_uses_no_gpu_is_not_looked_at_and_one_past_the_shims_is_named() {
    let me = HostPid(std::process::id());
    let mut guard = Guard::new(BTreeSet::new()).unwrap();
    let mut its = charge(vec![shim("libcuda.so.1", "aa")]);
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
