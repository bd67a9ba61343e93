//! Processes that use a GPU and belong to no lease, and which of them were to have one: by far the most often a container asks for a
//! share, and nobody has said `--runtime=gpool`.

use super::reader::{Reader, Reading};
use super::shown::SHOWN;
use crate::cgroup;
use crate::lease::Leases;
use crate::procfs::{self, ProcessName, WatchedProcess};
use gpool_policy::guard::Findings;
use gpool_protocol::{ENV_PREFIX, EventKind, HostPid, OutsideProcess};
use gpool_shared_region::REGION_DIR;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::sync::Arc;

/// Keys by which a share is asked for, as they are told.
const KEYS: [&str; 5] = ["fraction", "mode", "mig-profile", "memory", "gpus"];
/// A value that is longer is none of theirs, nor one with other letters: whoever runs the program has written it.
const VALUE_BYTES: usize = 32;
/// So much is read of an environment, and of what is mounted.
const READ_BYTES: u64 = 256 << 10;
/// So many threads may wait for a process whose environment cannot be read.
const MOST_STUCK: usize = 1;

/// Remembers from one look to the next.
#[derive(Default)]
pub struct Outside {
    findings: Findings<ProcessName>,
    /// Those that were told, as long as they use a GPU.
    told: BTreeMap<ProcessName, OutsideProcess>,
    /// Reads what they ask for; none before the first of them.
    reader: Option<Reader<ProcessName, Option<String>>>,
}

impl Outside {
    /// Looks at processes that have a context and were in no lease, for which NVML `lists` so much.
    pub fn look(
        &mut self,
        leases: &Leases,
        pids: impl Iterator<Item = HostPid>,
        lists: impl Fn(HostPid) -> Option<u64>,
    ) {
        // One that has come into a leased cgroup since its processes were listed is seen there next time.
        let cgroups = leases.book().cgroups();
        let outside = pids.filter_map(|pid| {
            let watched = WatchedProcess::open(pid).ok()?;
            // Daemons that serve leases, and the two that time slices are tried on.
            if leases.groups.has_process(pid) || procfs::is_own_child(pid) || leases.gpu_tests.has(pid) {
                return None;
            }
            (!cgroups.have(pid)).then_some(watched.name)
        });
        self.note(leases, outside.collect());
        let with_memory = |its: &OutsideProcess| OutsideProcess { memory_nvml_bytes: lists(its.pid), ..its.clone() };
        let shown = self.told.values().take(SHOWN).map(with_memory).collect();
        *leases.unleased.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::new(shown);
    }

    /// These are there now.
    fn note(&mut self, leases: &Leases, now: BTreeSet<ProcessName>) {
        self.told.retain(|name, _| now.contains(name));
        let news = self.findings.look(now);
        if !news.is_empty() {
            self.reader = self.reader.take().or_else(|| Reader::start(MOST_STUCK).ok());
            self.reader.iter_mut().for_each(Reader::begin);
        }
        for name in news {
            let its = OutsideProcess {
                pid: name.pid,
                name: procfs::comm(name.pid),
                cgroup: cgroup::path_of(name.pid).unwrap_or_else(|| "/".to_owned()),
                asks: self.asks(name),
                memory_nvml_bytes: None,
            };
            leases.events.note(EventKind::Outside, Default::default(), in_words(&its));
            self.told.insert(name, its);
        }
    }

    /// The share that its container asks for, if it was not started with gpool's runtime.
    fn asks(&mut self, name: ProcessName) -> Option<String> {
        let read = move || {
            let of = |file: &str| bounded(&format!("/proc/{}/{file}", name.pid));
            let is_contained =
                mounts_of("1").zip(mounts_of(&name.pid.to_string())).is_some_and(|(host, its)| host != its);
            let (environment, mounts) = (of("environ"), of("mountinfo"));
            // Read before it is asked whether the pid is its own still.
            let is_its = procfs::start_ticks(name.pid) == Some(name.start_ticks);
            (is_its && is_contained && !has_region(&mounts)).then(|| share_in(&environment)).flatten()
        };
        match self.reader.as_mut()?.read(name, read) {
            Reading::Answer(asks) => asks,
            Reading::Silent | Reading::Unread => None,
        }
    }
}

fn in_words(its: &OutsideProcess) -> String {
    let OutsideProcess { pid, name, cgroup, asks, .. } = its;
    let told = format!(
        "process {pid} ({name}) of the cgroup {cgroup} uses a GPU without a lease: nothing paces it, and what it holds counts as taken"
    );
    match asks {
        None => told,
        Some(asks) => format!(
            "{told}; its container asks for {asks} and was not started with gpool's runtime: add --runtime=gpool, in a pod runtimeClassName: gpool"
        ),
    }
}

