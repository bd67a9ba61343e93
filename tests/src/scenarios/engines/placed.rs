//! Pods that the scheduler of a cluster has placed on a GPU itself. Of KAI and HAMi there is what they write into a container, as a
//! kubelet hands it to containerd; neither runs here.

use super::life::COMMAND;
use super::pods::{HANDLER, image_name};
use super::{check_shares_of, wait_for_end, wait_for_lease, wait_for_room};
use crate::failure::{Failure, Result, ensure};
use crate::host::{Container, Cri, Extras, Host, Pod};
use crate::namespaces::Inside;
use crate::scenarios::{finish, reload_with};
use crate::tenant::report;
use gpool_protocol::{GpuView, LeaseView};
use std::fs;

/// GPUs of the host.
const GPUS: u32 = 2;
/// What the driver keeps of each, which NVML shows and nobody can have.
const RESERVED: &str = "615MiB";
const KAI: &str = "[policy]\nplaced_by = \"kai\"\n";
const HAMI: &str = "[policy]\nplaced_by = \"hami\"\n";
/// What HAMi has every program of a container load.
const PRELOAD: &str = "/run/gpool-vgpu/ld.so.preload";

/// Makes pods as KAI places them, and as HAMi does.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start_with_gpus(inside, (GPUS, &["--reserved-memory", RESERVED]), KAI)?;
    let containerd = host.containerd_for_pods()?;
    let outcome = uuids(&host).and_then(|gpus| {
        let cluster = Cluster { host: &host, cri: containerd.cri(), gpus: &gpus };
        cluster.by_kai().and_then(|()| cluster.refused()).and_then(|()| cluster.by_hami())
    });
    if outcome.is_err() {
        eprint!("{}", containerd.log_end());
    }
    let stopped = containerd.stop();
    finish(host, outcome.and(stopped))
}

fn uuids(host: &Host) -> Result<Vec<String>> {
    let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
    Ok(gpus.into_iter().map(|gpu| gpu.uuid.0).collect())
}

/// A node, and what its scheduler knows of it.
struct Cluster<'a> {
    host: &'a Host,
    cri: Cri<'a>,
    gpus: &'a [String],
}

