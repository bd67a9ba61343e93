//! Every engine of this machine writes config.json for a runtime that keeps a copy and fails.

use crate::failure::{Context, Failure, Result, ensure};
use crate::host::Host;
use crate::image;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const DIRECTORY: &str = "/run/gpool-record";
const RECORDER: &str = "/run/gpool-record/recorder";
const KEPT: &str = "/run/gpool-record/kept";
/// Copies the bundle's config.json on `create` and `run`; every verb fails, so that nothing has to be taken down.
const SCRIPT: &str = r#"#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
bundle=. last= verb=
for word; do
    case $last in --bundle|-b) bundle=$word ;; esac
    case $word in --bundle=*) bundle=${word#--bundle=} ;; create|run) verb=$word ;; esac
    last=$word
done
case $verb in create|run) cp "$bundle/config.json" "/run/gpool-record/kept/$$.json" ;; esac
echo 'recorded' >&2
exit 1
"#;

/// Options of `docker run`, also taken two at a time. Those of one line exclude each other.
const OPTIONS: [&str; 44] = [
    "--cap-add NET_ADMIN",
    "--cap-drop ALL",
    "--read-only",
    "--tmpfs /tmp:size=1m,mode=1777",
    "-v /etc/hostname:/data/name:ro",
    "-v /run/gpool-record/volume:/data/volume",
    "--mount type=bind,source=/usr/share,target=/data/share,readonly",
    "--mount type=tmpfs,target=/data/tmp,tmpfs-size=65536",
    "--ulimit nofile=100:200",
    "--ulimit core=-1:-1",
    "--device /dev/null:/dev/other:rwm",
    "--device-cgroup-rule c*:*m",
    "--security-opt no-new-privileges",
    "--security-opt seccomp=unconfined",
    "--security-opt systempaths=unconfined",
    "--cpus 0.5",
    "--cpu-shares 77",
    "--cpuset-cpus 0",
    "--memory 64m",
    "--pids-limit 99",
    "--blkio-weight 300",
    "--user 1000:1000",
    "--user 65534",
    "--group-add 4711",
    "--workdir /data",
    "--hostname other",
    "--env A=b=c",
    "--env UNICODE=ünï\u{1f600}",
    "--env QUOTED=\"quoted\"\\n",
    "--env NVIDIA_VISIBLE_DEVICES=all",
    "--label x=y",
    "--network none",
    "--network host",
    "--ipc host",
    "--ipc none",
    "--ipc shareable",
    "--uts host",
    "--pid host",
    "--cgroupns host",
    "--privileged",
    "--stop-signal SIGINT",
    "--shm-size 1m",
    "--oom-score-adj 500",
    "-t",
];

/// Where each came from, and its bytes.
pub type Recorded = Vec<(String, Vec<u8>)>;

/// Asks every engine that is there.
pub fn all(host: &Host) -> Result<Recorded> {
    for directory in [KEPT, "/run/gpool-record/volume"] {
        fs::create_dir_all(directory).context(directory)?;
    }
    fs::write(RECORDER, SCRIPT).context(RECORDER)?;
    fs::set_permissions(RECORDER, PermissionsExt::from_mode(0o755)).context(RECORDER)?;
    let mut recorded = Recorded::new();
    host.engine.add_runtime("recorder", Path::new(RECORDER))?;
    docker(host, &mut recorded)?;
    let root = Path::new(DIRECTORY).join("root");
    image::lay_out(&host.stage, &root)?;
    containerd(&root, &mut recorded)?;
    podman(&root, &mut recorded)?;
    specs(&mut recorded)?;
    Ok(recorded)
}

fn option_sets() -> Vec<Vec<&'static str>> {
    combined(&OPTIONS, &[5, 9, 14])
}

