//! The designs that stand in the scheduler's place.
//!
//! All but gpool's own are models of published algorithms, written from their descriptions; none is a run of somebody
//! else's program. They get the same clients, the same delays and, where they drain before a hand-off, the same
//! announcements as the slice scheduler, so that what differs is the rule.

mod charged;
mod exclusive_token;
mod feedback_tokens;
mod ungated;
mod wall_slices;

use gpool_policy::slice::{Parameters, SliceScheduler};

use crate::gatekeeper::Gatekeeper;
use crate::scenario::TenantPlan;
use charged::{Charged, Rule};

/// A way of sharing a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Design {
    /// The slice scheduler of this project.
    Gpool,
    /// EEVDF with charges after use: eligible at a lag of 0, earliest virtual deadline first.
    Eevdf,
    /// Stride scheduling with charges after use.
    Stride,
    /// Start-time fair queueing with charges after use.
    Sfq,
    /// No gate: the driver slices time equally between contexts.
    DriverSlicing,
    /// A bucket of launch tokens per tenant, refilled by feedback from utilisation, after HAMi-core.
    FeedbackTokens,
    /// One exclusive token with quotas of 100 ms and more, after Gemini.
    ExclusiveToken,
    /// Slices of wall time in proportion to the shares; what is in flight at their end is nobody's, after XSched.
    WallSlices,
}

impl Design {
    /// All, gpool's first.
    pub const ALL: [Self; 8] = [
        Self::Gpool,
        Self::Eevdf,
        Self::Stride,
        Self::Sfq,
        Self::DriverSlicing,
        Self::FeedbackTokens,
        Self::ExclusiveToken,
        Self::WallSlices,
    ];

    /// How it is called on a command line and in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpool => "gpool",
            Self::Eevdf => "eevdf",
            Self::Stride => "stride",
            Self::Sfq => "sfq",
            Self::DriverSlicing => "driver-slicing",
            Self::FeedbackTokens => "hami-like",
            Self::ExclusiveToken => "gemini-like",
            Self::WallSlices => "wall-slices",
        }
    }

    /// The design of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|design| design.name() == name)
    }

    /// One for these tenants, whose ids are their places in the scenario.
    #[must_use]
    pub fn gatekeeper(self, tenants: &[TenantPlan]) -> Box<dyn Gatekeeper> {
        match self {
            Self::Gpool => Box::new(SliceScheduler::new(Parameters::default(), 0)),
            Self::Eevdf => Box::new(Charged::new(Rule::Eevdf)),
            Self::Stride => Box::new(Charged::new(Rule::Stride)),
            Self::Sfq => Box::new(Charged::new(Rule::Sfq)),
            Self::DriverSlicing => Box::new(ungated::Ungated),
            Self::FeedbackTokens => Box::new(feedback_tokens::FeedbackTokens::new(tenants)),
            Self::ExclusiveToken => Box::new(exclusive_token::ExclusiveToken::default()),
            Self::WallSlices => Box::new(wall_slices::WallSlices::default()),
        }
    }
}
