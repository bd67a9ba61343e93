//! Containers whose ids are mapped, under engines that run as root: nobody in them can make a device node, and what a lease
//! shares with them has to be theirs to write.

use super::life::{CAP, COMMAND, lead};
use super::podman::{Way, together};
use super::{Client, share_run, wait_for_lease, wait_for_room};
use crate::cgroups;
use crate::failure::{Context, Result, ensure};
use crate::host::{Host, Podman, USER, add_users};
use crate::namespaces::Inside;
use crate::scenarios::finish;
use std::fs;

/// docker with `userns-remap`, then podman with a map of its own.
pub fn run(inside: &Inside) -> Result<()> {
    cgroups::hide_unified()?;
    add_users()?;
    let host = Host::start_with_docker(inside, &serde_json::json!({"userns-remap": USER.name}))?;
    let podman = host.podman()?;
    let outcome = under_docker(&host).and_then(|()| under_podman(&host, &podman));
    let cleared = podman.clear();
    finish(host, outcome.and(cleared))
}

fn under_docker(host: &Host) -> Result<()> {
    let docker = Client::docker(host);
    let env = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", CAP)];
    // As root of the container, and as a user of it that nobody on the host has a name for.
    for (name, user) in [("mapped", "0:0"), ("mapped-user", "1234:1234")] {
        let options = ["--stop-timeout=0", "--user", user];
        let container = host.run_container(name, &env, &options, &COMMAND)?;
        wait_for_lease(host, &container)?;
        let map = format!("/proc/{}/uid_map", container.init_pid);
        let map = fs::read_to_string(&map).context(map)?;
        let is_mapped = map.split_whitespace().nth(1) == Some(&USER.subordinate.to_string());
        ensure(is_mapped, || format!("{name} is not mapped: {map}"))?;
        let said = docker.refusal(&["exec", "--user=0", name, "sh", "-c", "mknod /tmp/other c 195 1"])?;
        ensure(said.contains("not permitted"), || format!("mknod: {said}"))?;
        lead(host, &docker, name)?;
    }
    wait_for_room(host)
}

fn under_podman(host: &Host, podman: &Podman) -> Result<()> {
    share_run()?;
    let hooks = Podman::hooks(false);
    let map = format!("--uidmap=0:{}:65536", USER.subordinate);
    let group_map = format!("--gidmap=0:{}:65536", USER.subordinate);
    let ways = [
        Way {
            name: "wrapped-runc",
            global: &["--runtime=gpool"],
            request: &[&map, &group_map, "--annotation=gpool.io/fraction=0.3"],
            share: 0.3,
        },
        Way {
            name: "hooked-crun",
            global: &["--runtime=crun", &hooks],
            request: &[&map, &group_map, "--annotation=gpool.io/fraction=0.5"],
            share: 0.5,
        },
    ];
    together(host, podman, &ways)
}
