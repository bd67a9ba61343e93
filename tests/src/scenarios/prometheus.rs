//! The alarms and the dashboard that gpool ships, in a real Prometheus that scrapes a real supervisor: promtool finds nothing wrong with
//! the alarms and they go off for what they are there for and nothing else, a budget that is spent and a supervisor that is gone among
//! them; and every panel of the dashboard has something to show.

use super::{finish, reload_with, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Host, Program, succeeded};
use crate::manual;
use crate::namespaces::Inside;
use crate::tenant::Tenant;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

const CONFIGURATION: &str = "[policy.env]\nallow = [\"fraction\", \"memory\", \"team\", \"class\", \"p99\"]\n\
    [reservation.example]\nteams = [\"vision\"]\nfraction = \"0.1\"\nmemory = \"1GiB\"\n";
/// Four seconds of a GPU in a month.
const QUOTA: &str = "[quota.team.vision]\ngpus = 1\ngpu_hours = \"0.001/month\"\n";
const ALARMS: &str = "configs/prometheus/gpool-alerts.yml";
const DASHBOARD: &str = "configs/grafana/gpool.json";
/// As the administrator's guide has it.
const RELAY: [&str; 2] = ["TCP-LISTEN:9877,bind=127.0.0.1,fork", "UNIX-CONNECT:/run/gpool/gpool.sock"];
const ADDRESS: &str = "127.0.0.1:9876";
/// What nothing is to be seen in while all is well.
const FAULTS: &str = "Faults";
/// Nor in this, of containers that work.
const IDLE: &str = "Idle for";

/// Runs it.
pub fn run(inside: &Inside) -> Result<()> {
    promtool(&["check", "rules", ALARMS])?;
    promtool(&["test", "rules", "tests/prometheus/alerts.yml"])?;
    let mut host = Host::start_with(inside, 1, CONFIGURATION)?;
    let outcome = Monitoring::start(&host).and_then(|monitoring| {
        let outcome = goes_off(&host, &monitoring)
            .and_then(|()| every_panel_shows_something(&monitoring))
            .and_then(|()| a_supervisor_that_is_gone(&mut host, &monitoring));
        if outcome.is_err() {
            eprint!("{}{}", monitoring.prometheus.log_end(), monitoring.relay.log_end());
        }
        let stopped = monitoring.stop();
        outcome.and(stopped)
    });
    finish(host, outcome)
}

fn promtool(arguments: &[&str]) -> Result<()> {
    let output = Command::new("promtool").args(arguments).current_dir(manual::repository()).output();
    succeeded("promtool", output.context("promtool")?).map(drop)
}

/// Prometheus, and what carries the socket to it.
struct Monitoring {
    prometheus: Program,
    relay: Program,
}

impl Monitoring {
    fn start(host: &Host) -> Result<Self> {
        let directory = Path::new("/run/gpool-prometheus");
        fs::create_dir_all(directory).context(directory.display())?;
        let alarms = manual::repository().join(ALARMS);
        let settings = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [\"{}\"]\n\
             scrape_configs: [{{job_name: gpool, static_configs: [{{targets: [\"127.0.0.1:9877\"]}}]}}]\n",
            alarms.display()
        );
        let file = directory.join("prometheus.yml");
        fs::write(&file, settings).context(file.display())?;
        let relay = Program::start("socat", host.command_named("socat").args(RELAY))?;
        let mut command = host.command_named("prometheus");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", directory.join("data").display()));
        command.arg(format!("--web.listen-address={ADDRESS}"));
        let prometheus = Program::start("prometheus", &mut command)?;
        let its = Self { prometheus, relay };
        wait_for("Prometheus to have figures", || {
            Ok(its.query("gpool_build_info").is_ok_and(|found| !found.is_empty()))
        })?;
        Ok(its)
    }

    fn stop(self) -> Result<()> {
        let prometheus = self.prometheus.kill();
        self.relay.kill().and(prometheus)
    }

