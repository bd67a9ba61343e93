//! A leased container keeps its GPU when systemd loads its units anew, in a virtual machine where version 2 of cgroups has
//! all its controllers and a systemd of its own. systemd then gives each unit the programs that follow from the unit's
//! properties, and what was allowed past it is lost: a container to which that was done is the control.

use crate::booted::{self, Packages};
use crate::downloads::Downloads;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::text;
use crate::image;
use crate::namespaces::{Inside, another_run};
use crate::scenarios::booted_systemd;
use crate::stage::Stage;
use crate::virtual_machine::{self, File, VirtualMachine};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// What opens a device past systemd.
const OPEN_DEVICES: &str = include_str!("../../programs/open_devices.pl");
/// How long a program in the machine may take to use the GPU once more.
const PATIENCE: Duration = Duration::from_secs(90);
const PREPARED: &str = "/run/gpool-prepared";
/// There is neither a bridge nor a module for layers.
const DAEMON_JSON: &str = r#"{
    "exec-opts": ["native.cgroupdriver=systemd"],
    "storage-driver": "vfs",
    "bridge": "none",
    "iptables": false
}
"#;
const CONTROLLERS: [&str; 5] = ["cpuset", "cpu", "io", "memory", "pids"];
/// The simulated device answers an open that the cgroup allows with this; nothing is behind its node.
const ALLOWED: &str = "No such device or address";
const DENIED: &str = "Operation not permitted";
/// The nodes that a leased container has.
const NODES: [&str; 3] = ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"];
/// Containers with a share: name and fraction.
const TENANTS: [(&str, &str); 2] = [("small", "0.3"), ("large", "0.6")];
/// A container without one, with a node of the GPU that it has made itself.
const CONTROL: &str = "control";
const CONTROLS_NODE: &str = "/tmp/nvidia0";

/// Fetches and packs what the machine needs, then boots it without network.
pub fn run() -> Result<()> {
    let stage = Stage::of_this_program()?;
    if let Err(failure) = booted_systemd::fetch().and_then(|()| virtual_machine::fetch(&downloads(&stage))) {
        println!("skipped: no virtual machine can be made: {failure}");
        return Ok(());
    }
    booted::pack_one(&stage, &Packages::for_virtual_machines(&stage))?;
    let status = another_run().arg("daemon-reload-vm-inside").status().context("the run with the machine")?;
    ensure(status.success(), || format!("the run with the machine ended with {status}"))
}

/// Boots it.
pub fn inside(_: &Inside) -> Result<()> {
    let stage = Stage::of_this_program()?;
    let downloads = downloads(&stage);
    let system = downloads.system(booted_systemd::SUITE);
    let system = system.ok_or_else(|| Failure::new("the system that daemon-reload-vm makes is not here"))?;
    let mut machine = VirtualMachine::boot(&downloads, &system, &files(&stage)?)?;
    let outcome = in_machine(&mut machine);
    if outcome.is_err() {
        eprintln!("{}", machine.journal());
    }
    outcome.and(machine.stop())
}

fn downloads(stage: &Stage) -> Downloads {
    Downloads::in_directory(stage.downloads())
}

fn files(stage: &Stage) -> Result<Vec<File>> {
    let prepared = Path::new(PREPARED);
    let image = prepared.join("image");
    image::lay_out(stage, &image)?;
    let archive = prepared.join("image.tar");
    let tar = Command::new("tar").arg("-C").arg(&image).arg("-cf").arg(&archive).arg(".").status().context("tar")?;
    ensure(tar.success(), || format!("tar ended with {tar}"))?;
    let written = |name: &str, content: &str| {
        let path = prepared.join(name);
        fs::write(&path, content).context(path.display()).map(|()| path)
    };
    let mut files = vec![
        File { source: archive, path: "/root/image.tar".to_owned() },
        File { source: written("daemon.json", DAEMON_JSON)?, path: "/etc/docker/daemon.json".to_owned() },
        File { source: written("open_devices.pl", OPEN_DEVICES)?, path: "/root/open_devices.pl".to_owned() },
    ];
    let packages = Packages::for_virtual_machines(stage);
    for package in booted_systemd::PACKAGES {
        let (source, name) = packages.new_one(package);
        files.push(File { source, path: format!("/root/{name}") });
    }
    Ok(files)
}

