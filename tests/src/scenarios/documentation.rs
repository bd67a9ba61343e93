//! What the manual tells a person to type, typed on a host with a simulated GPU: every block that is marked `sh run`, page
//! by page. Then what the supervisor answers is held against the socket's document.

use super::{finish, reload_with, start_tenants, wait_until_running};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host};
use crate::manual::{self, openapi};
use crate::namespaces::{Inside, PATH};
use gpool_protocol::LeaseView;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a marked block begins with.
const RUN: &str = "sh run";

/// Of this there is something to be listed.
const RESERVED: &str =
    "[reservation.example]\nusers = [4711]\nfraction = \"0.01\"\nmemory = \"1MiB\"\nuntil = \"2999-01-01\"\n";

/// Types everything.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome =
        type_everything(&host).and_then(|()| reload_with(&host, RESERVED)).and_then(|()| compare_answers(&host));
    finish(host, outcome)
}

fn type_everything(host: &Host) -> Result<()> {
    let mut blocks = 0;
    for page in manual::pages()? {
        let marked: Vec<&str> =
            page.blocks.iter().filter(|block| block.info == RUN).map(|block| block.text.as_str()).collect();
        if marked.is_empty() {
            continue;
        }
        blocks += marked.len();
        type_page(host, &page.name(), &marked.concat())?;
        host.engine.remove_all_containers()?;
        wait_for_room(host)?;
    }
    ensure(blocks >= 10, || format!("only {blocks} blocks of the manual are marked `{RUN}`"))
}

/// The blocks of a page are one script, so that a later one may use what an earlier one has set.
fn type_page(host: &Host, page: &str, script: &str) -> Result<()> {
    let mut shell = Command::new("/bin/bash");
    shell.args(["-eux", "-c", script]).current_dir("/run").stdin(Stdio::null());
    let path = format!("{}:{PATH}", host.stage.program("").display());
    let output = shell.env("PATH", path).env("DOCKER_HOST", host.engine.address()).output().context("bash")?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).join("\n");
    Err(Failure::new(format!("{page}: what it tells to type ends with {}:\n{said}", output.status)))
}

