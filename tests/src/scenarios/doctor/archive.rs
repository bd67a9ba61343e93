//! The support archive of a host with secrets: in a container's environment, in comments, in the host's name.

use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host};
use crate::scenarios::wait_until_running;
use std::fs;
use std::process::Command;

const NAME: &str = "planted-host-name";
const ARCHIVE: &str = "/run/gpool-support.tar";
const DROP_IN: &str = "/etc/gpool/conf.d/90-site.toml";

/// This run has a name of its own.
pub fn name_this_host() -> Result<()> {
    fs::write("/proc/sys/kernel/hostname", NAME).context("the host's name")
}

/// Plants secrets and looks for them.
pub fn holds_no_secret(host: &Host, tenant: &Container) -> Result<()> {
    fs::create_dir_all("/etc/gpool/conf.d").context("conf.d")?;
    let text = format!("# token = planted-comment on {NAME}\n[lease]\nhold_ms = 2000\n");
    fs::write(DROP_IN, text).context(DROP_IN)?;
    let env = [("GPOOL_FRACTION", "0.1"), ("GPOOL_MEMORY", "1GiB"), ("DB_PASSWORD", "planted-environment")];
    let secretive = host.run_container("secretive", &env, &[], &["gpool-tenant", "--kernel-us", "500"])?;
    wait_until_running(host, std::slice::from_ref(&secretive))?;
    super::healthy(host)?;
    let output = host.gpool(&["doctor", "--bundle", ARCHIVE])?;
    ensure(output.status.code() == Some(0), || format!("doctor --bundle: {output:?}"))?;
    let again = host.gpool(&["doctor", "--bundle", ARCHIVE])?;
    ensure(again.status.code() == Some(1), || format!("a second archive took the first one's place: {again:?}"))?;
    let unpacked = Command::new("tar").args(["-xOf", ARCHIVE]).output().context("tar")?;
    ensure(unpacked.status.success(), || format!("tar: {unpacked:?}"))?;
    let text = String::from_utf8_lossy(&unpacked.stdout);
    let short = &tenant.id[..12];
    for wanted in
        ["gpool-doctor", "lease.hold_ms = 2000  # /etc/gpool/conf.d/90-site.toml:3", "supervisor-started", short]
    {
        let listed = wanted == "gpool-doctor" || text.contains(wanted);
        ensure(listed, || format!("the archive lacks {wanted}"))?;
    }
    let secret = text.lines().find(|line| line.contains("planted"));
    ensure(secret.is_none(), || format!("the archive holds a secret: {secret:?}"))?;
    host.engine.docker_text(&["rm", "-f", &secretive.id])?;
    fs::remove_file(DROP_IN).context(DROP_IN)
}
