//! The engines of a newer Debian: docker with `--annotation`, podman that keeps an image's annotations to itself, containerd's
//! CRI. The run sees that Debian's `/usr` in place of its own, so that everything in it is as its packages made it.

use super::life::{CAP, COMMAND, lead};
use super::podman::{Way, annotated_image, together};
use super::{Client, pods, wait_for_lease, wait_for_room};
use crate::cgroups;
use crate::downloads::Downloads;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Host, Podman};
use crate::image;
use crate::namespaces::{Inside, another_run};
use crate::scenarios::finish;
use crate::stage::Stage;
use gpool_protocol::Priority;

const SUITE: &str = "trixie";
const TREE: &str = "trixie-engines";
/// The engines, and what tests call besides.
const PACKAGES: [&str; 16] = [
    "docker.io",
    "docker-cli",
    "podman",
    "containerd",
    "runc",
    "crun",
    "conmon",
    "busybox-static",
    "curl",
    "iproute2",
    "util-linux",
    "bash",
    "coreutils",
    "tar",
    "libc-bin",
    "libgcc-s1",
];
/// The first docker with `--annotation`.
const ANNOTATES: u32 = 24;

/// Lays the engines out, unless they are here.
pub fn fetch() -> Result<()> {
    downloads()?.fetch_tree(TREE, SUITE, &PACKAGES)
}

/// Lays the engines out, then looks in a run of its own, which has no network.
pub fn run() -> Result<()> {
    if let Err(failure) = fetch() {
        println!("skipped: {failure}");
        return Ok(());
    }
    let status = another_run().arg("current-engines-inside").status().context("the run that looks")?;
    ensure(status.success(), || format!("the run that looks ended with {status}"))
}

/// Runs them.
pub fn inside(inside: &Inside) -> Result<()> {
    let tree = downloads()?.tree(TREE).ok_or_else(|| Failure::new(format!("{TREE} is not here")))?;
    rustix::mount::mount_bind(tree.join("usr"), "/usr").context("the other /usr")?;
    // What a newer podman writes there, an older one cannot read.
    let storage = "/var/lib/containers";
    std::fs::create_dir_all(storage).context(storage)?;
    rustix::mount::mount("tmpfs", storage, "tmpfs", rustix::mount::MountFlags::empty(), c"mode=755")
        .context(storage)?;
    // This crun, too, refuses hybrid cgroups.
    cgroups::hide_unified()?;
    let host = Host::start(inside)?;
    let outcome = docker(&host).and_then(|()| in_pods(&host));
    let podman = host.podman()?;
    let outcome = outcome.and_then(|()| with_podman(&host, &podman));
    let cleared = podman.clear();
    finish(host, outcome.and(cleared))
}

fn docker(host: &Host) -> Result<()> {
    let docker = Client::docker(host);
    let version = docker.text(&["version", "-f", "{{.Server.Version}}"])?;
    let major: u32 = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
    ensure(major >= ANNOTATES, || format!("{TREE} has docker {version}"))?;
    let memory = format!("gpool.io/memory={CAP}");
    // What the environment may not ask for, an annotation may; and where both ask, it has the last word.
    let asked = ["run", "-d", "--runtime=gpool", "--stop-timeout=0", "--name=annotated", "--env=GPOOL_FRACTION=0.6"];
    let annotations =
        ["--annotation=gpool.io/fraction=0.3", "--annotation=gpool.io/priority=burst", "--annotation", &memory];
    docker.text(&[&asked[..], &annotations, &[image::NAME], &COMMAND].concat())?;
    let lease = wait_for_lease(host, &docker.container("annotated")?)?;
    let granted = (lease.fraction_permille, lease.priority);
    ensure(granted == (300, Priority::Burst), || format!("docker {version}: granted {granted:?}"))?;
    lead(host, &docker, "annotated")?;
    for (annotation, sentence, code) in [
        ("gpool.io/fraction=3", "a share lies between 0.01 and 1", "[GPOOL-E101]"),
        ("gpool.io/fractoin=0.3", "gpool.io/fractoin is no key of gpool; did you mean fraction?", "[GPOOL-E102]"),
    ] {
        let said =
            docker.refusal(&["run", "--rm", "--runtime=gpool", "--annotation", annotation, image::NAME, "true"])?;
        ensure(said.contains(sentence) && said.contains(code), || format!("docker {version}: {said}"))?;
    }
    wait_for_room(host)
}

fn in_pods(host: &Host) -> Result<()> {
    let containerd = host.containerd_for_pods()?;
    let outcome = pods::with_shares(host, containerd.cri());
    if outcome.is_err() {
        eprint!("{}", containerd.log_end());
    }
    outcome.and(containerd.stop())
}

fn with_podman(host: &Host, podman: &Podman) -> Result<()> {
    let hooks = Podman::hooks(false);
    let (wrapped, hooked) = (["--runtime=gpool"], ["--runtime=crun", &hooks]);
    let ways = [
        Way { name: "wrapped-runc", global: &wrapped, request: &["--annotation=gpool.io/fraction=0.3"], share: 0.3 },
        Way { name: "hooked-crun", global: &hooked, request: &["--annotation=gpool.io/fraction=0.5"], share: 0.5 },
    ];
    together(host, podman, &ways)?;
    let client = Client::new("podman", |arguments| podman.podman(arguments));
    let refused = ["run", "--rm", "--annotation=gpool.io/fraction=3", image::NAME, "true"];
    for global in [&wrapped[..], &hooked] {
        let said = client.refusal(&[global, &refused].concat())?;
        let is_told = said.contains("a share lies between 0.01 and 1") && said.contains("[GPOOL-E101]");
        ensure(is_told, || format!("podman {global:?}: {said}"))?;
    }
    // This podman does not give a container the annotations of its image, which would be refused here.
    let annotated = annotated_image(podman)?;
    for global in [&wrapped[..], &hooked] {
        let run = ["run", "--rm", "--annotation=gpool.io/fraction=0.1", &annotated, "true"];
        client.text(&[global, &run].concat())?;
    }
    wait_for_room(host)
}

fn downloads() -> Result<Downloads> {
    Ok(Downloads::in_directory(Stage::of_this_program()?.downloads()))
}
