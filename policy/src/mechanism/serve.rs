//! Whether a host can serve a request by one mechanism, and where; if not, why not.

use super::host::{Gpu, Host, MigInstance, Pool};
use super::inside::inside_instance;
use super::{Ask, Mechanism, Trust, Workload};
use crate::admission::{Taking, together};
use crate::mig::{Model, Placement, Profile, StartChoice};

/// Kernels of a neighbour that are longer than this, in microseconds, keep answers waiting whatever the scheduler does:
/// it is the time after which a silent tenant loses its turn.
pub const COARSE_BURST_US: u64 = 20_000;
/// Promises of less than this, in milliseconds, do not bear such a neighbour.
pub(super) const TIGHT_P99_MS: u32 = 100;

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On these GPUs.
    Gpus(Vec<String>),
    /// In an instance that is there.
    Instance {
        /// The GPU.
        gpu: String,
        /// The profile.
        profile: &'static Profile,
        /// Where the instance lies.
        placement: Placement,
    },
    /// In an instance that is to be made.
    NewInstance {
        /// The GPU.
        gpu: String,
        /// The profile.
        profile: &'static Profile,
        /// Where it will lie.
        placement: Placement,
    },
}

/// Where `ask` can be served by `mechanism`, or why it cannot.
pub(super) fn place(mechanism: Mechanism, ask: &Ask, host: &Host) -> Result<Place, String> {
    if host.is_vgpu_guest && matches!(mechanism, Mechanism::Mig | Mechanism::SlicesInMig | Mechanism::Mps) {
        return Err(format!("{mechanism}: the GPUs are virtual ones, which offer neither MIG nor MPS here"));
    }
    match mechanism {
        Mechanism::Exclusive => whole(ask, host),
        Mechanism::Mig => instance(ask, host),
        Mechanism::SlicesInMig => inside_instance(ask, host),
        Mechanism::Slices => {
            if host.pool == Pool::TimeSlice {
                return Err("slices: the pool is given over to the driver's time slices".to_owned());
            }
            shared(mechanism, ask, host, |gpu| neighbours_are_fine(ask, gpu))
        }
        Mechanism::Mps => {
            if !host.has_mps {
                return Err("MPS: it cannot be used on this host".to_owned());
            }
            if host.pool == Pool::TimeSlice {
                return Err("MPS: the pool is given over to the driver's time slices".to_owned());
            }
            shared(mechanism, ask, host, |gpu| one_team(ask, gpu))
        }
        Mechanism::TimeSlice => {
            if host.pool != Pool::TimeSlice {
                return Err("driver time slices: the pool is not given over to them".to_owned());
            }
            shared(mechanism, ask, host, |_| Ok(()))
        }
    }
}

pub(super) fn unhealthy(gpu: &Gpu) -> Result<(), String> {
    if gpu.is_healthy { Ok(()) } else { Err(format!("{} is not healthy", gpu.key)) }
}

/// A GPU as a whole has one mode for all who use it. Instances have none of their own.
fn lets_in(mechanism: Mechanism, gpu: &Gpu) -> Result<(), String> {
    match gpu.compute_mode.serves(mechanism) {
        true => Ok(()),
        false => {
            Err(format!("{} is in the compute mode {}, which nvidia-smi -c DEFAULT ends", gpu.key, gpu.compute_mode))
        }
    }
}

/// Of each GPU that will not do, why not; the first reason of all if none will.
fn first_fit(
    what: &str,
    (gpus, wanted): (&[Gpu], u16),
    taking: Taking,
    fits: impl Fn(&Gpu) -> Result<(), String>,
) -> Result<Vec<String>, String> {
    let judged: Vec<(&Gpu, Result<(), String>)> =
        gpus.iter().map(|gpu| (gpu, unhealthy(gpu).and_then(|()| fits(gpu)))).collect();
    let fitting: Vec<&Gpu> = judged.iter().filter(|(_, fit)| fit.is_ok()).map(|(gpu, _)| *gpu).collect();
    if fitting.len() >= usize::from(wanted) {
        let taken = together(&fitting, wanted.into(), taking, |gpu| gpu.site());
        return Ok(taken.into_iter().map(|gpu| gpu.key.clone()).collect());
    }
    let why: Vec<String> = judged.into_iter().filter_map(|(_, fit)| fit.err()).collect();
    match why.is_empty() {
        true => Err(format!("{what}: {wanted} GPUs are asked for, and there are {}", gpus.len())),
        false => Err(format!("{what}: {}", why.join("; "))),
    }
}

