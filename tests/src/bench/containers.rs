//! Tenants in containers with a share of gpool, and the same in plain containers: the native control.

use crate::failure::Result;
use crate::host::{Container, Host};
use crate::image;
use crate::tenant::Tenant;

/// The directory of the simulated GPU: its device nodes, its libraries and its state.
const SIMULATED_GPU: &str = "/run/gpool-simgpu";

/// How containers get at the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// With the runtime `gpool` and a request.
    Leased,
    /// With plain runc, the device nodes and the driver's own libraries: what the driver's time slicing gives.
    Plain,
}

/// Starts a tenant with further options of its own. What it asks gpool for counts only in a leased container.
pub fn start(
    host: &Host,
    way: Way,
    name: &str,
    tenant: &Tenant,
    request: &[(&str, &str)],
    more: &[&str],
) -> Result<Container> {
    match way {
        Way::Leased => tenant.run_with(host, name, request, more),
        Way::Plain => start_plain(host, name, tenant, more),
    }
}

/// What gives a container of plain runc the GPU and the driver's own libraries.
pub fn plain_options() -> Vec<String> {
    let libraries = ["libcuda.so.1", "libnvidia-ml.so.1"]
        .map(|library| format!("{SIMULATED_GPU}/lib/{library}:{}/{library}:ro", image::LIBRARIES));
    let state = format!("{SIMULATED_GPU}/state:{SIMULATED_GPU}/state");
    let mounts = libraries.into_iter().chain([state]).flat_map(|mount| ["-v".to_owned(), mount]);
    let nodes = ["nvidia0", "nvidiactl", "nvidia-uvm"];
    let nodes =
        nodes.iter().flat_map(|node| ["--device".to_owned(), format!("{SIMULATED_GPU}/dev/{node}:/dev/{node}:rw")]);
    ["--runtime=runc".to_owned()].into_iter().chain(mounts).chain(nodes).collect()
}

fn start_plain(host: &Host, name: &str, tenant: &Tenant, more: &[&str]) -> Result<Container> {
    let mut options: Vec<String> = ["run", "-d", "--name", name].map(String::from).to_vec();
    options.extend(plain_options());
    options.extend(tenant.mount().into_iter().flat_map(|mount| ["-v".to_owned(), mount]));
    options.push(image::NAME.to_owned());
    options.extend(tenant.command());
    options.extend(more.iter().map(|option| option.to_string()));
    host.engine.docker_text(&options.iter().map(String::as_str).collect::<Vec<_>>())?;
    Container::inspect(&host.engine, name)
}
