//! How much of a GPU is used when MIG instances come in random order: the choice of starts beside others, in the same
//! arrivals.

use crate::random::Random;
use gpool_policy::mig::{Layout, Model, Profile, StartChoice};

/// Who chooses among the legal starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chooser {
    /// As gpool does.
    Highest,
    /// The lowest one.
    Lowest,
    /// Any of them.
    Random,
}

impl Chooser {
    /// All of them, gpool's own first.
    pub const ALL: [Self; 3] = [Self::Highest, Self::Lowest, Self::Random];
}

/// How often instances of so many compute slices are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix {
    /// For people.
    pub name: &'static str,
    /// Compute slices of a plain profile, and its weight.
    pub weights: &'static [(u8, u64)],
}

/// The mixes that are compared: the first is the one that SPECIFICATION.md promises something of.
pub static MIXES: [Mix; 4] = [
    Mix { name: "1g 40, 2g 30, 3g 20, 4g 10", weights: &[(1, 40), (2, 30), (3, 20), (4, 10)] },
    Mix { name: "1g, 2g, 3g alike", weights: &[(1, 1), (2, 1), (3, 1)] },
    Mix { name: "1g 70, 2g 30", weights: &[(1, 70), (2, 30)] },
    Mix { name: "1g, 2g, 3g, 4g alike", weights: &[(1, 1), (2, 1), (3, 1), (4, 1)] },
];

/// Compute slices in use at the first refusal, in thousandths of a slice: the mean of `runs` empty GPUs, each with
/// arrivals of its own that depend on `seed` and not on who chooses. Nobody leaves.
///
/// A mix whose sizes the model does not have counts as nothing used.
#[must_use]
pub fn mean_millislices(model: &Model, mix: &Mix, chooser: Chooser, runs: u64, seed: u64) -> u64 {
    let plain = model.plain_profiles();
    let of_size = |slices: u8| plain.iter().copied().find(|profile| profile.compute_slices == slices);
    let sizes: Option<Vec<(&'static Profile, u64)>> =
        mix.weights.iter().map(|(slices, weight)| Some((of_size(*slices)?, *weight))).collect();
    let Some(sizes) = sizes else { return 0 };
    let used: u64 = (0..runs).map(|run| u64::from(until_refused(model, &sizes, chooser, seed, run))).sum();
    used * 1000 / runs.max(1)
}

fn until_refused(model: &Model, sizes: &[(&'static Profile, u64)], chooser: Chooser, seed: u64, run: u64) -> u8 {
    let mut arrivals = Random::stream(seed, 2 * run);
    let mut choices = Random::stream(seed, 2 * run + 1);
    let mut layout = Layout::default();
    loop {
        let profile = drawn(sizes, &mut arrivals);
        let larger = match chooser {
            Chooser::Highest => layout.add(model, profile, StartChoice::Highest).map(|_| layout.clone()),
            Chooser::Lowest => layout.add(model, profile, StartChoice::Lowest).map(|_| layout.clone()),
            Chooser::Random => {
                let possible = layout.possible(model, profile);
                let last = possible.len().checked_sub(1);
                last.and_then(|last| {
                    let index = choices.within(0, last as u64) as usize;
                    layout.with(model, profile, possible[index].start)
                })
            }
        };
        match larger {
            Some(larger) => layout = larger,
            None => return layout.compute_slices(),
        }
    }
}

fn drawn(sizes: &[(&'static Profile, u64)], random: &mut Random) -> &'static Profile {
    let total: u64 = sizes.iter().map(|(_, weight)| weight).sum();
    let mut left = random.within(0, total - 1);
    for (profile, weight) in sizes {
        if left < *weight {
            return profile;
        }
        left -= weight;
    }
    sizes[sizes.len() - 1].0
}