/// GPUs that serve several tenants as wholes.
fn shared(
    mechanism: Mechanism,
    ask: &Ask,
    host: &Host,
    fits: impl Fn(&Gpu) -> Result<(), String>,
) -> Result<Place, String> {
    let has_room = |gpu: &Gpu| {
        if gpu.mig.is_on {
            return Err(format!("{} is divided with MIG", gpu.key));
        }
        lets_in(mechanism, gpu)?;
        let needs_share = mechanism != Mechanism::TimeSlice && !ask.is_best_effort;
        if needs_share && gpu.share_free_permille < ask.fraction_permille {
            return Err(format!(
                "{} has {} of the {} thousandths free",
                gpu.key, gpu.share_free_permille, ask.fraction_permille
            ));
        }
        let needed = ask.memory_on(gpu.memory_bytes);
        if gpu.memory_free_bytes < needed && !(ask.is(super::Fact::Spill) && host.has_spill) {
            return Err(format!("{} has {} of the {} MiB free", gpu.key, gpu.memory_free_bytes >> 20, needed >> 20));
        }
        fits(gpu)
    };
    // Where the least is left, as admission does: large rooms stay large.
    let mut gpus = host.gpus.clone();
    gpus.sort_by_key(|gpu| (gpu.share_free_permille, gpu.memory_free_bytes));
    first_fit(mechanism.text(), (&gpus, ask.gpus), Taking::Best, has_room).map(Place::Gpus)
}

/// Whether the neighbours on a GPU leave an answer its time.
pub(super) fn neighbours_are_fine(ask: &Ask, gpu: &Gpu) -> Result<(), String> {
    let is_tight = ask.p99_ms.is_some_and(|p99_ms| p99_ms < TIGHT_P99_MS);
    match gpu.longest_burst_us {
        Some(burst_us) if is_tight && ask.workload == Workload::InferOnline && burst_us > COARSE_BURST_US => {
            Err(format!("{} has neighbours whose kernels take {} ms", gpu.key, burst_us / 1000))
        }
        _ => Ok(()),
    }
}

fn one_team(ask: &Ask, gpu: &Gpu) -> Result<(), String> {
    if ask.trust != Trust::SameTeam {
        return Err("a server's clients have one fate, and the neighbours are of other teams".to_owned());
    }
    match gpu.teams.iter().find(|team| Some(*team) != ask.team.as_ref()) {
        Some(other) => Err(format!("{} has leases of the team {other}", gpu.key)),
        None => Ok(()),
    }
}

fn whole(ask: &Ask, host: &Host) -> Result<Place, String> {
    let is_nobodys = |gpu: &Gpu| {
        if gpu.mig.is_on {
            return Err(format!("{} is divided with MIG", gpu.key));
        }
        lets_in(Mechanism::Exclusive, gpu)?;
        if gpu.leases > 0 {
            return Err(format!("{} has {} lease{}", gpu.key, gpu.leases, if gpu.leases == 1 { "" } else { "s" }));
        }
        let needed = ask.memory_bytes.unwrap_or(0);
        if gpu.memory_free_bytes < needed {
            return Err(format!("{} has {} of the {} MiB free", gpu.key, gpu.memory_free_bytes >> 20, needed >> 20));
        }
        Ok(())
    };
    match host.gpus.is_empty() {
        true => Err("whole GPUs: there is no GPU".to_owned()),
        false => first_fit("whole GPUs", (&host.gpus, ask.gpus), Taking::Smallest, is_nobodys).map(Place::Gpus),
    }
}

