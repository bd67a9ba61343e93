//! The health of a GPU beyond Xids: what successive readings of its own figures come to.
//!
//! A figure that could not be read says nothing: what was found before stays, and nothing is found of it.
//!
//! Sources: nvml.h (`nvmlDeviceGetPcieReplayCounter`, `nvmlDeviceGetMaxPcieLinkWidth`, `nvmlDeviceGetRemappedRows`, `nvmlDeviceGetTotalEccErrors`, `nvmlClocksEventReasons`), and NVIDIA's "GPU
//! memory error management" (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt), by which a pending remapping is made by a reset,
//! and a GPU on which one has failed is to be replaced.

use crate::repetition::Repetition;
use std::collections::VecDeque;

/// `nvmlClocksEventReasonSwThermalSlowdown`: the driver lowers the clocks, so that neither the GPU nor its memory is too hot.
pub const SOFTWARE_THERMAL: u64 = 0x20;
/// `nvmlClocksEventReasonHwThermalSlowdown`: the hardware lowers them to a half or less, because it is too hot.
pub const HARDWARE_THERMAL: u64 = 0x40;
/// `nvmlClocksEventReasonHwPowerBrakeSlowdown`: the same, because the board's power supply says so.
pub const POWER_BRAKE: u64 = 0x80;

/// What can be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Memory that has failed could not be replaced by spare memory, now or ever before.
    RemapFailure,
    /// Memory that has failed is to be replaced by spare memory, which the next reset does.
    RemapPending,
    /// Memory has had errors that could not be corrected.
    EccUncorrected,
    /// Its clocks are held down by heat or by its power supply.
    Thermal,
    /// What goes over its bus has to be sent again, more often than it may.
    PcieReplay,
    /// Its bus has fewer lanes than it could have there.
    PcieWidth,
    /// It did something wrong in a test, and what failed has not passed since. The last one here: no reading of its figures says so.
    TestFailed,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::RemapFailure,
        Self::RemapPending,
        Self::EccUncorrected,
        Self::Thermal,
        Self::PcieReplay,
        Self::PcieWidth,
        Self::TestFailed,
    ];

    /// As the configuration, the metrics and people call it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::RemapFailure => "remap-failure",
            Self::RemapPending => "remap-pending",
            Self::EccUncorrected => "ecc-uncorrected",
            Self::Thermal => "thermal",
            Self::PcieReplay => "pcie-replay",
            Self::PcieWidth => "pcie-width",
            Self::TestFailed => "test-failed",
        }
    }

    /// The one that is called so.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }

    /// What it means, as the end of a sentence.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::RemapFailure => "memory that has failed could not be replaced by spare memory",
            Self::RemapPending => "memory that has failed is to be replaced by spare memory at the next reset",
            Self::EccUncorrected => "memory has had errors that could not be corrected",
            Self::Thermal => "its clocks are held down by heat or by its power supply",
            Self::PcieReplay => "more than 8 transfers a minute over its bus have to be sent again",
            Self::PcieWidth => "its bus has fewer lanes than it could have there",
            Self::TestFailed => "it has failed a test",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::RemapFailure => "have the GPU replaced",
            Self::RemapPending => {
                "reset the GPU as the administrator's guide says (Resetting a GPU), or boot the host, when nobody is on it"
            }
            Self::EccUncorrected => {
                "look for Xids in the kernel's log, which name the programs that had this memory, and reset the GPU if it \
                 goes on, as the administrator's guide says (Resetting a GPU)"
            }
            Self::Thermal => "look at fans, air and power supply of the host",
            Self::PcieReplay | Self::PcieWidth => "have its seat in the slot, the riser and its cables looked at",
            Self::TestFailed => {
                "gpool events and gpool gpu ls --format json have what was wrong; reset the GPU as the administrator's guide says \
                 (Resetting a GPU), test it again with gpool gpu test, and have it replaced if that fails too"
            }
        }
    }

    fn place(self) -> usize {
        self as usize
    }
}

