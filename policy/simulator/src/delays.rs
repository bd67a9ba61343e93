//! What takes time on the host.

use crate::random::Random;

/// How long something takes: equally likely between two times, and now and then much longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// At least.
    pub least_ns: u64,
    /// At most.
    pub most_ns: u64,
    /// How many of a thousand are late, as wake-ups between busy processes on few cores are.
    pub late_permille: u16,
    /// What is added to those.
    pub late_ns: u64,
}

impl Delay {
    /// Between two times, never late.
    #[must_use]
    pub fn between(least_ns: u64, most_ns: u64) -> Self {
        Self { least_ns, most_ns, late_permille: 0, late_ns: 0 }
    }

    pub(crate) fn draw(&self, random: &mut Random) -> u64 {
        let usual_ns = random.within(self.least_ns, self.most_ns);
        let is_late = self.late_permille > 0 && random.within(1, 1000) <= u64::from(self.late_permille);
        usual_ns + if is_late { self.late_ns } else { 0 }
    }
}

/// The delays between device, clients and gatekeeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delays {
    /// From a command to the client that sees its gate.
    pub gate: Delay,
    /// From a ring to the gatekeeper that reads it.
    pub ring: Delay,
    /// By how much a timer of the gatekeeper is late.
    pub timer: Delay,
    /// From the end of a burst, or of a sleep, to the client that looks.
    pub wake: Delay,
}

impl Delays {
    /// A quiet host: hand-offs of about 0.15 ms.
    #[must_use]
    pub fn quiet() -> Self {
        Self {
            gate: Delay::between(50_000, 150_000),
            ring: Delay::between(20_000, 60_000),
            timer: Delay::between(5_000, 40_000),
            wake: Delay::between(10_000, 30_000),
        }
    }
}
