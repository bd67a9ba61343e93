//! `gpool mig show|drift|apply`: this host's GPUs, through its supervisor.

use crate::arguments::{Format, Wanted};
use crate::exit::{ExitStatus, Failure};
use crate::output::{self, Column, borderless, csv, figure, text};
use crate::planning::wanted::{self, names};
use gpool_protocol::{
    Client, ErrorBody, ErrorCode, MigApply, MigGoal, MigGpuView, MigInstanceView, MigPartedView, NOT_UNDER_USERS,
    format_bytes, format_permille,
};
use serde::Serialize;
use std::time::{Duration, Instant};

/// A driver may take seconds to make an instance.
const APPLY_TIMEOUT: Duration = Duration::from_secs(300);
/// How often users in the way are looked at again.
const DRAIN_PERIOD: Duration = Duration::from_millis(500);

/// `gpool mig show`
pub fn show(client: &Client, format: Format) -> Result<(), Failure> {
    let gpus: Vec<MigGpuView> = client.get("/v1/mig")?;
    match format {
        Format::Table | Format::Wide => output::print(&render(&gpus)),
        Format::Json => output::print_json("gpus", &gpus),
        Format::Csv => {
            const HEADER: [&str; 13] = [
                "index",
                "gpu_uuid",
                "enabled",
                "uuid",
                "profile",
                "gpu_instance",
                "start",
                "memory_bytes",
                "lease_id",
                "team",
                "slices",
                "share_leased_permille",
                "memory_leased_bytes",
            ];
            output::print(&csv(&HEADER, gpus.iter().flat_map(csv_rows)))
        }
    }
}

fn csv_rows(gpu: &MigGpuView) -> Vec<Vec<String>> {
    let own = [gpu.index.to_string(), gpu.uuid.to_string(), gpu.enabled.to_string()];
    let row = |cells: [String; 10]| own.iter().cloned().chain(cells).collect::<Vec<String>>();
    if gpu.instances.is_empty() {
        return vec![row(Default::default())];
    }
    let cells = gpu.instances.iter().map(|instance| {
        row([
            instance.uuid.to_string(),
            instance.profile.clone(),
            instance.gpu_instance.to_string(),
            instance.start.to_string(),
            instance.memory_bytes.to_string(),
            instance.lease_id.as_ref().map(ToString::to_string).unwrap_or_default(),
            instance.team.clone().unwrap_or_default(),
            instance.slices.len().to_string(),
            instance.share_leased_permille.to_string(),
            instance.memory_leased_bytes.to_string(),
        ])
    });
    cells.collect()
}

fn render(gpus: &[MigGpuView]) -> String {
    const COLUMNS: [Column; 7] = [
        figure("GPU"),
        text("MIG"),
        text("PROFILE"),
        figure("START"),
        figure("MEMORY"),
        text("INSTANCE"),
        text("LEASE"),
    ];
    let mode = |gpu: &MigGpuView| match (gpu.enabled, gpu.pending) {
        (true, true) => "on",
        (false, false) => "off",
        (true, false) => "on, off is pending",
        (false, true) => "off, on is pending",
    };
    let rows = gpus.iter().flat_map(|gpu| {
        let head = [gpu.index.to_string(), mode(gpu).to_owned()];
        let row = |cells: [String; 5]| head.iter().cloned().chain(cells).collect::<Vec<String>>();
        let instances = gpu.instances.iter().map(|instance| {
            row([
                instance.profile.clone(),
                instance.start.to_string(),
                format_bytes(instance.memory_bytes),
                instance.uuid.to_string(),
                users(instance),
            ])
        });
        let mut rows: Vec<Vec<String>> = instances.collect();
        if rows.is_empty() {
            rows.push(row(["-"; 5].map(String::from)));
        }
        rows
    });
    let mut table = borderless(&COLUMNS, rows);
    for gpu in gpus {
        let line = |own: &MigPartedView| {
            format!("GPU {}: {} is not leased: it has {}\n", gpu.index, called(own), compute(own))
        };
        table.extend(gpu.parted.iter().map(line));
    }
    match gpus.iter().find_map(|gpu| gpu.owner.as_ref()) {
        Some(owner) => format!("{table}{owner}, divides these GPUs: gpool only reads\n"),
        None if gpus.is_empty() => "no GPU of this host has MIG\n".to_owned(),
        None => table,
    }
}

