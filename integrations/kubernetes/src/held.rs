//! Which devices containers have, by the kubelet's own word: its service for monitors of pod resources, version v1
//! (`k8s.io/kubelet/pkg/apis/podresources/v1`, from Kubernetes 1.20 on).
//!
//! Which devices of a plugin are healthy a kubelet from 1.27 on looks at when it takes in a pod, also one that it finds when it is
//! itself started anew: it ends one whose own are not. So those stay healthy that somebody has, for as long as the supervisor counts.
//! A container that is started again under the same kubelet is not asked for them.

use crate::kubelet::ListResourcesRequest;
use crate::kubelet::pod_resources_lister_client::PodResourcesListerClient;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use tokio::time::timeout;
use tonic::transport::Endpoint;

/// A kubelet answers at once, or not.
const PATIENCE: Duration = Duration::from_secs(2);

/// The devices of `resource` that containers of pods have.
///
/// # Errors
/// The kubelet does not say; in words.
pub async fn held(socket: &Path, resource: &str) -> Result<BTreeSet<String>, String> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(|cause| cause.to_string())?;
    let ask = async {
        let channel = endpoint.connect().await.map_err(|cause| cause.to_string())?;
        let answer = PodResourcesListerClient::new(channel).list(ListResourcesRequest {}).await;
        answer.map(tonic::Response::into_inner).map_err(|status| status.message().to_owned())
    };
    let told = timeout(PATIENCE, ask).await.map_err(|_| "it does not answer".to_owned())??;
    let containers = told.pods.into_iter().flat_map(|pod| pod.containers);
    let devices = containers.flat_map(|container| container.devices);
    Ok(devices.filter(|devices| devices.resource_name == resource).flat_map(|devices| devices.device_ids).collect())
}

/// In the kubelet's folder of plugins: what its device manager goes on from (`pkg/kubelet/cm/devicemanager/checkpoint` of Kubernetes).
const CHECKPOINT: &str = "kubelet_internal_checkpoint";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint {
    data: CheckpointData,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CheckpointData {
    #[serde(default)]
    pod_device_entries: Option<Vec<PodDevices>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PodDevices {
    resource_name: String,
    /// By NUMA node from Kubernetes 1.20 on.
    #[serde(rename = "DeviceIDs")]
    device_ids: BTreeMap<String, Vec<String>>,
}

/// The devices of `resource` that the kubelet whose folder of plugins this is has written down as some container's; none where it has
/// written nothing that can be read.
pub fn checkpointed(directory: &Path, resource: &str) -> Option<BTreeSet<String>> {
    let text = std::fs::read(directory.join(CHECKPOINT)).ok()?;
    let checkpoint: Checkpoint = serde_json::from_slice(&text).ok()?;
    let its = checkpoint.data.pod_device_entries?.into_iter().filter(|entry| entry.resource_name == resource);
    Some(its.flat_map(|entry| entry.device_ids.into_values().flatten()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kubelet_has_written_down_is_known_before_it_says_anything() {
        let directory = tempfile::tempdir().unwrap();
        let known = |text: &str| {
            std::fs::write(directory.path().join(CHECKPOINT), text).unwrap();
            checkpointed(directory.path(), "gpool.io/percent")
        };
        assert_eq!(checkpointed(directory.path(), "gpool.io/percent"), None);
        let text = r#"{"Data":{"PodDeviceEntries":[
            {"PodUID":"a","ContainerName":"web","ResourceName":"gpool.io/percent","DeviceIDs":{"-1":["3","7"]},"AllocResp":"x"},
            {"PodUID":"b","ContainerName":"web","ResourceName":"gpool.io/mig-1g.10gb","DeviceIDs":{"0":["1"]},"AllocResp":""},
            {"PodUID":"c","ContainerName":"web","ResourceName":"gpool.io/percent","DeviceIDs":{"0":["9"],"1":["4"]},"AllocResp":""}],
            "RegisteredDevices":{"gpool.io/percent":["0","1"]}},"Checksum":42}"#;
        assert_eq!(known(text), Some(["3", "4", "7", "9"].map(str::to_owned).into()));
        assert_eq!(known(r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}"#), None);
        assert_eq!(known("{"), None);
    }
}
