//! All that a model can be divided into.

use super::layout::{Instance, Layout, Placement};
use super::model::{Model, Profile};
use std::collections::BTreeSet;

/// All layouts of these profiles, the empty one first and each once.
#[must_use]
pub fn layouts(model: &Model, profiles: &[&'static Profile]) -> Vec<Layout> {
    let all = profiles.iter().flat_map(|profile| {
        let size = profile.memory_slices;
        profile.starts.iter().map(move |&start| Instance { placement: Placement { start, size }, profile })
    });
    let mut candidates: Vec<Instance> = all.collect();
    candidates.sort_unstable();
    let mut found = vec![Layout::default()];
    extend(model, &candidates, &Layout::default(), &mut found);
    found
}

/// Adds every layout that has `layout` and, of `candidates`, some that begin behind it: so each comes up once.
fn extend(model: &Model, candidates: &[Instance], layout: &Layout, found: &mut Vec<Layout>) {
    for (index, candidate) in candidates.iter().enumerate() {
        if let Some(larger) = layout.with(model, candidate.profile, candidate.placement.start) {
            found.push(larger.clone());
            extend(model, &candidates[index + 1..], &larger, found);
        }
    }
}

/// Those layouts to which no instance of these profiles can be added.
#[must_use]
pub fn maximal_layouts(model: &Model, profiles: &[&'static Profile]) -> Vec<Layout> {
    let is_full = |layout: &Layout| profiles.iter().all(|profile| layout.possible(model, profile).is_empty());
    layouts(model, profiles).into_iter().filter(|layout| is_full(layout)).collect()
}

/// The profiles of these layouts, the largest first, each combination once.
#[must_use]
pub fn multisets(layouts: &[Layout]) -> BTreeSet<Vec<&'static Profile>> {
    layouts.iter().map(Layout::profiles).collect()
}