    /// What an expression comes to now.
    fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let query = format!("query={expression}");
        let url = format!("http://{ADDRESS}/api/v1/query");
        let output = Command::new("curl").args(["-sS", "-G", "--data-urlencode", &query, &url]).output();
        let answer = succeeded("curl", output.context("curl")?)?;
        let answer: Value = serde_json::from_str(&answer).context(&answer)?;
        ensure(answer["status"] == "success", || format!("{expression}: {answer}"))?;
        Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default())
    }

    /// Names of the alarms that are in this state.
    fn alarms(&self, state: &str) -> Result<BTreeSet<String>> {
        let found = self.query(&format!("ALERTS{{alertstate=\"{state}\"}}"))?;
        Ok(found.iter().filter_map(|one| Some(one["metric"]["alertname"].as_str()?.to_owned())).collect())
    }
}

/// A budget that is spent does, and nothing else, beside containers that work, one of them on requests.
fn goes_off(host: &Host, monitoring: &Monitoring) -> Result<()> {
    for (name, fraction) in [("vision", "0.6"), ("speech", "0.3")] {
        let env = [("GPOOL_TEAM", name), ("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", "1GiB")];
        Tenant { allocate_mib: Some(16), ..Tenant::greedy(500) }.run(host, name, &env)?;
    }
    let answers =
        [("GPOOL_FRACTION", "0.05"), ("GPOOL_MEMORY", "1GiB"), ("GPOOL_CLASS", "latency"), ("GPOOL_P99", "4s")];
    // Enough of them for a 99th percentile in a few seconds.
    let requests = ["--launch-batch", "2", "--think-us", "15000"];
    let service = Tenant { allocate_mib: Some(16), ..Tenant::greedy(100) };
    let service = service.run_with(host, "answers", &answers, &requests)?;
    let firing = || monitoring.alarms("firing");
    std::thread::sleep(std::time::Duration::from_secs(3));
    ensure(firing()?.is_empty(), || format!("all is well, and this goes off: {:?}", firing()))?;
    reload_with(host, QUOTA)?;
    let spent = BTreeSet::from(["GpoolBudgetSpent".to_owned()]);
    wait_for("the alarm of the budget", || Ok(firing()? == spent))?;
    wait_for("a 99th percentile of requests", || {
        let label = format!("{{container_id=\"{}\"}}", service.id);
        Ok(!monitoring.query(&format!("gpool_lease_request_p99_seconds{label}"))?.is_empty())
    })
}

/// Every query of every panel is understood, and those that show what there is have an answer.
fn every_panel_shows_something(monitoring: &Monitoring) -> Result<()> {
    let file = manual::repository().join(DASHBOARD);
    let dashboard = fs::read_to_string(&file).context(file.display())?;
    let dashboard: Value = serde_json::from_str(&dashboard).context(file.display())?;
    let panels = dashboard["panels"].as_array().cloned().unwrap_or_default();
    let mut asked = 0;
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().unwrap_or_default();
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().ok_or_else(|| Failure::new(format!("{title} asks nothing")))?;
            let expression = expression.replace("$instance", ".*").replace("$__rate_interval", "30s");
            let found = monitoring.query(&expression)?;
            let is_well = [FAULTS, IDLE].contains(&title) == found.is_empty();
            ensure(is_well, || format!("{title}: {expression} is {found:?}"))?;
            asked += 1;
        }
    }
    ensure(asked > 20, || format!("the dashboard asks for {asked} things"))
}

/// It is missed as soon as Prometheus looks; the alarm goes off two minutes later.
fn a_supervisor_that_is_gone(host: &mut Host, monitoring: &Monitoring) -> Result<()> {
    host.kill_supervisor()?;
    wait_for("the supervisor to be missed", || Ok(monitoring.alarms("pending")?.contains("GpoolSupervisorGone")))?;
    host.start_supervisor()?;
    wait_for("it to be there again", || Ok(!monitoring.alarms("pending")?.contains("GpoolSupervisorGone")))
}
