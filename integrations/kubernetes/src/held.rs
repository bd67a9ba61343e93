//! Which devices containers have, by the kubelet's own word: its service for monitors of pod resources, version v1
//! (`k8s.io/kubelet/pkg/apis/podresources/v1`, from Kubernetes 1.20 on).
//!
//! Which devices of a plugin are healthy a kubelet from 1.27 on looks at when it takes in a pod, also one that it finds when it is
//! itself started anew: it ends one whose own are not. So those stay healthy that somebody has, for as long as the supervisor counts.
//! A container that is started again under the same kubelet is not asked for them.

use crate::kubelet::ListResourcesRequest;
use crate::kubelet::pod_resources_lister_client::PodResourcesListerClient;
use std::collections::BTreeSet;
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
