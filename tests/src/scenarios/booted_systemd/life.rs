//! The supervisor restarted, killed, hung and replaced while containers run.

use super::{device_plugin, gpu_tests, overflow, unit};
use crate::booted::{Booted, Packages, Share, Tenants};
use crate::failure::{Context, Result, ensure};
use gpool_shared_region::VERSION;
use std::fs;

/// What the host's Docker was told before gpool came.
pub const DAEMON_JSON: &str = "{\n    \"log-level\": \"info\"\n}\n";
const FIRST: Share = ("first", "0.1", 100);
const SMALL: Share = ("small", "0.3", 300);
const LARGE: Share = ("large", "0.5", 500);
const NEWCOMER: Share = ("newcomer", "0.2", 200);

/// Installs the earlier packages and starts two containers.
pub fn installed<'a>(booted: &'a Booted, packages: &Packages) -> Result<Tenants<'a>> {
    let file = booted.path("/etc/docker/daemon.json");
    fs::create_dir_all(booted.path("/etc/docker")).context("/etc/docker")?;
    fs::write(&file, DAEMON_JSON).context(file.display())?;
    booted.sh("systemctl restart docker")?;
    let earlier = super::PACKAGES.map(|package| packages.earlier(package));
    let said = super::install(booted, &earlier, "")?;
    ensure(said.contains("gpool: no engine has been told of it"), || format!("apt said {said}"))?;
    ensure(fs::read_to_string(&file).is_ok_and(|text| text == DAEMON_JSON), || {
        "the installation has changed Docker's configuration".to_owned()
    })?;
    unit::wait_until_ready(booted, "0")?;
    unit::is_as_promised(booted)?;
    device_plugin::enabled(booted)?;
    gpu_tests::enabled(booted)?;
    overflow::enabled(booted)?;
    booted.sh("getent group gpool && test -e /usr/share/bash-completion/completions/gpool")?;
    booted.sh("gpool runtime configure --runtime docker && systemctl reload docker")?;
    let mut tenants = Tenants::start(booted, &[FIRST])?;
    unit::keeps(booted, 1)?;
    tenants.stop(FIRST.0)?;
    unit::keeps(booted, 0)?;
    booted.wait_until("test -z \"$(gpool ps --format json | grep '\"held\"')\"").context("its place is given up")?;
    super::suspension::under_the_unit(booted, FIRST)?;
    super::mps::in_a_unit_of_its_own(booted)?;
    [SMALL, LARGE].into_iter().try_for_each(|share| tenants.add(share))?;
    tenants.go_on(None)?;
    unit::keeps(booted, 2)?;
    Ok(tenants)
}

/// A restart, a kill, and a supervisor that is stopped by a signal and that the watchdog ends: each time another process
/// goes on with the same leases.
pub fn restarted(booted: &Booted, tenants: &Tenants<'_>) -> Result<()> {
    let leases = tenants.leases()?;
    booted.sh("systemctl daemon-reload")?;
    tenants.may_still_open_their_gpu().context("after systemctl daemon-reload")?;
    let mut pid = unit::property(booted, "MainPID")?;
    booted.sh("systemctl restart gpool-supervisor")?;
    pid = unit::wait_until_ready(booted, &pid)?;
    tenants.go_on(Some(&leases)).context("after systemctl restart")?;
    booted.sh(&format!("kill -9 {pid}"))?;
    pid = unit::wait_until_ready(booted, &pid)?;
    tenants.go_on(Some(&leases)).context("after kill -9")?;
    unit::keeps(booted, leases.len())?;
    watchdog(booted, 3)?;
    booted.sh("systemctl restart gpool-supervisor")?;
    pid = unit::wait_until_ready(booted, &pid)?;
    // Several times its patience: one that works is left alone.
    tenants.go_on(Some(&leases)).context("with an impatient watchdog")?;
    ensure(unit::property(booted, "MainPID")? == pid, || "the watchdog ended a supervisor at work".to_owned())?;
    booted.sh(&format!("kill -STOP {pid}"))?;
    pid = unit::wait_until_ready(booted, &pid)?;
    booted.sh("journalctl --boot --unit gpool-supervisor | grep -q 'Watchdog timeout'")?;
    tenants.go_on(Some(&leases)).context("after a hang")?;
    booted.sh("rm -r /run/systemd/system/gpool-supervisor.service.d && systemctl daemon-reload")?;
    booted.sh("systemctl restart gpool-supervisor")?;
    unit::wait_until_ready(booted, &pid).map(drop)
}

