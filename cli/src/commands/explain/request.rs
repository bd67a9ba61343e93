//! `gpool explain --request`: which mechanism would serve a request on a host, and why the others would not; and of this host whether it
//! would be granted now.

use crate::arguments::Format;
use crate::exit::Failure;
use crate::output::{self, csv};
use crate::table::is_mig_instance;
use gpool_policy::mechanism::{
    Choice, ComputeMode, Decision, Finding, Gpu, Host, MigInstance, MigState, Place, Severity, Suitable, TABLE, choose,
};
use gpool_policy::mig::{Instance, Model, Placement};
use gpool_protocol::{
    Client, ConfigurationView, ErrorBody, ErrorCode, GpuView, MigGpuView, MigInstanceView, Trial, TrialRequest,
    format_bytes, format_permille,
};
use serde::Serialize;
use std::path::Path;

use crate::planning::{host_file, request};

/// Explains `text` on the host that `host` describes, or on this one.
pub fn run(client: impl FnOnce() -> Client, text: &str, host: Option<&Path>, format: Format) -> Result<(), Failure> {
    let invalid = |cause: String| {
        Failure::from(ErrorBody::new(
            ErrorCode::RequestInvalid,
            cause,
            "docs/mechanisms.md has the keys and the fields; packages have it in /usr/share/doc/gpool",
        ))
    };
    let mut ask = request::read(text).map_err(invalid)?;
    let (host, whose, now) = match host {
        Some(path) => {
            let host = host_file::load(path).map_err(invalid)?;
            let numbered = (0..).zip(&host.gpus).map(|(number, gpu)| (number, gpu.key.as_str()));
            ask.suitable.keys = Suitable::keys_of(&ask.suitable.keys, numbered);
            (host, path.display().to_string(), None)
        }
        None => {
            let client = client();
            let gpus: Vec<GpuView> = client.get("/v1/gpus")?;
            let numbered = gpus.iter().map(|gpu| (gpu.index, gpu.uuid.0.as_str()));
            ask.suitable.keys = Suitable::keys_of(&ask.suitable.keys, numbered);
            // An older supervisor knows nothing of MIG.
            let divided: Vec<MigGpuView> = client.get("/v1/mig").unwrap_or_default();
            let host = Host { has_mps: allows_mps(&client), ..of_views(&gpus, &divided) };
            (host, "this host".to_owned(), Now::of(&client, text))
        }
    };
    let decision = choose(&ask, &host);
    match format {
        Format::Table | Format::Wide => {
            let told = now.as_ref().map_or_else(String::new, Now::line);
            output::print(&(render(text, &whose, &host, &decision) + &told))?;
        }
        Format::Json => {
            output::print_json("decision", &DecisionView { now: now.clone(), ..DecisionView::new(&host, &decision) })?
        }
        Format::Csv => output::print(&render_csv(&decision))?,
    }
    match (now, &decision.choice) {
        (Some(Now::Refused(refusal)), _) => Err(refusal.into()),
        (Some(Now::Granted(_)), _) | (None, Some(_)) => Ok(()),
        (None, None) => {
            Err(ErrorBody::new(ErrorCode::NoMechanism, decision.causes().join("; "), remedy(&decision)).into())
        }
    }
}

/// What the supervisor would do with a container that asks so, at this moment: quotas, budgets, drained GPUs and those who wait included.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Now {
    /// It would have that.
    Granted(Trial),
    /// It would have nothing.
    Refused(ErrorBody),
}

impl Now {
    /// None of an older supervisor, or where no container could ask so.
    fn of(client: &Client, text: &str) -> Option<Self> {
        let request = match request::of_container(text) {
            Ok(request) => request?,
            Err(refusal) => return Some(Self::Refused(refusal)),
        };
        match client.post("/v1/trial", &TrialRequest { request }) {
            Ok(trial) => Some(Self::Granted(trial)),
            Err(error) if error.code == ErrorCode::MessageInvalid => None,
            Err(error) => Some(Self::Refused(error)),
        }
    }

