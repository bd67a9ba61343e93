//! `gpool ps --processes`: from a pid, as nvidia-smi shows it on the host, to the container, and which of a container's processes
//! holds what.

use crate::arguments::{Format, ProcessSort};
use crate::exit::Failure;
use crate::output::{self, Column, borderless, csv, figure, text};
use gpool_protocol::{Client, ContainerId, ErrorCode, GuardedProcess, HostPid, LeaseId, OutsideProcess, format_bytes};
use serde::Serialize;
use std::cmp::Reverse;

const COLUMNS: [Column; 7] = [
    figure("PID"),
    text("NAME"),
    text("CONTAINER"),
    text("LEASE"),
    figure("CHARGED"),
    figure("BY NVML"),
    text("FINDING"),
];
const HEADER: [&str; 8] =
    ["pid", "name", "container_id", "lease_id", "cgroup", "finding", "memory_charged_bytes", "memory_nvml_bytes"];

/// A process that uses a GPU.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Process {
    pid: HostPid,
    name: String,
    /// None without a lease.
    container_id: Option<ContainerId>,
    lease_id: Option<LeaseId>,
    /// Where it is, of one without a lease.
    cgroup: Option<String>,
    /// What is wrong with it.
    finding: Option<String>,
    /// What its lease is charged for it; none without a lease, and where it is not known.
    memory_charged_bytes: Option<u64>,
    /// What NVML lists for it; none where it lists nothing.
    memory_nvml_bytes: Option<u64>,
}

impl Process {
    /// What it holds, by whoever says more.
    fn bytes(&self) -> Option<u64> {
        self.memory_charged_bytes.max(self.memory_nvml_bytes)
    }
}

impl From<GuardedProcess> for Process {
    fn from(its: GuardedProcess) -> Self {
        Self {
            pid: its.pid,
            name: its.name,
            container_id: Some(its.container_id),
            lease_id: Some(its.lease_id),
            cgroup: None,
            finding: its.finding,
            memory_charged_bytes: its.memory_charged_bytes,
            memory_nvml_bytes: its.memory_nvml_bytes,
        }
    }
}

impl From<OutsideProcess> for Process {
    fn from(its: OutsideProcess) -> Self {
        let finding = format!("it has no lease, and nothing paces it; its cgroup is {}", its.cgroup);
        Self {
            pid: its.pid,
            name: its.name,
            container_id: None,
            lease_id: None,
            cgroup: Some(its.cgroup),
            finding: Some(finding),
            memory_charged_bytes: None,
            memory_nvml_bytes: its.memory_nvml_bytes,
        }
    }
}

/// Lists them.
pub fn run(client: &Client, sort: Option<ProcessSort>, format: Format) -> Result<(), Failure> {
    let guarded: Vec<GuardedProcess> = client.get("/v1/guard")?;
    let outside: Vec<OutsideProcess> = match client.get("/v1/guard/outside") {
        // An older supervisor does not tell them.
        Err(error) if error.code == ErrorCode::MessageInvalid => Vec::new(),
        told => told?,
    };
    let mut all: Vec<Process> =
        guarded.into_iter().map(Process::from).chain(outside.into_iter().map(Process::from)).collect();
    order(&mut all, sort);
    match format {
        Format::Table | Format::Wide => output::print(&borderless(&COLUMNS, all.iter().map(cells))),
        Format::Json => output::print_json("processes", &all),
        Format::Csv => output::print(&csv(&HEADER, all.iter().map(csv_cells))),
    }
}

/// By their pids where nothing is asked for, and where that leaves it open.
fn order(all: &mut [Process], sort: Option<ProcessSort>) {
    all.sort_by_key(|process| process.pid.0);
    match sort {
        None => {}
        Some(ProcessSort::Memory) => all.sort_by_key(|process| Reverse(process.bytes())),
        Some(ProcessSort::Container) => all.sort_by_cached_key(|process| {
            let container = process.container_id.as_ref().map(|id| id.0.clone());
            (container.is_none(), container, Reverse(process.bytes()))
        }),
    }
}

