//! The glue between HTTP/2 and the messages of `src/kubelet.rs`, from the names of the calls.

use tonic_build::manual::{Builder, Method, Service};

/// The package of the services of device plugins.
const PACKAGE: &str = "v1beta1";

fn method(name: &str, route: &str, (input, output): (&str, &str)) -> tonic_build::manual::MethodBuilder {
    let path = |message: &str| format!("crate::kubelet::{message}");
    Method::builder()
        .name(name)
        .route_name(route)
        .input_type(path(input))
        .output_type(path(output))
        .codec_path("tonic_prost::ProstCodec")
}

fn main() {
    let registration = Service::builder()
        .name("Registration")
        .package(PACKAGE)
        .method(method("register", "Register", ("RegisterRequest", "Empty")).build())
        .build();
    let plugin = Service::builder()
        .name("DevicePlugin")
        .package(PACKAGE)
        .method(method("options", "GetDevicePluginOptions", ("Empty", "DevicePluginOptions")).build())
        .method(method("list_and_watch", "ListAndWatch", ("Empty", "Devices")).server_streaming().build())
        .method(method("allocate", "Allocate", ("AllocateRequest", "AllocateResponse")).build())
        .build();
    let resources = Service::builder()
        .name("PodResourcesLister")
        .package("v1")
        .method(method("list", "List", ("ListResourcesRequest", "PodResourcesList")).build())
        .build();
    Builder::new().compile(&[registration, plugin, resources]);
}
