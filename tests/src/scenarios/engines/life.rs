//! What everybody does with a container, whichever engine it is: the same for each of them.

use super::{Client, wait_for_end, wait_for_lease};
use crate::failure::{Result, ensure};
use crate::host::{Container, Host};
use crate::meter::usage_of;
use crate::tenant::report;

/// Cap of the containers that are led through this.
pub const CAP: &str = "2GiB";
const CAP_BYTES: u64 = 2 << 30;

/// A tenant that leaves room below the cap for a second process.
pub const COMMAND: [&str; 6] = ["gpool-tenant", "--nvml", "--kernel-us", "300", "--allocate-mib", "256"];

/// A program that is executed in the container has its share and cap; restarts, kills, stops and a forced removal end a
/// lease and begin the next.
pub fn lead(host: &Host, client: &Client<'_>, name: &str) -> Result<()> {
    let first = client.container(name)?;
    let lease = wait_for_lease(host, &first)?;
    ensure(lease.memory_cap_bytes == CAP_BYTES, || format!("{name}: the cap is {}", lease.memory_cap_bytes))?;
    check_second_process(host, client, &first)?;

    client.text(&["restart", "-t", "0", name])?;
    let second = client.container(name)?;
    let again = wait_for_lease(host, &second)?;
    ensure(again.lease_id != lease.lease_id, || format!("{name}: the lease outlived a restart"))?;
    ensure(!first.is_alive(), || format!("{name}: the first init is still there"))?;

    client.text(&["kill", name])?;
    wait_for_end(host, &second)?;
    client.text(&["start", name])?;
    let third = client.container(name)?;
    wait_for_lease(host, &third)?;
    client.text(&["stop", "-t", "0", name])?;
    wait_for_end(host, &third)?;
    client.text(&["start", name])?;
    let fourth = client.container(name)?;
    wait_for_lease(host, &fourth)?;
    client.text(&["rm", "-f", name])?;
    wait_for_end(host, &fourth)
}

fn check_second_process(host: &Host, client: &Client<'_>, container: &Container) -> Result<()> {
    let greedy = ["exec", &container.name, "gpool-tenant", "--nvml", "--kernel-us", "300", "--seconds", "1"];
    let seen = report(&client.text(&greedy)?)?;
    let totals = (seen.cuda_total_bytes, seen.nvml_total_bytes);
    ensure(totals == (CAP_BYTES, CAP_BYTES), || format!("{}: sees {totals:?} bytes", container.name))?;
    let peak = usage_of(&host.meter()?.read()?, &container.id).bytes_peak;
    let is_full = (CAP_BYTES / 2..=CAP_BYTES).contains(&peak);
    ensure(is_full, || format!("{}: both processes held {peak} bytes of a cap of {CAP_BYTES}", container.name))
}
