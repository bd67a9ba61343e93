//! Shares that the scheduler knows of: the device plugin in front of the real kubelet.

use super::PAGE;
use super::pods::{NO_GRACE, TENANT, described, is_shown, pod, removed};
use crate::failure::{Context, Result, ensure};
use crate::host::cluster::NODE;
use crate::host::{Cluster, Host, Program, succeeded};
use crate::image;
use crate::scenarios::engines::{wait_for_end, wait_for_lease, wait_for_room};
use crate::scenarios::{block_of_a_page, start_tenants};
use gpool_protocol::CountedResource;
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;

const PERCENT: &str = "gpool.io/percent";
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts the plugin, which is here before anybody asks for it.
pub fn plugin(host: &Host) -> Result<Program> {
    const TOLD: &str = "has been told of gpool.io/percent";
    let doctor = || -> Result<String> { Ok(String::from_utf8_lossy(&host.gpool(&["doctor"])?.stdout).into_owned()) };
    let before = doctor()?;
    ensure(before.contains("gpool tells it of no GPU"), || format!("a node without a plugin: {before}"))?;
    let mut command = Command::new(host.stage.program("gpool-device-plugin"));
    let mut plugin = Program::start("gpool-device-plugin", &mut command)?;
    plugin.wait_for(TOLD, PATIENCE, |plugin| plugin.log().contains(TOLD))?;
    let after = doctor()?;
    ensure(after.contains("the kubelet is told of one resource"), || format!("a node with a plugin: {after}"))?;
    Ok(plugin)
}

/// What the cluster may give out of its node.
fn allocatable(cluster: &Cluster) -> Result<Value> {
    Ok(cluster.value(&["get", "node", NODE])?["status"]["allocatable"][PERCENT].take())
}

fn is_allocatable(cluster: &Cluster, want: &str) -> Result<()> {
    cluster.wait_for(&format!("{want} of {PERCENT}"), |cluster| {
        let now = allocatable(cluster)?;
        ensure(now == want, || format!("there are {now}")).map(|()| true)
    })
}

/// One container with so many hundredths by its limits.
fn with_percent(name: &str, percent: u32, annotations: &Value) -> String {
    let limits = json!({"web": {"resources": {"limits": {PERCENT: percent}}}});
    pod(name, annotations, &limits).to_string()
}

