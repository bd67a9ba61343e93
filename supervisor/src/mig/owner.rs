//! Who else divides the GPUs of this host. Two writers undo each other's layouts, so gpool only reads then.

use std::path::{Path, PathBuf};

/// Traces of programs that divide GPUs on their own, and what they are called. Source: the systemd deployment of NVIDIA's
/// mig-parted, and the places that NVIDIA's GPU Operator makes on a node.
const MARKERS: [(&str, &str); 4] = [
    ("/etc/systemd/system/nvidia-mig-manager.service", "nvidia-mig-manager (mig-parted)"),
    ("/lib/systemd/system/nvidia-mig-manager.service", "nvidia-mig-manager (mig-parted)"),
    ("/etc/nvidia-mig-manager", "nvidia-mig-manager (mig-parted)"),
    ("/run/nvidia/validations", "the NVIDIA GPU Operator"),
];

/// Names an owner whose trace does not outlive a boot, for the start after the next one: it comes back minutes after that.
pub const MEMORY: &str = "/var/lib/gpool/mig-owner";
/// Traces below it are gone after a boot.
const FLEETING: &str = "/run/";

/// Its name and its trace; none where gpool may divide.
pub fn owner() -> Option<String> {
    owner_below(Path::new("/"))
}

/// Writes down who is seen now, if the trace will be gone after a boot.
pub fn remember() {
    remember_below(Path::new("/"));
}

/// Who was seen before this boot or in it, as it was written down.
pub fn remembered() -> Option<String> {
    remembered_below(Path::new("/"))
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn remember_below(root: &Path) {
    let path = below(root, MEMORY);
    let is_there = |marker: &str| marker.starts_with(FLEETING) && below(root, marker).exists();
    let Some((_, name)) = MARKERS.iter().find(|(marker, _)| is_there(marker)) else { return };
    if path.exists() {
        return;
    }
    match std::fs::create_dir_all(path.parent().unwrap_or(root)).and_then(|()| std::fs::write(&path, name)) {
        Ok(()) => log!("{name} divides the GPUs of this host; {MEMORY} says so to the next boot, until it is removed"),
        Err(cause) => log_once(&cause),
    }
}

/// Nobody wants to read it each second.
fn log_once(cause: &std::io::Error) {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| log!("{MEMORY} cannot be written: {cause}; [mig] layout is made after the next boot"));
}

fn remembered_below(root: &Path) -> Option<String> {
    std::fs::read_to_string(below(root, MEMORY)).ok()
}

fn owner_below(root: &Path) -> Option<String> {
    let (marker, name) = MARKERS.iter().find(|(marker, _)| below(root, marker).exists())?;
    Some(format!("{name}, by {marker}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_of_another_owner_is_found() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(owner_below(root.path()), None);
        std::fs::create_dir_all(root.path().join("run/nvidia/validations")).unwrap();
        assert!(owner_below(root.path()).unwrap().contains("GPU Operator, by /run/nvidia/validations"));
    }

    #[test]
    fn an_owner_whose_trace_goes_with_the_boot_is_remembered_and_no_other() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("etc/nvidia-mig-manager")).unwrap();
        remember_below(root.path());
        assert_eq!(remembered_below(root.path()), None, "its own trace stays");
        std::fs::create_dir_all(root.path().join("run/nvidia/validations")).unwrap();
        remember_below(root.path());
        std::fs::remove_dir_all(root.path().join("run")).unwrap();
        assert_eq!(remembered_below(root.path()).as_deref(), Some("the NVIDIA GPU Operator"));
    }
}
