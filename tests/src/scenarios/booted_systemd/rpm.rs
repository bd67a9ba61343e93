//! The .rpm, installed, upgraded and erased by rpm in a Debian. Its scripts run there as on a system that is made of such
//! packages; what the packages of such a system bring under other names is left to them.

use super::unit;
use crate::booted::{Booted, Packages, Share, Tenants};
use crate::failure::{Context, Result, ensure};
use std::fs;

/// rpm knows none of what dpkg has installed.
const RPM: &str = "rpm --nodeps";
const SIMULATED_GPU: &str = "gpool-simulated-gpu";
const TENANT: Share = ("tenant", "0.4", 400);
/// What a person writes into the configuration.
const WRITTEN: &str = "[lease]\nhold_ms = 4321\n";
const CONFIGURATION: &str = "/etc/gpool/config.toml";

/// The life of a host with the .rpm.
pub fn run(booted: &Booted, packages: &Packages) -> Result<()> {
    let daemon_json = booted.path("/etc/docker/daemon.json");
    fs::create_dir_all(booted.path("/etc/docker")).context("/etc/docker")?;
    fs::write(&daemon_json, super::life::DAEMON_JSON).context(daemon_json.display())?;
    booted.sh("systemctl restart docker")?;
    super::install(booted, &[packages.new_one(SIMULATED_GPU)], "--no-install-recommends")?;
    let earlier = bring(booted, packages.earlier_rpm())?;
    let said = booted.sh(&format!("{RPM} --install {earlier} 2>&1"))?;
    ensure(said.contains("gpool: no engine has been told of it"), || format!("rpm said {said}"))?;
    let pid = unit::wait_until_ready(booted, "0")?;
    is_as_packed(booted)?;
    booted.sh("systemctl is-enabled gpool-supervisor.service gpool-supervisor.socket && getent group gpool")?;
    booted.sh("gpool runtime configure --runtime docker && systemctl reload docker")?;
    let mut tenants = Tenants::start(booted, &[TENANT])?;
    tenants.go_on(None).context("with the .rpm")?;
    upgraded(booted, packages, &tenants, &pid)?;
    erased(booted, &tenants)?;
    tenants.stop(TENANT.0)
}

fn bring(booted: &Booted, (file, name): (std::path::PathBuf, String)) -> Result<String> {
    booted.bring(&file, &name)?;
    Ok(name)
}

/// Every file has the bytes, the mode, the owner and the time that the package says, but for what a person may change.
fn is_as_packed(booted: &Booted) -> Result<()> {
    let said = booted.sh(&format!("{RPM} --verify gpool 2>&1 || true"))?;
    ensure(said.is_empty(), || format!("rpm --verify says {said}"))?;
    for (path, mode) in [
        ("/usr/bin/gpool", "755:0:0"),
        ("/usr/sbin/gpool-supervisor", "755:0:0"),
        ("/usr/libexec/gpool/gpool-hook", "755:0:0"),
        ("/usr/lib/systemd/system/gpool-regions.socket", "644:0:0"),
        ("/usr/lib/gpool/550/libgpool-cuda.so", "644:0:0"),
        (CONFIGURATION, "644:0:0"),
    ] {
        let found =
            booted.sh(&format!("stat -c %a:%u:%g {path} && rpm --query --file {path} --queryformat '%{{NAME}}'"))?;
        ensure(found == format!("{mode}\ngpool"), || format!("{path} is {found}"))?;
    }
    let configuration = booted.sh("rpm --query --configfiles gpool")?;
    ensure(configuration == CONFIGURATION, || format!("rpm asks people of {configuration}"))
}

/// Another build over it: the container goes on, and what a person has written stays.
fn upgraded(booted: &Booted, packages: &Packages, tenants: &Tenants<'_>, pid: &str) -> Result<()> {
    fs::write(booted.path(CONFIGURATION), WRITTEN).context(CONFIGURATION)?;
    let leases = tenants.leases()?;
    let newer = bring(booted, packages.new_rpm())?;
    let said = booted.sh(&format!("{RPM} --upgrade {newer} 2>&1"))?;
    unit::wait_until_ready(booted, pid)?;
    let version = booted.sh("rpm --query gpool --queryformat '%{VERSION}'")?;
    ensure(version == env!("CARGO_PKG_VERSION"), || format!("{version} is installed, and rpm said {said}"))?;
    ensure(fs::read_to_string(booted.path(CONFIGURATION)).is_ok_and(|text| text == WRITTEN), || {
        "the upgrade has changed what a person wrote".to_owned()
    })?;
    booted.sh("systemctl is-active gpool-supervisor.socket && test -e /usr/libexec/gpool/gpool-hook")?;
    tenants.go_on(Some(&leases)).context("after rpm --upgrade")
}

/// It goes as Debian's package goes: engines forget it first, and containers go on.
fn erased(booted: &Booted, tenants: &Tenants<'_>) -> Result<()> {
    let said = booted.sh(&format!("{RPM} --erase gpool 2>&1"))?;
    for sentence in ["1 container(s) with a share go on", "docker knows the runtime gpool until it is restarted"] {
        ensure(said.contains(sentence), || format!("rpm said {said}"))?;
    }
    let daemon_json = fs::read_to_string(booted.path("/etc/docker/daemon.json")).unwrap_or_default();
    ensure(daemon_json == super::life::DAEMON_JSON, || format!("Docker's configuration is {daemon_json}"))?;
    let saved = fs::read_to_string(booted.path(&format!("{CONFIGURATION}.rpmsave")));
    ensure(saved.is_ok_and(|text| text == WRITTEN), || "what a person wrote is gone".to_owned())?;
    booted.sh("! systemctl --quiet is-active gpool-supervisor.service && test -x /usr/bin/gpool-runtime")?;
    // What the package of the simulated GPU has there is not the .rpm's.
    let left = booted
        .sh("find /usr /etc -xdev -name '*gpool*' -not -path '*gpool-simulated-gpu*' -not -name '*gpool-simgpu*' \
         -not -name gpool-tenant -not -name '*.service.d' | sort")?;
    ensure(left == "/etc/gpool\n/usr/bin/gpool-runtime", || format!("left are {left}"))?;
    tenants.still_run()
}