/// Another patience for the watchdog, so that nobody waits for the usual one.
fn watchdog(booted: &Booted, seconds: u32) -> Result<()> {
    let directory = "/run/systemd/system/gpool-supervisor.service.d";
    booted.sh(&format!(
        "mkdir -p {directory} && printf '[Service]\\nWatchdogSec={seconds}\\n' > {directory}/watchdog.conf && \
         systemctl daemon-reload"
    ))?;
    Ok(())
}

/// The packages of another build over those that run: containers keep the shim that they have, a new one gets the new
/// one, and the old build goes when its last container has ended.
pub fn upgraded(booted: &Booted, packages: &Packages, tenants: &mut Tenants<'_>) -> Result<()> {
    let leases = tenants.leases()?;
    let pid = unit::property(booted, "MainPID")?;
    let plugin = device_plugin::pid(booted)?;
    let old = tenants.mapped_shim(SMALL.0)?;
    super::install(booted, &super::PACKAGES.map(|package| packages.new_one(package)), "")?;
    unit::wait_until_ready(booted, &pid)?;
    tenants.go_on(Some(&leases)).context("after the upgrade")?;
    device_plugin::is_renewed(booted, &plugin)?;
    gpu_tests::is_kept(booted)?;
    overflow::is_kept(booted)?;
    unit::keeps(booted, leases.len())?;
    ensure(tenants.mapped_shim(SMALL.0)? == old, || "a container's shim has changed under it".to_owned())?;
    let builds = || -> Result<usize> { Ok(booted.sh("ls /usr/lib/gpool/builds | wc -l")?.parse().unwrap_or(0)) };
    let with_both = builds()?;
    tenants.add(NEWCOMER)?;
    ensure(tenants.mapped_shim(NEWCOMER.0)? != old, || "a new container got the old build".to_owned())?;
    tenants.go_on(None).context("old and new shims side by side")?;
    for share in [SMALL, LARGE] {
        tenants.restart(share.0)?;
        ensure(tenants.mapped_shim(share.0)? != old, || "a restarted container got the old build".to_owned())?;
    }
    booted.wait_until(&format!("test $(ls /usr/lib/gpool/builds | wc -l) -lt {with_both}"))?;
    tenants.go_on(None).context("after the old containers")
}

/// Back to the earlier packages: refused under a container that they could not take over, else as any upgrade.
pub fn downgraded(booted: &Booted, packages: &Packages, tenants: &Tenants<'_>) -> Result<()> {
    let leases = tenants.leases()?;
    let pid = unit::property(booted, "MainPID")?;
    let earlier = super::PACKAGES.map(|package| packages.earlier(package));
    let layout = |version: u32| {
        // The version of its region, which a running shim read when it started.
        booted.sh(&format!(
            "printf '\\{version:03o}' | dd of=$(ls -d /run/gpool/leases/*/region/control | head -1) bs=1 seek=8 \
             conv=notrunc status=none"
        ))
    };
    layout(99)?;
    let older = format!("./{}", earlier[0].1);
    let refused = booted.run(&["apt-get", "-qq", "install", "-y", "--allow-downgrades", &older])?;
    layout(VERSION)?;
    // apt gives what a package's script says on stderr to its own stdout.
    let sentence = crate::host::text(&[refused.stdout, refused.stderr].concat());
    let known = format!("a region of layout 99, and this version knows layouts up to {VERSION}");
    ensure(sentence.contains(&known), || {
        format!("an older gpool under a newer region: apt ended with {} and said {sentence}", refused.status)
    })?;
    let installed = booted.sh("dpkg-query -f '${Version} ${db:Status-Status}' -W gpool")?;
    ensure(installed == format!("{} installed", env!("CARGO_PKG_VERSION")), || {
        format!("after a refused downgrade dpkg has gpool {installed}")
    })?;
    ensure(unit::property(booted, "MainPID")? == pid, || "a refused downgrade ended the supervisor".to_owned())?;
    tenants.go_on(Some(&leases)).context("after the refused downgrade")?;
    super::install(booted, &earlier, "--allow-downgrades")?;
    unit::wait_until_ready(booted, &pid)?;
    tenants.go_on(Some(&leases)).context("after the downgrade")
}