/// What a file says, or the beginning of that; nothing of one that cannot be read.
fn bounded(path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(READ_BYTES).read_to_end(&mut bytes));
    read.map_or_else(|_| Vec::new(), |_| bytes)
}

fn mounts_of(process: &str) -> Option<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok()
}

/// Whether it has the files of a lease, in a line of `/proc/PID/mountinfo`: it has left its container's cgroup.
fn has_region(mounts: &[u8]) -> bool {
    let text = String::from_utf8_lossy(mounts);
    text.lines().filter_map(|line| line.split(' ').nth(4)).any(|place| place.starts_with(REGION_DIR))
}

/// The share that an environment asks for, as keys; none if it asks for none.
fn share_in(environment: &[u8]) -> Option<String> {
    let entries: Vec<&str> =
        environment.split(|byte| *byte == 0).filter_map(|its| std::str::from_utf8(its).ok()).collect();
    let is_plain = |value: &&str| {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b".,%-".contains(&byte);
        (1..=VALUE_BYTES).contains(&value.len()) && value.bytes().all(is_letter)
    };
    let said = |key: &str| {
        let name = format!("{ENV_PREFIX}{}=", key.to_ascii_uppercase().replace('-', "_"));
        entries.iter().rev().find_map(|entry| entry.strip_prefix(&name)).filter(is_plain)
    };
    let keys: Vec<String> = KEYS.iter().filter_map(|key| Some(format!("{key}={}", said(key)?))).collect();
    (!keys.is_empty()).then(|| keys.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn who_asks_for_a_share_and_has_none_is_told_what_to_add() {
        let its = |asks: Option<&str>| OutsideProcess {
            pid: HostPid(4211),
            name: "python3".into(),
            cgroup: "/docker/7".into(),
            asks: asks.map(str::to_owned),
            memory_nvml_bytes: None,
        };
        let told = in_words(&its(Some("fraction=0.3 memory=4GiB")));
        assert!(told.ends_with(
            "asks for fraction=0.3 memory=4GiB and was not started with gpool's runtime: add --runtime=gpool, in a pod runtimeClassName: gpool"
        ));
        assert!(
            told.contains("process 4211 (python3) of the cgroup /docker/7")
                && !in_words(&its(None)).contains("runtime")
        );
    }

    #[test]
    fn a_share_is_read_from_an_environment_that_may_say_anything() {
        let of = |text: &str| share_in(text.replace('|', "\0").as_bytes());
        assert_eq!(of("A=1|GPOOL_FRACTION=0.3|GPOOL_MEMORY=4GiB|").as_deref(), Some("fraction=0.3 memory=4GiB"));
        assert_eq!(of("GPOOL_MIG_PROFILE=1g.10gb").as_deref(), Some("mig-profile=1g.10gb"));
        assert_eq!(
            of("GPOOL_FRACTION=0.3|GPOOL_FRACTION=0.5").as_deref(),
            Some("fraction=0.5"),
            "what its program sees"
        );
        for nothing in
            ["", "A=1", "GPOOL_TEAM=x", "GPOOL_FRACTION=", "GPOOL_FRACTION", "GPOOL_FRACTION=0.3\n[GPOOL-E201]"]
        {
            assert_eq!(of(nothing), None, "{nothing:?}");
        }
        assert_eq!(of(&format!("GPOOL_FRACTION={}", "1".repeat(33))), None);
        assert_eq!(share_in(b"\xff\0GPOOL_FRACTION=0.3\0\xff").as_deref(), Some("fraction=0.3"));
    }

    #[test]
    fn who_has_left_a_lease_s_cgroup_was_started_with_the_runtime() {
        let line = |place: &str| format!("36 35 0:31 / {place} rw,nosuid - tmpfs tmpfs rw\n").into_bytes();
        assert!(has_region(&[line("/proc"), line("/dev/gpool/control")].concat()));
        assert!(!has_region(&[line("/dev"), line("/srv/dev/gpool")].concat()) && !has_region(b"\xff 1\n"));
    }

    #[test]
    fn an_environment_is_read_by_a_thread_of_its_own() {
        let mut child = Command::new("sleep")
            .arg("60")
            .env_clear()
            .env("GPOOL_FRACTION", "0.3")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = HostPid(child.id());
        let environment =
            (0..500).map(|_| bounded(&format!("/proc/{pid}/environ"))).find(|its| share_in(its).is_some());
        assert_eq!(environment.and_then(|its| share_in(&its)).as_deref(), Some("fraction=0.3"));
        let name = ProcessName { pid, start_ticks: procfs::start_ticks(pid).unwrap() };
        let mut outside = Outside { reader: Reader::start(MOST_STUCK).ok(), ..Outside::default() };
        outside.reader.iter_mut().for_each(Reader::begin);
        assert_eq!(outside.asks(name), None, "it is no container: its mounts are the host's");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(bounded(&format!("/proc/{pid}/environ")), b"", "it has ended");
    }
}
