//! Which mechanism serves a request on this host.

use super::book::Book;
use super::capacity::records_on;
use super::grant::Leases;
use super::suitable::suitable_for;
use crate::device::{Gpu, Kind};
use crate::memory_limits;
use gpool_policy::admission::{GpuCapacity, Use};
use gpool_policy::mechanism::{
    Ask, ComputeMode, Fact, Gpu as PlannedGpu, Host, Isolation as AskedIsolation, Mechanism as Chosen, MigInstance,
    MigState, Mode as AskedMode, Place, Workload, choose,
};
use gpool_policy::mig::{Instance, Model, Placement};
use gpool_protocol::{
    Class, ErrorBody, ErrorCode, Isolation, LeaseId, LeaseRequest, Mechanism, MemoryCap, Mode, Priority, Request,
};
use std::collections::BTreeSet;

impl Leases {
    /// The mechanism for a request: its own mode, or what the table gives.
    ///
    /// # Errors
    /// A mode that this host does not allow or that keeps neighbours less apart than is asked for, or nothing in the
    /// table that serves.
    pub fn mechanism_for(
        &self,
        asked: &LeaseRequest,
        (book, kept): (&Book, Option<&LeaseId>),
        gpus: &[Gpu],
        capacities: &[GpuCapacity],
    ) -> Result<Served, ErrorBody> {
        let request = asked.request.clone();
        let is_of_instance = request.mode == Mode::Slice && request.mig_profile.is_some();
        if !matches!(request.mode, Mode::Auto | Mode::Mig) && !is_of_instance {
            return Ok(Served { mechanism: self.named_mechanism(asked)?, instance: None, request });
        }
        let (ask, host) = (ask_of(asked, gpus), self.described((book, kept), gpus, capacities));
        let (mechanism, place) = by_table(&ask, &host)?;
        let request = if mechanism == Mechanism::Slice { within(&ask, &host, &place, request) } else { request };
        let instance = match place {
            Place::Instance { gpu, profile, placement } => Some((gpu, profile, placement)),
            Place::Gpus(_) | Place::NewInstance { .. } => None,
        };
        let is_it = |gpu: &Gpu, key: &str, start: u8| {
            gpu.instance().is_some_and(|instance| instance.board.0 == key && instance.start == start)
        };
        let instance =
            instance.and_then(|(key, _, placement)| gpus.iter().position(|gpu| is_it(gpu, &key, placement.start)));
        Ok(Served { mechanism, instance, request })
    }

    /// The mechanism that a request names.
    fn named_mechanism(&self, asked: &LeaseRequest) -> Result<Mechanism, ErrorBody> {
        let request = &asked.request;
        match request.mode {
            Mode::Slice if request.isolation.is_none_or(|isolation| isolation <= Isolation::Software) => {
                Ok(Mechanism::Slice)
            }
            Mode::Slice => Err(ErrorBody::new(
                ErrorCode::NoMechanism,
                format!(
                    "slices keep neighbours apart by software, and isolation={} is asked for",
                    request.isolation.map_or("", Isolation::text)
                ),
                "ask for mode=exclusive, or leave mode out",
            )),
            Mode::Exclusive => Ok(Mechanism::Exclusive),
            Mode::TimeSlice if self.configuration().policy.timeslice => {
                self.check_time_slices(request)?;
                if request.memory.is_some() {
                    memory_limits::check_can_keep(self, asked.unenforced)?;
                }
                Ok(Mechanism::TimeSlice)
            }
            Mode::TimeSlice => Err(ErrorBody::new(
                ErrorCode::RequestNotAllowed,
                "mode=timeslice is not allowed on this host: nothing bounds who has it",
                "ask for mode=slice with a fraction, or let [policy] timeslice in config.toml be true and run gpool config reload",
            )),
            Mode::Mps if self.configuration().policy.mps => Ok(Mechanism::Mps),
            Mode::Mps => Err(ErrorBody::new(
                ErrorCode::RequestNotAllowed,
                "mode=mps is not allowed on this host: a fault of one container ends the work of all under its server",
                "ask for mode=slice, or let [policy] mps in config.toml be true and restart gpool-supervisor",
            )),
            Mode::Auto | Mode::Mig => Ok(Mechanism::Mig),
        }
    }

