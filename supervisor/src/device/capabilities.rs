//! Which capability nodes of MIG belong to an instance. The driver's table says it; nothing here is reckoned.
//!
//! Source: NVIDIA's MIG user guide, "/dev based nvidia-capabilities".

use super::inventory::MigInstance;
use std::path::{Path, PathBuf};

/// A capability that the driver's table does not have; the text names the table.
#[derive(Debug, thiserror::Error)]
pub enum CapabilitiesError {
    /// The table cannot be read.
    #[error("{path} cannot be read ({cause}); load the driver's module with MIG, or set driver.proc_dir")]
    Unreadable {
        /// The table.
        path: String,
        /// Why not.
        cause: std::io::Error,
    },
    /// It has no such line.
    #[error("{path} has no line for {capability}")]
    Missing {
        /// The table.
        path: String,
        /// The capability.
        capability: String,
    },
}

/// The table below `[driver] proc_dir`.
fn table(proc_dir: &Path) -> PathBuf {
    proc_dir.join("nvidia-caps/mig-minors")
}

/// The minor numbers of the two capabilities that a container needs for an instance of the board with this minor number:
/// that of the GPU instance and that of the compute instance.
///
/// # Errors
/// The table cannot be read, or lacks one.
pub fn minors(proc_dir: &Path, board_minor: u32, instance: &MigInstance) -> Result<[u32; 2], CapabilitiesError> {
    let path = table(proc_dir);
    let shown = path.display().to_string();
    let text =
        std::fs::read_to_string(&path).map_err(|cause| CapabilitiesError::Unreadable { path: shown.clone(), cause })?;
    let of = |capability: String| {
        minor_in(&text, &capability).ok_or(CapabilitiesError::Missing { path: shown.clone(), capability })
    };
    let own = format!("gpu{board_minor}/gi{}", instance.gpu_instance);
    Ok([of(format!("{own}/access"))?, of(format!("{own}/ci{}/access", instance.compute_instance))?])
}

/// The files that stand for the same two capabilities, by which `nvidia-modprobe -f` makes their nodes.
pub fn access_files(proc_dir: &Path, board_minor: u32, instance: &MigInstance) -> [PathBuf; 2] {
    let own = format!("nvidia/capabilities/gpu{board_minor}/mig/gi{}", instance.gpu_instance);
    let own = proc_dir.join(own);
    [own.join("access"), own.join(format!("ci{}/access", instance.compute_instance))]
}

fn minor_in(table: &str, capability: &str) -> Option<u32> {
    let mut lines = table.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(name, _)| *name == capability)?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minors_are_read_and_never_reckoned() {
        let table = "config 1\nmonitor 2\ngpu0/gi1/access 912\ngpu0/gi1/ci0/access 7\ngpu0/gi11/access 30\n";
        assert_eq!(minor_in(table, "gpu0/gi1/access"), Some(912));
        assert_eq!(minor_in(table, "gpu0/gi1/ci0/access"), Some(7));
        assert_eq!(minor_in(table, "gpu0/gi1"), None);
        assert_eq!(minor_in("gpu0/gi1/access x", "gpu0/gi1/access"), None);
    }
}
