//! Shares of MIG instances: which one has room for a request, and why the others have not.

use super::host::{Host, MigInstance};
use super::serve::{Place, unhealthy};
use super::{Ask, Mechanism};
use crate::mig::Model;

/// An instance with slices is its team's alone: it is the team's wall against others, and inside it everybody shares.
pub(super) fn inside_instance(ask: &Ask, host: &Host) -> Result<Place, String> {
    let refused = |why: String| Err(format!("{}: {why}", Mechanism::SlicesInMig));
    let Some(team) = &ask.team else {
        return refused("the request names no team that one could belong to".to_owned());
    };
    if ask.gpus > 1 {
        return refused("several GPUs are asked for".to_owned());
    }
    let (mut best, mut why) = (None, Vec::new());
    for gpu in &host.gpus {
        let Some(model) = gpu.model.filter(|model| model.has_mig()) else { continue };
        if let Err(cause) = unhealthy(gpu) {
            why.push(cause);
            continue;
        }
        let is_named = |one: &&MigInstance| ask.profile.as_ref().is_none_or(|name| one.instance.profile.name == name);
        for one in gpu.mig.instances.iter().filter(is_named) {
            let (profile, placement) = (one.instance.profile, one.instance.placement);
            match left(ask, team, model, one) {
                Ok(left) => {
                    // The team's own before nobody's, and then where the least is left: large rooms stay large.
                    let order = (one.team.is_none(), left);
                    let place = Place::Instance { gpu: gpu.key.clone(), profile, placement };
                    if best.as_ref().is_none_or(|(known, _)| order < *known) {
                        best = Some((order, place));
                    }
                }
                Err(cause) => why.push(format!("{profile} at {} of {} {cause}", placement.start, gpu.key)),
            }
        }
    }
    match (best, &ask.profile) {
        (Some((_, place)), _) => Ok(place),
        (None, Some(name)) if why.is_empty() => refused(format!("there is no instance of {name}")),
        (None, None) if why.is_empty() => refused("there is no instance".to_owned()),
        (None, _) => refused(format!("no instance of the team {team} or of nobody has room: {}", why.join("; "))),
    }
}

/// Share in thousandths and memory in bytes that an instance has left beside the request.
fn left(ask: &Ask, team: &str, model: &Model, one: &MigInstance) -> Result<(u32, u64), String> {
    match &one.team {
        _ if one.is_whole => return Err("is one container's as a whole".to_owned()),
        Some(other) if other != team => return Err(format!("belongs to the team {other}")),
        None if one.leases > 0 => return Err("is used by somebody without a team".to_owned()),
        Some(_) | None => {}
    }
    let profile = one.instance.profile;
    let share = ask.within(ask.fraction_permille, model, profile);
    if share > 1000 {
        return Err(format!("is less than {} thousandths of the GPU", ask.fraction_permille));
    }
    let free = u32::from(one.share_free_permille);
    let promised = if ask.is_best_effort { 0 } else { share };
    let share_left = free.checked_sub(promised).ok_or_else(|| format!("has {free} of the {share} thousandths free"))?;
    let part = ask.memory_permille.map_or(share, u32::from);
    let part_bytes = u128::from(one.memory_bytes) * u128::from(part) / 1000;
    let needed = ask.memory_bytes.unwrap_or(u64::try_from(part_bytes).unwrap_or(u64::MAX));
    let no_room = || format!("has {} of the {} MiB free", one.memory_free_bytes >> 20, needed >> 20);
    let memory_left = one.memory_free_bytes.checked_sub(needed).ok_or_else(no_room)?;
    Ok((share_left, memory_left))
}