impl Cluster<'_> {
    fn pod(&self, name: &str, annotations: &[(&str, &str)]) -> Result<Pod> {
        self.cri.run_pod(name, HANDLER, annotations)
    }

    fn start(&self, pod: &Pod, name: &str, extras: Extras<'_>) -> Result<Container> {
        let id = self.cri.start_with(pod, name, &image_name(), &COMMAND, extras)?;
        let container = Container { name: name.to_owned(), init_pid: self.cri.init_pid(&id)?, id };
        wait_for_lease(self.host, &container)?;
        Ok(container)
    }

    /// As KAI's binder has it: the part of the GPU twice, under two names.
    fn start_by_kai(&self, pod: &Pod, gpu: usize, portion: &str) -> Result<Container> {
        let env = [
            ("NVIDIA_VISIBLE_DEVICES", self.gpus[gpu].as_str()),
            ("RUNAI_NUM_OF_GPUS", portion),
            ("GPU_PORTION", portion),
        ];
        self.start(pod, "web", Extras { env: &env, ..Extras::default() })
    }

    /// The lease of a container that is on that GPU and on no other.
    fn lease_on(&self, container: &Container, gpu: usize) -> Result<LeaseView> {
        let lease = self.host.lease_of(container)?;
        let on: Vec<&str> = lease.gpus.iter().map(|gpu| gpu.gpu_uuid.0.as_str()).collect();
        ensure(on == [self.gpus[gpu].as_str()], || format!("it was placed on GPU {gpu} and is on {on:?}"))?;
        Ok(lease)
    }

    fn by_kai(&self) -> Result<()> {
        let (first, second, third) = (self.pod("first", &[])?, self.pod("second", &[])?, self.pod("third", &[])?);
        let half = self.start_by_kai(&first, 1, "0.50")?;
        let lease = self.lease_on(&half, 1)?;
        ensure(lease.fraction_permille == 500, || format!("half a GPU was granted as {lease:?}"))?;
        // The part is one of the memory in KAI's own words, and gpool caps that.
        let greedy = ["gpool-tenant", "--nvml", "--kernel-us", "300", "--seconds", "1"];
        let seen = report(&self.cri.exec(&half.id, &greedy)?)?;
        let total = self.host.client().get::<Vec<GpuView>>("/v1/gpus")?[1].memory_total_bytes;
        ensure(seen.cuda_total_bytes == total / 2, || format!("it sees {} of {total} bytes", seen.cuda_total_bytes))?;
        let other = self.start_by_kai(&second, 1, "0.25")?;
        check_shares_of(self.host, 1, &[(&half, 0.5), (&other, 0.25)])?;
        // What is full is full, though another GPU is idle: KAI has counted otherwise.
        let said = self.refusal(&third, &[("NVIDIA_VISIBLE_DEVICES", &self.gpus[1]), ("GPU_PORTION", "0.50")])?;
        ensure(said.contains("[GPOOL-E201]"), || format!("half of a GPU of which a quarter is free: {said}"))?;
        // No place is kept: KAI has given the room to the next one already.
        self.cri.remove_pod(&first)?;
        wait_for_end(self.host, &half)?;
        let next = self.start_by_kai(&third, 1, "0.50")?;
        self.lease_on(&next, 1)?;
        [&second, &third].into_iter().try_for_each(|pod| self.cri.remove_pod(pod))?;
        [&other, &next].into_iter().try_for_each(|container| wait_for_end(self.host, container))?;
        wait_for_room(self.host)
    }

    /// What KAI does not give, and a container that has nothing of it.
    fn refused(&self) -> Result<()> {
        let visible = ("NVIDIA_VISIBLE_DEVICES", self.gpus[0].as_str());
        for (annotations, env, parts) in [
            (&[("gpool.io/memory", "100%")][..], [visible, ("GPU_PORTION", "0.1")], ["gpool.io/memory", "KAI"]),
            (&[], [("NVIDIA_VISIBLE_DEVICES", "all"), ("GPU_PORTION", "0.1")], ["NVIDIA_VISIBLE_DEVICES", "of which"]),
        ] {
            let pod = self.pod("refused", annotations)?;
            let said = self.refusal(&pod, &env)?;
            let is_told = said.contains("[GPOOL-E101]") && parts.iter().all(|part| said.contains(part));
            ensure(is_told, || format!("a pod that should have been told of {parts:?}: {said}"))?;
            self.cri.remove_pod(&pod)?;
        }
        let pod = self.pod("beside", &[])?;
        let env = [("NVIDIA_VISIBLE_DEVICES", "void"), ("GPU_PORTION", "0.5")];
        let extras = Extras { env: &env, ..Extras::default() };
        let id = self.cri.start_with(&pod, "log", &image_name(), &["sleep", "1000"], extras)?;
        let seen = self.cri.exec(&id, &["ls", "/dev"])?;
        let has_any = seen.contains("nvidia") || seen.contains("gpool") || !self.host.leases()?.is_empty();
        ensure(!has_any, || format!("a container to which KAI gives nothing has {seen}"))?;
        self.cri.remove_pod(&pod)
    }

    fn by_hami(&self) -> Result<()> {
        reload_with(self.host, HAMI)?;
        let folder = std::path::Path::new(PRELOAD).parent().unwrap_or(std::path::Path::new("/"));
        fs::create_dir_all(folder).and_then(|()| fs::write(PRELOAD, "/usr/local/vgpu/libvgpu.so\n"))?;
        let (first, second) = (self.pod("first", &[])?, self.pod("second", &[])?);
        let given = |memory: &'static str, cores: &'static str| {
            [
                ("NVIDIA_VISIBLE_DEVICES", self.gpus[1].as_str()),
                ("CUDA_DEVICE_MEMORY_LIMIT_0", memory),
                ("CUDA_DEVICE_SM_LIMIT", cores),
                ("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/usr/local/vgpu/5a.cache"),
            ]
        };
        // All that NVML shows is what HAMi gives who asks for none in particular, and more than there is.
        let total = self.host.client().get::<Vec<GpuView>>("/v1/gpus")?[1].memory_total_bytes;
        let shown = format!("{}m", (total >> 20) + 615);
        let all = self.pod("all", &[])?;
        let env = [
            ("NVIDIA_VISIBLE_DEVICES", self.gpus[1].as_str()),
            ("CUDA_DEVICE_MEMORY_LIMIT_0", shown.as_str()),
            ("CUDA_DEVICE_SM_LIMIT", "0"),
        ];
        let whole = self.start(&all, "web", Extras { env: &env, ..Extras::default() })?;
        let cap = self.lease_on(&whole, 1)?.memory_cap_bytes;
        ensure(cap <= total && cap >= total - (1 << 20), || format!("of {total} bytes it was granted {cap}"))?;
        self.cri.remove_pod(&all)?;
        wait_for_end(self.host, &whole)?;
        let (env, rest) = (given("3000m", "90"), given("1000m", "0"));
        let fitted = |mib: u64| {
            let shown = u128::from(total + (615 << 20));
            u64::try_from(u128::from(mib << 20) * u128::from(total) / shown).unwrap_or(0)
        };
        let mounts = [("/etc/ld.so.preload", PRELOAD)];
        let web = self.start(&first, "web", Extras { env: &env, mounts: &mounts })?;
        let lease = self.lease_on(&web, 1)?;
        let granted = (lease.fraction_permille, lease.memory_cap_bytes);
        ensure(granted == (900, fitted(3000)), || format!("90 cores and 3000 MiB were granted as {granted:?}"))?;
        let mounted = self.cri.exec(&web.id, &["cat", "/proc/self/mounts"])?;
        ensure(!mounted.contains("ld.so.preload"), || format!("another library is loaded as well: {mounted}"))?;
        // Without cores it has the least that there is, and does not stand still beside who has work for all of the GPU.
        let log = self.start(&second, "log", Extras { env: &rest, mounts: &mounts })?;
        let lease = self.lease_on(&log, 1)?;
        let granted = (lease.fraction_permille, lease.memory_cap_bytes);
        ensure(granted == (10, fitted(1000)), || format!("1000 MiB alone were granted as {granted:?}"))?;
        [&first, &second].into_iter().try_for_each(|pod| self.cri.remove_pod(pod))?;
        [&web, &log].into_iter().try_for_each(|container| wait_for_end(self.host, container))
    }

    /// What is said of a container that does not start.
    fn refusal(&self, pod: &Pod, env: &[(&str, &str)]) -> Result<String> {
        let extras = Extras { env, ..Extras::default() };
        match self.cri.start_with(pod, "web", &image_name(), &COMMAND, extras) {
            Ok(_) => Err(Failure::new(format!("a container with {env:?} was started"))),
            Err(failure) => Ok(failure.to_string()),
        }
    }
}
