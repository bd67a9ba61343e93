//! What binds a program that changes the variables that it was started with, and what does not.

use super::daemons::{process_of, said_to};
use super::{asks, busy_ns, finds_its_daemon, parts, wait_for, wait_for_work};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host};
use crate::meter::usage_of;
use gpool_protocol::EventKind;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

/// A container of another team and of a user without root, whose program gives itself all threads and all memory. Its server gives no more than the
/// largest of its containers has.
pub fn of_who_says_otherwise(host: &Host, team_gpu: u32) -> Result<Container> {
    let command = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100 CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20G gpool-tenant --kernel-us \
                   1000; sleep 1000";
    let other =
        host.run_container("other", &asks("speech", "0.2", "2GiB"), &["--user", "1000"], &["sh", "-c", command])?;
    let gpu = wait_for_work(host, &other)?;
    ensure(gpu != team_gpu, || "two teams are on one GPU".to_owned())?;
    let part = parts(host, gpu, &[&other])?[0];
    ensure((0.2..0.25).contains(&part), || format!("a program that says 100 % has {part:.2} of the GPU, not 0.24"))?;
    let held = usage_of(&host.meter_of(gpu)?.read()?, &other.id).bytes_peak;
    ensure(held <= 2 << 30, || format!("a program that says 20 GiB has held {held} bytes"))?;
    wait_for("its server", || Ok(process_of("speech", "server").is_ok()))?;
    let server = format!("/proc/{}", process_of("speech", "server")?);
    let uid = std::fs::metadata(&server).context(&server)?.uid();
    ensure(uid == 1000, || format!("its server is of user {uid}"))?;
    finds_its_daemon(host, "other")?;
    is_closed_to_others()?;
    Ok(other)
}

/// What the server and its clients share is in the reach of their user, and of no other one of this host.
fn is_closed_to_others() -> Result<()> {
    let groups = fs::read_dir("/run/gpool/mps").context("/run/gpool/mps")?.flatten().map(|entry| entry.path());
    let is_speech =
        |folder: &PathBuf| fs::read_to_string(folder.join("group.json")).is_ok_and(|text| text.contains("\"speech\""));
    let group = groups.into_iter().find(is_speech).ok_or_else(|| Failure::new("the team has no folder".to_owned()))?;
    let reaches = |uid: &str, test: &str, place: &str| -> Result<bool> {
        let user = [format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".to_owned()];
        let mut command = Command::new("setpriv");
        command.args(user).args(["test", test]).arg(group.join("shared").join(place));
        Ok(command.status().context("setpriv")?.success())
    };
    for (test, place) in [("-w", "shm"), ("-x", "pipe")] {
        let seen = (reaches("1000", test, place)?, reaches("1001", test, place)?);
        ensure(seen == (true, false), || format!("test {test} {place} by its user and by another one: {seen:?}"))?;
    }
    Ok(())
}

/// A program that `docker exec` starts has none of the variables and is a client of the same server.
pub fn without_variables(host: &Host, other: &Container) -> Result<()> {
    let clients = || -> Result<usize> {
        let server = process_of("speech", "server")?;
        Ok(said_to(host, "speech", &format!("get_client_list {server}"))?.lines().count())
    };
    let before = (clients()?, host.events_of(EventKind::Bypass)?.len());
    let tenant = ["gpool-tenant", "--kernel-us", "1000", "--allocate-mib", "64", "--seconds", "5"];
    host.engine.docker_text(&[&["exec", "-d", "--user", "1000", "other"], &tenant[..]].concat())?;
    wait_for("another client", || Ok(clients()? == before.0 + 1))?;
    wait_for("its end", || Ok(clients()? == before.0))?;
    let is_found =
        host.lease_of(other)?.enforcement != "co-operative" || host.events_of(EventKind::Bypass)?.len() > before.1;
    ensure(!is_found, || "a client is said to go past its server".to_owned())
}

/// A program that names another place for its daemon goes past its server: nothing binds it there, and the guard tells of it.
pub fn past_the_server(host: &Host, other: &Container) -> Result<()> {
    let gpu = wait_for_work(host, other)?;
    let kept = ensure(host.lease_of(other)?.enforcement == "co-operative", || "it is said to be bypassed".to_owned());
    kept?;
    let before = busy_ns(host, gpu, other)?;
    let command = "CUDA_MPS_PIPE_DIRECTORY=/nowhere gpool-tenant --kernel-us 1000 --allocate-mib 64";
    host.engine.docker_text(&["exec", "-d", "other", "sh", "-c", command])?;
    wait_for("a bypass", || Ok(host.lease_of(other)?.enforcement == "bypassed"))?;
    wait_for("an event of it", || {
        let told = host.events_of(EventKind::Bypass)?.into_iter().next();
        Ok(told.is_some_and(|event| event.message.contains("past its MPS server")))
    })?;
    ensure(busy_ns(host, gpu, other)? > before, || "its work was not metered".to_owned())
}
