//! From a request to an edited config.json: the same for `gpool-runtime` and for podman's precreate hook.

use crate::compat;
use crate::confinement;
use crate::container_dir;
use crate::edits;
use crate::image::Image;
use crate::loader_cache;
use crate::spec::{self, Described};
use crate::sync_pipe::SyncPipe;
use crate::visible_gpus;
use crate::waiting::{self, NotYet};
use gpool_configuration::{Compat, Configuration, DEFAULT_PATH, Placer};
use gpool_protocol::{
    Client, ContainerId, Edit, ErrorBody, ErrorCode, GpuUuid, LeaseId, LeaseRequest, Mechanism, Mode, Request,
};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// How long a hint to the supervisor may hold up an error that is on its way already.
const HINT_PATIENCE: Duration = Duration::from_millis(500);

/// The container that asks for a share, apart from what its config.json says.
pub struct Applicant<'a> {
    /// The engine's id.
    pub container_id: ContainerId,
    /// The folder from which a relative root is meant.
    pub bundle: &'a Path,
    /// Whether the process that makes the container is the parent of this one, which ends before.
    pub asked_for_parent: bool,
    /// Whether nothing starts again under this id, so that its place need not be kept.
    pub starts_once: bool,
    /// Whether it is a command of `gpool run`, and no container of an engine.
    pub is_command: bool,
    /// Whether it asks for GPUs also where it says nothing of gpool.
    pub asks_for_gpus: bool,
    /// The name of the program that makes the container.
    pub maker: String,
    /// Told once if it has to wait for room.
    pub on_waiting: fn(NotYet<'_>),
}

/// A granted lease whose edits are in.
pub struct Leased {
    client: Client,
    lease: LeaseId,
}

impl Leased {
    /// The supervisor would notice by itself that nobody makes the container; told, it need not wait.
    pub fn give_back(&self) {
        let hint = self.client.clone().with_timeout(HINT_PATIENCE);
        let _ = hint.post::<_, Value>(&format!("/v1/leases/{}/ended", self.lease), &json!({}));
    }
}

/// Leases what the container asks for and puts the edits into `spec`. None where they are in already.
///
/// # Errors
/// A request that cannot be honoured; then `spec` must not be used.
pub fn lease_into(
    spec: &mut Value,
    described: &Described,
    applicant: &Applicant<'_>,
    configuration: &Configuration,
) -> Result<Option<Leased>, ErrorBody> {
    let parent = waiting::Parent::now();
    if let Some(lease) = described.injected() {
        return spec::verify_injected(spec, &lease).and_then(|()| require_region(spec, &lease)).map(|()| None);
    }
    let is_placed = described.placed_by() != Placer::Gpool;
    let allow = &configuration.policy.env.allow;
    let with_default = described.with_default(&configuration.default_request, applicant.asks_for_gpus, allow);
    let described = with_default.as_ref().unwrap_or(described);
    let with_named = described.with_named_gpus(allow)?;
    let described = with_named.as_ref().unwrap_or(described);
    let explained = |error| described.explained(error);
    let bill_of = |team: &str| configuration.cost_center_of(Some(team));
    let of_namespace =
        configuration.policy.namespace_teams.then(|| described.with_namespace_as_team(bill_of)).transpose()?;
    let source = of_namespace.as_ref().unwrap_or(described).source(allow);
    let Some(request) = Request::read(source).map_err(explained)? else { return Ok(None) };
    if configuration.policy.counted_pods && !is_placed {
        described.must_be_counted(&request)?;
    }
    waiting::check_patience(request.wait_seconds, &applicant.maker)?;
    let now_unix_s = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
    let longest_seconds = waiting::longest_seconds(&configuration.queue, &applicant.maker);
    let request = request.waiting_for_its_deadline(now_unix_s, longest_seconds);
    edits::without_legacy_hooks(spec);
    edits::check(spec)?;
    edits::check_dev(spec)?;
    let unenforced = confinement::is_unenforced(spec, configuration)?;
    let image = Image::open(&edits::root_path(spec, applicant.bundle)?)?;
    edits::check_image(&image)?;
    let asked = LeaseRequest {
        container_id: applicant.container_id.clone(),
        request,
        asked_for_parent: applicant.asked_for_parent,
        unenforced,
        // HAMi counts all that NVML shows; KAI's part becomes one of what can be had.
        memory_of_all: described.placed_by() == Placer::Hami,
        // Who placed it has the room again when its pod is gone, and gives it to another one.
        starts_once: applicant.starts_once || described.removes_itself() || is_placed,
        container_uid: Some(confinement::host_uid(spec)),
        in_pod: described.in_pod(),
        pod: described.pod_name(),
        container_dir: container_dir::of(spec, &applicant.container_id),
    };
    let client = Client::new(&configuration.socket.path);
    // Whoever asks for himself ends with himself; conmon does not end with who has asked it.
    let engine = SyncPipe::of_maker(&applicant.maker);
    let has_gone = || engine.as_ref().is_some_and(SyncPipe::is_closed);
    let is_wanted = || !(applicant.asked_for_parent && parent.has_ended() || has_gone());
    let patience = Duration::from_secs(configuration.runtime.supervisor_patience_seconds);
    let mut granted = waiting::ask(&client, &asked, patience, is_wanted, applicant.on_waiting).map_err(explained)?;
    let leased = Leased { client, lease: granted.lease_id.clone() };
    is_wanted().then_some(()).ok_or_else(waiting::unwanted).inspect_err(|_| leased.give_back())?;
    let is_in_the_hosts_mounts = is_in_the_hosts_mounts();
    require_reach(&granted.edits, is_in_the_hosts_mounts, applicant.is_command).inspect_err(|_| leased.give_back())?;
    if configuration.driver.compat == Compat::Image {
        compat::prefer_image(&mut granted.edits, &image, granted.mechanism);
    }
    check_mechanism(asked.request.mode, granted.mechanism)
        .and_then(|()| check_devices(&asked.request.devices, granted.gpus()))
        .inspect_err(|_| leased.give_back())?;
    visible_gpus::without_others(spec, granted.gpus(), &granted.edits);
    edits::apply(spec, &image, &leased.lease, &granted.edits).inspect_err(|_| leased.give_back())?;
    if described.placed_by() == Placer::Hami {
        edits::without_preloads(spec);
    }
    loader_cache::enter(&image, &edits::file_names(&granted.edits), &leased.lease);
    Ok(Some(leased))
}