/// The next page finds an empty GPU, kept places included.
fn wait_for_room(host: &Host) -> Result<()> {
    let deadline = Instant::now() + crate::host::HOLD + Duration::from_secs(30);
    while !host.leases()?.is_empty() {
        ensure(Instant::now() < deadline, || "leases of the last page do not end".to_owned())?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

const EVICT: &str = "/v1/leases/{id}/evict";
const SUSPEND: &str = "/v1/leases/{id}/suspend";
const DRAIN: &str = "/v1/gpus/{gpu}/drain";
const UNDRAIN: &str = "/v1/gpus/{gpu}/undrain";
const TEST: &str = "/v1/gpus/{gpu}/test";
const OVERRIDE: &str = "/v1/overrides";
const OVERRIDE_END: &str = "/v1/overrides/end";
const TESTED: &str = "/v1/gpus/{gpu}/tested";
const CANCEL: &str = "/v1/queue/{id}/cancel";
const HOLD: &str = "/v1/queue/{id}/hold";
const RELEASE: &str = "/v1/queue/{id}/release";
const FIRST: &str = "/v1/queue/{id}/first";

/// Every answer is as the document says, with a lease that works.
fn compare_answers(host: &Host) -> Result<()> {
    let document = openapi::document()?;
    let tenants = start_tenants(host, &[("answered", "0.3", "4GiB", 500)])?;
    wait_until_running(host, &tenants)?;
    let client = host.client();
    let mut wrong = Vec::new();
    let mut compare = |method: &str, path: &str, answer: &Value| {
        let schema = openapi::answer_schema(&document, method, path);
        wrong.extend(openapi::defects(&document, schema, answer).into_iter().map(|it| format!("{method} {path}{it}")));
    };
    for operation in openapi::documented(&document) {
        let (method, path) = operation.split_once(' ').unwrap_or_default();
        let asked = path.replace("{id}", &tenants[0].id);
        let answer: Value = match (method, path) {
            // One object a line, and none at all.
            (_, "/v1/events" | "/metrics") => continue,
            ("GET", _) => client.get(&asked)?,
            ("PATCH", _) => client.patch(&asked, &serde_json::json!({"fraction_permille": 350, "class": "train"}))?,
            // A lease for nobody would stay as long as this process does; a test looks at the message itself.
            ("POST", "/v1/leases") => continue,
            ("POST", "/v1/trial") => {
                client.post(&asked, &serde_json::json!({"request": {"fraction_permille": 100}}))?
            }
            // After it there is nothing left to ask for.
            ("POST", EVICT) => continue,
            // The driver that is played is too old to move anything; the scenario suspended compares its answers.
            ("POST", SUSPEND) => continue,
            ("POST", "/v1/leases/{id}/bind") => bind(host, &tenants[0])?,
            ("POST", "/v1/leases/{id}/ended") => {
                let lease_id = host.lease_of(&tenants[0])?.lease_id;
                client.post(&path.replace("{id}", &lease_id.0), &())?
            }
            ("POST", CANCEL) => {
                let asked = serde_json::json!({"container_id": "waits",
                    "request": {"fraction_permille": 1000, "wait_seconds": 60}});
                compare("POST", "/v1/leases", &client.post("/v1/leases", &asked)?);
                for place in [FIRST, HOLD, RELEASE] {
                    compare("POST", place, &client.post(&place.replace("{id}", "waits"), &())?);
                    compare("GET", "/v1/queue", &client.get("/v1/queue")?);
                }
                client.post(&CANCEL.replace("{id}", "waits"), &())?
            }
            // Only while one waits.
            ("POST", HOLD | RELEASE | FIRST) => continue,
            ("POST", DRAIN) => {
                let drained = client.post(&DRAIN.replace("{gpu}", "0"), &serde_json::json!({"reason": "new fans"}))?;
                compare("GET", "/v1/gpus/drained", &client.get("/v1/gpus/drained")?);
                compare("GET", "/v1/gpus", &client.get("/v1/gpus")?);
                compare("POST", UNDRAIN, &client.post(&UNDRAIN.replace("{gpu}", "0"), &())?);
                drained
            }
            // Only while it is drained.
            ("POST", UNDRAIN) => continue,
            // Somebody is on the GPU; the scenario gpu-tests begins tests. That one has failed is heard all the same.
            ("POST", TEST) => continue,
            ("POST", TESTED) => {
                let parts = serde_json::json!([{"name": "memory", "outcome": "failed", "told": "a bit is wrong"}]);
                let report = serde_json::json!({"took_ms": 7, "parts": parts});
                let tested = client.post(&TESTED.replace("{gpu}", "0"), &report)?;
                compare("GET", "/v1/gpus/tests", &client.get("/v1/gpus/tests")?);
                compare("GET", "/v1/gpus", &client.get("/v1/gpus")?);
                let known = serde_json::json!({"fault": true});
                compare("POST", UNDRAIN, &client.post(&UNDRAIN.replace("{gpu}", "0"), &known)?);
                tested
            }
            ("POST", OVERRIDE) => {
                let asked = serde_json::json!({"team": "vision", "seconds": 60, "reason": "incident 7"});
                let begun = client.post(OVERRIDE, &asked)?;
                compare("GET", OVERRIDE, &client.get(OVERRIDE)?);
                let ended = client.post(OVERRIDE_END, &serde_json::json!({"team": "vision"}))?;
                compare("POST", OVERRIDE_END, &ended);
                begun
            }
            // Only while there is one.
            ("POST", OVERRIDE_END) => continue,
            // Nothing to divide; the scenario mig-instances divides.
            ("POST", "/v1/mig/apply") => client.post(&asked, &serde_json::json!({"goals": []}))?,
            _ => client.post(&asked, &())?,
        };
        compare(method, path, &answer);
    }
    let lease: LeaseView = host.lease_of(&tenants[0])?;
    ensure(!lease.paused && lease.fraction_permille == 350, || format!("the operations had no effect: {lease:?}"))?;
    metrics_are_explained(host, &tenants[0])?;
    compare("POST", EVICT, &client.post(&EVICT.replace("{id}", &tenants[0].id), &())?);
    client.stream("/v1/events?after=0", |line| {
        compare("GET", "/v1/events", &serde_json::from_str(line).unwrap_or_default());
        true
    })?;
    let refused = client.get::<Value>("/v1/leases/nobody").err();
    let refused = refused.and_then(|refusal| serde_json::to_value(refusal).ok()).unwrap_or_default();
    let schema = serde_json::json!({"$ref": "#/components/schemas/Refusal"});
    wrong.extend(openapi::defects(&document, &schema, &refused));
    ensure(wrong.is_empty(), || format!("docs/reference/openapi.json is wrong:\n{}", wrong.join("\n")))
}

/// Each figure of a working host has a line in the manual, and a container's are its own.
fn metrics_are_explained(host: &Host, container: &Container) -> Result<()> {
    let mut lines = Vec::new();
    host.client().stream("/metrics", |line| {
        lines.push(line.to_owned());
        true
    })?;
    let page = manual::repository().join("docs/reference/metrics.md");
    let page = std::fs::read_to_string(&page).context(page.display())?;
    for line in lines.iter().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        ensure(page.contains(&format!("| `{name}` |")), || format!("docs/reference/metrics.md lacks {name}"))?;
    }
    let labels = format!("{{container_id=\"{}\"", container.id);
    for (name, value) in
        [("gpool_lease_share_entitled_ratio", " 0.35"), ("gpool_lease_memory_cap_bytes", " 4294967296")]
    {
        let found = lines.iter().find(|line| line.starts_with(&format!("{name}{labels}")));
        ensure(found.is_some_and(|line| line.ends_with(value)), || format!("{name} is {found:?}"))?;
    }
    let of_a_count =
        |name: &str| lines.iter().find(|line| line.starts_with(name)).and_then(|line| line.rsplit(' ').next());
    for name in ["gpool_gate_moves_total{to=\"open\"}", "gpool_thread_rounds_total{thread=\"sampler\"}"] {
        ensure(of_a_count(name).and_then(|text| text.parse().ok()).is_some_and(|count: f64| count > 0.0), || {
            format!("{name} does not count: {lines:?}")
        })?;
    }
    Ok(())
}

/// Said again by the same process it changes nothing.
fn bind(host: &Host, container: &Container) -> Result<Value> {
    let path = format!("/v1/leases/{}/bind", host.lease_of(container)?.lease_id);
    Ok(host.client().post(&path, &serde_json::json!({"init_pid": container.init_pid}))?)
}