    fn line(&self) -> String {
        match self {
            Self::Granted(trial) => {
                let gpus: Vec<&str> = trial.gpu_uuids.iter().map(|gpu| gpu.0.as_str()).collect();
                let share = format_permille(trial.fraction_permille.into());
                let memory = match trial.memory_bytes {
                    0 => String::new(),
                    bytes => format!(" and {}", format_bytes(bytes)),
                };
                let idle = if trial.beyond_budget { "; a budget is spent, so with what is idle" } else { "" };
                let (mode, gpus, uid) = (trial.mechanism, gpus.join(", "), trial.uid);
                format!("now      granted by mode={mode}: {share}{memory} of {gpus}, to user {uid}{idle}\n")
            }
            // What to do stands in the error that follows.
            Self::Refused(refusal) => format!("now      refused: {} [{}]\n", refusal.message, refusal.code.text()),
        }
    }
}

/// Whether the supervisor's configuration lets containers ask for MPS.
fn allows_mps(client: &Client) -> bool {
    let view = client.get::<ConfigurationView>("/v1/configuration");
    view.is_ok_and(|view| view.keys.get("policy.mps").is_some_and(|value| value == "true"))
}

fn remedy(decision: &Decision) -> String {
    let refusing = decision.findings.iter().filter(|finding| finding.severity == Severity::Refuse);
    let remedies: Vec<&str> = refusing.map(|finding| finding.remedy.as_str()).collect();
    match remedies.is_empty() {
        true => "wait until something is free, ask for less, or change what the rows name".to_owned(),
        false => remedies.join("; "),
    }
}

/// A running host, as far as its supervisor tells.
fn of_views(views: &[GpuView], divided: &[MigGpuView]) -> Host {
    let gpu = |view: &GpuView| Gpu {
        key: view.uuid.to_string(),
        product: view.name.clone(),
        model: Model::of_product(&view.name, view.memory_total_bytes),
        memory_bytes: view.memory_total_bytes,
        is_healthy: !view.silent && view.drained.is_none(),
        compute_mode: view
            .compute_mode
            .as_deref()
            .map_or(Ok(ComputeMode::Default), ComputeMode::parse)
            .unwrap_or(ComputeMode::Default),
        share_free_permille: 1000_u16.saturating_sub(view.fraction_leased_permille),
        memory_free_bytes: {
            // What is sold to nobody is in use first.
            let used_bytes = view.memory_used_bytes.saturating_sub(view.memory_headroom_bytes);
            view.memory_total_bytes.saturating_sub(view.memory_leased_bytes.max(used_bytes))
        },
        leases: u16::try_from(view.leases).unwrap_or(u16::MAX),
        teams: Default::default(),
        // Whom it would be put beside is a preference of the supervisor's and no rule.
        longest_burst_us: None,
        island: view.nvlink_island,
        processor: view.processor,
        mig: mig_of(view, divided),
    };
    // Instances are in the list as well; they belong to their boards here.
    let is_board = |view: &&GpuView| !is_mig_instance(view);
    Host { has_mps: false, ..Host::with(views.iter().filter(is_board).map(gpu).collect()) }
}

/// What a board is divided into. Instances of profiles that the table of its model does not have are left out.
fn mig_of(view: &GpuView, divided: &[MigGpuView]) -> MigState {
    let model = Model::of_product(&view.name, view.memory_total_bytes);
    let instance = |own: &MigInstanceView| {
        let placement = Placement { start: own.start, size: own.size };
        let is_whole = own.lease_id.is_some();
        let leases = usize::from(is_whole) + own.slices.len();
        Some(MigInstance {
            share_free_permille: 1000_u16.saturating_sub(own.share_leased_permille),
            memory_bytes: own.memory_bytes,
            memory_free_bytes: own.memory_bytes.saturating_sub(own.memory_leased_bytes),
            is_whole,
            team: own.team.clone(),
            leases: u16::try_from(leases).unwrap_or(u16::MAX),
            ..MigInstance::free(Instance { placement, profile: model?.profile(&own.profile)? })
        })
    };
    let board = divided.iter().find(|board| board.uuid == view.uuid);
    board.map_or_else(MigState::default, |board| MigState {
        is_on: board.enabled,
        owner: board.owner.clone(),
        instances: board.instances.iter().filter_map(instance).collect(),
    })
}

