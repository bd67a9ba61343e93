//! What is a finding of the guard, which looks at containers from outside: a process that uses a GPU past the shims, and a
//! lease that holds more than its cap.
//!
//! Nothing is a finding that is seen once: a process that is being started has its libraries one after the other, and
//! what is asked here of one source has changed when the next one answers.

use std::collections::BTreeMap;

/// What a process of a leased container has mapped of a library that a shim stands in for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// Nothing of that name.
    Nothing,
    /// A library of that name that nobody could look into now.
    Unread,
    /// A library of that name, and no shim that the container was started with.
    Other,
    /// The shim that the container was started with.
    Shim,
}

/// What was seen of a process of a leased container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The driver lists it: it has a context on a GPU.
    pub has_context: bool,
    /// It has the device node of a GPU open.
    pub holds_device: bool,
    /// Its libcuda.
    pub cuda: Mapped,
    /// Its libnvidia-ml.
    pub nvml: Mapped,
    /// It has registered with the supervisor, as a shim does before anything else.
    pub is_registered: bool,
    /// Its clock is another one than the host's: by that the gate is never closed, or never open, and no burst is of now.
    pub has_other_clock: bool,
}

/// How a process uses a GPU past the shims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bypass {
    /// It has not mapped the shim.
    NoShim,
    /// It has, and has got a context without it: a shim registers before it lets the driver make one.
    NotRegistered,
    /// It has, in a time namespace of its own, where the shim cannot pace it.
    OtherClock,
}

/// Whether a process uses a GPU past the shims. Who only watches GPUs opens a device too, through the shim of NVML.
#[must_use]
pub fn judge(evidence: &Evidence) -> Option<Bypass> {
    let Evidence { has_context, holds_device, cuda, nvml, is_registered, has_other_clock } = *evidence;
    match cuda {
        Mapped::Shim if has_context && !is_registered => Some(Bypass::NotRegistered),
        Mapped::Shim if has_context && has_other_clock => Some(Bypass::OtherClock),
        Mapped::Shim => None,
        // What it has mapped may be a shim; that it has not registered says enough.
        Mapped::Unread if has_context && !is_registered => Some(Bypass::NoShim),
        Mapped::Unread => None,
        Mapped::Other if has_context || holds_device => Some(Bypass::NoShim),
        Mapped::Nothing if has_context => Some(Bypass::NoShim),
        Mapped::Nothing if holds_device && !matches!(nvml, Mapped::Shim | Mapped::Unread) => Some(Bypass::NoShim),
        Mapped::Nothing | Mapped::Other => None,
    }
}

/// Tells a finding when it is seen for the second time in a row, and once for as long as it lasts and the same follows.
#[derive(Clone, Debug)]
pub struct Findings<P> {
    /// Whether it has been told.
    seen: BTreeMap<P, bool>,
}

impl<P> Default for Findings<P> {
    fn default() -> Self {
        Self { seen: BTreeMap::new() }
    }
}

impl<P: Ord + Clone> Findings<P> {
    /// Takes what is seen now; those that are to be told.
    pub fn look(&mut self, now: impl IntoIterator<Item = P>) -> Vec<P> {
        let mut told = Vec::new();
        let mut seen = BTreeMap::new();
        for place in now {
            let before = self.seen.get(&place).copied();
            if before == Some(false) {
                told.push(place.clone());
            }
            seen.insert(place, before.is_some());
        }
        self.seen = seen;
        told
    }

    /// The same where those that are `passed_over` were not looked at: they stay what they were.
    pub fn look_but(&mut self, passed_over: impl IntoIterator<Item = P>, now: impl IntoIterator<Item = P>) -> Vec<P> {
        let before = passed_over.into_iter().filter_map(|place| self.seen.remove_entry(&place));
        let kept: Vec<(P, bool)> = before.collect();
        let told = self.look(now);
        self.seen.extend(kept);
        told
    }

    /// Whether it is one of those that have been told.
    #[must_use]
    pub fn has_told(&self, place: &P) -> bool {
        self.seen.get(place) == Some(&true)
    }

    /// Something else follows these now: what was told of them is told again, if it is still seen.
    pub fn tell_again(&mut self, which: impl Fn(&P) -> bool) {
        for (_, has_been_told) in self.seen.iter_mut().filter(|(place, _)| which(place)) {
            *has_been_told = false;
        }
    }
}

/// What a lease's account may be wrong by: it takes every context for as dear as the cheapest, and each may have cost twice that. How
/// many there are is the tenant's to choose, each of them with room in the cap for what it is taken to cost; so it is a tenth of the
/// cap at most, or two contexts where that is less. What code that is loaded late takes beyond counts in the account from the next look
/// on, and cannot come again and again.
#[must_use]
pub fn cap_tolerance_bytes(cap_bytes: u64, context_bytes: u64, processes: u64) -> u64 {
    let most = (cap_bytes / 10).max(context_bytes.saturating_mul(2));
    context_bytes.saturating_mul(processes).min(most)
}

