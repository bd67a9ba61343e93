use super::*;

const DEBIAN: &str = r#"version = 2

# where Debian puts them
[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
  [plugins."io.containerd.internal.v1.opt"]
    path = "/var/lib/containerd/opt"
"#;

fn wanted(is_default: bool) -> Entry {
    Entry { runtime: "/usr/bin/gpool-runtime".into(), is_default }
}

/// What containerd would print for a file with these runtimes.
fn facts(plugin: &str) -> Facts {
    let text = format!(
        r#"
        [plugins."{plugin}".containerd]
        default_runtime_name = "runc"
        [plugins."{plugin}".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        base_runtime_spec = ""
        cni_max_conf_num = 0
        [plugins."{plugin}".containerd.runtimes.runc.options]
        SystemdCgroup = true
        BinaryName = "/usr/sbin/runc"
        Root = ""
        "#
    );
    Facts { effective: Some(text.parse().unwrap()), ..Facts::default() }
}

#[test]
fn the_entry_stands_beside_the_runtimes_that_are_there_anyway() {
    let after = with_entry(Some(DEBIAN), &wanted(false), &facts("io.containerd.grpc.v1.cri")).unwrap();
    assert!(after.contains("# where Debian puts them\n[plugins]\n"), "{after}");
    assert_eq!(entry(&after).unwrap(), Some(wanted(false)));
    let document: toml::Table = after.parse().unwrap();
    let runtimes = &document["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"];
    assert_eq!(runtimes["runc"]["options"]["BinaryName"].as_str(), Some("/usr/sbin/runc"), "{after}");
    assert!(runtimes["runc"].get("base_runtime_spec").is_none(), "defaults need not be written down: {after}");
    assert_eq!(runtimes["gpool"]["options"]["SystemdCgroup"].as_bool(), Some(true), "the same cgroup driver: {after}");
    assert_eq!(runtimes["gpool"]["pod_annotations"][0].as_str(), Some("gpool.io/*"));
    let again = with_entry(Some(&after), &wanted(false), &facts("io.containerd.grpc.v1.cri")).unwrap();
    assert_eq!(again, after);
    // What a person lets through besides, for a scheduler, is not gpool's to take away.
    let more = after.replacen(
        "pod_annotations = [\"gpool.io/*\"]",
        "pod_annotations = [\"nvidia.cdi.k8s.io/*\", \"gpool.io/*\"]",
        1,
    );
    assert_ne!(more, after);
    let again = with_entry(Some(&more), &wanted(false), &facts("io.containerd.grpc.v1.cri")).unwrap();
    let document: toml::Table = again.parse().unwrap();
    let ours = &document["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]["gpool"];
    let both =
        [ours["pod_annotations"].as_array().unwrap().len(), ours["container_annotations"].as_array().unwrap().len()];
    assert_eq!(both, [2, 1], "{again}");
}

#[test]
fn what_is_common_to_both_is_taken_from_the_default_each_time() {
    let plugin = "io.containerd.grpc.v1.cri";
    let of = |text: &str| {
        let document: toml::Table = text.parse().unwrap();
        document["plugins"][plugin]["containerd"]["runtimes"]["gpool"].as_table().unwrap().clone()
    };
    let changed = |from: &str, to: &str| {
        let text = facts(plugin).effective.unwrap().to_string();
        assert!(text.contains(from), "{text}");
        Facts { effective: Some(text.replacen(from, to, 1).parse().unwrap()), ..Facts::default() }
    };
    let first =
        with_entry(Some(DEBIAN), &wanted(false), &changed("SystemdCgroup = true", "SystemdCgroup = false")).unwrap();
    assert!(of(&first)["options"].get("SystemdCgroup").is_none(), "{first}");
    assert_eq!(other_cgroup_driver(&first), None);
    // Set since by whoever installed the kubelet, beside a base specification.
    let now = changed(
        "base_runtime_spec = \"\"",
        "base_runtime_spec = \"/etc/base.json\"\nprivileged_without_host_devices = true",
    );
    let second = with_entry(Some(&first), &wanted(false), &now).unwrap();
    let ours = of(&second);
    assert_eq!(ours["options"]["SystemdCgroup"].as_bool(), Some(true), "{second}");
    assert_eq!(ours["base_runtime_spec"].as_str(), Some("/etc/base.json"), "{second}");
    assert_eq!(ours["privileged_without_host_devices"].as_bool(), Some(true), "{second}");
    let third =
        with_entry(Some(&second), &wanted(false), &changed("SystemdCgroup = true", "SystemdCgroup = false")).unwrap();
    assert!(of(&third)["options"].get("SystemdCgroup").is_none(), "{third}");
    assert!(of(&third).get("base_runtime_spec").is_none(), "the file may have gone with it: {third}");
    assert_eq!(of(&third)["privileged_without_host_devices"].as_bool(), Some(true), "whoever has set it: {third}");
    assert_eq!(
        with_entry(Some(&second), &wanted(false), &Facts { effective: Some(toml::Table::new()), ..now }).unwrap(),
        second
    );
}

#[test]
fn two_cgroup_drivers_on_one_node_are_seen() {
    let plugin = "io.containerd.grpc.v1.cri";
    let both = with_entry(Some(DEBIAN), &wanted(false), &facts(plugin)).unwrap();
    assert_eq!(other_cgroup_driver(&both), None, "{both}");
    let other = both.replacen("SystemdCgroup = true", "SystemdCgroup = false", 1);
    assert_eq!(other_cgroup_driver(&other).as_deref(), Some("runc"), "{other}");
    assert_eq!(other_cgroup_driver(DEBIAN), None, "the text does not say");
    let as_default = with_entry(Some(&other), &wanted(true), &facts(plugin)).unwrap();
    assert_eq!(other_cgroup_driver(&as_default).as_deref(), Some("runc"), "the file's own word: {as_default}");
}

#[test]
fn version_three_has_another_section_and_four_the_same() {
    for version in ["version = 3\n", "version = 4\n"] {
        let after = with_entry(Some(version), &wanted(true), &facts("io.containerd.cri.v1.runtime")).unwrap();
        assert!(after.contains("[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.gpool]"), "{after}");
        assert_eq!(entry(&after).unwrap(), Some(wanted(true)));
        let plain = with_entry(Some(&after), &wanted(false), &facts("io.containerd.cri.v1.runtime")).unwrap();
        assert_eq!(entry(&plain).unwrap(), Some(wanted(false)));
    }
}

#[test]
fn of_a_version_that_is_not_known_nothing_is_said() {
    assert_eq!(entry("[plugins]\n").unwrap(), None, "the first one: gpool was never entered there");
    assert!(entry("version = 5\n").unwrap_err().0.contains("a gpool that knows it"));
}

#[test]
fn without_the_entry_the_rest_stays_as_it_is() {
    let bare = Facts { effective: Some(toml::Table::new()), ..Facts::default() };
    let after = with_entry(Some(DEBIAN), &wanted(true), &bare).unwrap();
    assert_eq!(without_entry(&after, None).unwrap(), DEBIAN);
    let before = DEBIAN.replace(
        "[plugins]\n",
        "[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"nvidia\"\n[plugins]\n",
    );
    let undone = without_entry(&with_entry(Some(&before), &wanted(true), &bare).unwrap(), Some(&before)).unwrap();
    assert!(undone.contains("default_runtime_name = \"nvidia\""), "{undone}");
}

#[test]
fn what_gpool_cannot_change_safely_is_refused() {
    let facts = facts("io.containerd.grpc.v1.cri");
    for (text, what) in [
        ("[plugins]\n", "containerd config migrate"),
        ("version = 2\nplugins = 3\n", "plugins"),
        ("version = [\n", "no TOML"),
    ] {
        let refusal = with_entry(Some(text), &wanted(false), &facts).unwrap_err();
        assert!(refusal.0.contains(what), "{text}: {refusal}");
    }
    assert!(with_entry(None, &wanted(false), &Facts::default()).unwrap_err().0.contains("install containerd"));
}

#[test]
fn a_runtime_that_would_be_lost_or_changed_is_seen() {
    let before = facts("io.containerd.grpc.v1.cri").effective.unwrap();
    let plugin = "plugins.\"io.containerd.grpc.v1.cri\".containerd";
    let ours = format!("[{plugin}.runtimes.gpool.options]\nBinaryName = \"/usr/bin/gpool-runtime\"\n");
    let lost: toml::Table = format!("[{plugin}]\ndefault_runtime_name = \"runc\"\n{ours}").parse().unwrap();
    assert!(require_effect(&before, &lost, &wanted(false)).unwrap_err().0.contains("runtime runc"));
    let mut kept = before.clone();
    let added: toml::Table = ours.parse().unwrap();
    let gpool = added["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]["gpool"].clone();
    kept["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]
        .as_table_mut()
        .unwrap()
        .insert("gpool".into(), gpool);
    assert_eq!(require_effect(&before, &kept, &wanted(false)), Ok(()));
    assert!(require_effect(&before, &before, &wanted(false)).unwrap_err().0.contains("no effect"));
}

/// Docker's package containerd.io ships such a file.
#[test]
fn a_containerd_that_makes_no_pods_is_told_apart_from_one_whose_file_is_old() {
    let shipped = "disabled_plugins = [\"cri\"]\n\n#root = \"/var/lib/containerd\"\n";
    let mut printed = Facts { effective: Some(shipped.parse().unwrap()), ..Facts::default() };
    let refusal = with_entry(Some(shipped), &wanted(false), &printed).unwrap_err();
    assert!(refusal.0.contains("has cri in disabled_plugins") && refusal.0.contains("--runtime docker"), "{refusal}");
    // By its long name, in a file of today; elsewhere than in the file itself, too.
    let long = "version = 3\ndisabled_plugins = [\"io.containerd.cri.v1.runtime\"]\n";
    printed.effective = Some(long.parse().unwrap());
    let refusal = with_entry(Some("version = 3\n"), &wanted(false), &printed).unwrap_err();
    assert!(refusal.0.contains("makes no pods"), "{refusal}");
    let old = with_entry(Some("root = \"/data\"\n"), &wanted(false), &facts("io.containerd.grpc.v1.cri")).unwrap_err();
    assert!(old.0.contains("version = 2 at its top") && old.0.contains("2.0 and newer"), "{old}");
}
