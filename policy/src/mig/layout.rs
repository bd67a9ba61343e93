//! Instances on one GPU.

use super::model::{Model, Profile};
use std::collections::BTreeMap;
use std::fmt;

/// The memory slices of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placement {
    /// The first one.
    pub start: u8,
    /// How many.
    pub size: u8,
}

impl Placement {
    fn mask(self) -> u16 {
        ((1 << self.size) - 1) << self.start
    }
}

/// An instance and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    /// Where.
    pub placement: Placement,
    /// What.
    pub profile: &'static Profile,
}

/// Which of several legal starts is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartChoice {
    /// The highest: it keeps the starts of large instances free longer where sizes are mixed.
    Highest,
    /// The lowest.
    Lowest,
}

/// Instances that are there together, by their starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layout {
    instances: Vec<Instance>,
}

impl Layout {
    /// The instances, by their starts.
    #[must_use]
    pub fn instances(&self) -> &[Instance] {
        &self.instances
    }

    /// This layout and one instance more, if nothing lies there yet and the model has the slices.
    #[must_use]
    pub fn with(&self, model: &Model, profile: &'static Profile, start: u8) -> Option<Self> {
        let placement = self.possible(model, profile).into_iter().find(|placement| placement.start == start)?;
        let mut instances = self.instances.clone();
        instances.push(Instance { placement, profile });
        instances.sort_unstable();
        Some(Self { instances })
    }

    /// Where another instance of `profile` could lie, by starts.
    #[must_use]
    pub fn possible(&self, model: &Model, profile: &'static Profile) -> Vec<Placement> {
        let of_it = self.instances.iter().filter(|instance| instance.profile == profile).count();
        if of_it >= usize::from(profile.most) || profile.compute_slices > self.compute_slices_left(model) {
            return Vec::new();
        }
        let taken = self.memory_mask();
        let placements = profile.starts.iter().map(|&start| Placement { start, size: profile.memory_slices });
        placements.filter(|placement| placement.mask() & taken == 0).collect()
    }

    /// Adds an instance where `choice` says, or leaves the layout as it is if there is no room.
    pub fn add(&mut self, model: &Model, profile: &'static Profile, choice: StartChoice) -> Option<Placement> {
        let possible = self.possible(model, profile);
        let placement = match choice {
            StartChoice::Highest => *possible.last()?,
            StartChoice::Lowest => *possible.first()?,
        };
        *self = self.with(model, profile, placement.start)?;
        Some(placement)
    }

    /// Compute slices of its instances.
    #[must_use]
    pub fn compute_slices(&self) -> u8 {
        self.instances.iter().map(|instance| instance.profile.compute_slices).sum()
    }

    /// Compute slices that no instance has.
    #[must_use]
    pub fn compute_slices_left(&self, model: &Model) -> u8 {
        model.compute_slices.saturating_sub(self.compute_slices())
    }

    /// Memory slices that an instance has, ascending.
    #[must_use]
    pub fn memory_slices(&self) -> Vec<u8> {
        let taken = self.memory_mask();
        (0..16).filter(|slice| taken & (1 << slice) != 0).collect()
    }

    /// Its profiles, the largest first.
    #[must_use]
    pub fn profiles(&self) -> Vec<&'static Profile> {
        let mut profiles: Vec<_> = self.instances.iter().map(|instance| instance.profile).collect();
        profiles.sort_unstable_by(|one, other| other.cmp(one));
        profiles
    }

    fn memory_mask(&self) -> u16 {
        self.instances.iter().fold(0, |mask, instance| mask | instance.placement.mask())
    }
}

impl fmt::Display for Layout {
    /// `3g.40gb at 0, 2g.20gb at 4`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |instance: &Instance| format!("{} at {}", instance.profile, instance.placement.start);
        f.write_str(&self.instances.iter().map(one).collect::<Vec<_>>().join(", "))
    }
}

/// `3g.40gb x2 + 1g.10gb`, the largest first.
#[must_use]
pub fn counted(profiles: &[&'static Profile]) -> String {
    let mut counts: BTreeMap<&Profile, usize> = BTreeMap::new();
    profiles.iter().for_each(|profile| *counts.entry(profile).or_default() += 1);
    let one = |(profile, count): (&&Profile, &usize)| match count {
        1 => profile.name.to_owned(),
        several => format!("{profile} x{several}"),
    };
    counts.iter().rev().map(one).collect::<Vec<_>>().join(" + ")
}
