//! The ordinary program in the containers, `gpool-tenant`, seen from outside: how it is started and what it prints.

use crate::failure::{Context, Failure, Result};
use crate::host::{Container, Host};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a container may take until its tenant has said all that a report has.
const REPORT_PATIENCE: Duration = Duration::from_secs(20);

/// Where the pause file's directory is in the container.
const MOUNT: &str = "/data";

/// How a tenant is to behave.
#[derive(Debug, Clone, Copy)]
pub struct Tenant<'a> {
    /// GPU time of each of its kernels, in microseconds.
    pub kernel_us: u64,
    /// How much it allocates, in MiB; until it is refused when none.
    pub allocate_mib: Option<u64>,
    /// It falls idle while this says so.
    pub pause: Option<&'a PauseFile>,
}

impl Tenant<'_> {
    /// One with kernels of this length that allocates as much as it gets and never falls idle.
    pub fn greedy(kernel_us: u64) -> Self {
        Self { kernel_us, allocate_mib: None, pause: None }
    }

    /// Its command line in the container.
    pub fn command(&self) -> Vec<String> {
        let mut command = ["gpool-tenant", "--nvml", "--kernel-us"].map(String::from).to_vec();
        command.push(self.kernel_us.to_string());
        if let Some(mib) = self.allocate_mib {
            command.extend(["--allocate-mib".to_owned(), mib.to_string()]);
        }
        if self.pause.is_some() {
            command.extend(["--pause-file".to_owned(), format!("{MOUNT}/pause")]);
        }
        command
    }

    /// What its container must mount, as docker's `-v` takes it.
    pub fn mount(&self) -> Option<String> {
        self.pause.map(|pause| format!("{}:{MOUNT}:ro", pause.directory.display()))
    }

    /// Starts it in a container with the runtime `gpool`.
    pub fn run(&self, host: &Host, name: &str, env: &[(&str, &str)]) -> Result<Container> {
        self.run_with(host, name, env, &[])
    }

    /// The same with further options of `gpool-tenant`, such as `--graph`; its `--help` lists them.
    pub fn run_with(&self, host: &Host, name: &str, env: &[(&str, &str)], more: &[&str]) -> Result<Container> {
        let mount = self.mount();
        let options: Vec<&str> = mount.iter().flat_map(|mount| ["-v", mount]).collect();
        let command = self.command();
        let command: Vec<&str> = command.iter().map(String::as_str).chain(more.iter().copied()).collect();
        host.run_container(name, env, &options, &command)
    }
}

/// A file whose presence makes a tenant fall idle, in a directory that its container can see.
#[derive(Debug)]
pub struct PauseFile {
    directory: PathBuf,
}

impl PauseFile {
    /// Makes the directory; nothing is paused yet.
    pub fn new(directory: impl AsRef<Path>) -> Result<Self> {
        let directory = directory.as_ref().to_owned();
        fs::create_dir_all(&directory).context(directory.display())?;
        Ok(Self { directory })
    }

    /// From now on the tenant is idle.
    pub fn pause(&self) -> Result<()> {
        fs::write(self.directory.join("pause"), "").context("the pause file")
    }

    /// From now on it works again.
    pub fn resume(&self) -> Result<()> {
        fs::remove_file(self.directory.join("pause")).context("the pause file")
    }
}

/// What a tenant found out about its GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// `cuMemGetInfo`'s total, in bytes.
    pub cuda_total_bytes: u64,
    /// NVML's total, in bytes.
    pub nvml_total_bytes: u64,
    /// What it had allocated, in bytes, contexts not included, when it was first refused more.
    pub allocated_bytes: u64,
}