fn cells(process: &Process) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let if_known = |bytes: Option<u64>| bytes.map_or_else(|| "--".to_owned(), format_bytes);
    let charged = match process.lease_id {
        Some(_) => if_known(process.memory_charged_bytes),
        None => "-".to_owned(),
    };
    vec![
        process.pid.to_string(),
        process.name.clone(),
        or_dash(process.container_id.as_ref().map(|id| id.short().to_owned())),
        or_dash(process.lease_id.as_ref().map(ToString::to_string)),
        charged,
        if_known(process.memory_nvml_bytes),
        or_dash(process.finding.clone()),
    ]
}

fn csv_cells(process: &Process) -> Vec<String> {
    vec![
        process.pid.to_string(),
        process.name.clone(),
        process.container_id.as_ref().map(ToString::to_string).unwrap_or_default(),
        process.lease_id.as_ref().map(ToString::to_string).unwrap_or_default(),
        process.cgroup.clone().unwrap_or_default(),
        process.finding.clone().unwrap_or_default(),
        process.memory_charged_bytes.map(|bytes| bytes.to_string()).unwrap_or_default(),
        process.memory_nvml_bytes.map(|bytes| bytes.to_string()).unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn guarded(pid: u32, container: &str, charged_mib: Option<u64>, nvml_mib: Option<u64>) -> GuardedProcess {
        GuardedProcess {
            memory_charged_bytes: charged_mib.map(|mib| mib * MIB),
            memory_nvml_bytes: nvml_mib.map(|mib| mib * MIB),
            ..crate::samples::guarded(pid, &container.repeat(16))
        }
    }

    fn outside(pid: u32, nvml_mib: u64) -> OutsideProcess {
        OutsideProcess {
            pid: HostPid(pid),
            name: "Xorg".into(),
            cgroup: "/user.slice".into(),
            asks: None,
            memory_nvml_bytes: Some(nvml_mib * MIB),
        }
    }

    #[test]
    fn a_pid_leads_to_its_container_or_to_none_and_to_what_it_holds() {
        let all = [
            Process::from(guarded(124, "3f9a", Some(1553), Some(1544))),
            Process::from(guarded(130, "3f9a", None, None)),
            Process::from(outside(421, 96)),
        ];
        let want = "\
PID  NAME     CONTAINER     LEASE  CHARGED  BY NVML  FINDING
124  python3  3f9a3f9a3f9a  01J     1.5GiB   1.5GiB  -
130  python3  3f9a3f9a3f9a  01J         --       --  -
421  Xorg     -             -            -    96MiB  it has no lease, and nothing paces it; its cgroup is /user.slice
";
        assert_eq!(borderless(&COLUMNS, all.iter().map(cells)), want);
        let text = csv(&HEADER, all.iter().map(csv_cells));
        assert!(text.ends_with(&format!(
            "421,Xorg,,,/user.slice,\"it has no lease, and nothing paces it; its cgroup is /user.slice\",,{}\n",
            96 * MIB
        )));
        let json = output::to_value(&all);
        assert!(json[0]["container_id"] == "3f9a".repeat(16) && json[0]["pid"] == 124 && json[2]["lease_id"].is_null());
        assert!(json[0]["memory_charged_bytes"] == 1553 * MIB && json[0]["memory_nvml_bytes"] == 1544 * MIB);
        assert!(json[1]["memory_charged_bytes"].is_null() && json[2]["memory_charged_bytes"].is_null());
    }

    #[test]
    fn which_of_the_workers_holds_most_stands_first() {
        let pids = |sort| {
            let mut all = vec![
                Process::from(outside(9, 700)),
                Process::from(guarded(4, "b", Some(600), Some(520))),
                Process::from(guarded(3, "a", None, Some(900))),
                Process::from(guarded(2, "b", Some(600), None)),
                Process::from(guarded(1, "a", None, None)),
            ];
            order(&mut all, sort);
            all.iter().map(|process| process.pid.0).collect::<Vec<_>>()
        };
        assert_eq!(pids(None), [1, 2, 3, 4, 9]);
        assert_eq!(pids(Some(ProcessSort::Memory)), [3, 9, 2, 4, 1]);
        assert_eq!(pids(Some(ProcessSort::Container)), [3, 1, 2, 4, 9]);
    }
}
