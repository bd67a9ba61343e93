//! What the hook may still do once it runs: it reads what others wrote, and that as root.

use crate::precreate::PRECREATE;
use crate::system_calls;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};
use std::ffi::OsString;

/// What the hook needs.
const KEPT: CapabilitySet = CapabilitySet::empty()
    // The init's mount table and its root, whatever user the init is.
    .union(CapabilitySet::SYS_PTRACE)
    // Bundles and roots of other users, where engines map user ids.
    .union(CapabilitySet::DAC_READ_SEARCH);

/// Whether this process is root and means the host's: root of a user namespace, as an ordinary user's podman has one, may
/// neither make device nodes nor write gpool's places.
pub fn is_host_root() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    rustix::process::geteuid().is_root() && maps_everything(&map)
}

/// Whether a `/proc/PID/uid_map` (user_namespaces(7)) is that of the first user namespace.
fn maps_everything(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Gives up every capability and system call that the hook does not need for `arguments`, the program's name left out.
/// Called before there is a second thread.
///
/// Who lacks the right to give something up has little to give, and a kernel may be built without filters: a failure is no
/// reason to stop a container.
pub fn keep_what_the_hook_needs(arguments: &[OsString]) {
    let _ = set_no_new_privs(true);
    let _ = clear_ambient_capability_set();
    for capability in CapabilitySet::all().difference(KEPT).iter() {
        let _ = remove_capability_from_bounding_set(capability);
    }
    if let Ok(had) = capabilities(None) {
        let kept = had.permitted.intersection(KEPT);
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
        let _ = set_capabilities(None, sets);
    }
    let _ = system_calls::restrict(arguments.first().is_some_and(|verb| verb == PRECREATE));
}

#[cfg(test)]
mod tests {
    use super::maps_everything;

    #[test]
    fn only_the_first_user_namespace_maps_everybody() {
        assert!(maps_everything("         0          0 4294967295\n"));
        for map in ["", "0 1000 1\n1 100000 65536\n", "0 100000 65536\n", "0 0 65536\n"] {
            assert!(!maps_everything(map), "{map}");
        }
    }
}
