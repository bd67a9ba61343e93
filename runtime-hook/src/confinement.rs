//! Whether a container is confined enough for a share to be enforced: one that can take the shims away, reach the files
//! of other leases or open every device holds to its share only as long as it wants to.

use crate::mount_table::{Location, MountTable};
use crate::privilege::is_host_root;
use gpool_configuration::{Configuration, DEFAULT_PATH};
use gpool_protocol::{ErrorBody, ErrorCode};
use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Whether the container may start without being enforced; false for one that is confined.
///
/// # Errors
/// It is not confined, and this host does not allow that.
pub fn is_unenforced(spec: &Value, configuration: &Configuration) -> Result<bool, ErrorBody> {
    let is_hosts = is_host_root();
    let breaches =
        breaches(spec, &own_places(configuration, is_hosts && is_hosts_root(spec)), &mount_table(), is_hosts);
    let Some((what, without)) = breaches.first() else { return Ok(false) };
    if configuration.policy.unenforced {
        return Ok(true);
    }
    Err(ErrorBody::new(
        ErrorCode::RequestNotAllowed,
        format!("the container {what}, so no share of it could be enforced"),
        format!(
            "start it without {without}, or set [policy] unenforced = true in {DEFAULT_PATH}, which lets it run unenforced"
        ),
    ))
}

/// The user that the container's first process has on the host.
pub fn host_uid(spec: &Value) -> u32 {
    host_uid_of(spec, number(&spec["process"]["user"]["uid"]))
}

fn number(value: &Value) -> u32 {
    value.as_u64().and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
}

/// The user that `uid` of the container is on the host.
fn host_uid_of(spec: &Value, uid: u32) -> u32 {
    let mappings = spec["linux"]["uidMappings"].as_array().into_iter().flatten();
    let mapped = mappings.filter_map(|mapping| {
        let offset = uid.checked_sub(number(&mapping["containerID"]))?;
        (offset < number(&mapping["size"])).then(|| number(&mapping["hostID"]).saturating_add(offset))
    });
    mapped.into_iter().next().unwrap_or(uid)
}

fn mount_table() -> MountTable {
    MountTable::parse(&std::fs::read("/proc/self/mountinfo").unwrap_or_default())
}

/// A place on the host that no container may reach.
struct Place {
    path: PathBuf,
    /// Whether it may not be read either.
    is_secret: bool,
}

impl Place {
    fn new(path: PathBuf, is_secret: bool) -> Self {
        // One that is not there yet may be reached through a link all the same.
        let real = |path: &Path| path.canonicalize().ok();
        let below_parent = || Some(real(path.parent()?)?.join(path.file_name()?));
        Self { path: real(&path).or_else(below_parent).unwrap_or(path), is_secret }
    }
}

/// gpool's own places on the host, and those of the kernel's that it relies on, for a container whose root is the host's or is
/// not.
fn own_places(configuration: &Configuration, has_hosts_root: bool) -> Vec<Place> {
    let parent = |path: &Path| path.parent().unwrap_or(path).to_owned();
    // A socket outside the usual place may lie in a directory of everybody's.
    let socket = match parent(&configuration.socket.path) {
        directory if directory.starts_with(&configuration.paths.run_dir) => directory,
        _ => configuration.socket.path.clone(),
    };
    let mut places = vec![
        configuration.paths.run_dir.clone(),
        configuration.paths.shim_dir.clone(),
        configuration.paths.hook.clone(),
        socket,
        parent(Path::new(DEFAULT_PATH)),
    ];
    // Through them a process leaves the cgroup by which it is known to be the lease's. They are the host's root's: podman mounts
    // them itself for others in the host's network, where no sysfs can be mounted.
    places.extend(has_hosts_root.then(|| PathBuf::from("/sys/fs/cgroup")));
    let (ledger, audit) = (&configuration.ledger, &configuration.audit);
    // SQLite reads what lies beside its file as a part of it.
    let beside = |suffix: &str| {
        let mut name = ledger.path.clone().into_os_string();
        name.push(suffix);
        PathBuf::from(name)
    };
    places.extend(["", "-wal", "-shm"].into_iter().filter(|_| ledger.is_kept()).map(beside));
    places.extend(audit.is_kept().then(|| audit.directory.clone()));
    let mut places: Vec<Place> = places.into_iter().map(|path| Place::new(path, false)).collect();
    // Whoever reads the host's seal there passes for counted. It is for the eyes of the host's root.
    places.push(Place::new(configuration.paths.state_dir.clone(), has_hosts_root));
    places
}

