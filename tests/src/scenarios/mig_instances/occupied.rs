//! Somebody uses an instance, or a GPU, without a lease: nothing is taken from under it, and what is idle beside it stays.

use super::{instance, mig, profiles, said, shown, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Host, SIMULATED_GPU};
use gpool_simulated_hardware::model::ContextId;
use gpool_simulated_hardware::{Board, Layout, Store};
use std::process::{Child, Stdio};

/// No process has this pid: Linux gives none above 4,194,304. What it has on a device holds the device up, and nobody can tell
/// that it is there, as of one whose end the driver has not cleaned up yet.
const NOBODY: u32 = 4_999_999;

/// A program of the host on `device`, as CUDA calls it, that is ended with this.
struct HostJob(Child);

impl HostJob {
    fn start(host: &Host, device: &str) -> Result<Self> {
        let mut command = host.command("gpool-tenant");
        command.args(["--allocate-mib", "64", "--kernel-us", "500"]).env("CUDA_VISIBLE_DEVICES", device);
        command.env("LD_LIBRARY_PATH", format!("{SIMULATED_GPU}/lib")).stdout(Stdio::null());
        command.spawn().map(Self).context("gpool-tenant on the host")
    }

    fn end(mut self) -> Result<()> {
        self.0.kill().and_then(|()| self.0.wait()).map(drop).context("gpool-tenant on the host")
    }
}

impl Drop for HostJob {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// With the layout `mixed` and nobody there before and after.
pub fn without_a_lease(host: &Host) -> Result<()> {
    let before = shown(host)?.instances;
    let large = instance(host, "3g.40gb")?;
    let job = HostJob::start(host, &large.uuid.0)?;
    let pid = job.0.id().to_string();
    let is_there = |minor: u32, gpu_instance: Option<u32>| -> Result<bool> {
        Ok(!store(minor, gpu_instance)?.read(|device| device.processes()).context("the simulated GPU")?.is_empty())
    };
    wait_for("the program to be on the instance", || is_there(0, Some(large.gpu_instance)))?;
    said(&mig(host, "apply", "halves", &[])?, 4, &["GPOOL-E107", "without a lease", &pid, "--drain"])?;
    said(&mig(host, "apply", "halves", &["--drain", "1"])?, 4, &["GPOOL-E107", &pid])?;
    ensure(shown(host)?.instances == before, || format!("a refused layout has changed {before:?}"))?;
    let mut draining = host.command("gpool");
    draining.args(["mig", "apply", "--file", super::FILE, "--config", "halves", "--drain", "60"]);
    let draining = draining.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("gpool mig apply")?;
    job.end()?;
    said(&draining.wait_with_output().context("gpool mig apply")?, 0, &["3g.40gb"])?;
    said(&mig(host, "apply", "mixed", &[])?, 0, &["1g.10gb"])?;
    unseen_on_an_instance(host)?;
    without_compute(host)?;
    said(&mig(host, "apply", "whole", &[])?, 0, &["off"])?;
    let job = HostJob::start(host, "0")?;
    let pid = job.0.id().to_string();
    wait_for("the program to be on the GPU", || is_there(0, None))?;
    said(&mig(host, "apply", "mixed", &[])?, 4, &["GPOOL-E107", "without a lease", &pid])?;
    job.end()?;
    unseen_on_the_gpu(host)?;
    said(&mig(host, "apply", "mixed", &[])?, 0, &["1g.10gb"])
}

/// What the driver refuses half-way is undone: instances that are there still are left alone, the others made again.
fn unseen_on_an_instance(host: &Host) -> Result<()> {
    let (before, large) = (profiles(host)?, instance(host, "3g.40gb")?);
    let hidden = Hidden::on(Some(large.gpu_instance))?;
    let refused = mig(host, "apply", "seventh", &[])?;
    hidden.end()?;
    said(&refused, 4, &["GPOOL-E107", "3g.40gb stays", "it is again as it was before"])?;
    ensure(profiles(host)? == before, || format!("{before:?} has become {:?}", profiles(host)))?;
    ensure(instance(host, "3g.40gb")? == large, || "the instance that was used is another one".to_owned())
}

/// A GPU instance that no program can use is shown, is no lease's, and is made anew by who divides.
fn without_compute(host: &Host) -> Result<()> {
    let (layout, store, large) = (Layout::new(SIMULATED_GPU), store(0, None)?, instance(host, "3g.40gb")?);
    let board = Board { layout: &layout, minor: 0, store: &store };
    let taken = board.destroy_compute(large.gpu_instance);
    ensure(taken.is_ok(), || format!("{taken:?}"))?;
    wait_for("the instance to be no lease's", || Ok(profiles(host)? == ["1g.10gb", "1g.10gb", "2g.20gb"]))?;
    said(&host.gpool(&["mig", "show"])?, 0, &["(3g.40gb at 4) is not leased: it has no compute instance"])?;
    said(&mig(host, "drift", "mixed", &[])?, 10, &["3g.40gb with no compute instance", "yes"])?;
    said(&mig(host, "apply", "mixed", &[])?, 0, &["3g.40gb"])?;
    said(&mig(host, "drift", "mixed", &[])?, 0, &["no"])
}

/// A mode that has to wait is not left to come by itself later.
fn unseen_on_the_gpu(host: &Host) -> Result<()> {
    let hidden = Hidden::on(None)?;
    let refused = mig(host, "apply", "mixed", &[])?;
    let left = shown(host)?;
    hidden.end()?;
    said(&refused, 4, &["GPOOL-E107", "it waits for a reset", "it is again as it was before"])?;
    ensure(!left.enabled && !left.pending, || format!("after {refused:?} there is left {left:?}"))
}

fn store(minor: u32, gpu_instance: Option<u32>) -> Result<Store> {
    let opened = match gpu_instance {
        Some(id) => Store::open_instance(SIMULATED_GPU, (minor, id)),
        None => Store::open_device(SIMULATED_GPU, minor),
    };
    opened.context("the simulated GPU")
}

/// A context of [`NOBODY`] on the first GPU, or on an instance of it.
struct Hidden(Store, ContextId);

impl Hidden {
    fn on(gpu_instance: Option<u32>) -> Result<Self> {
        let store = store(0, gpu_instance)?;
        let made = store.update(|device, now_ns| device.create_context(now_ns, NOBODY, "/")).context("a context")?;
        let context = made.map_err(|_| Failure::new("the simulated GPU has no memory for a context"))?;
        Ok(Self(store, context))
    }

    fn end(self) -> Result<()> {
        self.0.update(|device, now_ns| device.destroy_context(now_ns, self.1)).context("a context")
    }
}
