//! A layout for a list of profiles.

use super::layout::{Layout, counted};
use super::model::{Model, Profile};
use super::nearest::nearest;
use std::fmt;

/// Why there is no layout for a list of profiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanRefusal {
    /// The model has no MIG.
    NoMig {
        /// The model.
        model: &'static str,
    },
    /// The model has no such profile.
    UnknownProfile {
        /// What was asked for.
        name: String,
        /// The model.
        model: &'static str,
        /// What there is.
        known: Vec<&'static str>,
    },
    /// More instances of one profile than a GPU can have, whatever else is there.
    TooMany {
        /// The profile.
        profile: &'static Profile,
        /// How many were asked for.
        asked: usize,
        /// Legal combinations that come near.
        nearest: Vec<Vec<&'static Profile>>,
    },
    /// The instances do not lie beside each other.
    NoRoom {
        /// The largest of them, as far as they fit.
        fitting: Layout,
        /// The one that does not fit any more, wherever the others lie.
        left_over: &'static Profile,
        /// Memory slices of the GPU.
        memory_slices: u8,
        /// Compute slices that the fitting ones leave.
        compute_slices_left: u8,
        /// Legal combinations that come near.
        nearest: Vec<Vec<&'static Profile>>,
    },
}

/// The profiles of that names on `model`.
///
/// # Errors
/// The model has no MIG, or no profile of one of these names.
pub fn profiles_named(model: &'static Model, names: &[String]) -> Result<Vec<&'static Profile>, PlanRefusal> {
    if !model.has_mig() {
        return Err(PlanRefusal::NoMig { model: model.name });
    }
    let found = |name: &String| {
        model.profile(name.trim()).ok_or_else(|| PlanRefusal::UnknownProfile {
            name: name.clone(),
            model: model.name,
            known: model.profiles.iter().map(|profile| profile.name).collect(),
        })
    };
    names.iter().map(found).collect()
}

/// A layout with exactly these instances. Of several the one in which the largest lie highest.
///
/// # Errors
/// Why there is none, and what comes near.
pub fn plan(model: &'static Model, profiles: &[&'static Profile]) -> Result<Layout, PlanRefusal> {
    if !model.has_mig() {
        return Err(PlanRefusal::NoMig { model: model.name });
    }
    let mut asked = profiles.to_vec();
    asked.sort_unstable_by(|one, other| other.cmp(one));
    if let Some(layout) = arranged(model, &Layout::default(), &asked) {
        return Ok(layout);
    }
    for profile in &asked {
        let of_it = asked.iter().filter(|other| *other == profile).count();
        if of_it > usize::from(profile.most) && profile.most == 1 {
            return Err(PlanRefusal::TooMany { profile, asked: of_it, nearest: nearest(model, &asked) });
        }
    }
    // The largest that fit together; one more does not, wherever they lie.
    let fits = |count: &usize| arranged(model, &Layout::default(), &asked[..*count]).is_some();
    let count = (1..asked.len()).take_while(fits).last().unwrap_or(0);
    let fitting = arranged(model, &Layout::default(), &asked[..count]).unwrap_or_default();
    Err(PlanRefusal::NoRoom {
        left_over: asked[count],
        memory_slices: model.memory_slices,
        compute_slices_left: fitting.compute_slices_left(model),
        fitting,
        nearest: nearest(model, &asked),
    })
}

/// `layout` and all of `profiles`, highest starts tried first.
fn arranged(model: &Model, layout: &Layout, profiles: &[&'static Profile]) -> Option<Layout> {
    let Some((first, rest)) = profiles.split_first() else { return Some(layout.clone()) };
    let starts = layout.possible(model, first).into_iter().rev();
    starts
        .filter_map(|placement| layout.with(model, first, placement.start))
        .find_map(|larger| arranged(model, &larger, rest))
}

/// `0-3, 6`
fn ranges(slices: &[u8]) -> String {
    let runs = slices.chunk_by(|one, next| one + 1 == *next);
    let one = |run: &[u8]| match run {
        [] => String::new(),
        [only] => only.to_string(),
        [first, .., last] => format!("{first}-{last}"),
    };
    runs.map(one).collect::<Vec<_>>().join(", ")
}

fn listed(combinations: &[Vec<&'static Profile>]) -> String {
    combinations.iter().map(|profiles| counted(profiles)).collect::<Vec<_>>().join(", or ")
}

impl PlanRefusal {
    /// What to do instead.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::NoMig { .. } => {
                "ask for mode=slice, or for mode=exclusive where tenants must not share a GPU".to_owned()
            }
            Self::UnknownProfile { known, .. } => format!("its profiles are {}", known.join(", ")),
            Self::TooMany { nearest, .. } | Self::NoRoom { nearest, .. } => format!("nearest: {}", listed(nearest)),
        }
    }
}

impl fmt::Display for PlanRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMig { model } => write!(f, "{model} cannot be divided: it has no MIG"),
            Self::UnknownProfile { name, model, .. } => write!(f, "{model} has no profile {name:?}"),
            Self::TooMany { profile, asked, .. } => {
                write!(f, "{asked} instances of {profile} are asked for, and a GPU can have {}", profile.most)
            }
            Self::NoRoom { fitting, left_over, memory_slices, compute_slices_left, .. } => {
                let used = fitting.memory_slices();
                let profiles = fitting.profiles();
                let verb = if profiles.len() == 1 { "uses" } else { "use" };
                write!(f, "{} {verb} memory slices {}, ", counted(&profiles), ranges(&used))?;
                if used.len() == usize::from(*memory_slices) {
                    write!(f, "no slice is left for {left_over}")
                } else if left_over.compute_slices > *compute_slices_left {
                    write!(
                        f,
                        "{left_over} needs {} compute slices and {compute_slices_left} are left",
                        left_over.compute_slices
                    )
                } else {
                    write!(f, "no start of {left_over} is free")
                }
            }
        }
    }
}

impl std::error::Error for PlanRefusal {}