/// Whether a container could have a share, and not undo it, whatever it is.
pub fn can_be_leased(spec: &Value, bundle: &Path, configuration: &Configuration) -> bool {
    let image = || Image::open(&edits::root_path(spec, bundle)?).and_then(|image| edits::check_image(&image));
    let is_fit = || edits::check(spec).and_then(|()| edits::check_dev(spec)).and_then(|()| image());
    matches!(confinement::is_unenforced(spec, configuration), Ok(false)) && is_fit().is_ok()
}

/// Refuses a lease whose files the low-level runtime could not mount. Podman makes a mount namespace of its own for an
/// ordinary user, and for containers whose ids are mapped, and Slurm one for each job with job_container/tmpfs; the region,
/// which is mounted later, is in it only if the host's mounts reach it. What is not there where the host's own mounts are is
/// not there at all.
fn require_reach(edits: &[Edit], is_in_the_hosts_mounts: bool, is_command: bool) -> Result<(), ErrorBody> {
    let sources = edits.iter().filter_map(|edit| match edit {
        Edit::Device { source, .. } | Edit::Mount { source, .. } | Edit::Library { source, .. } => {
            Some(source.as_str())
        }
        Edit::Env { .. } | Edit::Hook { .. } => None,
    });
    let is_reached = |path: &&str| path.is_empty() || Path::new(path).exists();
    match sources.into_iter().find(|path| !is_reached(path)) {
        None => Ok(()),
        Some(path) if is_in_the_hosts_mounts => Err(ErrorBody::new(
            ErrorCode::ConfigurationInvalid,
            format!("{path}, which a container with a share is to have, is not on this host"),
            format!("install what it belongs to, or correct [[driver.mount]] in {DEFAULT_PATH}"),
        )),
        Some(path) if is_command => Err(ErrorBody::new(
            ErrorCode::NotPermitted,
            format!("{path} of the host cannot be reached from the mount namespace in which the command is started"),
            "call gpool run where mounts of the host arrive: under Slurm's job_container/tmpfs with Shared=true in \
             job_container.conf, after which slurmd is restarted; in a unit without MountFlags=private; and not below unshare \
             --mount, which makes them private",
        )),
        Some(path) => Err(ErrorBody::new(
            ErrorCode::NotPermitted,
            format!("{path} of the host cannot be reached from the mount namespace in which the container is made"),
            "have root run mount --make-rshared / (as systemd does), then run podman system migrate; or let everybody search \
             the folders above that path",
        )),
    }
}

/// Refuses a bundle that an earlier start has used, when the files of its lease are gone. One that is used in both ways under podman holds
/// the lease of this start.
fn require_region(spec: &Value, lease: &LeaseId) -> Result<(), ErrorBody> {
    let sources = spec["mounts"].as_array().into_iter().flatten().filter_map(|mount| mount["source"].as_str());
    let mut of_lease = sources.filter(|path| Path::new(path).iter().any(|part| part == lease.0.as_str()));
    match of_lease.find(|path| !Path::new(path).exists()) {
        None => Ok(()),
        Some(path) => Err(ErrorBody::new(
            ErrorCode::BundleInvalid,
            format!("config.json holds the edits of lease {lease}, which is over: {path} is gone"),
            "write config.json anew for each start, as engines do; a container with a share cannot be restored from a checkpoint",
        )),
    }
}

/// Whether this process has the mounts of the host's first one; no if that may not be looked at.
fn is_in_the_hosts_mounts() -> bool {
    let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    of("1").is_some_and(|its| of("self") == Some(its))
}

