//! Containers with a share in a booted system.

use super::{Booted, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::meter::usage_of;
use crate::tenant::events;
use serde_json::Value;
use std::fs;
use std::time::Duration;

/// The image that they are made of.
const IMAGE: &str = "debian:12";

/// How long the work is watched.
const WINDOW: Duration = Duration::from_secs(3);
/// In one of so many the shares must be as they should.
const WINDOWS: usize = 4;

/// A share: the container's name, its part of the GPU as it asks for it, and in thousandths.
pub type Share = (&'static str, &'static str, u64);

/// Running containers.
#[derive(Debug)]
pub struct Tenants<'a> {
    booted: &'a Booted,
    containers: Vec<(Share, String)>,
}

impl<'a> Tenants<'a> {
    /// Starts one for each of `shares`.
    pub fn start(booted: &'a Booted, shares: &[Share]) -> Result<Self> {
        let mut tenants = Self { booted, containers: Vec::new() };
        shares.iter().try_for_each(|share| tenants.add(*share))?;
        Ok(tenants)
    }

    /// Starts one more, and waits until its kernels execute.
    pub fn add(&mut self, share: Share) -> Result<()> {
        let (name, fraction, _) = share;
        let id = self.booted.sh(&format!(
            "docker run -d --name {name} --runtime=gpool -e GPOOL_FRACTION={fraction} -e GPOOL_MEMORY=2GiB {IMAGE} \
             gpool-tenant --nvml --kernel-us 1000 --allocate-mib 100"
        ))?;
        let meter = self.booted.meter()?;
        wait_for(&format!("a kernel of {name}"), || {
            meter.read().is_ok_and(|seen| usage_of(&seen, &id).kernels > 0).then_some(())
        })?;
        self.containers.push((share, id));
        Ok(())
    }

    /// Fails unless all still run, with the leases `before` if there are such, and share for some seconds as they should.
    pub fn go_on(&self, before: Option<&[String]>) -> Result<()> {
        self.still_run()?;
        let leases = self.leases()?;
        if let Some(before) = before {
            ensure(leases == before, || format!("leases before: {before:?}\nafter: {leases:?}"))?;
        }
        self.share_as_entitled()
    }

    /// Fails unless each has its container and goes on to use the GPU.
    pub fn still_run(&self) -> Result<()> {
        let meter = self.booted.meter()?;
        let kernels = |id: &str| meter.read().map(|seen| usage_of(&seen, id).kernels);
        for ((name, ..), id) in &self.containers {
            let before = kernels(id)?;
            wait_for(&format!("another kernel of {name}"), || kernels(id).is_ok_and(|now| now > before).then_some(()))?;
            let running = self.booted.sh(&format!("docker inspect -f '{{{{.State.Running}}}}' {name}"))?;
            ensure(running == "true", || format!("{name} has ended"))?;
        }
        Ok(())
    }

    /// The first turns after a start or a restart are not as the later ones, and on a busy machine nor are some others.
    fn share_as_entitled(&self) -> Result<()> {
        let mut outcome = self.shares_of_a_window();
        for _ in 1..WINDOWS {
            if outcome.is_ok() {
                break;
            }
            outcome = self.shares_of_a_window();
        }
        outcome
    }

    fn shares_of_a_window(&self) -> Result<()> {
        std::thread::sleep(Duration::from_millis(500));
        let meter = self.booted.meter()?;
        let before = meter.read()?;
        std::thread::sleep(WINDOW);
        let after = meter.read()?;
        let busy = |id: &str| usage_of(&after, id).busy_ns - usage_of(&before, id).busy_ns;
        let all_ns: u64 = self.containers.iter().map(|(_, id)| busy(id)).sum();
        let asked: u64 = self.containers.iter().map(|((.., permille), _)| permille).sum();
        ensure(all_ns * 2 > after.now_ns - before.now_ns, || {
            format!("the GPU was busy for {all_ns} ns of {WINDOW:?}")
        })?;
        for ((name, _, permille), id) in &self.containers {
            let (had, entitled) = (busy(id) as f64 / all_ns as f64, *permille as f64 / asked as f64);
            ensure((had - entitled).abs() <= 0.05, || {
                format!("{name} had {had:.3} of the work and is entitled to {entitled:.3}")
            })?;
        }
        Ok(())
    }

    /// Their leases, in an order of their own.
    ///
    /// # Errors
    /// When there is not one for each.
    pub fn leases(&self) -> Result<Vec<String>> {
        let text = self.booted.sh("gpool ps --format json")?;
        let document: Value = serde_json::from_str(&text).context("gpool ps")?;
        // Places are kept over a restart, too.
        let runs = |lease: &&Value| lease["state"] != "held";
        let id = |lease: &Value| lease["lease_id"].as_str().map(str::to_owned);
        let mut ids: Vec<String> =
            document["leases"].as_array().into_iter().flatten().filter(runs).filter_map(id).collect();
        ids.sort();
        ensure(ids.len() == self.containers.len(), || {
            format!("{} containers have these leases: {text}", self.containers.len())
        })?;
        Ok(ids)
    }

    /// The shim of CUDA that a container's first process has mapped: its bytes.
    pub fn mapped_shim(&self, name: &str) -> Result<Vec<u8>> {
        let pid = self.booted.sh(&format!("docker inspect -f '{{{{.State.Pid}}}}' {name}"))?;
        let process = self.booted.path(&format!("/proc/{pid}"));
        let maps = fs::read_to_string(process.join("maps")).context(name)?;
        let range = maps.lines().find(|line| line.contains("/libcuda.so.1") && !line.contains("/dev/gpool/"));
        let range = range.and_then(|line| line.split(' ').next());
        let range = range.ok_or_else(|| Failure::new(format!("{name} has no shim mapped:\n{maps}")))?;
        // The kernel writes addresses here without leading zeros.
        let address = |text: &str| text.trim_start_matches('0').to_owned();
        let (start, end) = range.split_once('-').unwrap_or((range, ""));
        let file = process.join("map_files").join(format!("{}-{}", address(start), address(end)));
        fs::read(&file).context(file.display())
    }

    /// Fails unless another program in each opens the GPU and works with it. When systemd loads its units anew it makes
    /// the lists of devices anew, too.
    pub fn may_still_open_their_gpu(&self) -> Result<()> {
        for ((name, ..), _) in &self.containers {
            let said =
                self.booted.sh(&format!("docker exec {name} gpool-tenant --nvml --allocate-mib 10 --seconds 1"))?;
            events(&said).context(name)?;
        }
        Ok(())
    }

    /// Restarts one, and waits until its kernels execute.
    pub fn restart(&self, name: &str) -> Result<()> {
        self.booted.sh(&format!("docker restart -t 1 {name}"))?;
        self.still_run()
    }

    /// Takes one away, as a person does.
    pub fn stop(&mut self, name: &str) -> Result<()> {
        self.booted.sh(&format!("docker stop -t 1 {name} && docker rm -f {name}"))?;
        self.containers.retain(|((its, ..), _)| *its != name);
        Ok(())
    }
}
