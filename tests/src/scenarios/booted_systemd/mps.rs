//! An MPS daemon under systemd: a unit of its own, which the supervisor starts and stops and does not take with it.

use super::unit;
use crate::booted::Booted;
use crate::failure::{Context, Result, ensure};

/// What allows it here; the environment asks, since Debian's docker has no annotations.
const CONFIGURATION: &str =
    "[policy]\\nmps = true\\n[policy.env]\\nallow = [\"fraction\", \"memory\", \"mode\", \"team\"]\\n";
/// Beside the configuration that the simulated GPU brings for the supervisor, and beside the wrapper's.
const PLACES: &str = "/usr/share/gpool-simulated-gpu/conf.d /etc/gpool/conf.d";
const UNITS: &str = "systemctl list-units --plain --no-legend 'gpool-mps@*.service'";

/// One container under a daemon, whose supervisor is killed, and nothing after it.
pub fn in_a_unit_of_its_own(booted: &Booted) -> Result<()> {
    let pid = unit::property(booted, "MainPID")?;
    booted.sh(&format!(
        "mkdir -p {PLACES} && for place in {PLACES}; do printf '{CONFIGURATION}' > $place/mps.toml || exit 1; done"
    ))?;
    booted.sh("systemctl restart gpool-supervisor")?;
    let pid = unit::wait_until_ready(booted, &pid)?;
    booted.sh("docker run -d --name mps --runtime=gpool -e GPOOL_MODE=mps -e GPOOL_TEAM=a -e GPOOL_FRACTION=0.5 \
         -e GPOOL_MEMORY=2GiB debian:12 gpool-tenant --kernel-us 1000 --allocate-mib 100")?;
    let works = "docker logs mps | tail -n 1 | grep -q progress";
    booted.wait_until(works).context("a container under an MPS daemon")?;
    let daemon = booted.sh(UNITS)?;
    ensure(daemon.contains("active running"), || format!("its unit: {daemon}"))?;
    booted.sh(&format!("kill -9 {pid}"))?;
    let pid = unit::wait_until_ready(booted, &pid)?;
    ensure(booted.sh(UNITS)? == daemon, || "the daemon has not outlived the supervisor".to_owned())?;
    let count = booted.sh("docker logs mps | wc -l")?;
    booted.wait_until(&format!("test $(docker logs mps | wc -l) -gt {count}")).context("it goes on")?;
    booted.sh("docker rm -f mps")?;
    booted
        .wait_until(&format!("test -z \"$({UNITS})\" && test -z \"$(ls /run/gpool/mps)\""))
        .context("the daemon's end")?;
    booted.sh(&format!(
        "for place in {PLACES}; do rm $place/mps.toml && rmdir $place; done && systemctl restart gpool-supervisor"
    ))?;
    unit::wait_until_ready(booted, &pid)?;
    booted.wait_until("test -z \"$(gpool ps --format json | grep '\"held\"')\"").context("its place is given up")
}