/// What NVML says of a GPU's spare memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Rows that were replaced because of errors that could be corrected.
    pub correctable: u32,
    /// Those that were because of others.
    pub uncorrectable: u32,
    /// More are to be replaced at the next reset.
    pub is_pending: bool,
    /// One could not be replaced, once.
    pub has_failed: bool,
}

impl Rows {
    fn all(self) -> u64 {
        u64::from(self.correctable) + u64::from(self.uncorrectable)
    }
}

/// One look at a GPU; none of a figure that was not told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Its spare memory.
    pub rows: Option<Rows>,
    /// Errors of its memory that could not be corrected, since the driver was loaded or the GPU was reset.
    pub uncorrected_errors: Option<u64>,
    /// Why its clocks are lower than they could be: bits of `nvmlClocksEventReasons`.
    pub clock_reasons: Option<u64>,
    /// How often something had to be sent again over its bus, since its driver was loaded.
    pub pcie_replays: Option<u32>,
    /// Lanes of its bus now, and as many as it could have there.
    pub pcie_lanes: Option<(u32, u32)>,
    /// In degrees Celsius.
    pub temperature_celsius: Option<u32>,
}

impl Reading {
    /// What it has to say of a finding, as a part of a sentence; empty where it has nothing.
    #[must_use]
    pub fn figures(&self, kind: Kind) -> String {
        match kind {
            Kind::RemapFailure | Kind::RemapPending => self.rows.map_or_else(String::new, |rows| {
                format!(
                    "rows replaced so far: {} for correctable errors, {} for others",
                    rows.correctable, rows.uncorrectable
                )
            }),
            Kind::EccUncorrected => self
                .uncorrected_errors
                .map_or_else(String::new, |errors| format!("{errors} since its driver was loaded or it was reset")),
            Kind::PcieReplay => {
                self.pcie_replays.map_or_else(String::new, |all| format!("{all} since its driver was loaded"))
            }
            Kind::PcieWidth => self.pcie_lanes.map_or_else(String::new, |(lanes, most)| format!("{lanes} of {most}")),
            Kind::TestFailed => String::new(),
            Kind::Thermal => {
                let names = [
                    (HARDWARE_THERMAL, "hardware slowdown by heat"),
                    (SOFTWARE_THERMAL, "software slowdown by heat"),
                    (POWER_BRAKE, "power brake"),
                ];
                let reasons = self.clock_reasons.unwrap_or(0);
                let named = names.into_iter().filter(|(bit, _)| reasons & bit != 0).map(|(_, name)| name.to_owned());
                let warm = self.temperature_celsius.map(|celsius| format!("{celsius} C"));
                named.chain(warm).collect::<Vec<_>>().join(", ")
            }
        }
    }
}

/// Something to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// It was found, or has become more, so many times since it was last told.
    Found(Kind, u64),
    /// What was told is over.
    Over(Kind),
}

/// What there is of one kind now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Which.
    pub kind: Kind,
    /// Since when it is found, in nanoseconds of the caller's clock; none while it is not.
    pub since_ns: Option<u64>,
    /// How often it was found or became more.
    pub count: u64,
    /// Somebody has opened the GPU again in spite of it.
    pub is_accepted: bool,
}

/// One kind of finding on one GPU.
#[derive(Clone, Copy, Debug, Default)]
struct Spell {
    /// Its figure has been told at least once.
    is_known: bool,
    since_ns: Option<u64>,
    /// By what it is seen to become more: rows, errors, or 0.
    amount: u64,
    count: u64,
    told: u64,
    /// This time it was told.
    is_told: bool,
    repetition: Repetition,
    /// The amount at which somebody has opened the GPU again.
    accepted: Option<u64>,
    /// Somebody has, before anything was read.
    accepts_first: bool,
}

