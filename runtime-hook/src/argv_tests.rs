use super::*;
use proptest::prelude::*;

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn creation(line: &str) -> Creation {
    match scan(&words(line)).invocation {
        Invocation::Create(creation) => creation,
        Invocation::PassThrough => panic!("{line:?} makes a container"),
    }
}

#[test]
fn every_callers_form_is_read() {
    let containerd = "--root /r --log /b/log.json --log-format json --systemd-cgroup create --bundle /b --pid-file /p \
                      --console-socket /s --no-pivot --no-new-keyring c1";
    let podman = "--systemd-cgroup --log-format=json --log /b/log.json --cgroup-manager disabled create --bundle /b \
                  --pid-file /p --preserve-fds 3 c1";
    for line in [containerd, podman] {
        let want = Creation { bundle: "/b".into(), container_id: Some("c1".into()) };
        assert_eq!(creation(line), want, "{line}");
        assert_eq!(scan(&words(line)).log, Some("/b/log.json".into()));
    }
    assert_eq!(scan(&words("--root=/r create --bundle /b --pid-file /p --log x c1")).log, None);
    assert_eq!(scan(&words("--log=/l delete c1")).log, Some("/l".into()));
    assert_eq!(creation("run --bundle /b --no-pivot --keep c1").container_id, Some("c1".into()));
    assert_eq!(creation("restore --bundle /b --detach --image-path /i --work-path /w c1").bundle, PathBuf::from("/b"));
}

#[test]
fn every_form_of_the_bundle_is_read() {
    for form in ["--bundle b", "--bundle=b", "-b b", "-b=b", "-bundle b", "-bundle=b", "--b b", "-b x --bundle b"] {
        for line in [format!("create {form} c1"), format!("create c1 {form}"), format!("create {form} -- c1")] {
            let got = creation(&line);
            assert_eq!((got.bundle, got.container_id), ("b".into(), Some("c1".into())), "{line}");
        }
    }
    assert_eq!(creation("create c1").bundle, PathBuf::new());
    assert_eq!(creation("create --bundle create create").bundle, PathBuf::from("create"));
    assert_eq!(creation("create -- --bundle").container_id, Some("--bundle".into()));
}

#[test]
fn a_word_that_only_looks_like_the_verb_is_none() {
    for line in [
        "",
        "--root create",
        "--root create start c1",
        "exec --process create run",
        "kill create 9",
        "--version",
        "-v",
        "--log",
        "--",
        "features",
        "--debug",
        "delete --force create",
        "--version create --bundle b c1",
        "--unknown value create c1",
        "--unknown",
        "create --help",
        "frobnicate create",
        "-",
    ] {
        assert_eq!(scan(&words(line)).invocation, Invocation::PassThrough, "{line}");
    }
    assert_eq!(creation("--root create create --bundle b c1").bundle, PathBuf::from("b"));
    assert_eq!(creation("--unknown create --bundle b c1").bundle, PathBuf::from("b"));
    assert_eq!(creation("--unknown=x create --bundle b c1").bundle, PathBuf::from("b"));
    assert_eq!(creation("--unknown --root /r create --bundle b c1").bundle, PathBuf::from("b"));
}

/// A global flag with its value, in any form that runc takes.
fn global_flag() -> impl Strategy<Value = Vec<String>> {
    let valued = (proptest::sample::select(GLOBAL_WITH_VALUE.to_vec()), "(create|run|exec|-x|[a-z/]{1,8})", 0..4u8)
        .prop_map(|(name, value, form)| match form {
            0 => vec![format!("--{name}"), value],
            1 => vec![format!("--{name}={value}")],
            2 => vec![format!("-{name}"), value],
            _ => vec![format!("-{name}={value}")],
        });
    let switch = proptest::sample::select(vec!["--debug", "--systemd-cgroup", "-debug", "--debug=true"]);
    prop_oneof![valued, switch.prop_map(|switch| vec![switch.to_owned()])]
}

/// A flag of create with its value, the bundle's left out.
fn create_flag() -> impl Strategy<Value = Vec<String>> {
    let valued = (2..CREATE_WITH_VALUE.len(), "(create|--bundle|-b|[a-z/]{1,8})", any::<bool>()).prop_map(
        |(index, value, joined)| match (CREATE_WITH_VALUE[index], joined) {
            (name, true) => vec![format!("--{name}={value}")],
            (name, false) => vec![format!("--{name}"), value],
        },
    );
    let switch = proptest::sample::select(vec!["--no-pivot", "--no-new-keyring", "--keep", "--detach", "-d"]);
    prop_oneof![valued, switch.prop_map(|switch| vec![switch.to_owned()])]
}

proptest! {
    #[test]
    fn the_bundle_and_the_id_are_found_among_any_flags(
        global in proptest::collection::vec(global_flag(), 0..5),
        verb in proptest::sample::select(vec!["create", "run", "restore"]),
        before in proptest::collection::vec(create_flag(), 0..4),
        bundle in "[a-z/][a-z/=-]{0,8}",
        form in 0..4u8,
        after in proptest::collection::vec(create_flag(), 0..4),
        id in "[a-z0-9][a-z0-9_.-]{0,8}",
    ) {
        let bundle_flag = match form {
            0 => vec!["--bundle".into(), bundle.clone()],
            1 => vec![format!("--bundle={bundle}")],
            2 => vec!["-b".into(), bundle.clone()],
            _ => vec![format!("-bundle={bundle}")],
        };
        let all = global.concat().into_iter().chain([verb.to_owned()]).chain(before.concat()).chain(bundle_flag)
            .chain(after.concat()).chain([id.clone()]).map(OsString::from).collect::<Vec<_>>();
        match scan(&all).invocation {
            Invocation::Create(got) => {
                prop_assert_eq!(got.bundle, PathBuf::from(bundle));
                prop_assert_eq!(got.container_id, Some(OsString::from(id)));
            }
            Invocation::PassThrough => prop_assert!(false, "{:?}", all),
        }
    }

    #[test]
    fn other_verbs_pass_whatever_follows(
        global in proptest::collection::vec(global_flag(), 0..5),
        verb in proptest::sample::select(vec!["start", "exec", "kill", "delete", "state", "features", "update", "ps"]),
        rest in proptest::collection::vec("(create|run|--bundle|[a-z-]{0,8})", 0..6),
    ) {
        let all = global.concat().into_iter().chain([verb.to_owned()]).chain(rest).map(OsString::from);
        prop_assert_eq!(scan(&all.collect::<Vec<_>>()).invocation, Invocation::PassThrough);
    }

    #[test]
    fn no_command_line_panics(all in proptest::collection::vec("\\PC{0,12}", 0..8)) {
        scan(&all.into_iter().map(OsString::from).collect::<Vec<_>>());
    }
}