/// The smallest profile that has the compute and the memory, or the one that is asked for by name.
pub(super) fn profile_for(ask: &Ask, model: &'static Model) -> Result<&'static Profile, String> {
    if let Some(name) = &ask.profile {
        return model.profile(name).ok_or_else(|| format!("{} has no profile {name}", model.name));
    }
    // Instances are measured by what they have of the whole board.
    let has_part = |own: u8, all: u8, permille: u16| u32::from(own) * 1000 >= u32::from(all) * u32::from(permille);
    let has_memory = |profile: &Profile| match (ask.memory_bytes, ask.memory_permille) {
        (Some(bytes), _) => u64::from(profile.memory_mib) >= bytes.div_ceil(1 << 20),
        // In slices, of each of which the driver keeps a little: half of them would never be half of the bytes.
        (None, Some(permille)) => has_part(profile.memory_slices, model.memory_slices, permille),
        (None, None) => true,
    };
    let has_enough = |profile: &&Profile| {
        has_part(profile.compute_slices, model.compute_slices, ask.fraction_permille) && has_memory(profile)
    };
    let plain = model.profiles.iter().filter(|profile| profile.kind != crate::mig::ProfileKind::Media);
    plain.filter(has_enough).min().ok_or_else(|| {
        let memory = match (ask.memory_bytes, ask.memory_permille) {
            (Some(bytes), _) => format!(" and {} MiB", bytes.div_ceil(1 << 20)),
            (None, Some(permille)) => format!(" and {permille} thousandths of the memory"),
            (None, None) => String::new(),
        };
        format!("no instance of {} has {} thousandths{memory}", model.name, ask.fraction_permille)
    })
}

fn instance(ask: &Ask, host: &Host) -> Result<Place, String> {
    if ask.gpus > 1 {
        return Err("MIG instance: a container gets one instance, and several GPUs are asked for".to_owned());
    }
    let (mut there, mut new, mut why) = (Vec::new(), None, Vec::new());
    for gpu in &host.gpus {
        match on_gpu(ask, host, gpu) {
            Ok(Place::Instance { gpu, profile, placement }) => there.push((gpu, profile, placement)),
            Ok(place) => new = new.or(Some(place)),
            Err(cause) => why.push(cause),
        }
    }
    // Of unlike boards instances with as many slices differ in memory; of those that are alike it is the first GPU's.
    let size = |profile: &Profile| (profile.compute_slices, profile.memory_mib, profile.kind);
    if let Some((gpu, profile, placement)) = there.into_iter().min_by_key(|(_, profile, _)| size(profile)) {
        return Ok(Place::Instance { gpu, profile, placement });
    }
    new.ok_or_else(|| match why.is_empty() {
        true => "MIG instance: there is no GPU".to_owned(),
        false => format!("MIG instance: {}", why.join("; ")),
    })
}

fn on_gpu(ask: &Ask, host: &Host, gpu: &Gpu) -> Result<Place, String> {
    unhealthy(gpu)?;
    let Some(model) = gpu.model.filter(|model| model.has_mig()) else {
        return Err(format!("{} ({}) has no MIG", gpu.key, gpu.product));
    };
    let wanted = profile_for(ask, model)?;
    let does = |one: &&MigInstance| {
        let profile = one.instance.profile;
        let is_named = ask.profile.is_none() || profile == wanted;
        one.leases == 0
            && one.team.as_ref().is_none_or(|team| Some(team) == ask.team.as_ref())
            && is_named
            && profile.compute_slices >= wanted.compute_slices
            && profile.memory_mib >= wanted.memory_mib
    };
    if let Some(free) = gpu.mig.instances.iter().filter(does).min_by_key(|one| one.instance.profile) {
        let Gpu { key, .. } = gpu;
        let (profile, placement) = (free.instance.profile, free.instance.placement);
        return Ok(Place::Instance { gpu: key.clone(), profile, placement });
    }
    let missing = format!("{} has no free instance of {wanted} or more", gpu.key);
    if let Some(owner) = &gpu.mig.owner {
        return Err(format!("{missing}, and {owner} divides it"));
    }
    if !host.window_is_open {
        return Err(format!("{missing}, and its layout may not be changed outside a maintenance window"));
    }
    if !gpu.mig.is_on && gpu.leases > 0 {
        return Err(format!("{missing}, and MIG cannot be turned on while it has leases"));
    }
    let mut layout = gpu.mig.layout(model);
    match layout.add(model, wanted, StartChoice::Highest) {
        Some(placement) => Ok(Place::NewInstance { gpu: gpu.key.clone(), profile: wanted, placement }),
        None => Err(format!("{missing}, and no room for one beside {layout}")),
    }
}
