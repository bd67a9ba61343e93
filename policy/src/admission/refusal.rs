//! Why a share does not fit, with the numbers that a message needs.

use std::fmt;

/// What one GPU could give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// UUID of the GPU or MIG instance.
    pub key: String,
    /// Compute that is not leased.
    pub share_free_permille: u16,
    /// Memory that is neither leased nor held by others.
    pub memory_free_bytes: u64,
    /// Memory in use that is within nobody's promise, and so neither free nor leased.
    pub memory_outside_bytes: u64,
    /// Memory that the demand comes to on this GPU.
    pub memory_asked_bytes: u64,
}

/// Why a lease was not placed or not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no GPU to choose from.
    NoGpu,
    /// There are not so many GPUs.
    TooFewGpus {
        /// How many were asked for.
        asked: usize,
        /// How many there are to choose from.
        present: usize,
    },
    /// The fraction is not within 1 to 1000 permille.
    Fraction {
        /// What was asked for.
        asked_permille: u16,
    },
    /// No GPU, or not enough of them, has so much compute free.
    Share {
        /// What was asked for on each.
        asked_permille: u16,
        /// How many GPUs were asked for.
        gpus: usize,
        /// Every GPU looked at, in the order given.
        offers: Vec<Offer>,
    },
    /// Others are on the GPUs whom such a lease cannot be beside.
    Taken {
        /// How many GPUs were asked for.
        gpus: usize,
        /// How many would do.
        free: usize,
        /// The others, and who is on them.
        taken: Vec<(String, &'static str)>,
    },
    /// No GPU that has the compute free, or not enough of them, has the memory free as well.
    Memory {
        /// The compute asked for; the memory is in each offer, as it may depend on the GPU.
        asked_permille: u16,
        /// How many GPUs were asked for.
        gpus: usize,
        /// Every GPU looked at, in the order given.
        offers: Vec<Offer>,
    },
}

impl Refusal {
    /// The most compute that is free on as many GPUs as were asked for.
    #[must_use]
    pub fn best_share_permille(&self) -> u16 {
        let mut free: Vec<u16> = self.offers().iter().map(|offer| offer.share_free_permille).collect();
        free.sort_unstable_by(|one, other| other.cmp(one));
        free.get(self.gpus() - 1).copied().unwrap_or(0)
    }

    /// Of the GPUs that have the compute free, the one whose free memory as many as were asked for have.
    #[must_use]
    pub fn best_memory(&self) -> Option<&Offer> {
        let asked = self.asked_permille();
        let mut offers: Vec<&Offer> = self.offers().iter().filter(|offer| offer.share_free_permille >= asked).collect();
        offers.sort_by_key(|offer| std::cmp::Reverse(offer.memory_free_bytes));
        offers.get(self.gpus() - 1).copied()
    }

    /// How many GPUs were asked for, at least 1.
    #[must_use]
    pub fn gpus(&self) -> usize {
        match self {
            Self::NoGpu | Self::Fraction { .. } => 1,
            Self::TooFewGpus { asked, .. } => (*asked).max(1),
            Self::Share { gpus, .. } | Self::Memory { gpus, .. } | Self::Taken { gpus, .. } => (*gpus).max(1),
        }
    }

    /// What each GPU could give.
    #[must_use]
    pub fn offers(&self) -> &[Offer] {
        match self {
            Self::NoGpu | Self::TooFewGpus { .. } | Self::Fraction { .. } | Self::Taken { .. } => &[],
            Self::Share { offers, .. } | Self::Memory { offers, .. } => offers,
        }
    }

    fn asked_permille(&self) -> u16 {
        match self {
            Self::NoGpu | Self::TooFewGpus { .. } | Self::Taken { .. } => 0,
            Self::Fraction { asked_permille }
            | Self::Share { asked_permille, .. }
            | Self::Memory { asked_permille, .. } => *asked_permille,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoGpu => write!(f, "no gpu matches the request"),
            Self::TooFewGpus { asked, present } => {
                write!(f, "{asked} gpus asked, {present} present, ask for at most {present}")
            }
            Self::Taken { gpus, free, taken } => {
                let taken: Vec<String> = taken.iter().map(|(key, who)| format!("{key} has {who}")).collect();
                write!(
                    f,
                    "{gpus} asked that such a lease can have, {free} there: {}, wait or end a lease",
                    taken.join(", ")
                )
            }
            Self::Fraction { asked_permille } => {
                write!(f, "fraction {} is not within 0.001 and 1", Fraction(*asked_permille))
            }
            Self::Share { asked_permille, .. } => {
                let best = self.best_share_permille();
                write!(
                    f,
                    "fraction {} asked, at most {} free on {} gpu{}, ",
                    Fraction(*asked_permille),
                    Fraction(best),
                    if self.gpus() == 1 { "one".to_owned() } else { self.gpus().to_string() },
                    if self.gpus() == 1 { "" } else { "s" }
                )?;
                if best == 0 {
                    write!(f, "wait or end a lease")
                } else {
                    write!(f, "ask for at most {}, wait, or end a lease", Fraction(best))
                }
            }
            Self::Memory { .. } => match self.best_memory() {
                Some(offer) => write!(
                    f,
                    "{} bytes of memory asked, at most {} free on {}, ask for less memory, wait, or end a lease",
                    offer.memory_asked_bytes, offer.memory_free_bytes, offer.key
                ),
                None => write!(f, "no gpu has the memory free, ask for less, wait, or end a lease"),
            },
        }
    }
}

impl std::error::Error for Refusal {}

/// A fraction in permille, shown as a decimal with at most three digits.
struct Fraction(u16);

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:03}", self.0 / 1000, self.0 % 1000);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}