    /// Whether the hardware of any GPU keeps a share by time slices, if one is asked for.
    fn check_time_slices(&self, request: &Request) -> Result<(), ErrorBody> {
        let gpus = self.gpus();
        let is_kept = || gpus.iter().any(|gpu| self.time_slices.keeps(&gpu.uuid));
        let is_wanted = self.configuration().policy.timeslice_shares;
        if is_wanted && request.gpus > 1 {
            return Err(ErrorBody::new(
                ErrorCode::RequestNotAllowed,
                format!(
                    "gpus={} does not go with mode=timeslice on a host that keeps shares of time slices",
                    request.gpus
                ),
                "ask for one GPU, or for mode=slice",
            ));
        }
        if request.fraction_permille == 0 || is_wanted && is_kept() {
            return Ok(());
        }
        let (message, remedy) = match is_wanted {
            false => (
                "time slices are not kept to a fraction on this host".to_owned(),
                "ask for mode=slice, or let [policy] timeslice_shares in config.toml be true and restart \
                 gpool-supervisor",
            ),
            true => {
                let told = gpus.iter().find_map(|gpu| Some(self.time_slices.of(&gpu.uuid)?.told));
                let told = told.unwrap_or_else(|| "they are being tried".to_owned());
                (
                    format!("no GPU of this host is known to keep a fraction by time slices: {told}"),
                    "ask for mode=slice, or leave fraction out; gpool doctor says what was tried",
                )
            }
        };
        Err(ErrorBody::new(ErrorCode::RequestNotAllowed, message, remedy))
    }

    /// This host as the table sees it.
    fn described(&self, (book, kept): (&Book, Option<&LeaseId>), gpus: &[Gpu], capacities: &[GpuCapacity]) -> Host {
        let teams = |index: usize| -> BTreeSet<String> {
            let leases = book.leases.values().filter(|lease| lease.gpus().any(|gpu| gpu == index));
            let leases = leases.filter(|lease| !lease.record.has_no_share());
            leases.filter_map(|lease| lease.record.team.clone()).collect()
        };
        // A place that is kept for the container itself binds nobody, as for its capacity.
        let team_of = |index: usize| records_on(gpus, book, index, kept).find_map(|record| record.team.clone());
        // One that is about to be divided takes nobody in.
        let is_board = |gpu: &Gpu| matches!(gpu.kind, Kind::Whole | Kind::Divided) && !book.is_closed(&gpu.uuid);
        let boards = gpus.iter().zip(capacities).enumerate().filter(|(_, (own, _))| is_board(own));
        let board = |(index, (own, capacity)): (usize, (&Gpu, &GpuCapacity))| {
            let of_driver = self.inventory.boards().get(&own.index).map(|board| board.model);
            let model = of_driver.or_else(|| Model::of_product(&own.name, own.memory_total_bytes));
            let mut planned = planned(own, capacity, teams(index));
            planned.compute_mode = self.compute_modes.of(index);
            planned.mig = model.map(|model| divided(own, model, (gpus, capacities), team_of)).unwrap_or_default();
            planned.model = model;
            planned
        };
        let boards = boards.map(board).collect();
        let is_vgpu_guest = gpus.iter().any(|gpu| gpu.is_virtual);
        Host { has_mps: self.configuration().policy.mps, is_vgpu_guest, ..Host::with(boards) }
    }
}

/// What serves a request.
pub struct Served {
    /// How.
    pub mechanism: Mechanism,
    /// The MIG instance, if it is one or a part of one: its place among all GPUs.
    pub instance: Option<usize>,
    /// The request, its share and ceiling as parts of that instance if it is to be sliced.
    pub request: Request,
}