fn in_machine(machine: &mut VirtualMachine) -> Result<()> {
    is_as_on_a_host(machine)?;
    machine.sh("apt-get -qq install -y ./gpool_*.deb ./gpool-simulated-gpu_*.deb 2>&1")?;
    machine.wait_until("systemctl --quiet is-active gpool-supervisor")?;
    machine.sh("gpool runtime configure --runtime docker && systemctl reload docker")?;
    machine.sh(&format!("docker import image.tar {}", image::NAME))?;
    let ids = TENANTS.map(|(name, fraction)| start(machine, name, fraction));
    let ids = ids.into_iter().collect::<Result<Vec<String>>>()?;
    let leases = leases(machine)?;
    ensure(leases.len() == TENANTS.len(), || format!("the leases are {leases:?}"))?;
    for id in &ids {
        goes_on(machine, id)?;
    }
    for command in ["daemon-reload", "daemon-reexec"] {
        control_can_open(machine).context(format!("before systemctl {command}"))?;
        machine.sh(&format!("systemctl {command}"))?;
        // Without this, the rest would hold also where systemd gives nobody anything anew.
        is_answered(machine, CONTROL, CONTROLS_NODE, DENIED)
            .context(format!("systemctl {command} was to take what was given past it"))?;
        for ((name, _), id) in TENANTS.iter().zip(&ids) {
            let still = NODES.iter().try_for_each(|node| is_answered(machine, name, node, ALLOWED));
            still.and_then(|()| starts_anew(machine, name)).and_then(|()| goes_on(machine, id)).context(command)?;
        }
        let now = self::leases(machine)?;
        ensure(now == leases, || format!("leases before {command}: {leases:?}\nafter: {now:?}"))?;
        println!("systemctl {command}: the control lost its device, {} containers kept theirs", TENANTS.len());
    }
    evicted(machine, &ids)
}

/// All controllers, owned by systemd.
fn is_as_on_a_host(machine: &mut VirtualMachine) -> Result<()> {
    let controllers = machine.sh("cat /sys/fs/cgroup/cgroup.controllers")?;
    let has = |name: &&str| controllers.split(' ').any(|controller| controller == *name);
    ensure(CONTROLLERS.iter().all(has), || format!("the controllers are {controllers}"))?;
    machine.wait_until("systemctl --quiet is-active docker")?;
    let docker = machine.sh("docker info --format '{{.CgroupDriver}} {{.CgroupVersion}}'")?;
    ensure(docker == "systemd 2", || format!("docker's driver and version of cgroups: {docker}"))
}

/// A container whose init does not use the GPU and lives on when the program has ended that does.
fn start(machine: &mut VirtualMachine, name: &str, fraction: &str) -> Result<String> {
    machine.sh(&format!(
        "docker run -d --network none --name {name} --runtime=gpool -e GPOOL_FRACTION={fraction} -e GPOOL_MEMORY=2GiB {} \
         sh -c '(gpool-tenant --kernel-us 20000 --allocate-mib 100); sleep 100000'",
        image::NAME
    ))
}

/// Gives the control, for which systemd knows of no device of gpool's, access past it.
fn control_can_open(machine: &mut VirtualMachine) -> Result<()> {
    let image = image::NAME;
    machine.sh(&format!(
        "docker rm -f {CONTROL} > /dev/null 2>&1; docker run -d --network none --name {CONTROL} {image} sleep 100000"
    ))?;
    machine.sh(&format!("docker exec {CONTROL} mknod {CONTROLS_NODE} c 195 0"))?;
    is_answered(machine, CONTROL, CONTROLS_NODE, DENIED).context("a container without a share")?;
    let cgroup =
        machine.sh(&format!("sed 's/^0:://' /proc/$(docker inspect -f '{{{{.State.Pid}}}}' {CONTROL})/cgroup"))?;
    ensure(cgroup.contains(".scope"), || format!("{CONTROL} is in {cgroup}, which is no unit of systemd's"))?;
    machine.sh(&format!("perl open_devices.pl /sys/fs/cgroup{cgroup}"))?;
    is_answered(machine, CONTROL, CONTROLS_NODE, ALLOWED).context("opened past systemd")
}