impl Spell {
    /// Takes that it is there with an amount, or is not. What is to be told of it.
    fn step(&mut self, kind: Kind, now_ns: u64, there: Option<u64>) -> Option<News> {
        self.is_known = true;
        let accepts_first = std::mem::take(&mut self.accepts_first);
        let Some(amount) = there else {
            self.accepted = None;
            let was_told = std::mem::take(&mut self.is_told);
            return self.since_ns.take().filter(|_| was_told).map(|_| News::Over(kind));
        };
        if accepts_first {
            self.accepted = Some(amount);
        }
        let is_more = self.since_ns.is_some() && amount > self.amount;
        // A counter that went back began anew, as after a reset: this is not what it was.
        let is_another = self.since_ns.is_some() && amount < self.amount;
        self.count += u64::from(self.since_ns.is_none() || is_more || is_another);
        // Also where it did so while nobody looked, as during a boot.
        self.accepted = self.accepted.filter(|accepted| amount >= *accepted);
        self.since_ns.get_or_insert(now_ns);
        self.amount = amount;
        if !self.repetition.look(now_ns, self.count, self.told) {
            return None;
        }
        self.is_told = true;
        Some(News::Found(kind, self.count - std::mem::replace(&mut self.told, self.count)))
    }

    /// It is there, and nobody has accepted so much of it.
    fn is_open(&self) -> bool {
        self.since_ns.is_some() && self.accepted.is_none_or(|accepted| self.amount > accepted)
    }
}

/// So many replays a minute are the most that the driver's makers recommend: DCGM's `DCGM_LIMIT_MAX_PCIREPLAY_RATE`.
const REPLAYS_PER_MINUTE: u64 = 8;
const MINUTE_NS: u64 = 60 * 1_000_000_000;

/// How fast a counter grows, by what was read of it in the last minute, or the last time where that is longer ago.
#[derive(Clone, Debug, Default)]
struct Growth(VecDeque<(u64, u32)>);

impl Growth {
    /// Takes what is read. Whether it has grown by more than so much a minute; a counter that went back began anew.
    fn is_above(&mut self, now_ns: u64, count: u32, per_minute: u64) -> bool {
        if self.0.back().is_some_and(|(_, before)| count < *before) {
            self.0.clear();
        }
        // The newest one that is a minute old or older is what is compared with.
        while self.0.get(1).is_some_and(|(read_ns, _)| now_ns.saturating_sub(*read_ns) >= MINUTE_NS) {
            self.0.pop_front();
        }
        self.0.push_back((now_ns, count));
        let Some((since_ns, before)) = self.0.front() else { return false };
        let grown = u128::from(count - before) * u128::from(MINUTE_NS);
        grown > u128::from(per_minute) * u128::from(now_ns.saturating_sub(*since_ns).max(MINUTE_NS))
    }
}

/// What is known of the health of one GPU.
#[derive(Clone, Debug, Default)]
pub struct Health {
    spells: [Spell; Kind::ALL.len()],
    replays: Growth,
    /// Whether its clocks are held down, and since when all readings have said so.
    held: Option<(bool, u64)>,
}

impl Health {
    /// One of which somebody had accepted these findings, each with its amount then, before this process began.
    pub fn with_accepted(accepted: impl IntoIterator<Item = (Kind, u64)>) -> Self {
        let mut health = Self::default();
        for (kind, amount) in accepted {
            health.spells[kind.place()].accepted = Some(amount);
        }
        health
    }

