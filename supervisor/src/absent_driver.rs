//! A host on which no driver of NVIDIA's is loaded, as before its installation. To look again each second would fill the log for as
//! long as that is so: it is started again once a minute, and when the kernel tells of a module that comes.

use crate::service_manager;
use gpool_configuration::Driver;
use std::path::Path;

/// Exit status for it, as sysexits has it. The unit starts none again after this one.
pub const STATUS: u8 = 69;

/// What Windows has in the place of a module, in its Linux.
const OF_WINDOWS: &str = "/dev/dxg";

/// Whether no driver is loaded. One whose files are elsewhere, such as a simulated one, comes without the kernel's word.
pub fn is_so(driver: &Driver) -> bool {
    driver.proc_dir == Driver::default().proc_dir && !is_loaded(&driver.proc_dir) && !Path::new(OF_WINDOWS).exists()
}

fn is_loaded(proc_dir: &Path) -> bool {
    proc_dir.join("nvidia/version").exists()
}

/// Ends the connections of who asks meanwhile: nobody else takes them, and for each systemd would start the next supervisor.
pub fn turn_away(socket: &Path) {
    let Some(listener) = service_manager::socket_at(socket) else { return };
    if listener.set_nonblocking(true).is_ok() {
        while listener.accept().is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_of_nvidias_driver_alone() {
        let directory = tempfile::tempdir().unwrap();
        let proc_dir = directory.path().to_owned();
        assert!(!is_loaded(&proc_dir));
        let simulated = Driver { proc_dir: proc_dir.clone(), ..Driver::default() };
        assert!(!is_so(&simulated), "nobody would start it again");
        std::fs::create_dir(proc_dir.join("nvidia")).unwrap();
        std::fs::write(proc_dir.join("nvidia/version"), "").unwrap();
        assert!(is_loaded(&proc_dir));
        let unit = include_str!("../../packaging/systemd/gpool-supervisor.service");
        let kept_down = unit.lines().find_map(|line| line.strip_prefix("RestartPreventExitStatus=")).unwrap();
        assert!(kept_down.split(' ').any(|status| status == STATUS.to_string()), "{kept_down}");
        let rule = include_str!("../../packaging/systemd/60-gpool.rules");
        assert!(rule.contains("SUBSYSTEM==\"module\"") && rule.contains("gpool-driver.service"), "{rule}");
    }
}
