//! Device nodes and their cgroup rules.
//!
//! Both stand in config.json, never in the cgroup alone: a low-level runtime hands its rules to systemd, and
//! whatever it does not know of is gone at the next reload.

use crate::fields::{fragment, list};
use crate::nvidia_devices::NvidiaDevices;
use crate::privilege::is_host_root;
use gpool_protocol::ErrorBody;
use oci_spec::runtime::{LinuxDeviceBuilder, LinuxDeviceCgroupBuilder, LinuxDeviceType, MountBuilder};
use serde_json::{Value, json};

const NODES: [&str; 2] = ["linux", "devices"];
const RULES: [&str; 3] = ["linux", "resources", "devices"];
/// The lowest major number of an NVIDIA node; those below belong to other drivers.
const FIRST_NVIDIA_MAJOR: i64 = 195;

/// How a node is mounted.
const NODE_OPTIONS: [&str; 5] = ["bind", "rw", "nosuid", "noexec", "rprivate"];

/// How device nodes come into a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nodes {
    /// The low-level runtime makes them.
    Made,
    /// The host's are mounted.
    Mounted,
}

impl Nodes {
    /// What the container that `spec` describes can have.
    pub fn of(spec: &Value) -> Self {
        let namespaces = spec["linux"]["namespaces"].as_array().into_iter().flatten();
        let has_users = namespaces.into_iter().any(|namespace| namespace["type"] == "user");
        if has_users || !is_host_root() { Nodes::Mounted } else { Nodes::Made }
    }
}

/// A leased character device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device<'a> {
    /// Path in the container.
    pub path: &'a str,
    /// Path on the host.
    pub source: &'a str,
    /// Major number.
    pub major: i64,
    /// Minor number.
    pub minor: i64,
    /// Cgroup access.
    pub access: &'a str,
}

/// What a cgroup rule covers; none means any.
struct Rule {
    allow: bool,
    character: bool,
    major: Option<i64>,
    minor: Option<i64>,
    opens: bool,
}

impl Rule {
    fn read(rule: &Value) -> Self {
        let number = |key: &str| rule[key].as_i64().filter(|number| *number >= 0);
        let access = rule["access"].as_str().filter(|access| !access.is_empty()).unwrap_or("rwm");
        Self {
            allow: rule["allow"].as_bool().unwrap_or(false),
            character: matches!(rule["type"].as_str().unwrap_or("a"), "a" | "" | "c" | "u"),
            major: number("major"),
            minor: number("minor"),
            opens: access.contains(['r', 'w']),
        }
    }
}

/// Whether the container may open every device, as privileged ones may: it would see every GPU.
pub fn may_open_all(spec: &Value) -> bool {
    let mut open = false;
    for rule in spec["linux"]["resources"]["devices"].as_array().into_iter().flatten().map(Rule::read) {
        // A rule for mknod only, which engines give by default, opens nothing.
        if rule.character && rule.major.is_none() && rule.opens {
            open = rule.allow;
        }
    }
    open
}