/// A request for a share of the instance at `place`, if that is one.
fn within(ask: &Ask, host: &Host, place: &Place, request: Request) -> Request {
    let Place::Instance { gpu, profile, .. } = place else { return request };
    let Some(model) = host.gpus.iter().find(|its| its.key == *gpu).and_then(|gpu| gpu.model) else { return request };
    // A ceiling beyond the instance is all of it.
    let part = |permille: u16| u16::try_from(ask.within(permille, model, profile)).unwrap_or(1000).min(1000);
    Request {
        fraction_permille: part(request.fraction_permille),
        limit_permille: request.limit_permille.map(part),
        ..request
    }
}

/// What a board is divided into, as the table sees it. Instances of profiles that its driver does not name are left out.
fn divided(
    own: &Gpu,
    model: &'static Model,
    (gpus, capacities): (&[Gpu], &[GpuCapacity]),
    team_of: impl Fn(usize) -> Option<String>,
) -> MigState {
    let instance = |(index, (gpu, capacity)): (usize, (&Gpu, &GpuCapacity))| {
        let its = gpu.instance().filter(|its| its.board == own.uuid)?;
        let placement = Placement { start: its.start, size: its.size };
        let users = capacity.users;
        let leases = users.sliced + users.whole + users.time_sliced + users.mps + users.outside;
        Some(MigInstance {
            instance: Instance { placement, profile: model.profile(&its.profile)? },
            share_free_permille: capacity.share_free_permille(),
            memory_bytes: capacity.memory_total_bytes,
            memory_free_bytes: capacity.memory_free_bytes(),
            is_whole: users.whole > 0,
            team: team_of(index),
            leases: u16::try_from(leases).unwrap_or(u16::MAX),
        })
    };
    MigState {
        is_on: own.kind == Kind::Divided,
        owner: crate::mig::owner(),
        instances: gpus.iter().zip(capacities).enumerate().filter_map(instance).collect(),
    }
}

/// A whole GPU as the table sees it.
fn planned(own: &Gpu, capacity: &GpuCapacity, teams: BTreeSet<String>) -> PlannedGpu {
    let users = capacity.users;
    // Who is in the way of a whole GPU counts as a lease on it, whoever that is.
    let leases = users.sliced + users.whole + users.time_sliced + users.mps + users.outside;
    let is_sliceable = users.in_the_way_of(Use::Sliced).is_none();
    PlannedGpu {
        key: capacity.key.clone(),
        product: own.name.clone(),
        model: Model::of_product(&own.name, own.memory_total_bytes),
        memory_bytes: capacity.memory_total_bytes,
        is_healthy: true,
        compute_mode: ComputeMode::Default,
        share_free_permille: capacity.share_free_permille(),
        memory_free_bytes: if is_sliceable { capacity.memory_free_bytes() } else { 0 },
        leases: u16::try_from(leases).unwrap_or(u16::MAX),
        teams,
        longest_burst_us: None,
        island: capacity.site.island,
        processor: capacity.site.processor,
        mig: MigState::default(),
    }
}

fn by_table(ask: &Ask, host: &Host) -> Result<(Mechanism, Place), ErrorBody> {
    let decision = choose(ask, host);
    match decision.choice.as_ref().map(|choice| (choice.mechanism, choice.place.clone())) {
        Some((Chosen::Slices, place)) => Ok((Mechanism::Slice, place)),
        Some((Chosen::SlicesInMig, place @ Place::Instance { .. })) => Ok((Mechanism::Slice, place)),
        Some((Chosen::Exclusive, place)) => Ok((Mechanism::Exclusive, place)),
        Some((Chosen::Mps, place)) => Ok((Mechanism::Mps, place)),
        Some((Chosen::Mig, place @ Place::Instance { .. })) => Ok((Mechanism::Mig, place)),
        Some((other, _)) => Err(ErrorBody::new(
            ErrorCode::RequestFeatureMissing,
            format!("{other} would serve this request, which this version does not do"),
            "ask for mode=exclusive or mode=slice",
        )),
        None => Err(ErrorBody::new(ErrorCode::NoMechanism, decision.causes().join("; "), remedy(ask, host))),
    }
}

