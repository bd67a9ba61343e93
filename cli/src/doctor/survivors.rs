//! Who lives of a lease, by what a supervisor has written down of it. The one that runs now may know nothing of it, because
//! it could not take it over; its files are those of a running container all the same.

use super::surroundings::text;
use serde_json::Value;
use std::io::ErrorKind;
use std::path::Path;

/// Field of /proc/PID/stat with the start time in clock ticks since boot, counted from the state behind the name, see proc(5).
const START: usize = 19;

/// Why the directory `dir` of a lease is still somebody's, as half a sentence; none where nobody is left of it. `proc` is the
/// host's /proc.
pub fn of(dir: &Path, proc: &Path) -> Option<String> {
    let record: Value = match std::fs::read(dir.join("lease.json")).map(|text| serde_json::from_slice(&text)) {
        Ok(Ok(record)) => record,
        // The supervisor makes it before all else and takes it away with all else.
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Ok(Err(_)) | Err(_) => {
            return Some("its lease.json cannot be read, so that nobody can say whether its container runs".to_owned());
        }
    };
    let text = |name: &str| text(&proc.join(name));
    let boot = text("sys/kernel/random/boot_id");
    if record["boot_id"].as_str().is_some_and(|its| !boot.is_empty() && its != boot.trim()) {
        return None;
    }
    let (pid, start) = (&record["init"]["pid"], record["init"]["start_ticks"].as_u64());
    if start.is_some() && start_ticks(&text(&format!("{pid}/stat"))) == start {
        return Some(format!("its container runs (process {pid})"));
    }
    let cgroup = record["cgroup"].as_str()?;
    let pid = (std::fs::read_dir(proc).into_iter().flatten().flatten())
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .find(|pid| is_in(cgroup, &text(&format!("{pid}/cgroup"))))?;
    Some(format!("process {pid} of its container lives"))
}

fn start_ticks(stat: &str) -> Option<u64> {
    // The name in parentheses may hold anything, so count from its end.
    stat.rsplit_once(')')?.1.split_whitespace().nth(START)?.parse().ok()
}

/// Whether /proc/PID/cgroup names the cgroup `path` or one below it, in whatever hierarchy.
fn is_in(path: &str, cgroups: &str) -> bool {
    let its = cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2)?.strip_prefix(path));
    its.into_iter().any(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_a_running_container_keeps_its_directory_and_one_of_an_ended_one_does_not() {
        let root = tempfile::tempdir().unwrap();
        let (dir, proc) = (root.path().join("01A"), root.path().join("proc"));
        let write = |path: &str, text: &[u8]| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        std::fs::create_dir(&dir).unwrap();
        assert_eq!(of(&dir, &proc), None, "one without a record was being made or taken away");
        write("proc/sys/kernel/random/boot_id", b"b\n");
        // Names may be of any bytes.
        write("proc/7/stat", b"7 (a\xff ) b) S 1 7 7 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 1 0 555 1 1");
        write("proc/7/cgroup", b"0::/docker/c\n");
        write("proc/8/cgroup", b"5:devices:/x\n3:freezer:/docker/d/below\xff\n");
        let record = |boot: &str, start: u64, cgroup: &str| {
            let init = format!(r#""init":{{"pid":7,"start_ticks":{start}}}"#);
            write("01A/lease.json", format!(r#"{{"boot_id":"{boot}",{init},"cgroup":"{cgroup}"}}"#).as_bytes());
            of(&dir, &proc)
        };
        assert_eq!(record("b", 555, "/docker/c").as_deref(), Some("its container runs (process 7)"));
        assert_eq!(record("b", 556, "/docker/d").as_deref(), Some("process 8 of its container lives"));
        assert_eq!(record("b", 556, "/docker/e"), None, "another process has that pid now");
        assert_eq!(record("b", 556, "/docker/d/bel"), None, "another cgroup");
        assert_eq!(record("before", 555, "/docker/c"), None, "of another boot");
        write("01A/lease.json", b"{");
        assert!(of(&dir, &proc).unwrap().contains("lease.json cannot be read"));
        write("01A/lease.json", br#"{"boot_id":"b","init":null,"cgroup":null}"#);
        assert_eq!(of(&dir, &proc), None, "one that was never bound");
    }
}
