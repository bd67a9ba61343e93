//! What a process without a lease belongs to, by its cgroup: what it says itself goes no further than its name.

use crate::cgroup;
use crate::procfs;
use gpool_protocol::{HostPid, Unleased, UnleasedKind};

/// Characters of a container's id, in all engines.
const ID_CHARACTERS: usize = 64;
/// A unit's name has no more (systemd.unit(5)).
const UNIT_CHARACTERS: usize = 255;

/// To whom the process belongs; none if it has ended.
pub fn whose(pid: HostPid) -> Option<Unleased> {
    let path = cgroup::known_path_of(pid).ok()?.unwrap_or_default();
    let uid = procfs::uid_of(pid)?;
    Some(in_cgroup(&path, uid).unwrap_or_else(|| program(procfs::comm(pid), uid)))
}

fn program(name: String, uid: u32) -> Unleased {
    Unleased { kind: UnleasedKind::Program, name, uid: Some(uid) }
}

/// By the cgroup's path: the container, or the job, or the service that it is of, the innermost of each.
fn in_cgroup(path: &str, uid: u32) -> Option<Unleased> {
    let parts = || path.split('/').rev();
    let container = || parts().find_map(container_id);
    let job = || parts().find_map(job_number);
    let service = || parts().find_map(service_unit);
    let of = |kind, name: &str, uid| Unleased { kind, name: name.to_owned(), uid };
    container()
        .map(|id| of(UnleasedKind::Container, id, None))
        .or_else(|| job().map(|number| of(UnleasedKind::Job, number, Some(uid))))
        .or_else(|| service().map(|unit| of(UnleasedKind::Service, unit, Some(uid))))
}

/// docker-ID.scope, libpod-ID.scope, cri-containerd-ID.scope and crio-ID.scope where systemd makes cgroups, ID where the engine
/// does.
fn container_id(part: &str) -> Option<&str> {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let id = name.rsplit('-').next()?;
    let is_id = id.len() == ID_CHARACTERS && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_id.then_some(id)
}

/// `job_4711` below Slurm's own groups (slurm.conf(5), `ProctrackType=proctrack/cgroup`).
fn job_number(part: &str) -> Option<&str> {
    let number = part.strip_prefix("job_")?;
    let is_number = (1..=10).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(number)
}

/// A service, but for the one that is a user's session manager: what is below it is the user's.
fn service_unit(part: &str) -> Option<&str> {
    let is_named = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'-' | b'_' | b'.' | b'\\' | b'@');
    let is_unit = part.ends_with(".service") && part.len() <= UNIT_CHARACTERS && part.bytes().all(is_named);
    (is_unit && !part.starts_with("user@")).then_some(part)
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
            format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{id}.scope"),
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-{id}.scope"
            ),
            format!("/kubepods/burstable/pod1-2/{id}"),
            format!("/system.slice/slurmstepd.scope/job_7/step_0/docker-{id}.scope"),
        ] {
            assert_eq!(in_cgroup(&path, 1000), container, "{path}");
        }
        let named = |kind, name: &str| Some(Unleased { kind, name: name.to_owned(), uid: Some(1000) });
        let job = named(UnleasedKind::Job, "4711");
        assert_eq!(in_cgroup("/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", 1000), job);
        assert_eq!(in_cgroup("/slurm/uid_1000/job_4711/step_batch", 1000), job);
        let service = |path: &str| in_cgroup(path, 1000);
        assert_eq!(service("/system.slice/jupyter.service"), named(UnleasedKind::Service, "jupyter.service"));
        let own = "/user.slice/user-1000.slice/user@1000.service/app.slice/train.service";
        assert_eq!(service(own), named(UnleasedKind::Service, "train.service"));
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
        let its = whose(me).unwrap();
        assert!(its.kind != UnleasedKind::Program || (its.uid.is_some() && its.name == procfs::comm(me)));
        assert_eq!(whose(HostPid(u32::MAX)), None);
    }
}
