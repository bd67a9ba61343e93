//! A file of the configuration with a mistake: it is told, and a supervisor that is started meanwhile begins with what served before.

use super::{finish, is_refused, said, wait_for};
use crate::failure::{Context, Result, ensure};
use crate::host::{Host, STATE, succeeded, text};
use crate::namespaces::Inside;
use gpool_protocol::{ConfigurationView, EventKind};
use std::fs;
use std::path::Path;

const DROP_IN: &str = "/etc/gpool/conf.d/50-mistake.toml";
const MISTAKE: &str = "[queue]\nplacess = 3\n";
const ASKS: [(&str, &str); 2] = [("GPOOL_FRACTION", "0.2"), ("GPOOL_MEMORY", "1GiB")];

/// Has a container run, and the supervisor be killed beside such a file.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 1, "[queue]\nplaces = 7\n")?;
    let outcome = all(&mut host);
    finish(host, outcome)
}

fn all(host: &mut Host) -> Result<()> {
    let container = host.run_container("first", &ASKS, &[], &["sleep", "600"])?;
    let lease = host.lease_of(&container)?.lease_id;
    let written = Path::new(STATE).join("configuration.json");
    wait_for("what was taken over to be written down", || Ok(written.exists()))?;
    ensure(usable(host)? == "1", || "good files cannot be used".to_owned())?;

    fs::create_dir_all("/etc/gpool/conf.d").context("conf.d")?;
    fs::write(DROP_IN, MISTAKE).context(DROP_IN)?;
    wait_for("the mistake to be found without anybody's asking", || Ok(usable(host)? == "0"))?;
    let told = host.events_of(EventKind::ConfigurationRefused)?;
    ensure(told.len() == 1 && told[0].message.contains("placess"), || format!("it was told {told:?}"))?;

    host.kill_supervisor()?;
    host.start_supervisor()?;
    ensure(host.lease_of(&container)?.lease_id == lease, || "the lease is another one".to_owned())?;
    let view: ConfigurationView = host.client().get("/v1/configuration")?;
    ensure(view.keys.get("queue.places").is_some_and(|places| places == "7"), || format!("in force is {view:?}"))?;
    ensure(view.unusable.is_some_and(|why| why.contains("placess")), || "it does not say so".to_owned())?;
    wait_for("that to be told", || Ok(!host.events_of(EventKind::ConfigurationRefused)?.is_empty()))?;
    ensure(usable(host)? == "0", || "the metric does not say so".to_owned())?;
    is_refused(host, &ASKS, &["GPOOL-E004", "placess"])?;
    said(&host.gpool(&["config", "reload"])?, 78, &["GPOOL-E004", "placess"])?;
    said(&host.gpool(&["update", &container.id, "--fraction", "0.3"])?, 0, &[&container.id])?;

    // Whoever only looks is told, and so is who has nothing to begin with.
    let checked = host.command("gpool-supervisor").arg("--check-config").output().context("gpool-supervisor")?;
    ensure(checked.status.code() == Some(78), || format!("--check-config ended with {}", checked.status))?;
    fs::remove_file(&written).context("configuration.json")?;
    let started = host.command("gpool-supervisor").output().context("gpool-supervisor")?;
    ensure(started.status.code() == Some(78) && text(&started.stderr).contains("placess"), || {
        format!("a supervisor without any configuration ended with {}", started.status)
    })?;

    fs::remove_file(DROP_IN).context(DROP_IN)?;
    succeeded("gpool config reload", host.gpool(&["config", "reload"])?)?;
    ensure(usable(host)? == "1", || "the files count as unusable still".to_owned())?;
    wait_for("it to be written down again", || Ok(written.exists()))?;
    host.run_container("second", &ASKS, &[], &["sleep", "600"]).map(drop)
}

/// What the metric says.
fn usable(host: &Host) -> Result<String> {
    let page = text(&host.gpool(&["metrics"])?.stdout);
    let figure = page.lines().find_map(|line| line.strip_prefix("gpool_configuration_usable "));
    Ok(figure.unwrap_or("nothing").to_owned())
}
