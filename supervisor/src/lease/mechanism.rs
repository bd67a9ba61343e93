//! Which mechanism serves a request on this host.

use super::book::Book;
use super::grant::Leases;
use crate::device::Gpu;
use gpool_policy::admission::{GpuCapacity, Use};
use gpool_policy::mechanism::{
    Ask, Fact, Gpu as PlannedGpu, Host, Isolation as AskedIsolation, Mechanism as Chosen, MigState, Workload, choose,
};
use gpool_policy::mig::Model;
use gpool_protocol::{Class, ErrorBody, ErrorCode, Isolation, LeaseRequest, Mechanism, MemoryCap, Mode};
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
        book: &Book,
        capacities: &[GpuCapacity],
    ) -> Result<Mechanism, ErrorBody> {
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
            Mode::TimeSlice if self.configuration().policy.timeslice => Ok(Mechanism::TimeSlice),
            Mode::TimeSlice => Err(ErrorBody::new(
                ErrorCode::RequestNotAllowed,
                "mode=timeslice is not allowed on this host: nothing bounds who has it",
                "ask for mode=slice with a fraction, or let [policy] timeslice in config.toml be true",
            )),
            Mode::Auto => by_table(&ask_of(asked), &self.described(book, capacities)),
        }
    }

    /// This host as the table sees it.
    fn described(&self, book: &Book, capacities: &[GpuCapacity]) -> Host {
        let teams = |index: usize| -> BTreeSet<String> {
            let leases = book.leases.values().filter(|lease| lease.gpus().any(|gpu| gpu == index));
            leases.filter_map(|lease| lease.record.team.clone()).collect()
        };
        let both = self.gpus.iter().zip(capacities).enumerate();
        let gpus = both.map(|(index, (own, capacity))| planned(own, capacity, teams(index))).collect();
        let is_vgpu_guest = self.gpus.iter().any(|gpu| gpu.is_virtual);
        Host { has_mps: false, is_vgpu_guest, ..Host::with(gpus) }
    }
}

/// A GPU as the table sees it. Of MIG nothing is known.
fn planned(own: &Gpu, capacity: &GpuCapacity, teams: BTreeSet<String>) -> PlannedGpu {
    let users = capacity.users;
    // Who is in the way of a whole GPU counts as a lease on it, whoever that is.
    let leases = users.sliced + users.whole + users.time_sliced + users.outside;
    let is_sliceable = users.in_the_way_of(Use::Sliced).is_none();
    PlannedGpu {
        key: capacity.key.clone(),
        product: own.name.clone(),
        model: Model::of_product(&own.name, own.memory_total_bytes),
        memory_bytes: capacity.memory_total_bytes,
        is_healthy: true,
        share_free_permille: capacity.share_free_permille(),
        memory_free_bytes: if is_sliceable { capacity.memory_free_bytes() } else { 0 },
        leases: u16::try_from(leases).unwrap_or(u16::MAX),
        teams,
        longest_burst_us: None,
        island: None,
        mig: MigState::default(),
    }
}

fn by_table(ask: &Ask, host: &Host) -> Result<Mechanism, ErrorBody> {
    let decision = choose(ask, host);
    match decision.choice.as_ref().map(|choice| choice.mechanism) {
        Some(Chosen::Slices) => Ok(Mechanism::Slice),
        Some(Chosen::Exclusive) => Ok(Mechanism::Exclusive),
        Some(other) => Err(ErrorBody::new(
            ErrorCode::RequestFeatureMissing,
            format!("{other} would serve this request, which this version does not do"),
            "ask for mode=exclusive or mode=slice",
        )),
        None => Err(ErrorBody::new(
            ErrorCode::NoMechanism,
            decision.causes().join("; "),
            "stop a container (gpool ps lists them), or ask for less; gpool explain --request shows every row",
        )),
    }
}

fn ask_of(asked: &LeaseRequest) -> Ask {
    let request = &asked.request;
    Ask {
        limit_permille: request.limit_permille,
        memory_bytes: match request.memory {
            Some(MemoryCap::Bytes(bytes)) => Some(bytes),
            // A part of the GPU, which is chosen later.
            Some(MemoryCap::Permille(_)) | None => None,
        },
        gpus: request.gpus,
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
        facts: if asked.unenforced { [Fact::Privileged].into() } else { BTreeSet::new() },
        ..Ask::of(request.fraction_permille)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_policy::admission::Users;
    use gpool_protocol::{ContainerId, Request};

    fn asked(request: &str) -> LeaseRequest {
        let request: Request = serde_json::from_str(request).unwrap();
        LeaseRequest {
            container_id: ContainerId("c".into()),
            request,
            asked_for_parent: false,
            starts_once: false,
            unenforced: false,
        }
    }

    fn host(leases: u16) -> Host {
        let mut gpu = PlannedGpu::idle("GPU-1", Model::named("T4").unwrap());
        gpu.leases = leases;
        Host { has_mps: false, ..Host::with(vec![gpu]) }
    }

    #[test]
    fn a_gpu_is_planned_with_as_it_is_used() {
        let own = Gpu {
            index: 0,
            uuid: gpool_protocol::GpuUuid("GPU-1".into()),
            name: "NVIDIA A100-SXM4-80GB".into(),
            minor: 0,
            memory_total_bytes: 80 << 30,
            driver_version: "1".into(),
            is_virtual: false,
        };
        let capacity = |users| GpuCapacity {
            key: "GPU-1".into(),
            memory_total_bytes: 80 << 30,
            memory_foreign_bytes: 0,
            fraction_leased_permille: 300,
            memory_leased_bytes: 20 << 30,
            users,
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

    #[test]
    fn auto_gives_a_share_or_a_whole_gpu_and_says_why_neither() {
        let of = |request: &str, leases| by_table(&ask_of(&asked(request)), &host(leases));
        let share = r#"{"fraction_permille":300,"mode":"auto"}"#;
        let strict = r#"{"fraction_permille":300,"mode":"auto","isolation":"hardware"}"#;
        assert_eq!(of(share, 1), Ok(Mechanism::Slice));
        assert_eq!(of(r#"{"fraction_permille":950,"mode":"auto"}"#, 0), Ok(Mechanism::Exclusive));
        assert_eq!(of(strict, 0), Ok(Mechanism::Exclusive));
        let error = of(strict, 1).unwrap_err();
        assert_eq!(error.code, ErrorCode::NoMechanism);
        assert!(error.message.contains("GPU-1 has 1 lease") && error.message.contains("no MIG"), "{error}");
        let mut privileged = asked(share);
        privileged.unenforced = true;
        assert_eq!(by_table(&ask_of(&privileged), &host(0)), Ok(Mechanism::Exclusive));
    }
}