/// What is known of a GPU, in a line.
fn facts_of(gpu: &Gpu) -> String {
    let mut parts = vec![format!("{} {}", gpu.product, format_bytes(gpu.memory_bytes))];
    if !gpu.is_healthy {
        parts.push("not healthy".to_owned());
    }
    if gpu.mig.is_on {
        let instances: Vec<String> = gpu.mig.instances.iter().map(instance_facts).collect();
        let instances = if instances.is_empty() { "no instances".to_owned() } else { instances.join(", ") };
        parts.push(format!("MIG: {instances}"));
    } else {
        let free = format_permille(gpu.share_free_permille.into());
        parts.push(format!("{free} and {} free", format_bytes(gpu.memory_free_bytes)));
    }
    if gpu.leases > 0 {
        parts.push(format!("leases {}", gpu.leases));
    }
    if !gpu.teams.is_empty() {
        parts.push(format!("of {}", gpu.teams.iter().cloned().collect::<Vec<_>>().join(" and ")));
    }
    if let Some(burst_us) = gpu.longest_burst_us {
        parts.push(format!("kernels up to {} ms", burst_us / 1000));
    }
    if let Some(owner) = &gpu.mig.owner {
        parts.push(format!("divided by {owner}"));
    }
    parts.join("; ")
}

fn instance_facts(one: &MigInstance) -> String {
    let whose = one.team.as_ref().map_or_else(String::new, |team| format!(" of {team}"));
    let state = match (one.is_whole, one.leases, one.share_free_permille) {
        (true, ..) => "one container's".to_owned(),
        (false, 0, 1000) => "free".to_owned(),
        (false, _, share) => {
            format!("{} and {} free", format_permille(share.into()), format_bytes(one.memory_free_bytes))
        }
    };
    format!("{} at {}{whose} ({state})", one.instance.profile, one.instance.placement.start)
}

fn place_text(place: &Place) -> String {
    match place {
        Place::Gpus(keys) => format!("on {}", keys.join(", ")),
        Place::Instance { gpu, profile, placement } => format!("{profile} at {} of {gpu}", placement.start),
        Place::NewInstance { gpu, profile, placement } => {
            format!("{profile}, to be made at {} of {gpu}", placement.start)
        }
    }
}

fn reason(choice: &Choice) -> &'static str {
    TABLE.iter().find(|row| row.id == choice.row).map_or("the request names the mechanism", |row| row.when)
}

fn finding_line(finding: &Finding) -> String {
    let severity = if finding.severity == Severity::Refuse { "refused" } else { "warning" };
    format!("{:2} {severity}: {}; {}", finding.trap.number(), finding.cause, finding.remedy)
}

fn render(text: &str, whose: &str, host: &Host, decision: &Decision) -> String {
    let mut lines = vec![format!("request  {text}"), format!("host     {whose}")];
    let labels = [
        host.in_maintenance.then(|| "in maintenance".to_owned()),
        host.phase.map(|phase| format!("phase {phase}")),
        (host.pool != gpool_policy::mechanism::Pool::Any).then(|| format!("pool {}", host.pool)),
        host.is_vgpu_guest
            .then(|| format!("virtual GPUs, licence {}", host.vgpu_licence.as_deref().unwrap_or("not known"))),
        host.has_mps.then(|| "MPS can be used".to_owned()),
        host.window_is_open.then(|| "layouts may be changed now".to_owned()),
    ];
    let labels: Vec<String> = labels.into_iter().flatten().collect();
    if !labels.is_empty() {
        lines.push(format!("         {}", labels.join(", ")));
    }
    lines.extend(host.gpus.iter().map(|gpu| format!("  {}  {}", gpu.key, facts_of(gpu))));
    match &decision.choice {
        Some(choice) => {
            lines.push(format!("answer   {}: {}, {}", choice.row, choice.mechanism, place_text(&choice.place)));
            lines.push(format!("because  {}", reason(choice)));
            lines.push(format!("note     {}", choice.note));
        }
        None => lines.push("answer   A12: refused, or waits until something is free".to_owned()),
    }
    if !decision.failed.is_empty() {
        lines.push("rows that were not taken".to_owned());
    }
    lines.extend(decision.failed.iter().map(|outcome| {
        let about = if outcome.is_about_it { "is about it, but" } else { "is not:" };
        format!("  {:5} {about} {}", outcome.row.word(), outcome.why)
    }));
    if !decision.findings.is_empty() {
        lines.push("traps".to_owned());
    }
    lines.extend(decision.findings.iter().map(|finding| format!("  {}", finding_line(finding))));
    lines.join("\n") + "\n"
}

