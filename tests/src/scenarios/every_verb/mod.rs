//! A container without a request, led through its whole life by the low-level runtime itself and by gpool-runtime in
//! front of it: the same words, exit status and traces, with the supervisor stopped and gpool's configuration missing, and a
//! thousand exec probes that nothing writes down.

mod life;
mod probes;

use super::finish;
use crate::cgroups;
use crate::failure::{Context, Result, ensure};
use crate::host::Host;
use crate::namespaces::Inside;
use life::{Answer, Bundle};
use std::fs;
use std::path::Path;

const RUNC: &str = "/usr/sbin/runc";
const CRUN: &str = "/usr/bin/crun";
const CONFIGURATION: &str = "/etc/gpool";

/// runc without a configuration, crun with one that names it, and then the probes with everything running.
pub fn run(inside: &Inside) -> Result<()> {
    let crun = format!("[runtime]\nlow_level = [\"{CRUN}\"]\n");
    let mut host = Host::start_without_supervisor(inside, &crun)?;
    let outcome = lead(&mut host, &inside.cgroup_parent);
    finish(host, outcome)
}

fn lead(host: &mut Host, cgroup_parent: &str) -> Result<()> {
    let bundle = Bundle::lay_out(host, cgroup_parent)?;
    let kept = format!("{CONFIGURATION}.kept");
    fs::rename(CONFIGURATION, &kept).context(CONFIGURATION)?;
    let without = same_as(host, &bundle, RUNC).context("without a configuration");
    fs::rename(&kept, CONFIGURATION).context(CONFIGURATION)?;
    without?;
    cgroups::hide_unified()?;
    same_as(host, &bundle, CRUN).context("with the supervisor stopped")?;
    probes::leave_no_trace(host, &bundle, CRUN)
}

/// Leads one container by `low_level` and one by gpool-runtime, which has it behind it.
fn same_as(host: &Host, bundle: &Bundle, low_level: &str) -> Result<()> {
    let wrapper = host.stage.program("gpool-runtime");
    // Other verbs follow the choice that the last creation has made, also one that fails.
    bundle.call(&wrapper, &["create", "--bundle", "/run/gpool-verbs/absent", life::ID])?;
    let plain = bundle.lead(Path::new(low_level))?;
    let wrapped = bundle.lead(&wrapper)?;
    let succeeded = plain.iter().filter(|answer| answer.status == Some(0)).count();
    println!("    {low_level}: {} calls, of which {succeeded} succeed", plain.len());
    // A life in which nothing works compares nothing.
    ensure(succeeded >= 14, || format!("under plain {low_level} only these succeed: {plain:#?}"))?;
    ensure(wrapped.len() == plain.len(), || "not as many calls".to_owned())?;
    let differ = |pair: &(&Answer, &Answer)| pair.0 != pair.1;
    match plain.iter().zip(&wrapped).find(differ) {
        None => Ok(()),
        Some((plain, wrapped)) => ensure(false, || format!("{low_level}: {plain:#?}\nwith gpool: {wrapped:#?}")),
    }
}