    /// Takes a reading, and says what is to be told. Clocks count as held down, and as free again, when all readings of
    /// `thermal_ns` have said so.
    pub fn look(&mut self, now_ns: u64, reading: &Reading, thermal_ns: u64) -> Vec<News> {
        let is_held = reading.clock_reasons.map(|bits| bits & (SOFTWARE_THERMAL | HARDWARE_THERMAL | POWER_BRAKE) != 0);
        self.held = match (self.held, is_held) {
            (_, None) => None,
            (Some((before, since_ns)), Some(now)) if before == now => Some((before, since_ns)),
            (_, Some(now)) => Some((now, now_ns)),
        };
        let settled = self.held.filter(|(_, since_ns)| now_ns.saturating_sub(*since_ns) >= thermal_ns);
        let there = |is_there: bool, amount: u64| is_there.then_some(amount);
        let replays = reading.pcie_replays.map(|count| self.replays.is_above(now_ns, count, REPLAYS_PER_MINUTE));
        let seen = [
            (Kind::RemapFailure, reading.rows.map(|rows| there(rows.has_failed, rows.all()))),
            (Kind::RemapPending, reading.rows.map(|rows| there(rows.is_pending, rows.all()))),
            (Kind::EccUncorrected, reading.uncorrected_errors.map(|errors| there(errors > 0, errors))),
            (Kind::Thermal, settled.map(|(is_held, _)| there(is_held, 0))),
            (Kind::PcieReplay, replays.map(|is_above| there(is_above, 0))),
            (Kind::PcieWidth, reading.pcie_lanes.map(|(lanes, most)| there(lanes < most, 0))),
        ];
        self.spells[Kind::Thermal.place()].is_known |= is_held.is_some();
        let step = |(kind, seen): (Kind, Option<Option<u64>>)| self.spells[kind.place()].step(kind, now_ns, seen?);
        let news = seen.into_iter().filter_map(step).collect();
        if *reading != Reading::default() {
            self.spells.iter_mut().for_each(|spell| spell.accepts_first = false);
        }
        news
    }

    /// Takes when the last test has failed, as long as what failed has not passed since, and says what is to be told. Nobody but the
    /// tests says so, so it does not come with readings. One that fails later is more than what was accepted.
    pub fn look_at_tests(&mut self, now_ns: u64, failed_unix_ms: Option<u64>) -> Option<News> {
        self.spells[Kind::TestFailed.place()].step(Kind::TestFailed, now_ns, failed_unix_ms)
    }

    /// What there is of each kind whose figure was told at least once.
    pub fn standings(&self) -> impl Iterator<Item = Standing> {
        Kind::ALL.into_iter().filter(|kind| self.spells[kind.place()].is_known).map(|kind| {
            let spell = &self.spells[kind.place()];
            Standing {
                kind,
                since_ns: spell.since_ns,
                count: spell.count,
                is_accepted: spell.since_ns.is_some() && !spell.is_open(),
            }
        })
    }

    /// What is found and not accepted, or has become more since it was.
    pub fn open(&self) -> impl Iterator<Item = Kind> {
        Kind::ALL.into_iter().filter(|kind| self.spells[kind.place()].is_open())
    }

    /// Accepts what is found now, until it is over or becomes more: somebody has opened the GPU knowing of it. Where nothing has
    /// been read yet, what the first reading finds. Gives what it knows.
    pub fn accept(&mut self) -> Vec<Kind> {
        let tests = Kind::TestFailed.place();
        let is_unread = self.spells[..tests].iter().all(|spell| !spell.is_known);
        for (place, spell) in self.spells.iter_mut().enumerate() {
            // The first test that fails is news, whenever it is made.
            spell.accepts_first = is_unread && place != tests;
            if spell.since_ns.is_some() {
                spell.accepted = Some(spell.amount);
            }
        }
        Kind::ALL.into_iter().filter(|kind| self.spells[kind.place()].since_ns.is_some()).collect()
    }

    /// All that is accepted, for who writes it down.
    pub fn accepted(&self) -> impl Iterator<Item = (Kind, u64)> {
        Kind::ALL.into_iter().filter_map(|kind| Some((kind, self.spells[kind.place()].accepted?)))
    }

    /// Nobody reads it any more: nothing is known, but what was counted and accepted, and what tests have found.
    pub fn forget(&mut self) {
        self.held = None;
        self.replays = Growth::default();
        for spell in &mut self.spells[..Kind::TestFailed.place()] {
            *spell = Spell {
                count: spell.count,
                told: spell.told,
                repetition: spell.repetition,
                accepted: spell.accepted,
                ..Spell::default()
            };
        }
    }
}