fn called(own: &MigPartedView) -> String {
    format!("GPU instance {} ({} at {})", own.gpu_instance, own.profile, own.start)
}

fn compute(own: &MigPartedView) -> String {
    match own.compute_instances {
        0 => "no compute instance".to_owned(),
        1 => "a compute instance over a part of it alone".to_owned(),
        count => format!("{count} compute instances"),
    }
}

/// Who has an instance, or slices of it.
fn users(instance: &MigInstanceView) -> String {
    match (&instance.lease_id, instance.slices.len()) {
        (Some(lease), _) => lease.to_string(),
        (None, 0) => "-".to_owned(),
        (None, count) => format!(
            "{count} slice{}, {} of team {}",
            if count == 1 { "" } else { "s" },
            format_permille(instance.share_leased_permille.into()),
            instance.team.as_deref().unwrap_or("?"),
        ),
    }
}

/// One GPU's layout, as wanted and as it is.
#[derive(Debug, Serialize)]
struct Drift {
    gpu: u32,
    wanted: String,
    present: String,
    differs: bool,
}

/// `gpool mig drift`
pub fn drift(client: &Client, wanted: &Wanted, format: Format) -> Result<(), Failure> {
    let gpus: Vec<MigGpuView> = client.get("/v1/mig")?;
    let wanted = wanted::read(client, wanted, &gpus)?;
    let all: Vec<Drift> = wanted.goals.iter().filter_map(|goal| compared(goal, &gpus)).collect();
    let row = |one: &Drift| {
        let differs = if one.differs { "yes" } else { "no" };
        vec![one.gpu.to_string(), one.wanted.clone(), one.present.clone(), differs.to_owned()]
    };
    match format {
        Format::Table | Format::Wide => {
            const COLUMNS: [Column; 4] = [figure("GPU"), text("WANTED"), text("PRESENT"), text("DRIFT")];
            output::print(&borderless(&COLUMNS, all.iter().map(row)))?;
        }
        Format::Json => output::print_json("gpus", &all)?,
        Format::Csv => output::print(&csv(&["gpu", "wanted", "present", "drift"], all.iter().map(row)))?,
    }
    match all.iter().filter(|one| one.differs).count() {
        0 => Ok(()),
        count => Err(Failure::Refused(
            ExitStatus::Warned,
            format!("gpool: {count} of {} GPUs are not divided as {} says", all.len(), wanted.file.display()),
        )),
    }
}

fn compared(goal: &MigGoal, gpus: &[MigGpuView]) -> Option<Drift> {
    let gpu = gpus.iter().find(|gpu| gpu.uuid == goal.uuid)?;
    let parted = gpu.parted.iter().map(|own| format!("{} with {}", own.profile, compute(own)));
    let there: Vec<String> = gpu.instances.iter().map(|instance| instance.profile.clone()).chain(parted).collect();
    let (wanted, present) = (names(goal.enabled, &goal.profiles), names(gpu.enabled, &there));
    Some(Drift { gpu: gpu.index, differs: wanted != present, wanted, present })
}

/// `gpool mig apply`
pub fn apply(client: Client, wanted: &Wanted, drain: Option<Duration>, format: Format) -> Result<(), Failure> {
    let client = client.with_timeout(APPLY_TIMEOUT);
    let gpus: Vec<MigGpuView> = client.get("/v1/mig")?;
    let goals = wanted::read(&client, wanted, &gpus)?.goals;
    let window = gpus.iter().find_map(|gpu| gpu.window_left_s).map(Duration::from_secs).filter(|_| drain.is_none());
    let asked = MigApply { goals, drain: drain.or(window).is_some() };
    let deadline = Instant::now() + drain.or(window).unwrap_or_default();
    let mut is_told = false;
    loop {
        match client.post::<_, Vec<MigGpuView>>("/v1/mig/apply", &asked) {
            Ok(gpus) if format == Format::Json => return output::print_json("gpus", &gpus),
            Ok(gpus) => return output::print(&render(&gpus)),
            // Only users in the way are worth waiting for; what else fixes a layout stays.
            Err(refusal) if is_in_use(&refusal) && Instant::now() < deadline => {
                if let Some(left) = window.filter(|_| !std::mem::replace(&mut is_told, true)) {
                    eprintln!("gpool: a maintenance window is open: draining for {} min at most", left.as_secs() / 60);
                }
                std::thread::sleep(DRAIN_PERIOD);
            }
            Err(refusal) => return Err(refusal.into()),
        }
    }
}