/// What the container can do that breaks enforcement, and the option that gives it.
/// `is_hosts` says whether its users are the host's where it maps none.
fn breaches(spec: &Value, own: &[Place], table: &MountTable, is_hosts: bool) -> Vec<(String, String)> {
    let mut found = Vec::new();
    if crate::devices::may_open_all(spec) {
        found.push(("is privileged and may open every device".to_owned(), "--privileged".to_owned()));
    }
    found.extend(UNDOING.iter().filter(|its| has_capability(spec, its.name)).filter_map(|its| {
        let holds = is_hosts && !has_users_of_its_own(spec) || its.in_any_namespace;
        holds.then(|| (format!("has CAP_{} and can {}", its.name, its.what), format!("--cap-add {}", its.name)))
    }));
    if has_hosts_pids(spec) {
        found.push(("is in the host's PID namespace and sees every process".into(), "--pid=host".into()));
    }
    let mounts = spec["mounts"].as_array().into_iter().flatten();
    if is_hosts_root(spec) && !has_cgroups_of_its_own(spec) && mounts.clone().any(is_writable_cgroups) {
        // Through them a process leaves the cgroup by which it is known to be the lease's, and which devices it may open.
        let what = "can write to the host's cgroups".to_owned();
        found.push((what, "--cgroupns=host with writable cgroups".into()));
    }
    if is_hosts && !has_users_of_its_own(spec) {
        // Also read-only: a process's root there is another mount.
        found.extend(mounts.clone().filter_map(|mount| {
            let source = shows_processes(mount, table)?;
            let what =
                format!("mounts {source} of the host, through which the files of other processes can be reached");
            Some((what, format!("the volume {source}")))
        }));
    }
    found.extend(mounts.filter_map(|mount| {
        let (source, place, reached) = reaches(mount, own, table)?;
        let what = format!("mounts {source} of the host, through which {} can be {reached}", place.display());
        Some((what, format!("the volume {source}")))
    }));
    found
}

/// A capability that undoes confinement.
struct Undoing {
    name: &'static str,
    what: &'static str,
    /// Whether it does so also where its holder is nobody outside.
    in_any_namespace: bool,
}

/// The second opens a file of a lease by its handle, through another mount of the same file system that may be written.
const UNDOING: [Undoing; 3] = [
    Undoing { name: "SYS_ADMIN", what: "unmount the shims", in_any_namespace: true },
    Undoing {
        name: "DAC_READ_SEARCH",
        what: "open files by their handles, past read-only mounts",
        in_any_namespace: false,
    },
    Undoing { name: "SYS_MODULE", what: "load modules into the kernel", in_any_namespace: false },
];

fn has_capability(spec: &Value, name: &str) -> bool {
    let sets = spec["process"]["capabilities"].as_object().into_iter().flatten();
    let mut names = sets.flat_map(|(_, names)| names.as_array().into_iter().flatten()).filter_map(Value::as_str);
    names.any(|its| its.strip_prefix("CAP_") == Some(name))
}

fn has_hosts_pids(spec: &Value) -> bool {
    shares_with_host(spec, "pid", "/proc/self/ns/pid")
}

fn has_cgroups_of_its_own(spec: &Value) -> bool {
    !shares_with_host(spec, "cgroup", "/proc/self/ns/cgroup")
}

/// Whether the container has users of its own, who are nobody outside.
fn has_users_of_its_own(spec: &Value) -> bool {
    !shares_with_host(spec, "user", "/proc/self/ns/user")
}

