//! containerd without an engine in front of it, through `ctr`.

use super::life::{CAP, COMMAND};
use super::{check_shares, wait_for_end, wait_for_lease, wait_for_room};
use crate::failure::{Result, ensure};
use crate::host::{Container, Containerd, Host, succeeded};
use crate::namespaces::Inside;
use crate::scenarios::finish;
use crate::tenant::report;

const FRACTION: &str = "--annotation=gpool.io/fraction=0.3";

/// Shares of containers that `ctr` starts, and what a pod's annotations ask for.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let containerd = host.containerd()?;
    let outcome = leased(&host, &containerd).and_then(|()| in_a_pod(&host, &containerd));
    let stopped = containerd.stop();
    finish(host, outcome.and(stopped))
}

fn start(host: &Host, containerd: &Containerd, name: &str, options: &[&str]) -> Result<Container> {
    let memory = format!("GPOOL_MEMORY={CAP}");
    let options = [&["--env", memory.as_str()][..], options].concat();
    succeeded("ctr run", containerd.try_run(name, &options, &COMMAND)?)?;
    let container = Container { name: name.into(), id: name.into(), init_pid: containerd.init_pid(name)? };
    wait_for_lease(host, &container)?;
    Ok(container)
}

fn leased(host: &Host, containerd: &Containerd) -> Result<()> {
    let annotated = start(host, containerd, "ctr-annotated", &[FRACTION])?;
    let by_env = start(host, containerd, "ctr-by-env", &["--env", "GPOOL_FRACTION=0.6"])?;
    check_shares(host, &[(&annotated, 0.3), (&by_env, 0.6)])?;
    let greedy = ["gpool-tenant", "--nvml", "--kernel-us", "300", "--seconds", "1"];
    let executed = [&["tasks", "exec", "--exec-id=second", &annotated.name][..], &greedy].concat();
    let seen = report(&containerd.text(&executed)?)?;
    ensure(seen.cuda_total_bytes == 2 << 30, || format!("ctr exec sees {} bytes", seen.cuda_total_bytes))?;
    containerd.text(&["tasks", "kill", "-s", "KILL", &annotated.name])?;
    wait_for_end(host, &annotated)?;
    containerd.remove(&annotated.name)?;
    containerd.remove(&by_env.name)?;
    wait_for_room(host)
}

/// The annotations that containerd's CRI plugin sets, set by hand: the sandbox asks for nothing though it carries the
/// pod's annotations, and a container's own key comes before the pod's.
fn in_a_pod(host: &Host, containerd: &Containerd) -> Result<()> {
    let sandbox = "--annotation=io.kubernetes.cri.container-type=sandbox";
    succeeded("ctr run", containerd.try_run("pod-sandbox", &[FRACTION, sandbox], &["sleep", "1000"])?)?;
    let leases = host.leases()?;
    let its = leases.iter().any(|lease| lease.container_id.0 == "pod-sandbox");
    ensure(!its, || "a sandbox has a lease".to_owned())?;
    let of_pod = ["--annotation=io.kubernetes.cri.container-type=container", FRACTION];
    for (name, in_pod, permille) in [("pod-web", "web", 200), ("pod-other", "other", 300)] {
        let named = format!("--annotation=io.kubernetes.cri.container-name={in_pod}");
        let options = [&of_pod[..], &["--annotation=gpool.io/fraction.web=0.2", &named]].concat();
        let container = start(host, containerd, name, &options)?;
        let granted = host.lease_of(&container)?.fraction_permille;
        ensure(granted == permille, || format!("{name} was granted {granted} permille"))?;
    }
    ["pod-web", "pod-other", "pod-sandbox"].iter().try_for_each(|name| containerd.remove(name))
}
