use super::*;
use std::fs;
use std::path::Path;

fn parsed(text: &str) -> Result<Configuration, ConfigurationError> {
    parse(Path::new("/etc/gpool/config.toml"), text)
}

#[test]
fn an_empty_file_is_the_default() {
    assert_eq!(parsed("").unwrap(), Configuration::default());
    assert_eq!(load(Path::new("/proc/no/such/gpool.toml")).unwrap(), Configuration::default());
}

#[test]
fn an_unknown_key_is_refused_with_its_line_and_the_known_ones() {
    let text = parsed("[lease]\nhold_mss = 3\n").unwrap_err().to_string();
    assert_eq!(text, "/etc/gpool/config.toml: line 2: `lease.hold_mss` is no key; did you mean `lease.hold_ms`?");
    for (text, line, names) in [
        ("hold_ms = 3\n", "line 1", "`lease.hold_ms`"),
        ("\n[leases]\nhold_ms = 3\n", "line 2", "`lease`"),
        ("[lease]\n\nretention = 3\n", "line 3", "here there are `hold_ms`"),
        ("lease.hld_ms = 3\n", "line 1", "`lease.hold_ms`"),
        ("nothing_like_it = 1\n", "line 1", "`class`, `default_request`, `driver`, `health`, `latency`, `lease`"),
        ("[[driver.mount]]\nsource = \"/a\"\nread = true\n", "line 3", "`read_only`"),
    ] {
        let error = parsed(text).unwrap_err().to_string();
        assert!(error.contains(line) && error.contains(names), "{error}");
    }
}

#[test]
fn a_relative_runtime_is_refused() {
    let text = parsed("[runtime]\nlow_level = [\"runc\"]\n").unwrap_err().to_string();
    assert!(text.contains("runtime.low_level") && text.contains("absolute"), "{text}");
}

#[test]
fn what_no_host_can_work_with_is_refused_with_its_key_and_line() {
    for (text, names) in [
        ("[runtime]\nlow_level = []\n", ["line 2", "runtime.low_level = []", "name a low-level runtime"]),
        (
            "[runtime]\nsupervisor_patience_seconds = 61\n",
            ["line 2", "runtime.supervisor_patience_seconds = 61", "write 4 to 60 seconds"],
        ),
        ("[driver]\nlibrary_dirs = []\n", ["line 2", "driver.library_dirs = []", "name its directory"]),
        ("[driver]\ncontext_bytes = 0\n", ["line 2", "driver.context_bytes = 0", "in bytes"]),
        ("[policy]\ncounted_memory_percent = 99\n", ["line 2", "counted_memory_percent = 99", "write 100 or more"]),
        ("[queue]\nplaces = 257\n", ["line 2", "queue.places = 257", "write 256 or less"]),
        ("[latency]\nhold_seconds = 9\n", ["line 2", "latency.hold_seconds = 9", "write 10 to 3600 seconds"]),
        (
            "[preemption]\ngrace_seconds = 2592001\n",
            ["line 2", "preemption.grace_seconds = 2592001", "write 0 to 2592000 seconds"],
        ),
        (
            "[run_time]\nnotice_seconds = 86401\n",
            ["line 2", "run_time.notice_seconds = 86401", "write 0 to 86400 seconds"],
        ),
        ("[ledger]\nminute_days = 0\n", ["line 2", "ledger.minute_days = 0", "write 1 to 3650 days"]),
        (
            "[ledger]\nhour_days = 30\n",
            ["line 2", "ledger.hour_days = 30", "write 35, which is ledger.minute_days, to"],
        ),
        (
            "[health]\ncontained_faults = 101\n",
            ["line 2", "health.contained_faults = 101", "write 1 to 100, 0 for never"],
        ),
        (
            "[overflow]\nclear_seconds = 604801\n",
            ["line 2", "overflow.clear_seconds = 604801", "write 0 to 604800 seconds"],
        ),
        (
            "[default_request]\nfraction = \"0.009\"\n",
            ["line 2", "default_request.fraction = \"0.009\"", "write \"0.01\" to \"1\""],
        ),
        ("[health]\npoll_seconds = 3601\n", ["line 2", "health.poll_seconds = 3601", "0 to 3600 seconds, 0 for never"]),
        ("[health]\nthermal_seconds = 0\n", ["line 2", "health.thermal_seconds = 0", "write 1 to 86400 seconds"]),
        ("[health]\ndrain_on = [\"remap_pending\"]\n", ["line 2", "health.drain_on", "mean \"remap-pending\"?"]),
        ("[health]\ndrain_on = [\"dust\"]\n", ["line 2", "\"dust\"", "pcie-width, test-failed"]),
        ("[ledger]\npath = \"ledger.db\"\n", ["line 2", "ledger.path", "absolute"]),
        ("[[driver.mount]]\nsource = \"a\"\n", ["line 1", "driver.mount.source = \"a\"", "absolute"]),
        (
            "[[driver.mount]]\nsource = \"/a\"\ndestination = \"b\"\n",
            ["line 1", "driver.mount.destination", "absolute"],
        ),
    ] {
        let error = parsed(text).unwrap_err().to_string();
        assert!(names.iter().all(|name| error.contains(name)), "{text}: {error}");
    }
}

