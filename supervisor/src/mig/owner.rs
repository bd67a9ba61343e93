//! Who else divides the GPUs of this host. Two writers undo each other's layouts, so gpool only reads then.

use std::path::Path;

/// Traces of programs that divide GPUs on their own, and what they are called. Source: the systemd deployment of NVIDIA's
/// mig-parted, and the places that NVIDIA's GPU Operator makes on a node.
const MARKERS: [(&str, &str); 4] = [
    ("/etc/systemd/system/nvidia-mig-manager.service", "nvidia-mig-manager (mig-parted)"),
    ("/lib/systemd/system/nvidia-mig-manager.service", "nvidia-mig-manager (mig-parted)"),
    ("/etc/nvidia-mig-manager", "nvidia-mig-manager (mig-parted)"),
    ("/run/nvidia/validations", "the NVIDIA GPU Operator"),
];

/// Its name and its trace; none where gpool may divide.
pub fn owner() -> Option<String> {
    owner_below(Path::new("/"))
}

fn owner_below(root: &Path) -> Option<String> {
    let (marker, name) = MARKERS.iter().find(|(marker, _)| root.join(marker.trim_start_matches('/')).exists())?;
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
}