fn is_answered(machine: &mut VirtualMachine, name: &str, node: &str, with: &str) -> Result<()> {
    let said = text(&machine.run(&format!("docker exec {name} sh -c 'true < {node}'"))?.stderr);
    ensure(said.contains(with), || format!("opening {node} in {name}: {said:?} and not {with:?}"))
}

/// Another program in the container opens the GPU and works with it.
fn starts_anew(machine: &mut VirtualMachine, name: &str) -> Result<()> {
    let said = machine.sh(&format!("docker exec {name} gpool-tenant --allocate-mib 10 --seconds 1"))?;
    crate::tenant::events(&said).context(name).map(drop)
}

/// More of its kernels execute, as the simulated GPU's own meter sees it.
fn goes_on(machine: &mut VirtualMachine, id: &str) -> Result<()> {
    let before = kernels(machine, id)?;
    let deadline = Instant::now() + PATIENCE;
    while kernels(machine, id)? <= before {
        ensure(Instant::now() < deadline, || format!("no kernel of {id} within {PATIENCE:?} after its {before}"))?;
    }
    Ok(())
}

fn kernels(machine: &mut VirtualMachine, id: &str) -> Result<u64> {
    let said = machine.sh("gpool-simgpu meter")?;
    let meter: Value = serde_json::from_str(&said).context("gpool-simgpu meter")?;
    let owners = meter["meter"]["owners"].as_object();
    let owners = owners.ok_or_else(|| Failure::new(format!("a meter without owners: {said}")))?;
    let its = owners.iter().filter(|(path, _)| path.contains(id));
    Ok(its.filter_map(|(_, usage)| usage["kernels"].as_u64()).sum())
}

/// Id, state and share in thousandths of each lease.
fn leases(machine: &mut VirtualMachine) -> Result<Vec<(String, String, u64)>> {
    let said = machine.sh("gpool ps --format json")?;
    let document: Value = serde_json::from_str(&said).context("gpool ps")?;
    let word = |lease: &Value, name: &str| lease[name].as_str().unwrap_or_default().to_owned();
    let all = document["leases"].as_array().into_iter().flatten();
    let fraction = |lease: &Value| lease["fraction_permille"].as_u64().unwrap_or_default();
    let mut found: Vec<_> = all.map(|lease| (word(lease, "lease_id"), word(lease, "state"), fraction(lease))).collect();
    found.sort();
    Ok(found)
}

/// What is taken from a container on purpose stays taken, also when systemd gives what it knows of anew; the other goes on.
fn evicted(machine: &mut VirtualMachine, ids: &[String]) -> Result<()> {
    let ((name, _), (neighbour, _)) = (TENANTS[0], TENANTS[1]);
    machine.sh(&format!("gpool evict {}", ids[0]))?;
    let denied = |machine: &mut VirtualMachine| is_answered(machine, name, NODES[0], DENIED);
    denied(machine).context("after gpool evict")?;
    let left = leases(machine)?;
    ensure(left.iter().any(|(_, state, permille)| (state.as_str(), *permille) == ("revoked", 0)), || {
        format!("after gpool evict the leases are {left:?}")
    })?;
    machine.sh("systemctl daemon-reload")?;
    denied(machine).context("after gpool evict and systemctl daemon-reload")?;
    let running = machine.sh(&format!("docker inspect -f '{{{{.State.Running}}}}' {name}"))?;
    ensure(running == "true", || format!("{name} has ended"))?;
    is_answered(machine, neighbour, NODES[0], ALLOWED)?;
    goes_on(machine, &ids[1])?;
    println!("gpool evict: denied, and denied after systemctl daemon-reload; its neighbour goes on");
    Ok(())
}