/// For programs.
#[derive(Debug, Serialize)]
struct DecisionView {
    row: &'static str,
    mechanism: Option<&'static str>,
    gpus: Vec<String>,
    instance: Option<InstanceView>,
    facts: Vec<FactsView>,
    rows: Vec<RowView>,
    traps: Vec<TrapView>,
    /// Of this host alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    now: Option<Now>,
}

#[derive(Debug, Serialize)]
struct InstanceView {
    profile: &'static str,
    start: u8,
    is_new: bool,
}

#[derive(Debug, Serialize)]
struct FactsView {
    gpu: String,
    facts: String,
}

#[derive(Debug, Serialize)]
struct RowView {
    row: &'static str,
    is_about_it: bool,
    why: String,
}

#[derive(Debug, Serialize)]
struct TrapView {
    number: usize,
    trap: &'static str,
    refuses: bool,
    cause: String,
    remedy: String,
}

impl DecisionView {
    fn new(host: &Host, decision: &Decision) -> Self {
        let place = decision.choice.as_ref().map(|choice| &choice.place);
        let (gpus, instance) = match place {
            None => (Vec::new(), None),
            Some(Place::Gpus(keys)) => (keys.clone(), None),
            Some(Place::Instance { gpu, profile, placement } | Place::NewInstance { gpu, profile, placement }) => {
                let is_new = matches!(place, Some(Place::NewInstance { .. }));
                let view = InstanceView { profile: profile.name, start: placement.start, is_new };
                (vec![gpu.clone()], Some(view))
            }
        };
        Self {
            now: None,
            row: decision.choice.as_ref().map_or("A12", |choice| choice.row.word()),
            mechanism: decision.choice.as_ref().map(|choice| choice.mechanism.word()),
            gpus,
            instance,
            facts: host.gpus.iter().map(|gpu| FactsView { gpu: gpu.key.clone(), facts: facts_of(gpu) }).collect(),
            rows: decision
                .failed
                .iter()
                .map(|outcome| RowView {
                    row: outcome.row.word(),
                    is_about_it: outcome.is_about_it,
                    why: outcome.why.clone(),
                })
                .collect(),
            traps: decision
                .findings
                .iter()
                .map(|finding| TrapView {
                    number: finding.trap.number(),
                    trap: finding.trap.word(),
                    refuses: finding.severity == Severity::Refuse,
                    cause: finding.cause.clone(),
                    remedy: finding.remedy.clone(),
                })
                .collect(),
        }
    }
}