/// Whether a lease holds more of a GPU than its cap, by the device's own figures.
#[derive(Clone, Copy, Debug, Default)]
pub struct CapWatch {
    /// The most that it was allowed and held last: what it held when the cap was lowered, until it has given that back.
    allowed_bytes: u64,
    /// How many looks in a row have found too much.
    looks: u8,
}

impl CapWatch {
    /// For a lease that has not been watched for a while: what it holds at the first look is allowed as far as the highest
    /// cap that it has ever had, since its cap may have been lowered meanwhile. Where nobody knows that, all of it is.
    #[must_use]
    pub fn after_a_gap(highest_cap_bytes: Option<u64>) -> Self {
        Self { allowed_bytes: highest_cap_bytes.unwrap_or(u64::MAX), looks: 0 }
    }

    /// Takes what the lease holds now; by how much that is too much, if that is to be told. `tolerance_bytes` is what the
    /// account may be wrong by.
    pub fn look(&mut self, held_bytes: u64, cap_bytes: u64, tolerance_bytes: u64) -> Option<u64> {
        let allowed_bytes = cap_bytes.max(self.allowed_bytes.min(held_bytes));
        self.allowed_bytes = allowed_bytes;
        let excess_bytes = held_bytes.saturating_sub(allowed_bytes);
        if excess_bytes <= tolerance_bytes {
            self.looks = 0;
            return None;
        }
        self.looks = self.looks.saturating_add(1);
        (self.looks == 2).then_some(excess_bytes)
    }

