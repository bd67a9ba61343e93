//! The packages removed while containers run, then purged.

use super::life::DAEMON_JSON;
use crate::booted::{Booted, Tenants};
use crate::failure::{Result, ensure};
use std::fs;

/// What of gpool's is in a system.
const FIND: &str = "find / -xdev \\( -name '*gpool*' -o -path '*/oci/hooks.d/*' \\) -not -path '/proc/*' \
                    -not -path '/root/*' -not -path '/var/lib/docker/*' -not -path '/var/lib/dpkg/*' \
                    -not -path '/old-root*' | sort; ls -d /run/gpool /etc/gpool 2> /dev/null || true";

/// A file by which no dockerd here is started, and which is told of gpool all the same.
const OTHER_FILE: &str = "/opt/daemon.json";

/// What was there before gpool.
#[derive(Debug)]
pub struct Clean {
    files: String,
}

impl Clean {
    /// Notes it.
    pub fn note(booted: &Booted) -> Result<Self> {
        Ok(Self { files: booted.sh(FIND)? })
    }

    /// Purges, and fails if anything is there that was not before.
    pub fn is_there_again(&self, booted: &Booted) -> Result<()> {
        booted.sh("apt-get -qq purge -y gpool gpool-simulated-gpu 2>&1")?;
        let files = booted.sh(FIND)?;
        ensure(files == self.files, || format!("before gpool there was\n{}\nand after it\n{files}", self.files))?;
        let mounts = booted.sh("awk '$5 ~ /gpool/' /proc/self/mountinfo")?;
        ensure(mounts.is_empty(), || format!("mounts are left: {mounts}"))
    }
}

/// A removal that is given up, by the scripts as dpkg calls them for it: engines know gpool as before, and it serves.
fn given_up(booted: &Booted) -> Result<()> {
    const HOOK: &str = "/usr/share/gpool/oci-hooks.d/50-gpool.json";
    booted.sh(&format!("gpool runtime configure --runtime docker --config {OTHER_FILE}"))?;
    let told = booted.sh("gpool runtime status --format csv")?;
    ensure(told.matches("docker,yes,configured,").count() == 2, || format!("engines are told {told}"))?;
    booted.sh(&format!("/var/lib/dpkg/info/gpool.prerm remove 2>&1 && test ! -e {HOOK} && test ! -e {OTHER_FILE}"))?;
    booted.sh("gpool runtime status --runtime docker --format csv | grep -q 'not configured'")?;
    booted.sh(&format!("/var/lib/dpkg/info/gpool.postinst abort-remove 2>&1 && test -e {HOOK}"))?;
    let again = booted.sh("gpool runtime status --format csv")?;
    ensure(again == told, || format!("engines were told {told} and now {again}"))?;
    booted
        .sh("test ! -e /var/lib/gpool/before-removal && systemctl --quiet is-active gpool-supervisor.service")
        .map(drop)
}

/// A dockerd that was not restarted calls what is left, which makes containers without a share alone.
fn still_called(booted: &Booted) -> Result<()> {
    booted.sh("docker run --rm --runtime=gpool debian:12 true")?;
    let asks =
        booted.run(&["docker", "run", "--rm", "--runtime=gpool", "-e", "GPOOL_FRACTION=0.1", "debian:12", "true"])?;
    let said = String::from_utf8_lossy(&asks.stderr).into_owned();
    ensure(!asks.status.success() && said.contains("gpool was removed from this host"), || {
        format!("with a share docker said {said}")
    })
}

/// Removes gpool while containers run, and purges it: they go on and can be stopped, Docker's configuration is as it was, and
/// nothing calls what is gone. What Docker stops them by stays until nobody calls it.
pub fn removed(booted: &Booted, tenants: &mut Tenants<'_>) -> Result<()> {
    given_up(booted)?;
    // What stands goes on, also where no supervisor runs: nobody could let it after that.
    booted
        .sh("gpool pause $(docker inspect -f '{{.Id}}' small newcomer) && systemctl stop gpool-supervisor.service")?;
    let said = booted.sh("apt-get -qq remove -y gpool 2>&1")?;
    ensure(!said.contains("stand until they are stopped"), || format!("apt said {said}"))?;
    for sentence in ["3 container(s) with a share go on", "docker knows the runtime gpool until it is restarted"] {
        ensure(said.contains(sentence), || format!("apt said {said}"))?;
    }
    let file = booted.path("/etc/docker/daemon.json");
    let text = fs::read_to_string(&file).unwrap_or_default();
    ensure(text == DAEMON_JSON, || format!("Docker's configuration is {text}"))?;
    booted.sh("test ! -e /usr/share/gpool/oci-hooks.d/50-gpool.json && test ! -e /usr/sbin/gpool-supervisor")?;
    booted.sh(&format!("test ! -e {OTHER_FILE}"))?;
    booted.sh("! systemctl --quiet is-active gpool-supervisor.service && docker run --rm debian:12 true")?;
    super::device_plugin::is_gone(booted)?;
    super::gpu_tests::is_gone(booted)?;
    super::overflow::is_gone(booted)?;
    tenants.still_run()?;
    tenants.stop("small")?;
    still_called(booted)?;
    let said = booted.sh("apt-get -qq purge -y gpool 2>&1")?;
    ensure(said.contains("/usr/bin/gpool-runtime stays"), || format!("apt said {said}"))?;
    for name in ["large", "newcomer"] {
        tenants.stop(name)?;
    }
    booted.sh("systemctl restart docker && test -x /usr/bin/gpool-runtime && rm /usr/bin/gpool-runtime")?;
    let unknown = booted.run(&["docker", "run", "--rm", "--runtime=gpool", "debian:12", "true"])?;
    ensure(!unknown.status.success(), || "Docker still knows the runtime".to_owned())
}
