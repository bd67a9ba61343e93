//! Traps of dividing GPUs.

use super::{Finding, Trap, refuse};
use crate::mechanism::{Ask, Choice, Fact, Gpu, Host, Mode, Place};
use crate::mig::{Model, plan, profiles_named};
use std::collections::BTreeSet;

fn wants_mig(ask: &Ask) -> bool {
    ask.mode == Mode::Mig || ask.profile.is_some() || !ask.geometry.is_empty()
}

pub(super) fn no_mig(ask: &Ask, host: &Host) -> Option<Finding> {
    if !wants_mig(ask) || host.gpus.is_empty() || host.gpus.iter().any(Gpu::has_mig) {
        return None;
    }
    let products: BTreeSet<&str> = host.gpus.iter().map(|gpu| gpu.product.as_str()).collect();
    let products: Vec<&str> = products.into_iter().collect();
    refuse(
        Trap::NoMig,
        format!("MIG is asked for, and {} has none", products.join(", ")),
        "ask for mode=slice, or for mode=exclusive where neighbours must be kept apart",
    )
}

/// The layout that is asked for, or else the one profile, on each model of the host that has MIG.
pub(super) fn illegal_layout(ask: &Ask, host: &Host) -> Option<Finding> {
    let asked = if ask.geometry.is_empty() { ask.profile.as_slice() } else { &ask.geometry };
    let models = host.gpus.iter().filter_map(|gpu| gpu.model).filter(|model| model.has_mig());
    let planned = |model: &'static Model| profiles_named(model, asked).and_then(|profiles| plan(model, &profiles));
    let refusals: Vec<_> = models.map(|model| planned(model).err()).collect();
    // One GPU on which it can be made is enough.
    let refusal = refusals.iter().all(Option::is_some).then(|| refusals.into_iter().flatten().next())??;
    refuse(Trap::IllegalLayout, refusal.to_string(), refusal.remedy())
}

pub(super) fn layout_in_use(ask: &Ask, host: &Host) -> Option<Finding> {
    if ask.geometry.is_empty() {
        return None;
    }
    let leases = |gpu: &Gpu| gpu.leases + gpu.mig.instances.iter().map(|one| one.leases).sum::<u16>();
    let divisible = || host.gpus.iter().filter(|gpu| gpu.has_mig());
    let busy = divisible().find(|gpu| leases(gpu) > 0)?;
    if divisible().any(|gpu| leases(gpu) == 0) {
        return None;
    }
    refuse(
        Trap::LayoutInUse,
        format!("{} has {} lease(s), and its instances cannot be changed under them", busy.key, leases(busy)),
        "drain it first (--drain), or wait for a maintenance window",
    )
}

pub(super) fn uneven_single(ask: &Ask, host: &Host) -> Option<Finding> {
    if !ask.is(Fact::SingleStrategy) {
        return None;
    }
    let instances = host.gpus.iter().flat_map(|gpu| &gpu.mig.instances);
    let profiles: BTreeSet<&str> = instances.map(|one| one.instance.profile.name).collect();
    let is_uneven = profiles.len() > 1 || (profiles.len() == 1 && host.gpus.iter().any(|gpu| !gpu.mig.is_on));
    if !is_uneven {
        return None;
    }
    let profiles: Vec<&str> = profiles.into_iter().collect();
    refuse(
        Trap::UnevenSingle,
        format!(
            "the strategy single needs the same profile on every GPU of the host, and there are {}{}",
            profiles.join(", "),
            if host.gpus.iter().any(|gpu| !gpu.mig.is_on) { " and whole GPUs" } else { "" }
        ),
        "export them with the strategy mixed, or lay all GPUs out alike",
    )
}

/// Whoever else divides a GPU keeps doing so: two writers undo each other's layouts.
pub(super) fn two_owners(ask: &Ask, host: &Host, choice: Option<&Choice>) -> Option<Finding> {
    let would_write = !ask.geometry.is_empty()
        || (ask.mode == Mode::Mig && !matches!(choice.map(|choice| &choice.place), Some(Place::Instance { .. })));
    let owned = || host.gpus.iter().filter(|gpu| gpu.has_mig());
    if !would_write || choice.is_some_and(|choice| matches!(choice.place, Place::NewInstance { .. })) {
        return None;
    }
    let (gpu, owner) = owned().find_map(|gpu| gpu.mig.owner.as_ref().map(|owner| (gpu, owner)))?;
    if owned().any(|gpu| gpu.mig.owner.is_none()) {
        return None;
    }
    refuse(
        Trap::TwoOwners,
        format!("{owner} divides {}, so that gpool only reads its layout", gpu.key),
        format!("change the layout through {owner}, or take its marker away"),
    )
}
