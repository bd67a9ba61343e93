//! What a person reads when gpool refuses a start, through each engine.

use super::life::{CAP, COMMAND};
use super::wait_for_lease;
use crate::cgroups;
use crate::failure::{Context, Result, ensure};
use crate::host::{Containerd, Crio, Host, Podman, succeeded};
use crate::image;
use crate::namespaces::Inside;
use crate::scenarios::finish;
use rustix::process::{Pid, Signal, kill_process};
use std::process::Output;

/// Words that engines put in the place of ours, or that send people elsewhere.
const MISLEADING: [&str; 7] = [
    "no such file or directory",
    "executable file not found",
    "permission denied",
    "not a directory",
    "is a directory",
    "attempted to invoke a command",
    "unable to retrieve OCI runtime error",
];

/// Refusals of every kind, through docker, podman, ctr and conmon as CRI-O calls it.
pub fn run(inside: &Inside) -> Result<()> {
    cgroups::hide_unified()?;
    let mut host = Host::start(inside)?;
    let podman = host.podman()?;
    let containerd = host.containerd()?;
    let crio = Crio::set_up(&host.stage, &inside.cgroup_parent)?;
    let outcome = refused(&mut host, &podman, &containerd, &crio);
    let cleared = podman.clear().and(containerd.stop());
    finish(host, outcome.and(cleared))
}

fn refused(host: &mut Host, podman: &Podman, containerd: &Containerd, crio: &Crio) -> Result<()> {
    let env = [("GPOOL_FRACTION", "0.8"), ("GPOOL_MEMORY", CAP)];
    let neighbour = host.run_container("neighbour", &env, &[], &COMMAND)?;
    wait_for_lease(host, &neighbour)?;
    let engines = Engines { host, podman, containerd, crio };
    engines.all_say("GPOOL_FRACTION=0.3", "has 20 % free; ask for 20 % or less", "[GPOOL-E201]")?;
    engines.all_say(
        "GPOOL_FRACTOIN=0.3",
        "GPOOL_FRACTOIN is no key of gpool; did you mean fraction?",
        "[GPOOL-E102]",
    )?;
    engines.all_say("GPOOL_FRACTION=3", "a share lies between 0.01 and 1", "[GPOOL-E101]")?;
    engines.all_say("GPOOL_TEAM=x", "may not be set from the environment", "[GPOOL-E104]")?;

    // What is refused is not refused because of the way in which it comes.
    succeeded("conmon", crio.create("granted", &[], &[("gpool.io/fraction", "0.1"), ("gpool.io/memory", "1GiB")])?)?;
    succeeded("delete", crio.delete("granted")?)?;

    let pid = host.supervisor_pid().and_then(|pid| Pid::from_raw(pid as i32));
    let signal = |signal| pid.map_or(Ok(()), |pid| kill_process(pid, signal)).context("the supervisor");
    signal(Signal::STOP)?;
    let engines = Engines { host, podman, containerd, crio };
    let told = engines.all_say("GPOOL_FRACTION=0.1", "does not answer", "[GPOOL-E001]");
    signal(Signal::CONT)?;
    told?;
    host.kill_supervisor()?;
    let engines = Engines { host, podman, containerd, crio };
    engines.all_say("GPOOL_FRACTION=0.11", "the supervisor is not running", "[GPOOL-E001]")?;
    host.start_supervisor()
}

struct Engines<'a> {
    host: &'a Host,
    podman: &'a Podman,
    containerd: &'a Containerd,
    crio: &'a Crio,
}

impl Engines<'_> {
    /// Has every engine start a container with `env`, all at once, and looks for `sentence` and `code` in what each says.
    fn all_say(&self, env: &str, sentence: &str, code: &str) -> Result<()> {
        let hooks = Podman::hooks(true);
        let run = ["run", "--rm", "--env", env, image::NAME, "true"];
        let docker = || self.host.docker(&[&run[..2], &["--runtime=gpool", "--network=none"], &run[2..]].concat());
        let podman = || self.podman.podman(&[&["--runtime=gpool"][..], &run].concat());
        let hooked = || self.podman.podman(&[&["--runtime=runc", hooks.as_str()][..], &run].concat());
        let under_crun = || self.podman.podman(&[&["--runtime=crun", hooks.as_str()][..], &run].concat());
        let ctr = || self.containerd.try_run(&env.to_ascii_lowercase().replace('=', "-"), &["--env", env], &["true"]);
        let crio = || self.crio.create(&env.to_ascii_lowercase().replace('=', "-"), &[env], &[]);
        let ways: [(&str, &(dyn Fn() -> Result<Output> + Sync)); 6] = [
            ("docker", &docker),
            ("podman", &podman),
            ("podman with hooks", &hooked),
            ("podman with hooks under crun", &under_crun),
            ("ctr", &ctr),
            ("conmon as CRI-O calls it", &crio),
        ];
        std::thread::scope(|scope| {
            let threads: Vec<_> = ways.map(|(name, call)| (name, scope.spawn(call))).into_iter().collect();
            threads.into_iter().try_for_each(|(name, thread)| {
                let output = thread.join().map_err(|_| crate::failure::Failure::new(name))??;
                check(name, &output, sentence, code).context(env)
            })
        })
    }
}

fn check(name: &str, output: &Output, sentence: &str, code: &str) -> Result<()> {
    let said = String::from_utf8_lossy(&output.stderr);
    ensure(!output.status.success(), || format!("{name} started it"))?;
    let is_told = said.contains(sentence) && said.contains(code);
    ensure(is_told, || format!("{name} does not say {sentence:?} and {code}: {said}"))?;
    let lower = said.to_ascii_lowercase();
    let misleading = MISLEADING.iter().find(|phrase| lower.contains(&phrase.to_ascii_lowercase()));
    ensure(misleading.is_none(), || format!("{name} says {misleading:?}: {said}"))
}
