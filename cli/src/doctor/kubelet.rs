//! Whether the kubelet of this host is told by gpool of its GPUs, and by nobody else.

use super::{Outcome, Surroundings, first_of};
use gpool_configuration::Placer;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io::ErrorKind;
use std::path::Path;

/// Where kubelets and device plugins have their sockets.
const PLUGINS: &str = "/var/lib/kubelet/device-plugins";
const KUBELET: &str = "kubelet.sock";
/// Where NVIDIA's DRA driver has its own.
const DRA: &str = "/var/lib/kubelet/plugins/gpu.nvidia.com";
/// How the names of the sockets of its device plugin begin, and of those that are made from it.
const NVIDIAS: &str = "nvidia";
const OWN: &str = "gpool-";

pub fn check(host: &Surroundings) -> Outcome {
    let plugins = match sockets(&host.path(PLUGINS)) {
        Ok(names) => names,
        Err(ErrorKind::PermissionDenied) => {
            return Outcome::skip(format!("root alone may look at the sockets in {PLUGINS}"));
        }
        Err(_) => Vec::new(),
    };
    if !plugins.iter().any(|name| name == KUBELET) {
        return Outcome::ok("no kubelet is on this host");
    }
    let named = |start: &str| plugins.iter().filter(|name| name.starts_with(start)).cloned().collect::<Vec<_>>();
    let drivers = sockets(&host.path(DRA)).unwrap_or_default();
    let others: Vec<_> =
        named(NVIDIAS).into_iter().chain(drivers.into_iter().map(|name| format!("{DRA}/{name}"))).collect();
    let own = named(OWN).len();
    let placer = host.configuration().policy.placed_by;
    if placer != Placer::Gpool {
        return beside(placer, own, &others, host.configuration().policy.counted_pods);
    }
    if !others.is_empty() {
        return Outcome::warn(
            format!("the kubelet is also told of GPUs by another one ({})", first_of(&others)),
            "take NVIDIA's device plugin or DRA driver off this node: it knows nothing of leases, and gives the same GPUs out again",
        );
    }
    if own == 0 && host.configuration().policy.counted_pods {
        return Outcome::fail(
            "[policy] counted_pods wants what pods have to be counted, and gpool tells the kubelet of no GPU: no pod has any",
            "systemctl enable --now gpool-device-plugin",
        );
    }
    match own {
        0 => Outcome::warn(
            "a kubelet is on this host, and gpool tells it of no GPU",
            "systemctl enable --now gpool-device-plugin, so that its cluster counts; without it pods ask by annotations alone, and \
             may be sent where no room is",
        ),
        1 => Outcome::ok("the kubelet is told of one resource"),
        several => Outcome::ok(format!("the kubelet is told of {several} resources")),
    }
}

/// Where the scheduler of a cluster places pods itself, of what `others` have offered it: gpool offers nothing.
fn beside(placer: Placer, own: usize, others: &[String], is_all_counted: bool) -> Outcome {
    let name = placer.name();
    if own > 0 {
        return Outcome::fail(
            format!(
                "{name} places pods here ([policy] placed_by), and gpool offers the kubelet the same GPUs: they are given out twice"
            ),
            "systemctl disable --now gpool-device-plugin",
        );
    }
    // HAMi's own plugin has had several names.
    if placer == Placer::Kai && others.is_empty() {
        return Outcome::warn(
            format!(
                "{name} places pods here ([policy] placed_by), and nobody tells the kubelet of GPUs: it has none to place them on"
            ),
            "install NVIDIA's device plugin, of whose GPUs KAI gives parts; without KAI take placed_by out",
        );
    }
    if !is_all_counted {
        return Outcome::warn(
            format!(
                "{name} places pods here ([policy] placed_by), and those with gpool's annotations have what it knows nothing of"
            ),
            "let [policy] counted_pods be true, so that pods have what they were given and nothing else",
        );
    }
    Outcome::ok(format!("{name} places the pods of this host, and gpool holds them to what they were given"))
}

/// The sockets in a directory on which somebody listens: what was killed leaves its own behind.
fn sockets(directory: &Path) -> Result<Vec<String>, ErrorKind> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(|cause| cause.kind())?.flatten() {
        if listens(&entry.path())? {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Waits for nobody: who is stuck listens all the same.
fn listens(path: &Path) -> Result<bool, ErrorKind> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let connected = SocketAddrUnix::new(path)
        .and_then(|address| connect(&socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?, &address));
    match connected {
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::ACCESS) => Err(ErrorKind::PermissionDenied),
        Err(_) => Ok(false),
    }
}
