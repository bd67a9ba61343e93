//! `gpool ps --processes`: from a pid, as nvidia-smi shows it on the host, to the container.

use crate::arguments::Format;
use crate::exit::Failure;
use crate::output::{self, Column, borderless, csv, figure, text};
use gpool_protocol::{Client, ContainerId, ErrorCode, GuardedProcess, HostPid, LeaseId, OutsideProcess};
use serde::Serialize;

const COLUMNS: [Column; 5] = [figure("PID"), text("NAME"), text("CONTAINER"), text("LEASE"), text("FINDING")];
const HEADER: [&str; 6] = ["pid", "name", "container_id", "lease_id", "cgroup", "finding"];

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
        }
    }
}

/// Lists them by their pids.
pub fn run(client: &Client, format: Format) -> Result<(), Failure> {
    let guarded: Vec<GuardedProcess> = client.get("/v1/guard")?;
    let outside: Vec<OutsideProcess> = match client.get("/v1/guard/outside") {
        // An older supervisor does not tell them.
        Err(error) if error.code == ErrorCode::MessageInvalid => Vec::new(),
        told => told?,
    };
    let mut all: Vec<Process> =
        guarded.into_iter().map(Process::from).chain(outside.into_iter().map(Process::from)).collect();
    all.sort_by_key(|process| process.pid.0);
    match format {
        Format::Table | Format::Wide => output::print(&borderless(&COLUMNS, all.iter().map(cells))),
        Format::Json => output::print_json("processes", &all),
        Format::Csv => output::print(&csv(&HEADER, all.iter().map(csv_cells))),
    }
}

fn cells(process: &Process) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        process.pid.to_string(),
        process.name.clone(),
        or_dash(process.container_id.as_ref().map(|id| id.short().to_owned())),
        or_dash(process.lease_id.as_ref().map(ToString::to_string)),
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
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_leads_to_its_container_or_to_none() {
        let guarded = GuardedProcess {
            lease_id: LeaseId("01J".into()),
            container_id: ContainerId("3f9a".repeat(16)),
            pid: HostPid(124),
            name: "python3".into(),
            is_registered: true,
            libraries: Vec::new(),
            finding: None,
        };
        let outside =
            OutsideProcess { pid: HostPid(421), name: "Xorg".into(), cgroup: "/user.slice".into(), asks: None };
        let all = [Process::from(guarded), Process::from(outside)];
        let want = "\
PID  NAME     CONTAINER     LEASE  FINDING
124  python3  3f9a3f9a3f9a  01J    -
421  Xorg     -             -      it has no lease, and nothing paces it; its cgroup is /user.slice
";
        assert_eq!(borderless(&COLUMNS, all.iter().map(cells)), want);
        let text = csv(&HEADER, all.iter().map(csv_cells));
        assert!(text.ends_with(
            "421,Xorg,,,/user.slice,\"it has no lease, and nothing paces it; its cgroup is /user.slice\"\n"
        ));
        let json = output::to_value(&all);
        assert!(json[0]["container_id"] == "3f9a".repeat(16) && json[0]["pid"] == 124 && json[1]["lease_id"].is_null());
    }
}
