//! What the supervisor may still do once it is set up. It parses what strangers send, and runs as root.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

/// What it needs, and what for.
const KEPT: CapabilitySet = CapabilitySet::empty()
    // Regions are mounted and unmounted; the driver lets nobody else see every process on a GPU.
    .union(CapabilitySet::SYS_ADMIN)
    // A tenant who is root may take the mode bits of its report and its bell away; they are opened again after a restart.
    .union(CapabilitySet::DAC_OVERRIDE)
    // A hung container is killed where its class says so, whatever user it is.
    .union(CapabilitySet::KILL)
    // Start times and cgroups of others' processes, where /proc hides them (hidepid).
    .union(CapabilitySet::SYS_PTRACE)
    // The gatekeeper's real-time priority.
    .union(CapabilitySet::SYS_NICE);

/// Gives up everything else, for this thread and those that it starts: called before the first one that stays. NVML
/// is loaded and asked before, because it may call a helper that makes device nodes; a thread that hangs in that ends when it
/// comes back.
///
/// # Errors
/// When the kernel refuses to give up what this process has.
pub fn keep_what_is_needed() -> std::io::Result<()> {
    keep(KEPT)
}

/// The same for a supervisor that starts MPS daemons itself: they start servers as the users of their clients.
///
/// # Errors
/// As above.
pub fn keep_what_daemons_need() -> std::io::Result<()> {
    keep(KEPT.union(CapabilitySet::SETUID).union(CapabilitySet::SETGID))
}

/// The same for the program that mounts regions and does nothing else.
///
/// # Errors
/// As above.
pub fn keep_mounting() -> std::io::Result<()> {
    keep(CapabilitySet::SYS_ADMIN)
}

fn keep(wanted: CapabilitySet) -> std::io::Result<()> {
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    for capability in CapabilitySet::all().difference(wanted).iter() {
        match remove_capability_from_bounding_set(capability) {
            // One that this kernel does not know; or no right to change the set, which without new privileges by
            // executing a program bounds nothing more.
            Ok(()) | Err(Errno::INVAL | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let had = capabilities(None)?;
    let kept = had.permitted.intersection(wanted);
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_what_is_needed_and_nothing_else() {
        // In a thread of its own: the other tests keep theirs.
        let left = std::thread::spawn(|| {
            let before = capabilities(None).unwrap().permitted;
            keep_what_is_needed().unwrap();
            (before, capabilities(None).unwrap())
        });
        let (before, after) = left.join().unwrap();
        assert_eq!(after.permitted, before.intersection(KEPT));
        assert_eq!((after.effective, after.inheritable), (after.permitted, CapabilitySet::empty()));
        assert!(!after.permitted.contains(CapabilitySet::SYS_MODULE));
    }
}