    /// Something else follows now: what was told is told again, if it lasts.
    pub fn tell_again(&mut self) {
        self.looks = self.looks.min(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HONEST: Evidence = Evidence {
        has_context: true,
        holds_device: true,
        cuda: Mapped::Shim,
        nvml: Mapped::Nothing,
        is_registered: true,
        has_other_clock: false,
    };

    #[test]
    fn who_came_through_the_shim_is_no_finding() {
        assert_eq!(judge(&HONEST), None);
        assert_eq!(
            judge(&Evidence { has_context: false, is_registered: false, ..HONEST }),
            None,
            "before its first context"
        );
        let shell = Evidence { has_context: false, holds_device: false, cuda: Mapped::Nothing, ..HONEST };
        assert_eq!(judge(&Evidence { is_registered: false, ..shell }), None);
        let monitor = Evidence { holds_device: true, nvml: Mapped::Shim, is_registered: false, ..shell };
        assert_eq!(judge(&monitor), None);
        assert_eq!(judge(&Evidence { cuda: Mapped::Other, is_registered: false, ..shell }), None, "only loaded");
    }

    #[test]
    fn who_came_past_it_is_one_however_it_came() {
        for cuda in [Mapped::Nothing, Mapped::Other] {
            assert_eq!(judge(&Evidence { cuda, is_registered: false, ..HONEST }), Some(Bypass::NoShim), "{cuda:?}");
        }
        // Both are loaded, and the driver was started past the shim.
        assert_eq!(judge(&Evidence { is_registered: false, ..HONEST }), Some(Bypass::NotRegistered));
        let elsewhere = Evidence { has_other_clock: true, ..HONEST };
        assert_eq!(judge(&elsewhere), Some(Bypass::OtherClock));
        assert_eq!(judge(&Evidence { has_context: false, ..elsewhere }), None, "it does nothing yet");
        let by_itself = Evidence { has_context: false, cuda: Mapped::Nothing, is_registered: false, ..HONEST };
        assert_eq!(judge(&by_itself), Some(Bypass::NoShim), "a program with a driver of its own");
        assert_eq!(judge(&Evidence { nvml: Mapped::Other, ..by_itself }), Some(Bypass::NoShim));
        let watches = Evidence { nvml: Mapped::Shim, cuda: Mapped::Other, ..by_itself };
        assert_eq!(judge(&watches), Some(Bypass::NoShim), "the shim of NVML excuses no libcuda");
    }

    #[test]
    fn what_nobody_could_look_into_is_judged_by_the_registration() {
        let unread = Evidence { cuda: Mapped::Unread, ..HONEST };
        assert_eq!(judge(&unread), None);
        assert_eq!(judge(&Evidence { is_registered: false, ..unread }), Some(Bypass::NoShim));
        assert_eq!(
            judge(&Evidence { has_context: false, is_registered: false, ..unread }),
            None,
            "it is being started"
        );
        let monitor = Evidence { has_context: false, cuda: Mapped::Nothing, nvml: Mapped::Unread, ..HONEST };
        assert_eq!(judge(&monitor), None);
    }

    #[test]
    fn who_was_not_looked_at_stays_what_it_was() {
        let mut findings = Findings::default();
        assert_eq!(findings.look(["a", "b"]), Vec::<&str>::new());
        assert_eq!(findings.look_but(["a", "c"], ["b"]), ["b"], "seen twice, and not by being left out");
        assert!(!findings.has_told(&"a") && findings.has_told(&"b"));
        assert_eq!(findings.look_but(["b"], ["a", "c"]), ["a"]);
        assert!(findings.has_told(&"b"));
        assert_eq!(findings.look_but([], ["b", "c"]), ["c"], "that one was told before");
        assert_eq!(findings.look(["a"]), Vec::<&str>::new(), "it was gone");
    }

    #[test]
    fn a_finding_is_told_at_the_second_look_and_once() {
        let mut findings = Findings::default();
        assert!(findings.look([7]).is_empty() && !findings.has_told(&7));
        assert_eq!(findings.look([7, 8]), [7]);
        assert!(findings.has_told(&7) && !findings.has_told(&8));
        assert_eq!(findings.look([7, 8]), [8]);
        assert!(findings.look([7, 8]).is_empty());
        assert!(findings.look([8]).is_empty());
        assert!(findings.look([7, 8]).is_empty(), "it begins anew");
        assert_eq!(findings.look([7, 8]), [7]);
    }

    #[test]
    fn what_was_told_is_told_again_where_something_else_follows() {
        let mut findings = Findings::default();
        for seen in [[7, 8], [7, 8]] {
            findings.look(seen);
        }
        findings.tell_again(|place| *place == 7);
        assert_eq!(findings.look([7, 8]), [7]);
        assert!(findings.look([7, 8]).is_empty());
        findings.tell_again(|place| *place == 8);
        assert!(findings.look([7]).is_empty(), "it lasts no longer");

        let mut watch = CapWatch::default();
        watch.tell_again();
        assert_eq!([130, 130, 130].map(|held| watch.look(held, 100, 10)), [None, Some(30), None]);
        watch.tell_again();
        assert_eq!([140, 140].map(|held| watch.look(held, 100, 10)), [Some(40), None]);
        assert_eq!(watch.look(100, 100, 10), None);
        watch.tell_again();
        assert_eq!(watch.look(130, 100, 10), None, "what is seen once is no finding");
    }

    #[test]
    fn many_contexts_are_no_second_cap() {
        let of = |cap_gib: u64, processes| cap_tolerance_bytes(cap_gib << 30, 512 << 20, processes) >> 20;
        assert_eq!([0, 1, 2, 3, 40].map(|processes| of(4, processes)), [0, 512, 1024, 1024, 1024]);
        assert_eq!([1, 7, 8, 9, 40].map(|processes| of(40, processes)), [512, 3584, 4096, 4096, 4096]);
        assert_eq!(cap_tolerance_bytes(u64::MAX, u64::MAX, u64::MAX), u64::MAX, "no overflow");
    }

    #[test]
    fn a_lease_above_its_cap_is_told_at_the_second_look_and_once() {
        let mut watch = CapWatch::default();
        assert_eq!(watch.look(0, 100, 10), None);
        assert_eq!(watch.look(110, 100, 10), None, "within what the account may be wrong by");
        assert_eq!(watch.look(111, 100, 10), None);
        assert_eq!(watch.look(130, 100, 10), Some(30));
        assert_eq!(watch.look(130, 100, 10), None);
        assert_eq!(watch.look(100, 100, 10), None);
        assert_eq!(watch.look(120, 100, 10), None);
        assert_eq!(watch.look(120, 100, 10), Some(20), "another excess");
    }

    #[test]
    fn what_was_held_when_the_cap_was_lowered_may_be_kept_and_not_grow() {
        let mut watch = CapWatch::default();
        let mut look = |held, cap| watch.look(held, cap, 10);
        assert_eq!(look(90, 100), None);
        assert_eq!((look(90, 50), look(90, 50), look(90, 50)), (None, None, None));
        assert_eq!((look(80, 50), look(80, 50)), (None, None));
        assert_eq!((look(95, 50), look(95, 50)), (None, Some(15)), "what was given back does not come back");
        assert_eq!((look(40, 50), look(70, 50), look(70, 50)), (None, None, Some(20)));
        assert_eq!((look(0, 50), look(0, 100), look(90, 100), look(90, 50)), (None, None, None, None));
        let mut begun = CapWatch::default();
        assert_eq!(
            (begun.look(90, 50, 10), begun.look(90, 50, 10)),
            (None, Some(40)),
            "it has never been allowed that"
        );
        for highest in [None, Some(90)] {
            let mut restarted = CapWatch::after_a_gap(highest);
            assert_eq!((restarted.look(90, 50, 10), restarted.look(90, 50, 10)), (None, None));
            assert_eq!((restarted.look(105, 50, 10), restarted.look(105, 50, 10)), (None, Some(15)), "it has grown");
        }
        let mut restarted = CapWatch::after_a_gap(Some(50));
        assert_eq!((restarted.look(90, 50, 10), restarted.look(90, 50, 10)), (None, Some(40)), "never allowed that");
    }
}
