//! Who has its answers waited for is put beside short kernels where there is room, and elsewhere where there is none.

use super::{finish, said, wait_for, wait_until_running};
use crate::failure::{Result, ensure};
use crate::host::{Host, succeeded};
use crate::namespaces::Inside;
use crate::tenant::Tenant;
use gpool_protocol::GpuView;

const LONG_US: u64 = 100_000;
const SHORT_US: u64 = 1000;
/// What the table calls coarse.
const COARSE_NS: u64 = 20_000_000;

/// Has long kernels on one GPU and short ones on another.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start_with(inside, 2, "")?;
    let outcome = all(&host);
    finish(host, outcome)
}

fn all(host: &Host) -> Result<()> {
    let on = |device: &'static str, share: &'static str| {
        [("GPOOL_FRACTION", share), ("GPOOL_MEMORY", "1GiB"), ("GPOOL_DEVICE", device)]
    };
    let tenant = |kernel_us| Tenant { allocate_mib: Some(256), ..Tenant::greedy(kernel_us) };
    let long = tenant(LONG_US).run(host, "long", &on("0", "0.5"))?;
    tenant(SHORT_US).run(host, "short", &on("1", "0.3"))?;
    let [first, second] = gpus(host)?.map(|gpu| gpu.uuid.0);
    wait_for("it to be known how long kernels are of who has a GPU to itself", || {
        let [long_ns, short_ns] = gpus(host)?.map(|gpu| gpu.kernel_ns);
        Ok(long_ns > 4 * COARSE_NS && (1..COARSE_NS).contains(&short_ns))
    })?;

    let limited = host.gpool(&["update", &long.id, "--limit", "0.5"])?;
    ensure(limited.stderr.is_empty(), || "a limit of a half is far apart for kernels of 100 ms".to_owned())?;
    let limited = host.gpool(&["update", &long.id, "--fraction", "0.05", "--limit", "0.05"])?;
    let warning = crate::host::text(&limited.stderr);
    ensure(warning.contains("with a limit of 5 % it is ") && warning.contains(" s from one to the next"), || {
        format!("of a limit below a kernel it is said {warning:?}")
    })?;
    succeeded("gpool update", host.gpool(&["update", &long.id, "--fraction", "0.5", "--no-limit"])?)?;

    // The first one is fuller, so everybody else goes there.
    let granted = |request: &str, gpu: &str| {
        said(&host.gpool(&["explain", "--request", request])?, 0, &["now      granted", gpu])
    };
    let asks = "fraction=0.3,memory=1GiB";
    granted(asks, &format!("1GiB of {first},"))?;
    granted(&format!("{asks},class=latency"), &format!("1GiB of {second},"))?;
    let of_service = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "1GiB"), ("GPOOL_CLASS", "latency")];
    let service = tenant(SHORT_US).run(host, "service", &of_service)?;
    let lease = host.lease_of(&service)?;
    ensure(lease.gpu_uuid.0 == second, || format!("it is beside long kernels, on {}", lease.gpu_uuid))?;

    // Where there is no other room it is there all the same, however tight its promise.
    let asks = "fraction=0.5,memory=1GiB,class=latency";
    granted(asks, &format!("1GiB of {first},"))?;
    granted(&format!("{asks},mode=auto,p99=20ms"), &format!("1GiB of {first},"))?;

    // Beside others they are measured one by one.
    let beside = tenant(SHORT_US).run(host, "beside", &on("0", "0.1"))?;
    wait_until_running(host, std::slice::from_ref(&beside))?;
    std::thread::sleep(std::time::Duration::from_secs(8));
    let [long_ns, _] = gpus(host)?.map(|gpu| gpu.kernel_ns);
    ensure(long_ns > 4 * COARSE_NS, || format!("the longest kernels beside others are of {long_ns} ns"))?;
    granted("fraction=0.2,memory=1GiB,class=latency", &format!("1GiB of {second},"))
}

fn gpus(host: &Host) -> Result<[GpuView; 2]> {
    let mut gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
    gpus.sort_by_key(|gpu| gpu.index);
    gpus.try_into().map_err(|_| crate::failure::Failure::new("there are not two GPUs"))
}
