//! What a process without a lease belongs to, by its cgroup. Of what it says itself its name alone goes in; of what its user can make,
//! which are groups below the user's own, nothing counts as anybody else's.

use super::pods;
use crate::cgroup;
use crate::procfs;
use gpool_protocol::{HostPid, Unleased, UnleasedKind};
use std::path::Path;

/// Characters of a container's id, in all engines.
const ID_CHARACTERS: usize = 64;
/// A unit's name has no more (systemd.unit(5)).
const UNIT_CHARACTERS: usize = 255;
/// Services below which there are containers and jobs of others.
const ENGINES: [&str; 7] = ["containerd", "crio", "docker", "k3s", "kubelet", "podman", "slurmd"];

/// To whom the process belongs, and of which pod that is; none if it has ended.
pub fn whose(pid: HostPid) -> Option<(Unleased, Option<String>)> {
    let path = cgroup::known_path_of(pid).ok()?.unwrap_or_default();
    let uid = procfs::uid_of(pid)?;
    let user = in_cgroup(&path, uid).unwrap_or_else(|| program(procfs::comm(pid), uid));
    // A user's own engine may call its groups what it likes.
    let is_in_pod = user.kind == UnleasedKind::Container && user.uid.is_none();
    let pod = if is_in_pod { pods::pod_at(&path, Path::new(pods::LOGS)) } else { None };
    Some((user, pod))
}

fn program(name: String, uid: u32) -> Unleased {
    Unleased { kind: UnleasedKind::Program, name, uid: Some(uid) }
}

/// By the cgroup's path: the outermost container, job or service. What lies in one is made by it, whatever it is called.
fn in_cgroup(path: &str, uid: u32) -> Option<Unleased> {
    let of = |kind, name: &str, uid| Some(Unleased { kind, name: name.to_owned(), uid });
    let (mut its_users, mut parts) = (None, path.split('/').peekable());
    while let Some(part) = parts.next() {
        its_users = its_users.or_else(|| user_slice(part));
        // Whose containers they are only an engine of a user's own tells.
        if let Some(id) = container_id(part).or_else(|| machine(part)) {
            return of(UnleasedKind::Container, id, its_users);
        }
        if let Some(name) = parts.peek().filter(|name| part == "lxc" && is_plain(name)) {
            return of(UnleasedKind::Container, name, its_users);
        }
        if let Some(number) = job_number(part) {
            return of(UnleasedKind::Job, number, Some(its_users.unwrap_or(uid)));
        }
        if let Some(unit) = service_unit(part) {
            return of(UnleasedKind::Service, unit, Some(its_users.unwrap_or(uid)));
        }
    }
    None
}

/// `lxc.payload.NAME` of LXC 4 and later, and `machine-NAME.scope` of machinectl: a whole system with services of its own.
fn machine(part: &str) -> Option<&str> {
    let is_machine = part.starts_with("lxc.payload.") || (part.starts_with("machine-") && part.ends_with(".scope"));
    (is_machine && is_plain(part)).then_some(part)
}

/// What units and machines are called; anything else might be meant for a terminal.
fn is_plain(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'-' | b'_' | b'.' | b'\\' | b'@');
    (1..=UNIT_CHARACTERS).contains(&name.len()) && name.bytes().all(is_plain)
}

/// The user whose sessions and services are below `user-UID.slice`.
fn user_slice(part: &str) -> Option<u32> {
    part.strip_prefix("user-")?.strip_suffix(".slice")?.parse().ok()
}

/// docker-ID.scope, libpod-ID.scope, cri-containerd-ID.scope and crio-ID.scope where systemd makes cgroups, ID where the engine
/// does, and SLICE:cri-containerd:ID where the engine means the one and does the other.
fn container_id(part: &str) -> Option<&str> {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let id = name.rsplit(['-', ':']).next()?;
    let is_id = id.len() == ID_CHARACTERS && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_id.then_some(id)
}

/// `job_4711` below Slurm's own groups (slurm.conf(5), `ProctrackType=proctrack/cgroup`).
fn job_number(part: &str) -> Option<&str> {
    let number = part.strip_prefix("job_")?;
    let is_number = (1..=10).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(number)
}