/// The page's class and pod: it waits for a node that has the label, runs with its share there, and is not touched by a
/// restart of the kubelet, which is told again of what there is.
pub fn one_that_is_told_where_to_go(host: &Host, cluster: &mut Cluster) -> Result<()> {
    is_allocatable(cluster, "100")?;
    cluster.apply(&block_of_a_page(PAGE, "apiVersion: node.k8s.io/v1\nkind: RuntimeClass")?)?;
    let manifest = block_of_a_page(PAGE, "apiVersion: v1\nkind: Pod")?;
    let manifest = manifest.replace("registry.example/train:1", image::NAME);
    cluster.apply(&manifest.replace(r#"["python3", "train.py"]"#, &json!(TENANT).to_string()))?;
    is_shown(cluster, "train", "FailedScheduling")?;
    let label = block_of_a_page(PAGE, "kubectl label node")?;
    cluster.text(&label.split_whitespace().skip(1).collect::<Vec<_>>())?;
    let labels = succeeded("gpool export labels", host.gpool(&["export", "labels"])?)?;
    cluster.text(&[&["label", "--overwrite", "node", NODE][..], &labels.lines().collect::<Vec<_>>()].concat())?;
    let told = cluster.value(&["get", "node", NODE])?["metadata"]["labels"]["gpool.io/gpu.count"].take();
    ensure(told == "1", || format!("the node has {told} as a label of its number of GPUs"))?;

    let container = cluster.wait_for_container("train", "train")?;
    let lease = wait_for_lease(host, &container)?;
    let granted = (lease.fraction_permille, lease.memory_cap_bytes);
    ensure(granted == (300, 4 << 30), || format!("the page's pod was granted {granted:?}"))?;
    ensure(lease.resource == Some(CountedResource::Percent(30)), || format!("it was counted as {:?}", lease.resource))?;
    let leases = host.leases()?;
    ensure(leases.len() == 1, || format!("the sandbox has a lease: {leases:?}"))?;
    super::pods::sees_its_slice(host, cluster, &container)?;

    cluster.stop_kubelet()?;
    ensure(container.is_alive(), || "the pod ended with the kubelet".to_owned())?;
    cluster.start_kubelet()?;
    is_shown(cluster, "train", "Running")?;
    let after = cluster.wait_for_container("train", "train")?;
    let again = host.lease_of(&after)?.lease_id;
    ensure(after == container && again == lease.lease_id, || "a new kubelet began the pod anew".to_owned())?;
    // It is counted by the new kubelet, too: one that does not fit beside it is not sent there.
    is_allocatable(cluster, "100")?;
    cluster.apply(&with_percent("eighty", 80, &json!({})))?;
    is_shown(cluster, "eighty", "Insufficient gpool.io/percent")?;
    cluster.text(&["delete", "pod", NO_GRACE, "--force", "train"])?;
    wait_for_lease(host, &cluster.wait_for_container("eighty", "web")?)?;
    removed(cluster, host, &["eighty"])
}

/// What is taken past the cluster is not offered, and a pod that would need it waits for its end.
pub fn what_others_have_is_not_offered(host: &Host, cluster: &Cluster) -> Result<()> {
    start_tenants(host, &[("other", "0.5", "1GiB", 300)])?;
    is_allocatable(cluster, "50")?;
    cluster.apply(&with_percent("thirty", 30, &json!({})))?;
    let thirty = cluster.wait_for_container("thirty", "web")?;
    wait_for_lease(host, &thirty)?;
    // Its own are counted by the cluster, so they stay in what there is.
    cluster.apply(&with_percent("forty", 40, &json!({})))?;
    is_shown(cluster, "forty", "Insufficient gpool.io/percent")?;
    ensure(allocatable(cluster)? == "50", || "what a pod has was taken off twice".to_owned())?;
    host.engine.docker_text(&["rm", "-f", "other"])?;
    let forty = cluster.wait_for_container("forty", "web")?;
    let granted = wait_for_lease(host, &forty)?.fraction_permille;
    ensure(granted == 400, || format!("the pod that waited was granted {granted} permille"))?;

    // More was given to it than the cluster knows of.
    succeeded("gpool update", host.gpool(&["update", &forty.id, "--fraction", "0.5"])?)?;
    is_allocatable(cluster, "90")?;
    // Drained: who is there goes on, and is all that there is.
    succeeded("gpool gpu drain", host.gpool(&["gpu", "drain", "0", "--reason", "a look"])?)?;
    is_allocatable(cluster, "70")?;
    ensure(thirty.is_alive() && forty.is_alive(), || "they ended".to_owned())?;
    succeeded("gpool gpu undrain", host.gpool(&["gpu", "undrain", "0"])?)?;
    removed(cluster, host, &["thirty", "forty"])?;
    is_allocatable(cluster, "100")
}

/// A share that is said twice and differently is refused with both; what no container can have, by the kubelet.
pub fn contradictions(host: &Host, cluster: &Cluster) -> Result<()> {
    cluster.apply(&with_percent("twice", 30, &json!({"gpool.io/fraction": "0.5"})))?;
    is_shown(cluster, "twice", "GPOOL-E101")?;
    is_shown(cluster, "twice", "gpool.io/percent: 50")?;
    removed(cluster, host, &["twice"])?;
    // Nobody writes the plugin's word: that of the container's limits holds.
    cluster.apply(&with_percent("forged", 20, &json!({"gpool.io/resource": "percent=90"})))?;
    let forged = cluster.wait_for_container("forged", "web")?;
    let granted = wait_for_lease(host, &forged)?.fraction_permille;
    ensure(granted == 200, || format!("a pod that says more than its limits was granted {granted} permille"))?;
    // Nor does one pass for a pod that was counted.
    cluster.apply(&pod("unlimited", &json!({"gpool.io/resource": "percent=90"}), &json!({"web": {}})).to_string())?;
    is_shown(cluster, "unlimited", "GPOOL-E105")?;
    is_shown(cluster, "unlimited", "gpool-device-plugin")?;
    removed(cluster, host, &["forged", "unlimited"])
}

/// On a full GPU the next job begins at the end of the one before, and no start fails; so do the containers of one pod that never run
/// together, of which the scheduler counts the largest.
pub fn one_after_the_other(host: &Host, cluster: &Cluster) -> Result<()> {
    let short = [TENANT[0], "--kernel-us", "300", "--seconds", "2"];
    let whole = json!({"resources": {"limits": {PERCENT: 100}}, "command": short});
    for name in ["first", "second"] {
        let mut manifest = pod(name, &json!({}), &json!({"web": whole}));
        manifest["spec"]["restartPolicy"] = json!("Never");
        if name == "second" {
            manifest["spec"]["initContainers"] = json!([{
                "name": "init", "image": image::NAME, "command": short, "resources": {"limits": {PERCENT: 60}},
            }]);
        }
        cluster.apply(&manifest.to_string())?;
    }
    for name in ["first", "second"] {
        cluster.wait_for("a pod that has done its work", |cluster| {
            let phase = cluster.value(&["get", "pod", name])?["status"]["phase"].take();
            // It would not be tried again.
            ensure(phase != "Failed", || format!("pod {name} has failed: {:?}", described(cluster, name)))?;
            Ok(phase == "Succeeded")
        })?;
    }
    removed(cluster, host, &["first", "second"])
}

/// The page's quota bounds a namespace by the cluster's own means.
pub fn a_quota_of_the_cluster(host: &Host, cluster: &Cluster) -> Result<()> {
    let quota = block_of_a_page(PAGE, "apiVersion: v1\nkind: ResourceQuota")?;
    ensure(quota.contains("\"250\""), || format!("the page's quota is {quota}"))?;
    cluster.apply(&quota.replace("\"250\"", "\"50\""))?;
    cluster.apply(&with_percent("within", 40, &json!({})))?;
    let within = cluster.wait_for_container("within", "web")?;
    wait_for_lease(host, &within)?;
    let refused = cluster.apply(&with_percent("beyond", 20, &json!({})));
    let said = refused.err().map(|failure| failure.to_string()).unwrap_or_default();
    ensure(said.contains("exceeded quota"), || format!("a pod beyond the quota: {said}"))?;
    cluster.text(&["delete", "resourcequota", "gpus"])?;
    removed(cluster, host, &["within"])
}

/// Without a supervisor nothing is offered, and a pod waits for one without a start that fails; without the plugin nothing new
/// comes, and who is there goes on.
pub fn who_is_away(host: &mut Host, cluster: &Cluster, plugin: Program) -> Result<()> {
    cluster.apply(&with_percent("there", 30, &json!({})))?;
    let there = cluster.wait_for_container("there", "web")?;
    let lease = wait_for_lease(host, &there)?.lease_id;
    host.stop_supervisor()?;
    // A node that still had what its pods have would be full, and pods of a higher priority would have them ended for nothing.
    is_allocatable(cluster, "0")?;
    ensure(there.is_alive(), || "who was there has ended with the supervisor".to_owned())?;
    cluster.apply(&with_percent("later", 30, &json!({})))?;
    is_shown(cluster, "later", "Insufficient gpool.io/percent")?;
    host.start_supervisor()?;
    is_allocatable(cluster, "100")?;
    let later = cluster.wait_for_container("later", "web")?;
    wait_for_lease(host, &later)?;
    plugin.stop(PATIENCE).context("the plugin's end")?;
    is_allocatable(cluster, "0")?;
    let kept = host.lease_of(&there)?.lease_id;
    ensure(kept == lease && there.is_alive() && later.is_alive(), || "who was there has ended".to_owned())?;
    cluster.text(&["delete", "pod", NO_GRACE, "--force", "there", "later"])?;
    wait_for_end(host, &there)?;
    wait_for_room(host)
}