#[test]
fn what_does_nothing_is_refused_by_who_checks_and_keeps_no_host_from_working() {
    let checked = |text| crate::parse_strictly(Path::new("/etc/gpool/config.toml"), text);
    for (text, names) in [
        ("[policy.env]\nallow = [\"fraction\", \"prioritty\"]\n", ["line 2", "policy.env.allow", "\"priority\""]),
        ("[policy.env]\nallow = [\"everything\"]\n", ["line 2", "\"everything\"", "fraction, limit"]),
        (
            "[default_request]\nclass = \"train\"\n",
            ["line 2", "default_request.class", "without default_request.fraction"],
        ),
        ("[default_request]\nvisible_devices = true\n", ["line 2", "default_request.visible_devices", "write one, or"]),
        ("[driver]\nprogram_dirs = [\"bin\"]\n", ["line 2", "driver.program_dirs", "absolute"]),
    ] {
        let error = checked(text).unwrap_err().to_string();
        assert!(names.iter().all(|name| error.contains(name)), "{text}: {error}");
        assert!(parsed(text).is_ok(), "{text}");
    }
    assert!(checked("[driver]\nprogram_dirs = []\n[policy.env]\nallow = []\n").is_ok(), "nothing may be what is meant");
    assert!(checked("[runtime]\nlow_level = []\n").is_err(), "what is refused at all times");
}

#[test]
fn a_value_of_another_type_is_refused_with_its_key_and_what_that_says() {
    for (text, names) in [
        ("[lease]\nhold_ms = \"10s\"\n", ["line 2", "lease.hold_ms: ", "in milliseconds"]),
        ("lease.hold_ms = -1\n", ["line 1", "lease.hold_ms: ", "in milliseconds"]),
        ("[driver]\ncontext_bytes = 0.5\n", ["line 2", "driver.context_bytes: ", "in bytes"]),
        ("[class.batch]\nfail_open = 1\n", ["line 2", "class.batch.fail_open: ", "boolean"]),
        ("[policy]\nclasses = \"batch\"\n", ["line 2", "policy.classes: ", "sequence"]),
    ] {
        let error = parsed(text).unwrap_err().to_string();
        assert!(names.iter().all(|name| error.contains(name)) && !error.contains('\n'), "{text}: {error}");
    }
}

#[test]
fn the_image_s_libcuda_is_taken_only_where_it_is_said() {
    assert_eq!(Configuration::default().driver.compat, Compat::Host);
    assert_eq!(parsed("[driver]\ncompat = \"image\"\n").unwrap().driver.compat, Compat::Image);
    let text = parsed("[driver]\ncompat = \"newest\"\n").unwrap_err().to_string();
    assert!(["line 2", "`newest`", "`host`", "`image`"].iter().all(|part| text.contains(part)), "{text}");
}

#[test]
fn classes_are_set_one_by_one_and_mistyped_ones_are_refused() {
    let text = "[policy]\nclasses = [\"latency\", \"batch\"]\n[class.latency]\nfail_open = false\n\
                [class.train]\nliar_action = \"event\"\n";
    let configuration = parsed(text).unwrap();
    assert_eq!(configuration.policy.classes, [ClassName::Latency, ClassName::Batch]);
    assert!(!configuration.class.of(ClassName::Latency).fail_open && configuration.class.batch.fail_open);
    assert_eq!(configuration.class.train.liar_action, LiarAction::Event);
    for (text, names) in [
        ("[policy]\nclasses = [\"bach\"]\n", "`batch`"),
        ("[class.bach]\nfail_open = true\n", "`class.batch`"),
        ("[class.batch]\nfail_opn = true\n", "`class.batch.fail_open`"),
        ("[class.batch]\nliar_action = \"kill\"\n", "`debt`"),
        ("[class.batch]\nbypass_action = \"stop\"\n", "`freeze`"),
        ("[class.batch]\nhang_action = \"kill\"\n", "`stop`"),
        ("[class.batch]\nhang_second = 3\n", "`class.batch.hang_seconds`"),
    ] {
        let error = parsed(text).unwrap_err().to_string();
        assert!(error.contains("line 2") || error.contains("line 1"), "{error}");
        assert!(error.contains(names), "{error}");
    }
}

