//! NVIDIA's own nvidia-smi of three drivers, which gpool mounts into a leased container beside another tenant: its table,
//! lists and queries show the slice, and its process rows those of the container's PID namespace.

use super::{finish, wait_until_account_agrees, wait_until_running};
use crate::downloads::{Downloads, Packages};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host};
use crate::namespaces::{Inside, another_run};
use crate::stage::Stage;
use crate::tenant::Tenant;
use gpool_simulated_hardware::DriverVersion;
use std::fs;
use std::path::{Path, PathBuf};

const NAMES: [&str; 1] = ["nvidia-smi"];
/// Suites with different generations of the driver.
const PROGRAMS: [Packages; 3] = [
    Packages { suite: "oldstable", component: "non-free", names: &NAMES },
    Packages { suite: "stable", component: "non-free", names: &NAMES },
    Packages { suite: "experimental", component: "non-free", names: &NAMES },
];
const CAP_MIB: u64 = 4096;
/// The slices leave room for one that is kept for a moment after its container.
const REQUEST: [(&str, &str); 2] = [("GPOOL_FRACTION", "0.15"), ("GPOOL_MEMORY", "4GiB")];

/// Downloads the programs, then looks through them in a run of its own, which has no network.
pub fn run() -> Result<()> {
    let downloads = downloads()?;
    let failures: Vec<Failure> = PROGRAMS.iter().filter_map(|packages| downloads.fetch(packages).err()).collect();
    let all_failed = failures.len() == PROGRAMS.len();
    for failure in failures {
        println!("skipped{}: {failure}", if all_failed { "" } else { " in part" });
    }
    if all_failed {
        return Ok(());
    }
    let status = another_run().arg("nvidia-smi-inside").status().context("the run that looks")?;
    ensure(status.success(), || format!("the run that looks ended with {status}"))
}

/// Runs each nvidia-smi in a leased container.
pub fn inside(inside: &Inside) -> Result<()> {
    let mut host = Host::start_without_supervisor(inside, "[policy]\nunenforced = true")?;
    let outcome = look_through_each(&mut host);
    finish(host, outcome)
}

fn look_through_each(host: &mut Host) -> Result<()> {
    let downloads = downloads()?;
    let unpacked: Vec<PathBuf> = PROGRAMS.iter().filter_map(|packages| downloads.unpacked(packages)).collect();
    let mut neighbour = None;
    for (index, unpacked) in unpacked.iter().enumerate() {
        let program = unpacked.join("usr/lib/nvidia/current/nvidia-smi");
        let version = version_of(&program)?;
        host.set_driver_version(&version)?;
        host.replace_nvidia_smi(&program)?;
        if neighbour.is_none() {
            host.start_supervisor()?;
            let request = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "4GiB")];
            neighbour = Some(Tenant::greedy(800).run(host, "neighbour", &request)?);
        }
        let modest = Tenant { allocate_mib: Some(1024), ..Tenant::greedy(500) };
        let watched = modest.run(host, &format!("watched-{index}"), &REQUEST)?;
        wait_until_running(host, std::slice::from_ref(&watched))?;
        wait_until_running(host, neighbour.as_slice())?;
        check(host, &watched, &version).context(format!("nvidia-smi {version}"))?;
        if index == 0 {
            check_in_the_hosts_namespace(host)?;
        }
        host.docker(&["rm", "-f", &watched.id])?;
        println!("nvidia-smi {version}: the slice and its own process");
    }
    Ok(())
}