/// None, each, and each with those so many places further: different distances, so that no option meets only one other.
fn combined(options: &[&'static str], steps: &[usize]) -> Vec<Vec<&'static str>> {
    let single = (0..options.len()).map(|one| vec![one]);
    let pairs =
        steps.iter().flat_map(|step| (0..options.len()).map(move |one| vec![one, (one + step) % options.len()]));
    let words = |set: Vec<usize>| set.into_iter().flat_map(|index| options[index].split_whitespace()).collect();
    std::iter::once(Vec::new()).chain(single.chain(pairs).map(words)).collect()
}

fn docker(host: &Host, recorded: &mut Recorded) -> Result<()> {
    let mut names = Vec::new();
    for (index, set) in option_sets().into_iter().enumerate() {
        let name = format!("recorded-{index}");
        let mut arguments = vec!["create", "--runtime=recorder", "--name", &name];
        arguments.extend(&set);
        arguments.extend([image::NAME, "sh", "-c", "echo \"one\" 'two' > /dev/null"]);
        // Options that exclude each other make no container.
        if host.docker(&arguments)?.status.success() {
            names.push((name, set.join(" ")));
        }
    }
    for (name, options) in names {
        host.docker(&["start", &name])?;
        take(&format!("docker {options}"), recorded)?;
    }
    host.engine.remove_all_containers()
}

/// Takes the one that was recorded since; an engine may refuse by itself before it asks a runtime.
fn take(origin: &str, recorded: &mut Recorded) -> Result<()> {
    for entry in fs::read_dir(KEPT).context(KEPT)?.flatten() {
        recorded.push((origin.to_owned(), fs::read(entry.path()).context(origin)?));
        fs::remove_file(entry.path()).context(origin)?;
    }
    Ok(())
}

fn containerd(root: &Path, recorded: &mut Recorded) -> Result<()> {
    const SOCKET: &str = "/run/gpool-docker/exec/containerd/containerd.sock";
    let before = recorded.len();
    let options = [
        "--privileged",
        "--net-host",
        "--read-only",
        "--tty",
        "--env A=b",
        "--cwd /data",
        "--cpus 0.5",
        "--memory-limit 67108864",
        "--pid-file /run/gpool-record/pid",
        "--label x=y",
        "--no-pivot",
        "--seccomp",
        "--device /dev/null",
        "--cap-add CAP_SYS_TIME",
        "--hostname other",
        "--user 1000",
        "--annotation x.y/z=1",
    ];
    for (index, set) in combined(&options, &[1, 2, 3, 4, 5, 6, 7, 8]).into_iter().enumerate() {
        let mut command = Command::new("ctr");
        command.args(["-a", SOCKET, "run", "--rm", "--runc-binary", RECORDER]).args(&set);
        command.arg("--rootfs").arg(root).arg(format!("recorded-{index}")).arg("true");
        if run(&mut command)?.is_none() {
            return Ok(());
        }
        take(&format!("ctr {}", set.join(" ")), recorded)?;
    }
    ensure(recorded.len() > before, || "ctr is there and nothing was recorded".to_owned())
}

fn podman(root: &Path, recorded: &mut Recorded) -> Result<()> {
    let home = [
        "--root",
        "/run/gpool-record/podman",
        "--runroot",
        "/run/gpool-record/podman-run",
        "--storage-driver",
        "vfs",
        "--events-backend",
        "file",
        "--cgroup-manager",
        "cgroupfs",
        "--runtime",
        RECORDER,
    ];
    let sets = [
        "",
        "--privileged",
        "--network none",
        "--read-only",
        "-t",
        "--env A=b",
        "--workdir /data",
        "--pids-limit 5",
        "--annotation x.y/z=1",
        "--cap-drop all",
        "--user 1000",
        "--pid host",
        "--tmpfs /tmp",
        "--init",
        "--systemd false",
        "--security-opt no-new-privileges",
        "--hostname other",
        "--ulimit core=-1:-1",
    ];
    for set in sets {
        let mut command = Command::new("podman");
        command.args(home).args(["run", "--rm", "--cgroups", "disabled"]).args(set.split_whitespace());
        command.arg("--rootfs").arg(root).arg("true");
        if run(&mut command)?.is_none() {
            return Ok(());
        }
        take(&format!("podman {set}"), recorded)?;
    }
    Ok(())
}

/// What the low-level runtimes themselves propose.
fn specs(recorded: &mut Recorded) -> Result<()> {
    for (program, arguments) in [
        ("runc", &["spec"][..]),
        ("runc", &["spec", "--rootless"]),
        ("crun", &["spec"]),
        ("crun", &["spec", "--rootless"]),
    ] {
        let directory = Path::new(DIRECTORY).join("spec");
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).context("spec")?;
        let mut command = Command::new(program);
        if run(command.args(arguments).current_dir(&directory))?.is_some_and(|output| output.status.success()) {
            let bytes = fs::read(directory.join("config.json")).context(program)?;
            recorded.push((format!("{program} {}", arguments.join(" ")), bytes));
        }
    }
    Ok(())
}

/// None if there is no such program.
fn run(command: &mut Command) -> Result<Option<Output>> {
    match command.output() {
        Ok(output) => Ok(Some(output)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("    skipped: {} is not installed", command.get_program().display());
            Ok(None)
        }
        Err(error) => Err(Failure::new(error.to_string())),
    }
}