/// One line a row, the one that was taken last.
fn render_csv(decision: &Decision) -> String {
    let failed = decision.failed.iter().map(|outcome| {
        vec![outcome.row.word().to_owned(), "no".to_owned(), String::new(), String::new(), outcome.why.clone()]
    });
    let taken = decision.choice.iter().map(|choice| {
        let place = place_text(&choice.place);
        vec![
            choice.row.word().to_owned(),
            "yes".to_owned(),
            choice.mechanism.word().to_owned(),
            place,
            reason(choice).to_owned(),
        ]
    });
    csv(&["row", "taken", "mechanism", "place", "why"], failed.chain(taken))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(text: &str, host: &Host) -> String {
        render(text, "a.toml", host, &choose(&request::read(text).unwrap(), host))
    }

    #[test]
    fn an_answer_has_the_row_the_facts_and_the_rows_before_it() {
        let mut host = Host::with(vec![Gpu::idle("gpu0", Model::named("T4").unwrap())]);
        host.has_mps = false;
        let want = "\
request  fraction=0.3,isolation=hardware
host     a.toml
  gpu0  T4 15GiB; 100 % and 15GiB free
answer   A3: whole GPUs, on gpu0
because  isolation by hardware or exclusive, or neighbours of another domain or under regulation
note     never by limits in software
rows that were not taken
  A0    is not: a GPU is healthy, and the host is not in maintenance
  A1    is not: the GPUs are real ones
  A2    is not: it is a part of one GPU, and is not known to fill that
";
        assert_eq!(explained("fraction=0.3,isolation=hardware", &host), want);
    }

    #[test]
    fn a_refusal_names_rows_and_traps() {
        let host = Host::with(vec![Gpu::idle("gpu0", Model::named("T4").unwrap())]);
        let text = explained("mode=mig", &host);
        for part in [
            "answer   A12",
            "asked is about it, but MIG instance: gpu0 (T4) has no MIG",
            " 1 refused: MIG is asked for",
        ] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
        let decision = choose(&request::read("mode=mig").unwrap(), &host);
        assert!(remedy(&decision).contains("mode=exclusive"));
        let view = output::to_value(&DecisionView::new(&host, &decision));
        assert_eq!((view["row"].as_str(), view["traps"][0]["number"].as_u64()), (Some("A12"), Some(1)));
        let lines = render_csv(&decision);
        assert!(lines.starts_with("row,taken,mechanism,place,why\nasked,no,,,"), "{lines}");
    }

    #[test]
    fn a_running_host_is_what_its_supervisor_tells() {
        let view = GpuView {
            uuid: gpool_protocol::GpuUuid("GPU-1".into()),
            memory_used_bytes: 30 << 30,
            memory_leased_bytes: 20 << 30,
            fraction_leased_permille: 400,
            leases: 2,
            ..crate::samples::gpu(0, "NVIDIA A100-SXM4-80GB", 80 << 30)
        };
        let board = MigGpuView {
            index: 0,
            uuid: view.uuid.clone(),
            name: view.name.clone(),
            pci_device_id: 0,
            enabled: true,
            pending: true,
            owner: None,
            window_left_s: None,
            parted: Vec::new(),
            instances: vec![MigInstanceView {
                uuid: gpool_protocol::GpuUuid("MIG-1".into()),
                profile: "3g.40gb".into(),
                gpu_instance: 1,
                compute_instance: 0,
                start: 4,
                size: 4,
                memory_bytes: 40 << 30,
                lease_id: None,
                slices: vec![gpool_protocol::LeaseId("01".into())],
                team: Some("vision".into()),
                share_leased_permille: 300,
                memory_leased_bytes: 10 << 30,
            }],
            leases: 0,
        };
        let instance = GpuView { uuid: gpool_protocol::GpuUuid("MIG-1".into()), ..view.clone() };
        let parted = of_views(&[GpuView { divided: true, ..view.clone() }, instance], &[board]);
        assert_eq!((parted.gpus.len(), parted.gpus[0].mig.is_on, parted.gpus[0].mig.instances.len()), (1, true, 1));
        assert!(facts_of(&parted.gpus[0]).contains("3g.40gb at 4 of vision (70 % and 30GiB free)"));
        let host = of_views(&[view], &[]);
        let gpu = &host.gpus[0];
        assert_eq!((gpu.share_free_permille, gpu.memory_free_bytes >> 30, gpu.leases), (600, 50, 2));
        assert_eq!(gpu.model.map(|model| model.name), Some("A100-80GB"));
    }
}
