//! What gpool-runtime adds to each verb that it passes on, and to the creation of a container, beside runc and crun.

use super::bundle::{Bundle, CRUN, RUNC};
use super::runtime::{Pairs, added, in_turn, median_added};
use super::sheet::Sheet;
use crate::failure::{Context, Result};
use crate::host::Host;
use std::fs;
use std::path::Path;

/// Pairs of each verb in one round.
const PAIRS: usize = 25;
const ID: &str = "verbs";
const CONFIGURATION: &str = "/etc/gpool/config.toml";
const UNIFIED: &str = "/sys/fs/cgroup/unified";
/// Each is one measurement: calls that undo each other are measured together.
const VERBS: [&[&[&str]]; 6] = [
    &[&["state", ID]],
    &[&["list"]],
    &[&["ps", ID]],
    &[&["exec", ID, "true"]],
    &[&["pause", ID], &["resume", ID]],
    &[&["update", "--pids-limit", "100", ID]],
];
const REQUEST: [&str; 2] = ["GPOOL_FRACTION=0.01", "GPOOL_MEMORY=64MiB"];

/// All verbs of runc.
pub fn of_runc(host: &Host, cgroup_parent: &str, sheet: &mut Sheet) -> Result<()> {
    let (unasked, plain) = bundles(host, cgroup_parent, RUNC, &[])?;
    verbs(&unasked, &plain, "runc", "runtime.verbs_added", sheet)
}

/// All verbs of crun, and its `create`.
pub fn of_crun(host: &Host, cgroup_parent: &str, sheet: &mut Sheet) -> Result<()> {
    let before = fs::read_to_string(CONFIGURATION).context(CONFIGURATION)?;
    let with_crun = format!("{before}\n[runtime]\nlow_level = [\"{CRUN}\"]\n");
    fs::write(CONFIGURATION, with_crun).context(CONFIGURATION)?;
    // crun does not run beside a second hierarchy that has a controller; runc and docker go on with it afterwards.
    let hidden = Path::new(UNIFIED)
        .is_dir()
        .then(|| rustix::mount::mount("tmpfs", UNIFIED, "tmpfs", rustix::mount::MountFlags::empty(), c"mode=755"));
    let measured = with(host, cgroup_parent, sheet);
    if hidden.is_some_and(|mounted| mounted.is_ok()) {
        rustix::mount::unmount(UNIFIED, rustix::mount::UnmountFlags::empty()).context(UNIFIED)?;
    }
    fs::write(CONFIGURATION, before).context(CONFIGURATION)?;
    measured
}

fn with(host: &Host, cgroup_parent: &str, sheet: &mut Sheet) -> Result<()> {
    let (leased, plain) = bundles(host, cgroup_parent, CRUN, &REQUEST)?;
    let create = |bundle: &Bundle, id: &str| {
        bundle.renew(id, &["sleep", "1000"])?;
        let elapsed = bundle.time("create", id)?;
        bundle.delete(id)?;
        Ok(elapsed)
    };
    let pairs = in_turn(PAIRS, "crun", |id| create(&leased, id), |id| create(&plain, id))?;
    added(sheet, "runtime.create_added_crun", &pairs)?;
    let (unasked, plain) = bundles(host, cgroup_parent, CRUN, &[])?;
    verbs(&unasked, &plain, "crun", "runtime.verbs_added_crun", sheet)
}

fn bundles(host: &Host, cgroup_parent: &str, low_level: &str, env: &[&str]) -> Result<(Bundle, Bundle)> {
    let (wrapper, low_level) = (host.stage.program("gpool-runtime"), Path::new(low_level));
    let own = Bundle::new(host, "verbs-own", &wrapper, low_level, cgroup_parent, env)?;
    Ok((own, Bundle::new(host, "verbs-plain", low_level, low_level, cgroup_parent, &[])?))
}

/// The figure is that of the verb to which most is added; each is told.
fn verbs(own: &Bundle, plain: &Bundle, name: &str, figure: &str, sheet: &mut Sheet) -> Result<()> {
    // By the wrapper, so that it knows whom it has behind it.
    own.renew(ID, &["sleep", "1000"])?;
    own.time("create", ID)?;
    let mut worst: Option<(f64, Pairs)> = None;
    for calls in VERBS {
        let time = |bundle: &Bundle| calls.iter().map(|words| bundle.time_call(words)).sum::<Result<_>>();
        let pairs = in_turn(PAIRS, "verb", |_| time(own), |_| time(plain))?;
        let (added, native) = median_added(&pairs);
        println!("    {name} {}: {added:.2} ms added to {native:.2} ms", calls[0][0]);
        if worst.as_ref().is_none_or(|(most, _)| added > *most) {
            worst = Some((added, pairs));
        }
    }
    plain.delete(ID)?;
    worst.map_or(Ok(()), |(_, pairs)| super::runtime::added(sheet, figure, &pairs))
}
