//! Pods that ask by annotations alone, of which the scheduler knows nothing.

use crate::failure::{Failure, Result, ensure};
use crate::host::{Cluster, Container, Host, SIMULATED_GPU};
use crate::image;
use crate::scenarios::engines::{wait_for_end, wait_for_lease, wait_for_room};
use crate::tenant::report;
use gpool_protocol::{Baseline, UnleasedUse};
use serde_json::{Value, json};

/// A tenant that works until it is stopped, with room left below its cap.
pub const TENANT: [&str; 6] = ["/bin/gpool-tenant", "--nvml", "--kernel-us", "300", "--allocate-mib", "256"];
/// Leaves a pod at once.
pub const NO_GRACE: &str = "--grace-period=0";

/// A pod of the class `gpool`, whose containers do as they are told.
pub fn pod(name: &str, annotations: &Value, containers: &Value) -> Value {
    let containers = containers.as_object().into_iter().flatten().map(|(name, more)| {
        let mut container = json!({"name": name, "image": image::NAME, "command": TENANT});
        more.as_object().into_iter().flatten().for_each(|(key, value)| container[key] = value.clone());
        container
    });
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "runtimeClassName": "gpool", "terminationGracePeriodSeconds": 0, "containers": containers.collect::<Vec<_>>(),
        },
    })
}

/// One container with this share.
fn with_share(name: &str, fraction: &str) -> String {
    pod(name, &json!({"gpool.io/fraction": fraction}), &json!({"web": {}})).to_string()
}

pub fn removed(cluster: &Cluster, host: &Host, pods: &[&str]) -> Result<()> {
    cluster.text(&[&["delete", "pod", NO_GRACE, "--force"], pods].concat())?;
    wait_for_room(host)
}

/// What people are shown of a pod.
pub fn described(cluster: &Cluster, pod: &str) -> Result<String> {
    cluster.text(&["describe", "pod", pod])
}

pub fn is_shown(cluster: &Cluster, pod: &str, sentence: &str) -> Result<()> {
    cluster.wait_for(&format!("{sentence:?} of pod {pod}"), |cluster| {
        let said = described(cluster, pod)?;
        ensure(said.contains(sentence), || said.clone()).map(|()| true)
    })
}

/// What is executed in a container sees its slice, and gpool's figures name it as the kubelet does.
pub fn sees_its_slice(host: &Host, cluster: &Cluster, container: &Container) -> Result<()> {
    let greedy = ["/bin/gpool-tenant", "--nvml", "--kernel-us", "300", "--seconds", "1"];
    let seen = report(&cluster.text(&[&["exec", "train", "--"][..], &greedy].concat())?)?;
    let totals = (seen.cuda_total_bytes, seen.nvml_total_bytes);
    ensure(totals == (4 << 30, 4 << 30), || format!("what is executed in the pod sees {totals:?} bytes"))?;
    let metrics = crate::host::succeeded("gpool metrics", host.gpool(&["metrics"])?)?;
    let label = format!("container_id=\"{}\"", container.id);
    ensure(metrics.contains(&label), || format!("no figure of gpool's has {label}"))
}

/// The same annotations without the class do nothing.
pub fn one_without_the_class(host: &Host, cluster: &Cluster) -> Result<()> {
    let sleeps = json!({"web": {"command": ["/bin/sleep", "1000"]}});
    let mut plain = pod("plain", &json!({"gpool.io/fraction": "0.3"}), &sleeps);
    plain["spec"]["runtimeClassName"] = Value::Null;
    cluster.apply(&plain.to_string())?;
    cluster.wait_for_container("plain", "web")?;
    let seen = cluster.text(&["exec", "plain", "--", "/bin/ls", "/dev"])?;
    let leases = host.leases()?;
    ensure(!seen.contains("gpool") && !seen.contains("nvidia") && leases.is_empty(), || {
        format!("a pod without the class has {seen} and {leases:?}")
    })?;
    removed(cluster, host, &["plain"])
}

/// One without a lease that has the GPU past gpool is told with its namespace and name.
pub fn one_that_has_the_gpu_by_itself(host: &Host, cluster: &Cluster) -> Result<()> {
    let mounts = [
        (format!("{SIMULATED_GPU}/lib/libcuda.so.1"), format!("{}/libcuda.so.1", image::LIBRARIES)),
        (format!("{SIMULATED_GPU}/lib/libnvidia-ml.so.1"), format!("{}/libnvidia-ml.so.1", image::LIBRARIES)),
        (format!("{SIMULATED_GPU}/state"), format!("{SIMULATED_GPU}/state")),
        (format!("{SIMULATED_GPU}/dev/nvidia0"), "/dev/nvidia0".to_owned()),
        (format!("{SIMULATED_GPU}/dev/nvidiactl"), "/dev/nvidiactl".to_owned()),
        (format!("{SIMULATED_GPU}/dev/nvidia-uvm"), "/dev/nvidia-uvm".to_owned()),
    ];
    let volume = |(number, (from, _)): (usize, &(String, String))| json!({"name": format!("v{number}"), "hostPath": {"path": from}});
    let mounted =
        |(number, (_, at)): (usize, &(String, String))| json!({"name": format!("v{number}"), "mountPath": at});
    let volumes: Vec<Value> = mounts.iter().enumerate().map(volume).collect();
    let mounted: Vec<Value> = mounts.iter().enumerate().map(mounted).collect();
    let by_itself = json!({"web": {"securityContext": {"privileged": true}, "volumeMounts": mounted}});
    let mut bare = pod("bare", &json!({}), &by_itself);
    bare["spec"]["runtimeClassName"] = Value::Null;
    bare["spec"]["volumes"] = volumes.into();
    cluster.apply(&bare.to_string())?;
    let container = cluster.wait_for_container("bare", "web")?;
    cluster.wait_for("the pod to be told without a lease", |_| {
        let told: Baseline = host.client().get("/v1/baseline")?;
        let its = told.users.iter().find(|row| row.user.name == container.id);
        let is_named = |row: &UnleasedUse| row.pod.as_deref() == Some("default/bare") && row.busy_gpu_ns > 0;
        let is_told = its.is_some_and(is_named);
        ensure(is_told || its.is_none_or(|row| row.busy_gpu_ns == 0), || format!("{told:#?}")).map(|()| is_told)
    })?;
    removed(cluster, host, &["bare"])?;
    cluster.wait_for("its end", |_| Ok(!container.is_alive()))
}