#[test]
fn hang_times_lie_within_their_bounds() {
    let text = "[class.train]\nhang_action = \"stop\"\nhang_seconds = 20\nhang_seconds_latency_waits = 2\n\
                [class.notebook]\nhang_seconds = 3600\n";
    let class = parsed(text).unwrap().class;
    assert_eq!((class.train.hang_action, class.train.hang_seconds), (HangAction::Stop, 20));
    assert_eq!(class.train.hang_seconds_while_latency_waits(), 2);
    assert_eq!(class.notebook.hang_seconds_while_latency_waits(), 3600, "no shorter unless it is said");
    assert_eq!((class.batch.hang_action, class.batch.hang_seconds), (HangAction::Event, 30));
    for (text, names) in [
        ("[class.batch]\nidle_seconds = 0\n", ["class.batch.idle_seconds = 0", "1 to 2678400"]),
        ("[class.latency]\nidle_grace_seconds = 2678401\n", ["class.latency.idle_grace_seconds", "0 to 2678400"]),
        ("[class.batch]\nhang_seconds = 0\n", ["class.batch.hang_seconds = 0", "1 to 3600"]),
        ("[class.train]\nhang_seconds = 3601\n", ["class.train.hang_seconds = 3601", "1 to 3600"]),
        ("[class.latency]\nhang_seconds_latency_waits = 0\n", ["hang_seconds_latency_waits = 0", "1 to 30"]),
        ("[class.notebook]\nhang_seconds_latency_waits = 31\n", ["class.notebook.", "1 to 30"]),
        ("[class.train]\nlongest_run_seconds = 0\n", ["class.train.longest_run_seconds = 0", "1 to 31536000"]),
    ] {
        let error = parsed(text).unwrap_err().to_string();
        assert!(names.iter().all(|name| error.contains(name)), "{error}");
    }
}

#[test]
fn windows_and_layouts_are_read_or_refused_with_their_line() {
    let text = "[mig]\nlayout = \"/etc/gpool/mig.yaml\"\nwindows = [\"Sun 02:00-04:00\"]\n";
    let mig = parsed(text).unwrap().mig;
    let is_open = |at: &str| open_for(&mig.windows, at.parse().unwrap()).is_some();
    assert!(is_open("2026-12-06 03:00") && !is_open("2026-11-30 00:00"), "on Sundays");
    assert_eq!(flat(&parsed(text).unwrap())["mig.windows"].to_string(), "[\"Sun 02:00-04:00\"]");
    for (text, names) in [
        ("[mig]\nwindows = [\"Sun 2-4\"]\n", ["line 2", "\"2\" is no time"]),
        ("[mig]\nlayout = \"mig.yaml\"\n", ["mig.layout", "absolute"]),
    ] {
        let error = parsed(text).unwrap_err().to_string();
        assert!(names.iter().all(|name| error.contains(name)), "{error}");
    }
}

#[test]
fn the_environment_may_ask_for_nothing_that_another_pays_for() {
    let allowed = Configuration::default().policy.env.allow;
    let own = [
        "fraction",
        "limit",
        "memory",
        "spill",
        "gpus",
        "device",
        "model",
        "min-memory",
        "class",
        "p99",
        "wait",
        "run-time",
    ];
    assert_eq!(allowed, own);
}

#[test]
fn the_shipped_file_states_the_defaults() {
    assert_eq!(parsed(SHIPPED).unwrap(), Configuration::default());
    let active: Vec<&str> = SHIPPED.lines().map(|line| line.strip_prefix("#: ").unwrap_or(line)).collect();
    assert_eq!(parsed(&active.join("\n")).unwrap(), Configuration::default(), "the defaults must be the real ones");
    let examples: Vec<&str> = active.iter().map(|line| line.strip_prefix("#+ ").unwrap_or(line)).collect();
    let shown = parsed(&examples.join("\n")).unwrap();
    assert!(shown.class.latency.hang_seconds_latency_waits.is_some() && !shown.driver.mounts.is_empty());
    assert!(shown.quota.no_team.leases.is_some() && shown.quota.team.len() == 1 && shown.quota.user.len() == 1);
}