/// Reads the report from everything that the tenant printed: a line of JSON for each event.
///
/// # Errors
/// When the tenant failed, or has not come so far yet.
pub fn report(log: &str) -> Result<Report> {
    let events = events(log)?;
    let of_kind = |kind: &str| events.iter().find(|event| event["event"] == kind);
    let figure = |kind: &str, name: &str| {
        let found = of_kind(kind).and_then(|event| event[name].as_u64());
        found.ok_or_else(|| Failure::new(format!("the tenant printed no {kind} event with {name}: {log}")))
    };
    Ok(Report {
        cuda_total_bytes: figure("memory", "total")?,
        nvml_total_bytes: figure("nvml", "total")?,
        allocated_bytes: figure("allocated", "bytes")?,
    })
}

/// The report of the tenant in `container`, as soon as it is whole.
///
/// # Errors
/// When the tenant failed, or does not come so far.
pub fn report_of(host: &Host, container: &Container) -> Result<Report> {
    let deadline = Instant::now() + REPORT_PATIENCE;
    loop {
        match report(&container.log(&host.engine)?) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(50)),
            outcome => return outcome,
        }
    }
}

/// What NVML showed a monitoring program at one moment.
#[derive(Debug, PartialEq, Eq)]
pub struct Look {
    /// Pid and bytes of each process.
    pub processes: Vec<(u64, u64)>,
    /// How busy the device is.
    pub percent: u64,
    /// Pid and percent of each process that was busy.
    pub sampled: Vec<(u64, u64)>,
}

/// What `gpool-tenant --monitor` saw, look by look.
///
/// # Errors
/// When it failed.
pub fn monitored(log: &str) -> Result<Vec<Look>> {
    let pairs = |value: &Value| {
        let pair = |pair: &Value| Some((pair.get(0)?.as_u64()?, pair.get(1)?.as_u64()?));
        value.as_array().into_iter().flatten().filter_map(pair).collect()
    };
    let look = |event: &Value| Look {
        processes: pairs(&event["processes"]),
        percent: event["percent"].as_u64().unwrap_or(u64::MAX),
        sampled: pairs(&event["sampled"]),
    };
    Ok(events(log)?.iter().filter(|event| event["event"] == "monitor").map(look).collect())
}

/// The latencies of all requests in the log, in microseconds and in the order in which they ended.
///
/// # Errors
/// When the tenant failed.
pub fn latencies_us(log: &str) -> Result<Vec<u64>> {
    let requests = |event: &Value| (event["event"] == "request").then(|| event["latency_us"].as_u64()).flatten();
    Ok(events(log)?.iter().filter_map(requests).collect())
}

/// The events in the log. A line that is not complete yet is left out.
///
/// # Errors
/// When the tenant failed.
pub fn events(log: &str) -> Result<Vec<Value>> {
    let events: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    match events.iter().find(|event| event["event"] == "error") {
        Some(error) => Err(Failure::new(format!("the tenant failed: {error}"))),
        None => Ok(events),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_from_the_log() {
        let log = "{\"event\":\"memory\",\"total\":4,\"free\":3}\n{\"event\":\"nvml\",\"total\":4,\"used\":1}\n\
                   {\"event\":\"allocated\",\"bytes\":3,\"refused\":1}\n";
        assert_eq!(report(log), Ok(Report { cuda_total_bytes: 4, nvml_total_bytes: 4, allocated_bytes: 3 }));
        assert!(report("{\"event\":\"memory\",\"total\":4}").is_err());
        let failed = report("{\"event\":\"error\",\"call\":\"cuInit\",\"code\":100}").unwrap_err();
        assert!(failed.to_string().contains("cuInit"), "{failed}");
    }

    #[test]
    fn latencies_are_read_in_their_order() {
        let log = "{\"event\":\"memory\",\"gpu\":0,\"total\":4}\n{\"event\":\"request\",\"gpu\":0,\"latency_us\":900}\n\
                   {\"event\":\"progress\",\"latency\":{\"count\":1}}\n{\"event\":\"request\",\"gpu\":1,\"latency_us\":70}\n\
                   {\"event\":\"requ";
        assert_eq!(latencies_us(log), Ok(vec![900, 70]));
        assert!(latencies_us("{\"event\":\"error\",\"call\":\"cuLaunchKernel\",\"code\":700}").is_err());
    }
}