/// What helps whom nothing serves: not to wait for what this host will never have.
fn remedy(ask: &Ask, host: &Host) -> &'static str {
    let wants_instance = ask.mode == AskedMode::Mig || ask.profile.is_some();
    let has_mig = host.gpus.iter().any(|gpu| gpu.model.is_some_and(Model::has_mig));
    match wants_instance && !has_mig {
        true => "no GPU of this host can be divided: ask for mode=slice with a fraction, or for mode=exclusive",
        false => "stop a container (gpool ps lists them), or ask for less; gpool explain --request shows every row",
    }
}

fn ask_of(asked: &LeaseRequest, gpus: &[Gpu]) -> Ask {
    let request = &asked.request;
    Ask {
        mode: match request.mode {
            Mode::Mig => AskedMode::Mig,
            Mode::Slice => AskedMode::Slice,
            Mode::Auto | Mode::Exclusive | Mode::TimeSlice | Mode::Mps => AskedMode::Auto,
        },
        profile: request.mig_profile.clone(),
        limit_permille: request.limit_permille,
        memory_bytes: match request.memory {
            Some(MemoryCap::Bytes(bytes)) => Some(bytes),
            Some(MemoryCap::Permille(_)) | None => None,
        },
        memory_permille: match request.memory {
            Some(MemoryCap::Permille(permille)) => Some(permille),
            Some(MemoryCap::Bytes(_)) | None => None,
        },
        is_best_effort: request.priority != Priority::Guaranteed,
        gpus: request.gpus,
        suitable: suitable_for(request, gpus),
        isolation: match request.isolation {
            None | Some(Isolation::Shared) => AskedIsolation::Shared,
            Some(Isolation::Software) => AskedIsolation::Software,
            Some(Isolation::Hardware) => AskedIsolation::Hardware,
            Some(Isolation::Exclusive) => AskedIsolation::Exclusive,
        },
        team: request.team.clone(),
        workload: match request.class {
            Class::Latency => Workload::InferOnline,
            Class::Batch => Workload::BatchInfer,
            Class::Notebook => Workload::Notebook,
            Class::Train => Workload::Train,
        },
        p99_ms: request.p99_ns.and_then(|ns| u32::try_from(ns.div_ceil(1_000_000)).ok()),
        // Who names slices has them where the host allows a share that cannot be enforced.
        facts: match asked.unenforced && request.mode != Mode::Slice {
            true => [Fact::Privileged].into(),
            false => BTreeSet::new(),
        },
        // Of an instance perhaps only the profile or the memory matters.
        ..Ask::of(request.fraction_permille.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_policy::admission::{Site, Users};
    use gpool_protocol::{ContainerId, Request};

    fn asked(request: &str) -> LeaseRequest {
        let request: Request = serde_json::from_str(request).unwrap();
        LeaseRequest {
            container_id: ContainerId("c".into()),
            request,
            asked_for_parent: false,
            starts_once: false,
            memory_of_all: false,
            unenforced: false,
            container_uid: None,
            in_pod: None,
            pod: None,
            container_dir: None,
        }
    }

    fn host(leases: u16) -> Host {
        let mut gpu = PlannedGpu::idle("GPU-1", Model::named("T4").unwrap());
        gpu.leases = leases;
        Host { has_mps: false, ..Host::with(vec![gpu]) }
    }

    #[test]
    fn a_gpu_is_planned_with_as_it_is_used() {
        let own = board(Kind::Whole);
        let capacity = |users| GpuCapacity {
            key: "GPU-1".into(),
            memory_total_bytes: 80 << 30,
            memory_foreign_bytes: 0,
            fraction_leased_permille: 300,
            memory_leased_bytes: 20 << 30,
            users,
            site: Site::default(),
        };
        let seen = |users| {
            let gpu = planned(&own, &capacity(users), BTreeSet::new());
            (gpu.share_free_permille, gpu.memory_free_bytes >> 30, gpu.leases)
        };
        let nobody = Users::default();
        assert_eq!(seen(Users { sliced: 2, ..nobody }), (700, 60, 2));
        assert_eq!(seen(Users { time_sliced: 1, ..nobody }), (0, 0, 1), "no share is sold beside time slices");
        assert_eq!(seen(Users { outside: 1, ..nobody }), (700, 60, 1));
        assert_eq!(planned(&own, &capacity(nobody), BTreeSet::new()).model.map(|model| model.name), Some("A100-80GB"));
    }

    fn board(kind: Kind) -> Gpu {
        Gpu {
            index: 0,
            uuid: gpool_protocol::GpuUuid("GPU-1".into()),
            name: "NVIDIA A100-SXM4-80GB".into(),
            minor: 0,
            memory_total_bytes: 80 << 30,
            memory_reserved_bytes: 0,
            memory_headroom_bytes: 0,
            driver_version: "1".into(),
            is_virtual: false,
            kind,
        }
    }

    fn instance(uuid: &str, profile: &str, start: u8, size: u8) -> Gpu {
        let its = crate::device::MigInstance {
            board: gpool_protocol::GpuUuid("GPU-1".into()),
            profile: profile.into(),
            gpu_instance: 0,
            compute_instance: 0,
            start,
            size,
        };
        Gpu { uuid: gpool_protocol::GpuUuid(uuid.into()), ..board(Kind::Instance(its)) }
    }

    fn capacity(gpu: &Gpu, users: Users, fraction_leased_permille: u16) -> GpuCapacity {
        GpuCapacity {
            key: gpu.uuid.0.clone(),
            memory_total_bytes: gpu.memory_total_bytes,
            memory_foreign_bytes: 0,
            fraction_leased_permille,
            memory_leased_bytes: 0,
            users,
            site: Site::default(),
        }
    }

    /// A board with two instances, whose users are these, and whose teams.
    fn two_instances(users: [(Users, u16); 2], teams: [Option<&str>; 2]) -> Host {
        let gpus = [board(Kind::Divided), instance("MIG-a", "3g.40gb", 4, 4), instance("MIG-b", "1g.10gb", 3, 1)];
        let of = |place: usize| capacity(&gpus[place], users[place - 1].0, users[place - 1].1);
        let capacities = [capacity(&gpus[0], Users::default(), 0), of(1), of(2)];
        let mut planned = planned(&gpus[0], &capacities[0], BTreeSet::new());
        let team_of = |place: usize| place.checked_sub(1).and_then(|place| teams[place]).map(str::to_owned);
        let model = Model::named("A100-80GB").unwrap();
        (planned.model, planned.mig) = (Some(model), divided(&gpus[0], model, (&gpus, &capacities), team_of));
        Host { has_mps: false, ..Host::with(vec![planned]) }
    }

    fn start(place: &Place) -> u8 {
        match place {
            Place::Instance { placement, .. } => placement.start,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_instance_is_found_by_its_profile_or_its_size_and_auto_takes_it_for_hardware() {
        let of = |request: &str, taken: [u32; 2]| {
            let users = taken.map(|whole| (Users { whole, ..Users::default() }, 0));
            by_table(&ask_of(&asked(request), &[]), &two_instances(users, [None; 2]))
        };
        let named = r#"{"fraction_permille":0,"mode":"mig","mig_profile":"1g.10gb"}"#;
        let sized = r#"{"fraction_permille":0,"mode":"mig","memory":{"bytes":21474836480}}"#;
        let strict = r#"{"fraction_permille":100,"mode":"auto","isolation":"hardware"}"#;
        for (request, wanted) in [(named, 3), (sized, 4), (strict, 3)] {
            let (mechanism, place) = of(request, [0, 0]).unwrap();
            assert_eq!((mechanism, start(&place)), (Mechanism::Mig, wanted), "{request}");
        }
        assert_eq!(start(&of(strict, [0, 1]).unwrap().1), 4, "a larger one where the small one is taken");
        let error = of(named, [0, 1]).unwrap_err();
        assert!(
            error.code == ErrorCode::NoMechanism && error.message.contains("no free instance of 1g.10gb"),
            "{error}"
        );
        let slices = of(r#"{"fraction_permille":300,"mode":"auto"}"#, [0, 0]).unwrap_err();
        assert!(slices.message.contains("divided with MIG"), "{slices}");
    }

    #[test]
    fn a_share_of_an_instance_is_its_teams_and_never_a_whole_ones() {
        let sliced = |permille| (Users { sliced: 1, ..Users::default() }, permille);
        let (nobody, whole) = ((Users::default(), 0), (Users { whole: 1, ..Users::default() }, 0));
        let shared = two_instances([sliced(600), whole], [Some("vision"), None]);
        let of = |request: &str, host: &Host| by_table(&ask_of(&asked(request), &[]), host);
        let named = |team: &str, permille: u16| {
            format!(
                r#"{{"fraction_permille":{permille},"mode":"slice","mig_profile":"3g.40gb","team":"{team}",
                    "memory":{{"bytes":1073741824}}}}"#
            )
        };
        let (mechanism, place) = of(&named("vision", 400), &shared).unwrap();
        assert_eq!((mechanism, start(&place)), (Mechanism::Slice, 4));
        for (request, part) in [
            (named("vision", 401), "400 of the 401 thousandths"),
            (named("speech", 100), "belongs to the team vision"),
            (named("speech", 100).replace("3g.40gb", "1g.10gb"), "one container's as a whole"),
            (r#"{"fraction_permille":0,"mode":"mig","mig_profile":"3g.40gb"}"#.to_owned(), "no free instance"),
        ] {
            let error = of(&request, &shared).unwrap_err();
            assert!(error.code == ErrorCode::NoMechanism && error.message.contains(part), "{error} lacks {part}");
        }
        // By the table a fraction is of the GPU, and is converted; by its profile it is of the instance.
        let free = two_instances([nobody, nobody], [None; 2]);
        let parts = |text: &str| {
            let (asked, ask) = (asked(text), ask_of(&asked(text), &[]));
            let (_, place) = by_table(&ask, &free).unwrap();
            let inside = within(&ask, &free, &place, asked.request);
            (start(&place), inside.fraction_permille, inside.limit_permille)
        };
        assert_eq!(parts(&named("vision", 300)), (4, 300, None));
        let auto = r#"{"fraction_permille":200,"limit_permille":900,"mode":"auto","team":"vision"}"#;
        assert_eq!(parts(auto), (4, 467, Some(1000)), "a ceiling beyond the instance is all of it");
    }

    #[test]
    fn auto_gives_a_share_or_a_whole_gpu_and_says_why_neither() {
        let of =
            |request: &str, leases| by_table(&ask_of(&asked(request), &[]), &host(leases)).map(|(chosen, _)| chosen);
        let share = r#"{"fraction_permille":300,"mode":"auto"}"#;
        let strict = r#"{"fraction_permille":300,"mode":"auto","isolation":"hardware"}"#;
        assert_eq!(of(share, 1), Ok(Mechanism::Slice));
        assert_eq!(of(r#"{"fraction_permille":950,"mode":"auto"}"#, 0), Ok(Mechanism::Exclusive));
        assert_eq!(of(strict, 0), Ok(Mechanism::Exclusive));
        let error = of(strict, 1).unwrap_err();
        assert_eq!(error.code, ErrorCode::NoMechanism);
        assert!(error.message.contains("GPU-1 has 1 lease") && error.message.contains("no MIG"), "{error}");
        assert!(error.remedy.contains("stop a container"), "{error}");
        let instance = asked(r#"{"fraction_permille":0,"mode":"mig","mig_profile":"1g.10gb"}"#);
        let error = by_table(&ask_of(&instance, &[]), &host(0)).unwrap_err();
        assert!(
            error.remedy.contains("no GPU of this host can be divided") && !error.remedy.contains("stop"),
            "{error}"
        );
        let mut privileged = asked(share);
        privileged.unenforced = true;
        assert_eq!(by_table(&ask_of(&privileged, &[]), &host(0)).map(|(chosen, _)| chosen), Ok(Mechanism::Exclusive));
    }
}