fn is_in_use(refusal: &ErrorBody) -> bool {
    refusal.code == ErrorCode::LayoutFixed && refusal.message.contains(NOT_UNDER_USERS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::{GpuUuid, LeaseId};

    fn gpu(enabled: bool, profiles: &[&str]) -> MigGpuView {
        let instance = |(number, profile): (usize, &&str)| MigInstanceView {
            uuid: GpuUuid(format!("MIG-{number}")),
            profile: (*profile).to_owned(),
            gpu_instance: number as u32,
            compute_instance: 0,
            start: number as u8,
            size: 1,
            memory_bytes: 10 << 30,
            lease_id: None,
            slices: Vec::new(),
            team: None,
            share_leased_permille: 0,
            memory_leased_bytes: 0,
        };
        MigGpuView {
            index: 0,
            uuid: GpuUuid("GPU-0".into()),
            name: "a GPU".into(),
            pci_device_id: 0x20b2_10de,
            enabled,
            pending: enabled,
            owner: None,
            window_left_s: None,
            instances: profiles.iter().enumerate().map(instance).collect(),
            parted: Vec::new(),
            leases: 0,
        }
    }

    #[test]
    fn instances_are_a_line_each_and_an_undivided_gpu_is_one() {
        let want = "\
GPU  MIG  PROFILE  START  MEMORY  INSTANCE  LEASE
  0  on   1g.10gb      0   10GiB  MIG-0     -
  0  off  -            -       -  -         -
";
        assert_eq!(render(&[gpu(true, &["1g.10gb"]), gpu(false, &[])]), want);
        let mut shared = gpu(true, &["3g.40gb"]);
        let own = &mut shared.instances[0];
        (own.slices, own.team) = (["01", "02"].map(|id| LeaseId(id.into())).to_vec(), Some("vision".into()));
        own.share_leased_permille = 700;
        assert!(render(&[shared]).contains("2 slices, 70 % of team vision\n"));
        let mut owned = gpu(true, &[]);
        owned.owner = Some("somebody, by /etc/x".into());
        assert!(render(&[owned]).ends_with("somebody, by /etc/x, divides these GPUs: gpool only reads\n"));
        let mut parted = gpu(true, &["1g.10gb"]);
        let own = |compute_instances, start| MigPartedView {
            profile: "3g.40gb".into(),
            gpu_instance: 2,
            start,
            size: 4,
            compute_instances,
        };
        parted.parted = vec![own(2, 4)];
        let shown = render(&[parted]);
        assert!(shown.ends_with("GPU 0: GPU instance 2 (3g.40gb at 4) is not leased: it has 2 compute instances\n"));
        assert_eq!(
            [0, 1].map(|count| compute(&own(count, 0)).split(' ').next().map(str::to_owned)),
            [Some("no".to_owned()), Some("a".to_owned())]
        );
        assert_eq!(csv_rows(&gpu(true, &["1g.10gb", "2g.20gb"])).len(), 2);
        assert_eq!(csv_rows(&gpu(true, &[]))[0].len(), 13);
    }

    #[test]
    fn drift_is_other_instances_and_not_another_order() {
        let goal = |enabled, profiles: &[&str]| MigGoal {
            uuid: GpuUuid("GPU-0".into()),
            enabled,
            profiles: profiles.iter().map(|name| (*name).to_owned()).collect(),
        };
        let differs = |goal: &MigGoal, gpu: MigGpuView| compared(goal, &[gpu]).unwrap().differs;
        assert!(!differs(&goal(true, &["1g.10gb", "2g.20gb"]), gpu(true, &["2g.20gb", "1g.10gb"])));
        assert!(differs(&goal(true, &["1g.10gb"]), gpu(true, &["2g.20gb", "1g.10gb"])));
        assert!(differs(&goal(false, &[]), gpu(true, &[])), "MIG on without instances is not MIG off");
        assert!(!differs(&goal(false, &[]), gpu(false, &[])));
        let mut parted = gpu(true, &[]);
        parted.parted =
            vec![MigPartedView { profile: "1g.10gb".into(), gpu_instance: 7, start: 0, size: 1, compute_instances: 0 }];
        assert!(differs(&goal(true, &["1g.10gb"]), parted), "what nobody can lease is not what is wanted");
    }
}
