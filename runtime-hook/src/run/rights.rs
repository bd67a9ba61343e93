//! What the command may do as root: what could undo its confinement is given up.

use super::unprepared;
use gpool_protocol::ErrorBody;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities,
};

/// What a container of docker may do, but for making device nodes; and what computing on GPUs needs besides:
/// locking memory, raising limits and priorities.
const KEPT: [(&str, CapabilitySet); 16] = [
    ("CAP_CHOWN", CapabilitySet::CHOWN),
    ("CAP_DAC_OVERRIDE", CapabilitySet::DAC_OVERRIDE),
    ("CAP_FSETID", CapabilitySet::FSETID),
    ("CAP_FOWNER", CapabilitySet::FOWNER),
    ("CAP_NET_RAW", CapabilitySet::NET_RAW),
    ("CAP_SETGID", CapabilitySet::SETGID),
    ("CAP_SETUID", CapabilitySet::SETUID),
    ("CAP_SETFCAP", CapabilitySet::SETFCAP),
    ("CAP_SETPCAP", CapabilitySet::SETPCAP),
    ("CAP_NET_BIND_SERVICE", CapabilitySet::NET_BIND_SERVICE),
    ("CAP_SYS_CHROOT", CapabilitySet::SYS_CHROOT),
    ("CAP_KILL", CapabilitySet::KILL),
    ("CAP_AUDIT_WRITE", CapabilitySet::AUDIT_WRITE),
    ("CAP_IPC_LOCK", CapabilitySet::IPC_LOCK),
    ("CAP_SYS_NICE", CapabilitySet::SYS_NICE),
    ("CAP_SYS_RESOURCE", CapabilitySet::SYS_RESOURCE),
];

/// Their names, as config.json has them.
pub fn names() -> Vec<&'static str> {
    KEPT.iter().map(|(name, _)| *name).collect()
}

/// Gives everything else up, for this process and whatever it executes. Called before there is a second thread.
///
/// # Errors
/// The kernel refuses it; then the command must not start, since it could take its shims away.
pub fn give_up() -> Result<(), ErrorBody> {
    let refused = |error| unprepared("its rights cannot be given up", std::io::Error::from(error));
    let kept = KEPT.iter().fold(CapabilitySet::empty(), |set, (_, capability)| set.union(*capability));
    clear_ambient_capability_set().map_err(refused)?;
    for capability in CapabilitySet::all().difference(kept).iter() {
        match remove_capability_from_bounding_set(capability) {
            // One that is younger than this kernel.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(refused(error)),
        }
    }
    let had = capabilities(None).map_err(refused)?;
    let left = had.permitted.intersection(kept);
    let sets = CapabilitySets { effective: left, permitted: left, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(refused)
}
