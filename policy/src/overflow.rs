//! Whether a host is short of room: containers have waited for it for long. It is told where that begins and where it is over, once
//! each, so that whoever can bring more machines does so, and takes them away again.
//!
//! Two times keep it from going back and forth: it begins when somebody has waited for one of them, and is over when nobody has for
//! the other.

/// When it begins, and when it is over; in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Somebody has waited for so long.
    pub after_ns: u64,
    /// For so long nobody has.
    pub clear_ns: u64,
}

/// What has just changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crossing {
    /// The host is short of room from now on.
    Began,
    /// It is not any more.
    Ended,
}

/// How it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overflow {
    is_short: bool,
    /// Since when nobody has waited for long, in nanoseconds of the clock that it is looked at with.
    calm_since_ns: Option<u64>,
}

impl Overflow {
    /// As it was found out before.
    #[must_use]
    pub fn known(is_short: bool) -> Self {
        Self { is_short, calm_since_ns: None }
    }

    /// Whether the host is short of room.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// Looks again: `longest_wait_ns` is that of whoever waits for room on GPUs, if anybody does. Without thresholds nobody watches,
    /// and nothing is short.
    pub fn look(
        &mut self,
        longest_wait_ns: Option<u64>,
        thresholds: Option<Thresholds>,
        now_ns: u64,
    ) -> Option<Crossing> {
        let Some(Thresholds { after_ns, clear_ns }) = thresholds else {
            self.calm_since_ns = None;
            return std::mem::take(&mut self.is_short).then_some(Crossing::Ended);
        };
        if longest_wait_ns.is_some_and(|waited_ns| waited_ns >= after_ns) {
            self.calm_since_ns = None;
            return (!std::mem::replace(&mut self.is_short, true)).then_some(Crossing::Began);
        }
        if !self.is_short {
            return None;
        }
        let since_ns = *self.calm_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) < clear_ns {
            return None;
        }
        *self = Self::default();
        Some(Crossing::Ended)
    }
}