/// On a full GPU a container that ends comes back to its own share, before a pod that has waited for one. Its init
/// container asks for nothing; its probe runs in it.
pub fn one_that_crashes_on_a_full_gpu(host: &Host, cluster: &Cluster) -> Result<()> {
    let shares = json!({"gpool.io/fraction.web": "0.6", "gpool.io/fraction.log": "0.4"});
    let probe = json!({"exec": {"command": ["/bin/true"]}, "periodSeconds": 1});
    let mut full = pod("full", &shares, &json!({"web": {"readinessProbe": probe}, "log": {}}));
    full["spec"]["initContainers"] = json!([{"name": "init", "image": image::NAME, "command": ["/bin/true"]}]);
    cluster.apply(&full.to_string())?;
    let web = cluster.wait_for_container("full", "web")?;
    wait_for_lease(host, &web)?;
    cluster.text(&["wait", "--for=condition=Ready", "--timeout=60s", "pod/full"])?;
    cluster.apply(&with_share("other", "0.6"))?;
    is_shown(cluster, "other", "GPOOL-E201")?;
    web.kill_init()?;
    wait_for_end(host, &web)?;
    // The kubelet may not have seen its end yet.
    let again = cluster.wait_for_another(&web, "full", "web")?;
    let granted = wait_for_lease(host, &again)?.fraction_permille;
    ensure(granted == 600, || format!("the container that came back was granted {granted} permille"))?;
    removed(cluster, host, &["full", "other"])
}

/// What does not fit is told where people look, and begins by itself when it does.
pub fn one_that_does_not_fit_yet(host: &Host, cluster: &Cluster) -> Result<()> {
    cluster.apply(&with_share("first", "0.6"))?;
    let first = cluster.wait_for_container("first", "web")?;
    cluster.apply(&with_share("second", "0.8"))?;
    is_shown(cluster, "second", "GPOOL-E201")?;
    is_shown(cluster, "second", "has 40 % free")?;
    let node = cluster.value(&["get", "pod", "second"])?["spec"]["nodeName"].take();
    ensure(node == crate::host::cluster::NODE, || format!("it was put on {node}"))?;
    cluster.text(&["delete", "pod", NO_GRACE, "--force", "first"])?;
    wait_for_end(host, &first)?;
    let second = cluster.wait_for_container("second", "web")?;
    let granted = wait_for_lease(host, &second)?.fraction_permille;
    ensure(granted == 800, || format!("the pod that waited was granted {granted} permille"))?;
    // What will never do is told, too, and where nobody tries again it has failed.
    let mut wrong = pod("wrong", &json!({"gpool.io/fraction": "3"}), &json!({"web": {}}));
    wrong["spec"]["restartPolicy"] = json!("Never");
    cluster.apply(&wrong.to_string())?;
    is_shown(cluster, "wrong", "GPOOL-E101")?;
    cluster.wait_for("a pod that has failed", |cluster| {
        Ok(cluster.value(&["get", "pod", "wrong"])?["status"]["phase"] == "Failed")
    })?;
    removed(cluster, host, &["second", "wrong"])
}

/// Annotations in a job's template; its end is its lease's.
pub fn a_job_and_its_end(host: &Host, cluster: &Cluster) -> Result<()> {
    let short = json!({"web": {"command": [TENANT[0], "--kernel-us", "300", "--seconds", "2"]}});
    let mut template = pod("none", &json!({"gpool.io/fraction": "0.5"}), &short);
    template["spec"]["restartPolicy"] = json!("Never");
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "short"},
        "spec": {"template": {
            "metadata": {"annotations": template["metadata"]["annotations"].take()}, "spec": template["spec"].take(),
        }},
    });
    cluster.apply(&job.to_string())?;
    cluster.text(&["wait", "--for=condition=Complete", "--timeout=60s", "job/short"])?;
    wait_for_room(host)?;
    let granted = host.events_of(gpool_protocol::EventKind::LeaseEnded)?;
    ensure(!granted.is_empty(), || "no lease has ended".to_owned())?;
    cluster.text(&["delete", "job", "short"]).map(drop)
}

/// A pod that starts while no supervisor answers is told so, and starts by itself when one does.
pub fn one_while_the_supervisor_is_away(host: &mut Host, cluster: &Cluster) -> Result<()> {
    cluster.apply(&with_share("there", "0.3"))?;
    let there = cluster.wait_for_container("there", "web")?;
    let lease = wait_for_lease(host, &there)?.lease_id;
    host.stop_supervisor()?;
    cluster.apply(&with_share("later", "0.3"))?;
    is_shown(cluster, "later", "GPOOL-E001")?;
    host.start_supervisor()?;
    let later = cluster.wait_for_container("later", "web")?;
    wait_for_lease(host, &later)?;
    let kept = host.lease_of(&there)?.lease_id;
    ensure(kept == lease, || Failure::new("the pod that was there has another lease").to_string())?;
    removed(cluster, host, &["there", "later"])
}