/// A service, but for a user's session manager and for engines: what is below them is others'.
fn service_unit(part: &str) -> Option<&str> {
    let unit = part.strip_suffix(".service")?;
    (is_plain(part) && !unit.starts_with("user@") && !ENGINES.contains(&unit)).then_some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_says_which_container_job_or_service_it_is() {
        let id = "3f".repeat(32);
        let container = Some(Unleased { kind: UnleasedKind::Container, name: id.clone(), uid: None });
        for path in [
            format!("/system.slice/docker-{id}.scope"),
            format!("/docker/{id}"),
            format!("/docker/{id}/init"),
            format!("/machine.slice/libpod-{id}.scope/container"),
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-{id}.scope"
            ),
            format!("/kubepods/burstable/pod1-2/{id}"),
            format!("/system.slice/containerd.service/kubepods-burstable-pod1_2.slice:cri-containerd:{id}"),
            format!("/system.slice/docker-{id}.scope/docker-{}.scope/job_7/x.service", "aa".repeat(32)),
        ] {
            assert_eq!(in_cgroup(&path, 1000), container, "{path}");
        }
        // A user's own engine, or who poses as one, is that user's.
        let own = format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{id}.scope");
        assert_eq!(in_cgroup(&own, 100_999), container.clone().map(|its| Unleased { uid: Some(1000), ..its }));
        let named = |kind, name: &str| Some(Unleased { kind, name: name.to_owned(), uid: Some(1000) });
        let job = named(UnleasedKind::Job, "4711");
        assert_eq!(in_cgroup("/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", 1000), job);
        assert_eq!(in_cgroup("/slurm/uid_1000/job_4711/step_batch", 1000), job);
        assert_eq!(in_cgroup(&format!("/system.slice/slurmstepd.scope/job_4711/step_0/docker-{id}.scope"), 1000), job);
        let service = |path: &str| in_cgroup(path, 1000);
        assert_eq!(service("/system.slice/jupyter.service"), named(UnleasedKind::Service, "jupyter.service"));
        let own = "/user.slice/user-1000.slice/user@1000.service/app.slice/train.service";
        assert_eq!(service(own), named(UnleasedKind::Service, "train.service"));
        for posing in
            ["/system.slice/lab.service/user.slice/user-7.slice/x.scope", "/system.slice/lab.service/user-7.slice"]
        {
            assert_eq!(service(posing), named(UnleasedKind::Service, "lab.service"), "{posing}");
        }
        let booted = format!("/machine.slice/libpod-{id}.scope/user.slice/user-7.slice/session-1.scope");
        assert_eq!(in_cgroup(&booted, 1000), container);
        let machine = |name: &str| Some(Unleased { kind: UnleasedKind::Container, name: name.to_owned(), uid: None });
        for (path, name) in [
            ("/lxc.payload.c1/system.slice/jupyter.service", "lxc.payload.c1"),
            ("/lxc/c1/docker-1.scope", "c1"),
            ("/machine.slice/machine-c1.scope/user.slice/user-7.slice", "machine-c1.scope"),
        ] {
            assert_eq!(in_cgroup(path, 1000), machine(name), "{path}");
        }
        let posing = format!("/system.slice/lab.service/docker-{id}.scope");
        assert_eq!(service(&posing), named(UnleasedKind::Service, "lab.service"), "what it has made itself");
        for none in [
            "",
            "/user.slice/user-1000.slice/session-3.scope",
            "/user.slice/user-1000.slice/user@1000.service/init.scope",
            "/docker/3f3f",
            "/job_/job_x/job_12345678901",
            "/a b.service",
        ] {
            assert_eq!(in_cgroup(none, 1000), None, "{none}");
        }
    }

    #[test]
    fn a_program_is_known_by_its_name_and_user() {
        let me = HostPid(std::process::id());
        let (its, pod) = whose(me).unwrap();
        assert!(pod.is_none() || its.kind == UnleasedKind::Container);
        assert!(its.kind != UnleasedKind::Program || (its.uid.is_some() && its.name == procfs::comm(me)));
        assert_eq!(whose(HostPid(u32::MAX)), None);
    }
}
