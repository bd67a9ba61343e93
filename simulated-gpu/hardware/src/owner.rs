//! Who a process works for.

use std::io;

/// The cgroup of a process, which the meter accounts by.
pub(crate) fn of_process(pid: u32) -> io::Result<String> {
    Ok(parse(&std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?))
}

/// The unified path if it says anything, otherwise that of the devices controller. Format: cgroups(7), one line
/// `hierarchy:controllers:path` for each hierarchy.
fn parse(cgroup: &str) -> String {
    let lines = || cgroup.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let unified = lines().find(|(controllers, path)| controllers.is_empty() && *path != "/");
    let devices = || lines().find(|(controllers, _)| controllers.split(',').any(|name| name == "devices"));
    unified.or_else(devices).map_or("/", |(_, path)| path).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_path_wins_unless_it_is_the_root() {
        assert_eq!(parse("0::/system.slice/docker-1.scope\n"), "/system.slice/docker-1.scope");
        assert_eq!(parse("9:cpu:/a\n7:devices:/docker/1\n0::/\n"), "/docker/1");
        assert_eq!(parse("7:devices:/docker/1\n0::/unified/x:y\n"), "/unified/x:y");
        assert_eq!(parse("7:misc,devices:/b\n"), "/b");
        assert_eq!(parse("0::/\n"), "/");
        assert_eq!(parse(""), "/");
    }
}