/// Whether the container has no namespace of this kind, or joins the host's, which is `ours`.
fn shares_with_host(spec: &Value, kind: &str, ours: &str) -> bool {
    let mut namespaces = spec["linux"]["namespaces"].as_array().into_iter().flatten();
    let Some(namespace) = namespaces.find(|namespace| namespace["type"] == kind) else { return true };
    let inode = |path: &str| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let joined = namespace["path"].as_str().filter(|path| !path.is_empty());
    joined.is_some_and(|path| inode(path).is_some() && inode(path) == inode(ours))
}

/// Whether root of the container is root of the host, to whom the host's cgroups belong.
fn is_hosts_root(spec: &Value) -> bool {
    host_uid_of(spec, 0) == 0
}

/// Whether a mount is of the kernel's cgroups, with the right to change them.
fn is_writable_cgroups(mount: &Value) -> bool {
    let mut options = mount["options"].as_array().into_iter().flatten();
    let is_read_only = options.any(|option| option == "ro" || option == "rro");
    (mount["type"] == "cgroup" || mount["type"] == "cgroup2") && !is_read_only
}

/// What a mount brings in from elsewhere on the host, if it is a bind mount, and whether what is mounted below comes along.
fn bound(mount: &Value) -> Option<(&str, PathBuf, bool)> {
    let has = |name: &str| mount["options"].as_array().into_iter().flatten().any(|option| option == name);
    let with_below = has("rbind");
    if mount["type"] != "bind" && !has("bind") && !with_below {
        return None;
    }
    let source = mount["source"].as_str()?;
    Some((source, Path::new(source).canonicalize().unwrap_or_else(|_| source.into()), with_below))
}

/// The source of a bind mount that shows processes which are not the container's.
fn shows_processes(mount: &Value, table: &MountTable) -> Option<String> {
    let (source, path, with_below) = bound(mount)?;
    let is_in_a_process = |path: &Path| table.location(path).is_some_and(|location| location.shows_processes());
    // `/proc/PID/root/dev` is resolved as if it were `/dev`, and is another's.
    let is_shown = is_in_a_process(&path) || is_in_a_process(Path::new(source));
    let below = || table.below(&path).iter().any(|(_, location)| location.shows_processes());
    (is_shown || with_below && below()).then(|| source.to_owned())
}