#[test]
fn every_key_is_explained_where_its_default_stands() {
    let keys = catalogue();
    let find = |name: &str| keys.iter().find(|key| key.name == name);
    for (name, value) in flat(&Configuration::default()) {
        let key = find(&name).unwrap_or_else(|| panic!("configs/config.toml has no line `#: ` or `#+ ` for {name}"));
        match &key.default {
            Some(default) => assert_eq!(*default, value.to_string(), "{name}"),
            None => assert_eq!(value.to_string(), "[]", "{name} has a default that is not stated"),
        }
    }
    for key in &keys {
        // The same keys of the other classes stand below the first one, which has the words.
        let explained = match key.name.strip_prefix("class.").and_then(|rest| rest.split_once('.')) {
            Some((_, last)) => find(&format!("class.latency.{last}")).unwrap(),
            None => key,
        };
        assert!(!explained.about.is_empty(), "{} is not explained", key.name);
        let text = key.default.clone().map_or(key.example.join("\n"), |default| format!("{} = {default}", key.name));
        let text = if text.starts_with('[') || key.default.is_some() { text } else { dotted_example(&key.name, &text) };
        assert!(parsed(&text).is_ok(), "{}: {text}", key.name);
    }
}

fn dotted_example(name: &str, text: &str) -> String {
    format!("{name} = {}", text.split_once(" = ").unwrap().1)
}

/// A directory with these files, `config.toml` among them or not.
fn laid_out(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("conf.d")).unwrap();
    files.iter().for_each(|(name, text)| fs::write(directory.path().join(name), text).unwrap());
    directory
}

#[test]
fn a_later_file_wins_key_by_key_and_origins_are_kept() {
    let directory = laid_out(&[
        ("config.toml", "[lease]\nhold_ms = 1\n\n[class.batch]\nfail_open = false\nhang_seconds = 7\n"),
        ("conf.d/20-site.toml", "class.batch.hang_seconds = 9\n"),
        ("conf.d/10-team.toml", "# a comment\n[class.batch]\nhang_seconds = 8\n[policy]\nclasses = [\"batch\"]\n"),
        ("conf.d/30-unused.conf", "this is read by nobody"),
        ("conf.d/.40-hidden.toml", "nor is this"),
    ]);
    let layered = load_layered(&directory.path().join("config.toml")).unwrap();
    let batch = &layered.configuration.class.batch;
    assert_eq!((batch.fail_open, batch.hang_seconds, layered.configuration.lease.hold_ms), (false, 9, 1));
    assert_eq!(layered.configuration.policy.classes, [ClassName::Batch], "a list is one value");
    assert_eq!(layered.configuration.class.train, ClassPolicy::default());
    let origin = |key: &str| layered.origins[key].to_string().replace(&directory.path().display().to_string(), "");
    assert_eq!(origin("class.batch.hang_seconds"), "/conf.d/20-site.toml:1");
    assert_eq!(origin("class.batch.fail_open"), "/config.toml:5");
    assert_eq!(origin("policy.classes"), "/conf.d/10-team.toml:5");
    assert!(!layered.origins.contains_key("lease"), "{:?}", layered.origins);
    assert_eq!(layered.origins.len(), 4);
}

#[test]
fn a_drop_in_works_without_the_file_and_is_named_in_errors() {
    let directory = laid_out(&[("conf.d/10.toml", "[lease]\nhold_ms = 5\n")]);
    let path = directory.path().join("config.toml");
    assert_eq!(load(&path).unwrap().lease.hold_ms, 5);
    fs::write(&path, "[class.train]\nhang_seconds = 20\n").unwrap();
    fs::write(directory.path().join("conf.d/20.toml"), "\n[class.train]\nhang_seconds_latency_waits = 25\n").unwrap();
    let error = load(&path).unwrap_err();
    assert!(error.path().ends_with("conf.d/20.toml") && error.line() == Some(3), "{error}");
    for (text, line) in [("[lease]\nhold_mss = 5\n", 2), ("[lease]\nhold_ms = \"x\"\n", 2), ("\n\n[lease\n", 3)] {
        fs::write(directory.path().join("conf.d/20.toml"), text).unwrap();
        let error = load(&path).unwrap_err();
        assert!(error.path().ends_with("conf.d/20.toml") && error.line() == Some(line), "{error}");
    }
    fs::remove_dir_all(directory.path().join("conf.d")).unwrap();
    fs::write(directory.path().join("conf.d"), "").unwrap();
    assert!(load(&path).unwrap_err().to_string().contains("conf.d: cannot be read"));
}

#[test]
fn differences_are_told_key_by_key() {
    let changed = parsed("[lease]\nhold_ms = 3\n[class.train]\nhang_seconds_latency_waits = 2\n").unwrap();
    let told = differences(&Configuration::default(), &changed);
    let told: Vec<_> = told.iter().map(|it| (it.key.as_str(), it.old.as_deref(), it.new.as_deref())).collect();
    let want =
        [("class.train.hang_seconds_latency_waits", None, Some("2")), ("lease.hold_ms", Some("10000"), Some("3"))];
    assert_eq!(told, want);
    assert!(differences(&changed, &changed.clone()).is_empty());
}
