//! A cluster of Kubernetes' own daemons with one node, and what `docs/kubernetes.md` says of it: its manifests, word for
//! word, and what it tells people to expect.

mod counted;
mod pods;

use super::finish;
use crate::downloads::Downloads;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Cluster, Host, cluster};
use crate::namespaces::{Inside, another_run};
use crate::stage::Stage;

/// What is held against the cluster.
const PAGE: &str = include_str!("../../../../docs/kubernetes.md");

/// Compiles Kubernetes, unless that has been done, then looks in a run of its own, which has no network.
pub fn run() -> Result<()> {
    if let Err(failure) = downloads()?.fetch_kubernetes() {
        println!("skipped: {failure}");
        return Ok(());
    }
    let status = another_run().arg("kubernetes-inside").status().context("the run with a cluster")?;
    ensure(status.success(), || format!("the run with a cluster ended with {status}"))
}

fn downloads() -> Result<Downloads> {
    Ok(Downloads::in_directory(Stage::of_this_program()?.downloads()))
}

/// Runs pods.
pub fn inside(inside: &Inside) -> Result<()> {
    let kubernetes = downloads()?.kubernetes().ok_or_else(|| Failure::new("Kubernetes is not here"))?;
    cluster::prepare()?;
    let mut host = Host::start(inside)?;
    let outcome = host.cluster(&kubernetes).and_then(|mut cluster| {
        let outcome = judge(&mut host, &mut cluster);
        if outcome.is_err() {
            eprint!("{}", cluster.logs());
        }
        outcome.and(cluster.stop())
    });
    crate::cgroups::remove_below(&inside.cgroup_parent);
    finish(host, outcome)
}

fn judge(host: &mut Host, cluster: &mut Cluster) -> Result<()> {
    let plugin = counted::plugin(host)?;
    counted::one_that_is_told_where_to_go(host, cluster)?;
    counted::what_others_have_is_not_offered(host, cluster)?;
    counted::contradictions(host, cluster)?;
    counted::one_after_the_other(host, cluster)?;
    counted::a_quota_of_the_cluster(host, cluster)?;
    counted::who_is_away(host, cluster, plugin)?;
    pods::one_without_the_class(host, cluster)?;
    pods::one_that_crashes_on_a_full_gpu(host, cluster)?;
    pods::one_that_does_not_fit_yet(host, cluster)?;
    pods::a_job_and_its_end(host, cluster)?;
    host.nothing_found_by_the_guard()?;
    pods::one_that_has_the_gpu_by_itself(host, cluster)?;
    // The next supervisor has found nothing.
    pods::one_while_the_supervisor_is_away(host, cluster)
}
