//! A container that could take its shims away is refused, and where the host allows it, shown as what it is.

use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host, text};
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use std::fs;
use std::io::Write;

const REQUEST: [(&str, &str); 2] = [("GPOOL_FRACTION", "0.01"), ("GPOOL_MEMORY", "256MiB")];
/// A folder of the host whose name says nothing of gpool's, over which gpool's own is mounted.
const ALIAS: &str = "/srv/gpool-alias";
const UNCONFINED: [&[&str]; 8] = [
    &["--privileged"],
    &["--cap-add", "SYS_ADMIN"],
    &["--cap-add", "DAC_READ_SEARCH"],
    &["--pid", "host"],
    &["-v", "/run/gpool:/x"],
    &["-v", "/run/gpool-state:/x:ro"],
    &["-v", "/:/host:ro"],
    &["-v", "/srv/gpool-alias:/x"],
];

/// First refused, then allowed.
pub fn is_asked_for(host: &Host) -> Result<()> {
    fs::create_dir_all(ALIAS).context(ALIAS)?;
    mount_bind("/run/gpool", ALIAS).context(ALIAS)?;
    let outcome = first_refused_then_allowed(host);
    unmount(ALIAS, UnmountFlags::DETACH).context(ALIAS)?;
    outcome
}

fn first_refused_then_allowed(host: &Host) -> Result<()> {
    for options in UNCONFINED {
        let output = host.try_run_container("unconfined", &REQUEST, options, &["sleep", "1000"])?;
        host.engine.docker_text(&["rm", "-f", "unconfined"])?;
        let said = text(&output.stderr);
        ensure(!output.status.success() && said.contains("GPOOL-E105"), || format!("{options:?}: {said}"))?;
    }
    let path = "/etc/gpool/config.toml";
    let mut file = fs::OpenOptions::new().append(true).open(path).context(path)?;
    file.write_all(b"\n[policy]\nunenforced = true\n").context(path)?;
    for (options, level) in
        UNCONFINED.into_iter().map(|options| (options, "unenforced")).chain([(&[][..], "co-operative")])
    {
        let output = host.try_run_container("allowed", &REQUEST, options, &["sleep", "1000"])?;
        let said = text(&output.stderr);
        if said.contains("unable to apply caps") {
            println!("    skipped: this machine's root lacks capabilities that {options:?} gives");
            host.engine.docker_text(&["rm", "-f", "allowed"])?;
            continue;
        }
        ensure(output.status.success(), || format!("{options:?}: {said}"))?;
        let container = Container::inspect(&host.engine, "allowed")?;
        let lease = host.lease_of(&container)?;
        let shown = text(&host.gpool(&["ps"])?.stdout);
        host.engine.docker_text(&["rm", "-f", "allowed"])?;
        ensure(lease.enforcement == level, || format!("{options:?} is shown as {}", lease.enforcement))?;
        ensure(shown.contains(level), || format!("{options:?}: gpool ps does not say {level}:\n{shown}"))?;
    }
    Ok(())
}