fn check(host: &Host, watched: &Container, version: &DriverVersion) -> Result<()> {
    let used_mib = wait_until_account_agrees(host, watched)? >> 20;
    let ask = |arguments: &[&str]| {
        let command = ["exec", &watched.id, "nvidia-smi"];
        host.engine.docker_text(&[&command, arguments].concat())
    };
    let table = ask(&[])?;
    let memory = format!("{used_mib}MiB / {CAP_MIB}MiB");
    let is_slice = words(&table).contains(&words(&memory)) && table.contains(&format!("Driver Version: {version}"));
    ensure(is_slice && process_rows(&table) == [(1, used_mib)], || {
        format!("of {memory} and process 1 the table shows\n{table}")
    })?;
    let list = ask(&["-L"])?;
    ensure(list.lines().count() == 1 && list.contains("(UUID: GPU-"), || format!("-L shows {list}"))?;
    let all = words(&ask(&["-q"])?);
    for shown in [
        format!("FB Memory Usage Total : {CAP_MIB} MiB Reserved : 0 MiB Used : {used_mib} MiB"),
        format!("Process ID : 1 Type : C Name : gpool-tenant Used GPU Memory : {used_mib} MiB"),
    ] {
        ensure(all.contains(&shown), || format!("-q shows no {shown}: {all}"))?;
    }
    ensure(all.matches("Process ID :").count() == 1, || format!("-q shows other processes: {all}"))?;
    let processes = ask(&["--query-compute-apps=pid,name,used_memory", "--format=csv,noheader,nounits"])?;
    ensure(processes == format!("1, gpool-tenant, {used_mib}"), || format!("--query-compute-apps shows {processes}"))?;
    let mut busiest = 0;
    for _ in 0..5 {
        let fields = "--query-gpu=memory.total,memory.used,memory.free,utilization.gpu";
        let shown = ask(&[fields, "--format=csv,noheader,nounits"])?;
        let expected = format!("{CAP_MIB}, {used_mib}, {}, ", CAP_MIB - used_mib);
        let percent = shown.strip_prefix(&expected).and_then(|percent| percent.parse::<u64>().ok());
        let percent = percent.filter(|percent| *percent <= 100);
        busiest = busiest.max(percent.ok_or_else(|| Failure::new(format!("--query-gpu shows {shown}")))?);
    }
    ensure(busiest >= 70, || format!("a slice in full use shows {busiest} % at most"))
}

/// Whoever starts a container in the host's PID namespace lets it see the host's processes, those on the GPU included.
fn check_in_the_hosts_namespace(host: &Host) -> Result<()> {
    let query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"];
    let watching = host.run_container("watching", &REQUEST, &["--pid=host"], &["sleep", "60"])?;
    let shown = host.engine.docker_text(&[&["exec", &watching.id], &query[..]].concat())?;
    let devices: Vec<u32> = host.meter()?.processes()?.into_iter().map(|(pid, _)| pid).collect();
    let seen: Vec<u32> = shown.lines().filter_map(|line| line.parse().ok()).collect();
    host.docker(&["rm", "-f", &watching.id])?;
    ensure(devices.len() == 2 && seen == devices, || format!("of the host's {devices:?} it shows {shown}"))
}

/// Pid and MiB of each process row: `|    0   N/A  N/A         1      C   gpool-tenant     1280MiB |`.
fn process_rows(table: &str) -> Vec<(u64, u64)> {
    let rows = table.lines().skip_while(|line| !line.contains("Processes:")).skip(1);
    let row = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let memory = columns.iter().find_map(|column| column.strip_suffix("MiB"))?;
        Some((columns.get(4)?.parse().ok()?, memory.parse().ok()?))
    };
    rows.filter_map(row).collect()
}

/// The text with one space wherever there are any.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The version that the program was built for, the only text of such a form in its file: `550.163.01`.
fn version_of(program: &Path) -> Result<DriverVersion> {
    let file = fs::read(program).context(program.display())?;
    let texts = file.split(|byte| !byte.is_ascii_digit() && *byte != b'.');
    let is_version = |text: &&[u8]| {
        let lengths: Vec<usize> = text.split(|byte| *byte == b'.').map(<[u8]>::len).collect();
        matches!(lengths[..], [3, 2 | 3, 2])
    };
    let found = texts.filter(is_version).find_map(|text| DriverVersion::parse(&String::from_utf8_lossy(text)).ok());
    found.ok_or_else(|| Failure::new(format!("{} names no driver", program.display())))
}

fn downloads() -> Result<Downloads> {
    Ok(Downloads::in_directory(Stage::of_this_program()?.downloads()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_rows_are_read_from_the_table() {
        let table = "|   0  GPU name   N/A  |\n|    4096MiB / 24576MiB |\n| Processes:  |\n|  GPU   GI   CI   PID   Type |\n\
                     |    0   N/A  N/A     15807      C   a name of many words                           100MiB |\n";
        assert_eq!(process_rows(table), [(15807, 100)]);
    }
}