/// Gives the container exactly the `leased` devices, replacing nodes of the same path.
///
/// Nodes, mounted ones included, and rules for other devices of the same drivers, from `--gpus`, CDI or `--device-cgroup-rule`,
/// go, and so do all others of `nvidia`'s: whoever holds a share of one GPU must not open another, nor its own by a node for
/// displays, past the shims.
///
/// In a user namespace nobody can make a node, so there the host's own are mounted. Low-level runtimes would do that by
/// themselves, from a path that is the same on the host.
pub fn inject(spec: &mut Value, leased: &[Device<'_>], nodes: Nodes, nvidia: &NvidiaDevices) -> Result<(), ErrorBody> {
    if leased.is_empty() {
        return Ok(());
    }
    let is_leased = |major: Option<i64>, minor: Option<i64>| {
        leased.iter().any(|device| (Some(device.major), Some(device.minor)) == (major, minor))
    };
    let foreign = |major: Option<i64>, minor: Option<i64>| {
        let of_a_driver = |major: i64| {
            (major >= FIRST_NVIDIA_MAJOR && leased.iter().any(|device| device.major == major))
                || nvidia.has(major, minor)
        };
        major.is_some_and(of_a_driver) && !is_leased(major, minor)
    };
    let mut removed = Vec::new();
    let listed = list(spec, &NODES)?;
    listed.retain(|node| {
        let (major, minor) = (node["major"].as_i64(), node["minor"].as_i64());
        let character = matches!(node["type"].as_str(), Some("c" | "u"));
        let same_path = leased.iter().any(|device| node["path"] == device.path);
        let is_foreign = character && (foreign(major, minor) || nvidia.has_node(&node["path"], major, minor));
        if is_foreign && !is_leased(major, minor) {
            removed.push((major, minor));
        }
        !(same_path || is_foreign)
    });
    for device in leased.iter().filter(|_| nodes == Nodes::Made) {
        let node = LinuxDeviceBuilder::default().path(device.path).typ(LinuxDeviceType::C);
        let node = node.major(device.major).minor(device.minor).file_mode(0o666_u32).uid(0_u32).gid(0_u32);
        listed.push(fragment(node.build())?);
    }
    let mounts = list(spec, &["mounts"])?;
    mounts.retain(|mount| {
        !leased.iter().any(|device| mount["destination"] == device.path) && !nvidia.is_mounted_by(mount)
    });
    for device in leased.iter().filter(|_| nodes == Nodes::Mounted) {
        let mount = MountBuilder::default().destination(device.path).typ("bind").source(device.source);
        mounts.push(fragment(mount.options(NODE_OPTIONS.map(String::from)).build())?);
    }
    let rules = list(spec, &RULES)?;
    rules.retain(|rule| {
        let rule = Rule::read(rule);
        // Also wider rules for the leased devices themselves: `m` would let the container make more nodes.
        let numbers = (rule.major, rule.minor);
        let of_removed = is_leased(numbers.0, numbers.1) || removed.contains(&numbers);
        !(rule.allow && rule.character && (of_removed || foreign(numbers.0, numbers.1)))
    });
    if !rules.iter().map(Rule::read).any(|rule| rule.major.is_none() && rule.opens && !rule.allow) {
        // On cgroup v1 a container without any rule for all devices may open them all.
        rules.insert(0, json!({"allow": false, "access": "rwm"}));
    }
    for device in leased {
        let rule = LinuxDeviceCgroupBuilder::default().allow(true).typ(LinuxDeviceType::C);
        let rule = rule.major(device.major).minor(device.minor).access(device.access);
        rules.push(fragment(rule.build())?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: Device<'_> =
        Device { path: "/dev/nvidia0", source: "/host/nvidia0", major: 195, minor: 0, access: "rw" };

    /// A host of which nothing is known but what is leased.
    fn no_others() -> NvidiaDevices {
        NvidiaDevices::for_test(&[], std::path::Path::new("/nowhere"))
    }

    fn inject(spec: &mut Value, leased: &[Device<'_>]) -> Result<(), ErrorBody> {
        super::inject(spec, leased, Nodes::Made, &no_others())
    }

    fn with_rules(rules: Value) -> Value {
        json!({"linux": {"resources": {"devices": rules}}})
    }

    #[test]
    fn privileged_containers_are_told_from_default_ones() {
        let open = [
            json!([{"allow": true, "access": "rwm"}]),
            json!([{"allow": false, "access": "rwm"}, {"allow": true, "type": "a", "access": "rwm"}]),
            json!([{"allow": true, "type": "c", "major": -1, "minor": -1, "access": "rw"}]),
        ];
        for rules in open {
            assert!(may_open_all(&with_rules(rules)));
        }
        let closed = [
            json!(null),
            json!([{"allow": true, "access": "rwm"}, {"allow": false, "access": "rwm"}]),
            json!([{"allow": false, "access": "rwm"}, {"allow": true, "type": "c", "access": "m"},
                   {"allow": true, "type": "b", "access": "m"}, {"allow": true, "type": "c", "major": 1, "minor": 3}]),
            json!([{"allow": false, "access": "rwm"}, {"allow": true, "type": "b", "access": "rwm"}]),
        ];
        for rules in closed {
            assert!(!may_open_all(&with_rules(rules)));
        }
    }

    #[test]
    fn a_node_and_a_rule_are_added_and_a_missing_denial_comes_first() {
        let mut spec = json!({"linux": {"devices": null}});
        inject(&mut spec, &[GPU]).unwrap();
        let node =
            json!({"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 438, "uid": 0, "gid": 0});
        assert_eq!(spec["linux"]["devices"], json!([node]));
        let rule = json!({"allow": true, "type": "c", "major": 195, "minor": 0, "access": "rw"});
        assert_eq!(spec["linux"]["resources"]["devices"], json!([{"allow": false, "access": "rwm"}, rule]));
        let once = spec.clone();
        inject(&mut spec, &[GPU]).unwrap();
        assert_eq!(spec, once);
    }

    #[test]
    fn in_a_user_namespace_the_hosts_node_is_mounted() {
        let mut spec = json!({"linux": {"namespaces": [{"type": "pid"}, {"type": "user"}],
            "devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]}});
        assert_eq!(Nodes::of(&spec), Nodes::Mounted);
        super::inject(&mut spec, &[GPU], Nodes::Mounted, &no_others()).unwrap();
        assert_eq!(spec["linux"]["devices"], json!([]));
        let mounts = spec["mounts"].as_array().unwrap();
        assert_eq!((mounts.len(), &mounts[0]["source"]), (1, &json!("/host/nvidia0")));
        assert!(!mounts[0]["options"].as_array().unwrap().contains(&json!("nodev")));
        assert_eq!(spec["linux"]["resources"]["devices"].as_array().unwrap().len(), 2, "the rules stay");
        let once = spec.clone();
        super::inject(&mut spec, &[GPU], Nodes::Mounted, &no_others()).unwrap();
        assert_eq!(spec, once);
    }

    #[test]
    fn other_gpus_of_the_same_driver_go_and_other_devices_stay() {
        let mut spec = json!({"linux": {
            "devices": [
                {"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1},
                {"path": "/dev/nvidia0", "type": "c", "major": 7, "minor": 7},
                {"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229},
                {"path": "/dev/disk", "type": "b", "major": 195, "minor": 9}
            ],
            "resources": {"devices": [
                {"allow": false, "access": "rwm"},
                {"allow": true, "type": "c", "major": 195, "minor": 1, "access": "rw"},
                {"allow": true, "type": "c", "major": 195, "access": "rw"},
                {"allow": true, "type": "c", "major": 10, "minor": 229, "access": "rwm"}
            ]}
        }});
        inject(&mut spec, &[GPU]).unwrap();
        let paths: Vec<_> = spec["linux"]["devices"].as_array().unwrap().iter().map(|node| &node["path"]).collect();
        assert_eq!(paths, ["/dev/fuse", "/dev/disk", "/dev/nvidia0"]);
        let minors: Vec<_> =
            spec["linux"]["resources"]["devices"].as_array().unwrap().iter().map(|rule| &rule["minor"]).collect();
        assert_eq!(minors, [&json!(null), &json!(229), &json!(0)]);
    }

    #[test]
    fn nodes_and_rules_of_the_same_vendor_go_by_path_number_and_driver() {
        let dir = tempfile::tempdir().unwrap();
        for (numbers, driver) in [("226:0", "i915"), ("226:1", "nvidia"), ("226:128", "nvidia")] {
            let device = dir.path().join(numbers).join("device");
            std::fs::create_dir_all(&device).unwrap();
            std::os::unix::fs::symlink(format!("/sys/bus/pci/drivers/{driver}"), device.join("driver")).unwrap();
        }
        let nvidia = NvidiaDevices::for_test(&[195, 237], dir.path());
        let nodes = [
            ("/dev/nvidia-caps/nvidia-cap21", 507, 21),
            ("/dev/nvidia-caps-imex-channels/channel0", 506, 0),
            ("/dev/other-name", 237, 4),
            ("/dev/dri/card1", 226, 1),
            ("/dev/dri/renderD128", 226, 128),
            ("/dev/dri/card0", 226, 0),
            ("/dev/kfd", 511, 0),
        ];
        let node = |(path, major, minor)| json!({"path": path, "type": "c", "major": major, "minor": minor});
        let rule =
            |(_, major, minor)| json!({"allow": true, "type": "c", "major": major, "minor": minor, "access": "rwm"});
        let mut rules = vec![json!({"allow": false, "access": "rwm"})];
        rules.extend(nodes.map(rule));
        rules.push(json!({"allow": true, "type": "c", "major": 237, "access": "rw"}));
        let mut spec = json!({"linux": {"devices": nodes.map(node), "resources": {"devices": rules}}});
        super::inject(&mut spec, &[GPU], Nodes::Made, &nvidia).unwrap();
        let paths: Vec<_> = spec["linux"]["devices"].as_array().unwrap().iter().map(|node| &node["path"]).collect();
        assert_eq!(paths, ["/dev/dri/card0", "/dev/kfd", "/dev/nvidia0"]);
        let rules = spec["linux"]["resources"]["devices"].as_array().unwrap();
        let majors: Vec<_> = rules.iter().map(|rule| (rule["major"].as_i64(), rule["minor"].as_i64())).collect();
        assert_eq!(majors, [(None, None), (Some(226), Some(0)), (Some(511), Some(0)), (Some(195), Some(0))]);
    }

    #[test]
    fn another_gpus_node_is_not_mounted_either() {
        let nvidia = NvidiaDevices::for_test(&[1], std::path::Path::new("/nowhere"));
        let mount = |source: &str| json!({"type": "bind", "source": source, "destination": "/dev/x"});
        let mut spec = json!({"mounts": [mount("/dev/null"), mount("/dev/tty"), mount("/tmp")]});
        super::inject(&mut spec, &[GPU], Nodes::Mounted, &nvidia).unwrap();
        let sources: Vec<_> = spec["mounts"].as_array().unwrap().iter().map(|mount| &mount["source"]).collect();
        assert_eq!(sources, ["/dev/tty", "/tmp", "/host/nvidia0"]);
    }
}