/// The source of a bind mount, the place of ours to which it leads, and what can be done there that may not be. A source leads
/// there by its path, or because it, or what is mounted below it, is a bind mount of the same files, as named volumes can be.
fn reaches<'a>(mount: &Value, own: &'a [Place], table: &MountTable) -> Option<(String, &'a Path, &'static str)> {
    let options: Vec<&str> = mount["options"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let has = |names: &[&str]| options.iter().any(|option| names.contains(option));
    let (source, path, with_below) = bound(mount)?;
    let location = table.location(&path);
    let below = if with_below { table.below(&path) } else { Vec::new() };
    let follows_the_host = has(&["shared", "rshared", "slave", "rslave"]);
    own.iter().find_map(|Place { path: place, is_secret }| {
        let its = table.location(place);
        let meets = |one: &Location| its.as_ref().is_some_and(|its| its.meets(one));
        let is_elsewhere = !(place.starts_with(&path) || path.starts_with(place));
        let is_below = || below.iter().any(|(_, location)| meets(location));
        if is_elsewhere && !location.as_ref().is_some_and(meets) && !is_below() {
            return None;
        }
        // A read-only bind mount leaves what is mounted below its source as it is, and the regions of leases are. Of a source
        // elsewhere, whatever lies below can be a region.
        let leads_to = |(point, location): &(PathBuf, Location)| {
            is_elsewhere || point.starts_with(place) || place.starts_with(point) || meets(location)
        };
        let is_read_only = has(&["rro"]) || (has(&["ro"]) && !below.iter().any(leads_to) && !follows_the_host);
        let reached = match is_read_only {
            false => "written",
            true if *is_secret => "read",
            true => return None,
        };
        Some((source.to_owned(), place.as_path(), reached))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::assert_presentable;
    use serde_json::json;

    #[test]
    fn a_user_is_the_hosts_through_the_mapping() {
        assert_eq!(host_uid(&json!({"process": {"user": {"uid": 1000}}})), 1000);
        assert_eq!(host_uid(&json!({})), 0);
        let mappings = json!([{"containerID": 0, "hostID": 100_000, "size": 1000},
                              {"containerID": 1000, "hostID": 7, "size": 1}]);
        let spec = |uid: u32| json!({"process": {"user": {"uid": uid}}, "linux": {"uidMappings": mappings}});
        assert_eq!([0, 999, 1000].map(|uid| host_uid(&spec(uid))), [100_000, 100_999, 7]);
    }

    fn confined() -> Value {
        json!({
            "process": {"capabilities": {"bounding": ["CAP_CHOWN"], "effective": ["CAP_CHOWN"]}},
            "mounts": [{"destination": "/data", "type": "bind", "source": "/srv/data", "options": ["rbind", "rw"]},
                       {"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}],
                      "resources": {"devices": [{"allow": false, "access": "rwm"}]}}
        })
    }

    fn found(spec: &Value, table: &str) -> usize {
        let own = ["/run/gpool", "/usr/lib/gpool", "/usr/libexec/gpool/gpool-hook"];
        let own = own.map(|path| Place { path: path.into(), is_secret: false });
        breaches(spec, &own, &MountTable::parse(table.as_bytes()), true).len()
    }

    fn with_mount(source: &str, options: &[&str]) -> Value {
        let mut spec = confined();
        let mount = json!({"destination": "/x", "type": "bind", "source": source, "options": options});
        spec["mounts"].as_array_mut().unwrap().push(mount);
        spec
    }

    #[test]
    fn an_ordinary_container_is_confined() {
        assert_eq!(found(&confined(), ""), 0);
        assert_eq!(is_unenforced(&confined(), &Configuration::default()), Ok(false));
    }

    #[test]
    fn the_hosts_cgroups_are_not_for_writing() {
        let with = |kind: &str, option: &str, namespace: Value| {
            let mut spec = confined();
            let mount =
                json!({"destination": "/sys/fs/cgroup", "type": kind, "source": kind, "options": ["nosuid", option]});
            spec["mounts"].as_array_mut().unwrap().push(mount);
            spec["linux"]["namespaces"].as_array_mut().unwrap().push(namespace);
            found(&spec, "")
        };
        let none = || json!({"type": "uts"});
        let mut mapped = confined();
        mapped["mounts"].as_array_mut().unwrap().push(json!({"type": "cgroup", "options": ["rw"]}));
        assert_eq!(found(&mapped, ""), 1);
        mapped["linux"]["uidMappings"] = json!([{"containerID": 0, "hostID": 100_000, "size": 65_536}]);
        assert_eq!(found(&mapped, ""), 0, "they are not its root's");
        for kind in ["cgroup", "cgroup2"] {
            assert_eq!(with(kind, "rw", none()), 1, "{kind}");
            assert_eq!(with(kind, "ro", none()), 0, "{kind}: what Docker mounts without a namespace for them");
            assert_eq!(with(kind, "rw", json!({"type": "cgroup"})), 0, "{kind}: its own");
            assert_eq!(with(kind, "rw", json!({"type": "cgroup", "path": "/proc/self/ns/cgroup"})), 1, "{kind}");
        }
    }

    #[test]
    fn what_undoes_confinement_is_refused_unless_the_host_says_otherwise() {
        type Change = fn(&mut Value);
        let changes: [Change; 6] = [
            |spec| spec["linux"]["resources"]["devices"] = json!([{"allow": true, "access": "rwm"}]),
            |spec| spec["process"]["capabilities"]["bounding"] = json!(["CAP_SYS_ADMIN"]),
            |spec| spec["process"]["capabilities"]["bounding"] = json!(["CAP_CHOWN", "CAP_DAC_READ_SEARCH"]),
            |spec| spec["process"]["capabilities"]["permitted"] = json!(["CAP_SYS_MODULE"]),
            |spec| spec["linux"]["namespaces"] = json!([{"type": "mount"}]),
            |spec| spec["linux"]["namespaces"] = json!([{"type": "pid", "path": "/proc/self/ns/pid"}]),
        ];
        let mut configuration = Configuration::default();
        for change in changes {
            let mut spec = confined();
            change(&mut spec);
            assert_eq!(found(&spec, ""), 1, "{spec}");
            configuration.policy.unenforced = false;
            let error = is_unenforced(&spec, &configuration).unwrap_err();
            assert_presentable(&error);
            assert_eq!(error.code, ErrorCode::RequestNotAllowed);
            configuration.policy.unenforced = true;
            assert_eq!(is_unenforced(&spec, &configuration), Ok(true));
        }
    }

    #[test]
    fn our_places_may_not_be_written_from_inside() {
        for source in
            ["/run/gpool", "/run/gpool/leases", "/run", "/", "/usr/libexec/gpool", "/usr/libexec/gpool/gpool-hook"]
        {
            assert_eq!(found(&with_mount(source, &["rbind", "rprivate"]), ""), 1, "{source}");
            assert_eq!(found(&with_mount(source, &["rbind", "ro", "rprivate"]), ""), 0, "{source} read-only");
            assert_eq!(found(&with_mount(source, &["rbind", "ro", "rslave"]), ""), 1, "{source} follows the host");
        }
        assert_eq!(found(&with_mount("/run/gpool-other", &["rbind"]), ""), 0);
        assert_eq!(found(&with_mount("/usr/lib/gpool/../gpool", &["bind", "rw"]), ""), 1);
    }

    #[test]
    fn what_outlives_a_boot_may_not_be_written_nor_the_seal_read() {
        let mut configuration = Configuration::default();
        configuration.ledger.path = "/srv/books/gpool.db".into();
        configuration.audit.directory = "/srv/audit".into();
        let found = |source: &str, option: &str, has_hosts_root: bool| {
            let own = own_places(&configuration, has_hosts_root);
            let found = breaches(&with_mount(source, &[option]), &own, &MountTable::default(), false);
            found.into_iter().map(|(what, _)| what).collect::<String>()
        };
        for source in ["/var/lib", "/var/lib/gpool", "/var/lib/gpool/seal", "/"] {
            let said = found(source, "bind", true);
            assert!(said.ends_with(" can be written"), "{source}: {said}");
            let said = [true, false].map(|has_hosts_root| found(source, "ro", has_hosts_root));
            let of_seal = format!("mounts {source} of the host, through which /var/lib/gpool can be read");
            assert_eq!(said, [of_seal, String::new()], "the seal is root's");
        }
        for source in ["/srv", "/srv/books", "/srv/books/gpool.db", "/srv/books/gpool.db-wal", "/srv/audit/x"] {
            assert!(found(source, "bind", false).ends_with(" can be written"), "{source}");
            assert_eq!(found(source, "ro", true), "", "{source}");
        }
        for source in ["/var/lib/docker/volumes/x/_data", "/var/lib/gpool-other", "/srv/books/others.db", "/var/log"] {
            assert_eq!(found(source, "bind", true), "", "{source}");
        }
        (configuration.ledger.path, configuration.audit.directory) = (PathBuf::new(), PathBuf::new());
        let own = own_places(&configuration, true);
        assert!(own.iter().all(|place| place.path.is_absolute()), "a ledger that is not kept lies nowhere");
    }

    #[test]
    fn cgroups_may_not_be_written_and_a_socket_among_others_is_guarded_alone() {
        let mut configuration = Configuration::default();
        let found = |source: &str, has_hosts_root: bool| {
            let own = own_places(&Configuration::default(), has_hosts_root);
            breaches(&with_mount(source, &["rbind"]), &own, &MountTable::default(), has_hosts_root).len()
        };
        assert_eq!([found("/sys/fs/cgroup", true), found("/sys", true)], [1, 1]);
        assert_eq!([found("/sys/fs/cgroup", false), found("/sys", false)], [0, 0], "they are another root's");
        configuration.socket.path = "/run/gpool.sock".into();
        assert_eq!(is_unenforced(&with_mount("/run/containers/storage", &["rbind"]), &configuration), Ok(false));
        assert!(is_unenforced(&with_mount("/run/gpool.sock", &["bind"]), &configuration).is_err());
    }

    #[test]
    fn other_processes_may_not_be_reached_through_a_procfs_of_the_host() {
        let table = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n22 21 0:5 / /proc rw - proc proc rw\n\
                     23 21 0:5 / /srv/its/proc rw - proc proc rw\n";
        for (source, option, breaches) in [
            ("/proc", "bind", 1),
            ("/proc", "ro", 1),
            ("/srv/its/proc", "bind", 1),
            ("/srv/its", "rbind", 1),
            ("/srv/its", "bind", 0),
            ("/proc/sys", "bind", 0),
            ("/proc/self/root/etc", "bind", 1),
        ] {
            let mut spec = with_mount(source, &[option]);
            assert_eq!(found(&spec, table), breaches, "{source} {option}");
            spec["linux"]["namespaces"].as_array_mut().unwrap().push(json!({"type": "user"}));
            assert_eq!(found(&spec, table), 0, "{source} {option} with users of its own");
        }
        assert_eq!(found(&with_mount("/proc", &["rbind", "ro"]), table), 1, "read-only reaches no other mount");
        let own = MountTable::parse(table.as_bytes());
        assert!(breaches(&with_mount("/proc", &["bind"]), &[], &own, false).is_empty(), "an ordinary user's podman");
    }

    #[test]
    fn a_volume_that_is_a_bind_mount_of_our_places_is_one_of_them() {
        let table = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                     30 21 0:25 / /run rw - tmpfs tmpfs rw\n\
                     31 21 0:25 /gpool /srv/own rw - tmpfs tmpfs rw\n\
                     32 21 0:25 / /srv/run rw - tmpfs tmpfs rw\n\
                     33 21 8:1 /usr/lib/gpool /srv/deep/shims rw - ext4 /dev/sda1 rw\n\
                     34 21 0:26 / /srv/other rw - tmpfs tmpfs rw\n";
        for source in ["/srv/own", "/srv/own/leases", "/srv/run"] {
            assert_eq!(found(&with_mount(source, &["bind"]), table), 1, "{source}");
            assert_eq!(found(&with_mount(source, &["bind", "ro"]), table), 0, "{source} read-only");
        }
        assert_eq!(found(&with_mount("/srv/deep", &["rbind"]), table), 1, "mounted below it");
        assert_eq!(found(&with_mount("/srv/deep", &["rbind", "ro"]), table), 1, "which read-only does not reach");
        assert_eq!(found(&with_mount("/srv/deep", &["bind"]), table), 0, "without what is below");
        for source in ["/srv/other", "/srv/x", "/run/other"] {
            assert_eq!(found(&with_mount(source, &["rbind"]), table), 0, "{source}");
        }
    }

    #[test]
    fn read_only_does_not_reach_what_is_mounted_below() {
        let region = "71 65 0:1 / /run/gpool/leases/01/region rw - tmpfs gpool rw\n";
        for source in ["/run/gpool", "/run", "/"] {
            assert_eq!(found(&with_mount(source, &["rbind", "ro"]), region), 1, "{source}");
            assert_eq!(found(&with_mount(source, &["bind", "ro"]), region), 0, "{source} without what is below");
            assert_eq!(found(&with_mount(source, &["rbind", "rro"]), region), 0, "{source} read-only all the way");
        }
        assert_eq!(found(&with_mount("/run/gpool/gpool.sock", &["rbind", "ro"]), region), 0);
        let elsewhere = "71 65 0:1 / /run/other rw - tmpfs other rw\n";
        assert_eq!(found(&with_mount("/run", &["rbind", "ro"]), elsewhere), 0);
        let own = "71 65 0:1 / /run rw - tmpfs tmpfs rw\n";
        assert_eq!(found(&with_mount("/", &["rbind", "ro"]), own), 1, "ours lies on a mount below the source");
    }
}
