//! Which legal combinations of profiles come near one that is not.

use super::enumerate::{layouts, multisets};
use super::model::{Model, Profile};

/// How many are told.
const TOLD: usize = 3;

/// How far one combination is from another: compute slices that differ, instances that are others, memory slices that
/// differ. Both are compared from their largest instance on.
fn distance(asked: &[&'static Profile], other: &[&'static Profile]) -> (u32, u32, u32) {
    let length = asked.len().max(other.len());
    (0..length).fold((0, 0, 0), |(compute, changed, memory), index| {
        let slices = |profiles: &[&'static Profile]| {
            profiles.get(index).map_or((0, 0), |profile| (profile.compute_slices, profile.memory_slices))
        };
        let (one, two) = (slices(asked), slices(other));
        let is_other = asked.get(index) != other.get(index);
        (
            compute + u32::from(one.0.abs_diff(two.0)),
            changed + u32::from(is_other),
            memory + u32::from(one.1.abs_diff(two.1)),
        )
    })
}

/// The legal combinations that are nearest to `asked` (the largest first) by compute slices and by how many instances
/// change; at most three, those with the least change of memory first.
pub(super) fn nearest(model: &Model, asked: &[&'static Profile]) -> Vec<Vec<&'static Profile>> {
    let all: Vec<&'static Profile> = model.profiles.iter().collect();
    let legal = multisets(&layouts(model, &all)).into_iter().filter(|profiles| !profiles.is_empty());
    let mut ranked: Vec<_> = legal.map(|profiles| (distance(asked, &profiles), profiles)).collect();
    ranked.sort();
    let Some((best, _)) = ranked.first().cloned() else { return Vec::new() };
    let is_as_near =
        |(distance, _): &((u32, u32, u32), Vec<&'static Profile>)| (distance.0, distance.1) == (best.0, best.1);
    ranked.into_iter().take_while(is_as_near).take(TOLD).map(|(_, profiles)| profiles).collect()
}