/// A supervisor that is older than this wrapper takes every request for one of a share.
fn check_mechanism(mode: Mode, granted: Mechanism) -> Result<(), ErrorBody> {
    let is_asked = match mode {
        Mode::Auto => true,
        Mode::Slice => granted == Mechanism::Slice,
        Mode::Exclusive => granted == Mechanism::Exclusive,
        Mode::TimeSlice => granted == Mechanism::TimeSlice,
        Mode::Mig => granted == Mechanism::Mig,
        Mode::Mps => granted == Mechanism::Mps,
    };
    if is_asked {
        return Ok(());
    }
    Err(ErrorBody::new(
        ErrorCode::MessageInvalid,
        format!("mode={} was asked for, and the supervisor granted mode={granted}", mode.text()),
        "restart gpool-supervisor, which is of another version than this wrapper",
    ))
}

/// A supervisor that is older than this wrapper looks at no names of GPUs. What a number means it alone knows.
fn check_devices(devices: &[String], granted: &[GpuUuid]) -> Result<(), ErrorBody> {
    let is_named = |gpu: &GpuUuid| {
        devices.iter().any(|name| gpu.0.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name)))
    };
    let are_uuids = !devices.is_empty() && devices.iter().all(|name| name.starts_with("GPU-"));
    match granted.iter().find(|gpu| are_uuids && gpu.0.starts_with("GPU-") && !is_named(gpu)) {
        None => Ok(()),
        Some(other) => Err(ErrorBody::new(
            ErrorCode::MessageInvalid,
            format!("device={} was asked for, and the supervisor granted {other}", devices.join(",")),
            "restart gpool-supervisor, which is of another version than this wrapper",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::assert_presentable;

    #[test]
    fn another_gpu_than_the_one_that_was_named_is_not_taken() {
        let gpus = ["GPU-51aa", "GPU-62bb"].map(|uuid| GpuUuid(uuid.into()));
        let check = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            check_devices(&names, &gpus)
        };
        for names in [&[][..], &["0"], &["GPU-51AA", "GPU-62"], &["GPU-51aa", "7"]] {
            assert_eq!(check(names), Ok(()), "{names:?}");
        }
        let error = check(&["GPU-51"]).unwrap_err();
        assert_presentable(&error);
        assert!(error.message.contains("GPU-62bb"), "{error}");
        let instance = [GpuUuid("MIG-1".into())];
        assert_eq!(
            check_devices(&["GPU-51".to_owned()], &instance),
            Ok(()),
            "the GPU has it, and the answer does not say so"
        );
    }

    #[test]
    fn what_an_ordinary_user_cannot_reach_is_named() {
        let mount = |source: &str| Edit::Mount { source: source.into(), destination: "/x".into(), options: Vec::new() };
        let env = Edit::Env { name: "A".into(), value: "/no".into() };
        assert_eq!(require_reach(&[mount("/etc"), env], false, false), Ok(()));
        for (is_hosts, is_command, what, remedy) in [
            (false, false, "mount namespace in which the container is made", "podman system migrate"),
            (false, true, "mount namespace in which the command is started", "Shared=true in job_container.conf"),
            (true, false, "is not on this host", "install"),
            (true, true, "is not on this host", "install"),
        ] {
            let edits = [mount("/etc"), mount("/proc/no/such/region")];
            let error = require_reach(&edits, is_hosts, is_command).unwrap_err();
            assert_presentable(&error);
            assert!(error.message.contains("/proc/no/such/region") && error.message.contains(what), "{error}");
            assert!(error.remedy.contains(remedy), "{error}");
        }
    }

    #[test]
    fn a_bundle_whose_lease_is_over_is_told_from_one_of_this_start() {
        let run_dir = tempfile::tempdir().unwrap();
        let (lease, region) = (LeaseId("01LEASE".into()), run_dir.path().join("leases/01LEASE/region"));
        std::fs::create_dir_all(&region).unwrap();
        let spec = json!({"mounts": [
            {"destination": "/proc"},
            {"destination": "/volume", "source": "/no/such/folder"},
            {"destination": "/dev/gpool/control", "source": region},
        ]});
        assert_eq!(require_region(&spec, &lease), Ok(()));
        std::fs::remove_dir(&region).unwrap();
        let error = require_region(&spec, &lease).unwrap_err();
        assert_presentable(&error);
        assert!(error.message.contains("01LEASE") && error.remedy.contains("config.json anew"), "{error}");
    }

    #[test]
    fn another_mechanism_than_the_one_that_was_asked_for_is_not_taken() {
        let error = check_mechanism(Mode::Exclusive, Mechanism::default()).unwrap_err();
        assert_presentable(&error);
        assert!(check_mechanism(Mode::TimeSlice, Mechanism::Exclusive).is_err());
        assert_eq!(check_mechanism(Mode::Auto, Mechanism::Exclusive), Ok(()));
        assert_eq!(check_mechanism(Mode::Slice, Mechanism::Slice), Ok(()));
    }
}
