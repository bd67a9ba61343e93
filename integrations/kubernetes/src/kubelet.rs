//! What the kubelet and a device plugin say to each other: version v1beta1 of the kubelet's device plugin interface, over gRPC on
//! Unix sockets; and what it says to monitors of pod resources, see [`crate::held`]. The numbers are those of its messages (`k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1`), of which this has what is
//! used here; unknown fields are passed over on both sides.

use std::collections::HashMap;

/// The version, as a plugin says it.
pub const VERSION: &str = "v1beta1";
/// The directory of the kubelet's socket and of those of plugins.
pub const DIRECTORY: &str = "/var/lib/kubelet/device-plugins";
/// The kubelet's socket there. A kubelet that starts makes it anew, and removes every plugin's.
pub const SOCKET: &str = "kubelet.sock";
/// The kubelet's socket for those who ask which container has what.
pub const RESOURCES_SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";
/// The health of a device that may be given out.
pub const HEALTHY: &str = "Healthy";
/// The health of one that may not. Who has it keeps it, also when he starts again; a newer kubelet that is itself started anew ends the
/// pod of one that does not run at that moment.
pub const UNHEALTHY: &str = "Unhealthy";

/// Nothing.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Empty {}

/// Which further calls a plugin wants.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DevicePluginOptions {
    /// Whether it is told before each start of a container.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// Whether it is asked which devices would be best.
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

/// A plugin presents itself.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterRequest {
    /// [`VERSION`].
    #[prost(string, tag = "1")]
    pub version: String,
    /// The name of its socket in [`DIRECTORY`].
    #[prost(string, tag = "2")]
    pub endpoint: String,
    /// What it has, `domain/name`, as pods ask for it.
    #[prost(string, tag = "3")]
    pub resource_name: String,
    /// What it wants.
    #[prost(message, optional, tag = "4")]
    pub options: Option<DevicePluginOptions>,
}

/// All devices of a plugin; each list takes the place of the one before.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Devices {
    /// In any order.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// A device.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    /// What it is called among those of its plugin.
    #[prost(string, tag = "1")]
    pub id: String,
    /// [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub health: String,
}

/// The kubelet gives out devices, to containers of one pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateRequest {
    /// One for each container; kubelets ask for one at a time.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<ContainerRequest>,
}

/// To one of them.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerRequest {
    /// Which devices.
    #[prost(string, repeated, tag = "1")]
    pub device_ids: Vec<String>,
}

/// What has to be done with them so that they have these.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateResponse {
    /// In the order of the request.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<ContainerResponse>,
}

/// With one of them.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerResponse {
    /// Annotations that the container engine is to give it: those of the container itself, not of its pod.
    #[prost(map = "string, string", tag = "4")]
    pub annotations: HashMap<String, String>,
}

/// Asks who has what.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListResourcesRequest {}

/// Of all pods, what was given to their containers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodResourcesList {
    /// In any order.
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<PodResources>,
}

/// Of one.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodResources {
    /// Of each of its containers.
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// Of one of them.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerResources {
    /// By resource.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
}

/// Devices that a container has.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerDevices {
    /// Of which plugin.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// Which.
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
}

#[allow(missing_docs, clippy::all)]
mod generated {
    pub mod registration {
        include!(concat!(env!("OUT_DIR"), "/v1beta1.Registration.rs"));
    }
    pub mod pod_resources {
        include!(concat!(env!("OUT_DIR"), "/v1.PodResourcesLister.rs"));
    }
    pub mod device_plugin {
        include!(concat!(env!("OUT_DIR"), "/v1beta1.DevicePlugin.rs"));
    }
}

pub use generated::device_plugin::{device_plugin_client, device_plugin_server};
pub use generated::pod_resources::{pod_resources_lister_client, pod_resources_lister_server};
pub use generated::registration::{registration_client, registration_server};
