//! How long what a lease launches takes in one piece: its neighbours wait for that, whatever their shares. Who comes with class latency is
//! put beside short pieces where there is room. It is a preference and bounds nobody: figures rest on what tenants report.
//!
//! Known is the mean of what it launched in a second or more, as charged and counted; the longest of these is remembered for a while. One
//! long kernel among many short ones does not show in that.

use super::account::GpuAccount;
use super::book::{Book, Lease};
use super::grant::Leases;
use crate::region::Report;
use gpool_policy::mechanism::COARSE_BURST_US;
use gpool_protocol::{Class, LeaseState, Mechanism, Request};

/// Each mean is of so long at least, and of as much longer as nothing was launched.
const MEAN_OF_NS: u64 = 1_000_000_000;
/// Of so many of them the longest is remembered, and of as many again.
const EPOCH: u32 = 10;

/// GPU time and launches of a lease at one moment, CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy)]
struct Look {
    at_ns: u64,
    charged_ns: u64,
    launches: u64,
}

/// What was seen of a lease's launches. What is idle keeps its habits.
#[derive(Debug, Default)]
pub struct KernelNotes {
    last: Option<Look>,
    longest_now_ns: u64,
    longest_before_ns: u64,
    /// How many means the newer one is of.
    means: u32,
}

impl KernelNotes {
    /// Takes what was charged and counted until now.
    fn note(&mut self, now: Look) {
        // What was before this supervisor is not looked at.
        let Some(last) = self.last else {
            self.last = Some(now);
            return;
        };
        // Whoever writes a smaller number has it looked at from there.
        if now.launches < last.launches {
            self.last = Some(now);
            return;
        }
        // Launches are counted when their burst has ended, so that of a long one the time comes first.
        let had = now.launches - last.launches;
        if had == 0 || now.at_ns.saturating_sub(last.at_ns) < MEAN_OF_NS {
            return;
        }
        self.last = Some(now);
        if self.means == EPOCH {
            (self.longest_before_ns, self.longest_now_ns, self.means) = (self.longest_now_ns, 0, 0);
        }
        self.means += 1;
        self.longest_now_ns = self.longest_now_ns.max(now.charged_ns.saturating_sub(last.charged_ns) / had);
    }

    fn longest_ns(&self) -> u64 {
        self.longest_now_ns.max(self.longest_before_ns)
    }
}

impl Lease {
    /// Looks how much it has launched.
    pub fn note_kernels(&mut self, at_ns: u64, report: &mut Report) {
        if !self.record.mechanism.has_shims() || self.state != LeaseState::Active {
            return;
        }
        // What was found belongs to no launches of this moment.
        let measured_ns = |account: &GpuAccount| account.charged_ns().saturating_sub(account.found_ns);
        let charged_ns = self.accounts.iter().fold(0, |sum: u64, account| sum.saturating_add(measured_ns(account)));
        // Of who did nothing the region need not be read.
        if self.kernels.last.is_some_and(|last| last.charged_ns == charged_ns) {
            return;
        }
        let launches = self.figures(report).launches;
        self.kernels.note(Look { at_ns, charged_ns, launches });
    }

    /// How long a kernel or graph of it takes, in nanoseconds, as far as is known; 0 where nothing is.
    pub fn kernel_ns(&self) -> u64 {
        self.kernels.longest_ns()
    }
}

impl Book {
    /// The same of those leases on a GPU of which they take longest.
    pub fn kernel_ns(&self, gpu: usize) -> u64 {
        let there = self.leases.values().filter(|lease| lease.gpus().any(|its| its == gpu));
        there.filter(|lease| !lease.record.has_no_share()).map(Lease::kernel_ns).max().unwrap_or(0)
    }
}

impl Leases {
    /// Those of `open` on which somebody whose answers are waited for is not behind long kernels of others; none where that does not matter,
    /// or none or all of them are such.
    pub fn calm_ones(
        &self,
        request: &Request,
        mechanism: Mechanism,
        book: &Book,
        open: &[usize],
    ) -> Option<Vec<usize>> {
        if request.class != Class::Latency || mechanism != Mechanism::Slice {
            return None;
        }
        let is_calm = |gpu: &usize| book.kernel_ns(*gpu) / 1000 <= COARSE_BURST_US;
        let calm: Vec<usize> = open.iter().copied().filter(is_calm).collect();
        (!calm.is_empty() && calm.len() < open.len()).then_some(calm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn note(notes: &mut KernelNotes, at_ms: u64, charged_ms: u64, launches: u64) -> u64 {
        notes.note(Look { at_ns: at_ms * SECOND / 1000, charged_ns: charged_ms * SECOND / 1000, launches });
        notes.longest_ns() / 1_000_000
    }

    #[test]
    fn the_longest_mean_of_a_second_is_remembered_for_a_while() {
        let mut notes = KernelNotes::default();
        assert_eq!(note(&mut notes, 100_000, 900_000, 3), 0, "of an earlier life");
        assert_eq!(note(&mut notes, 100_500, 900_400, 13), 0, "too soon");
        assert_eq!(note(&mut notes, 101_000, 901_000, 13), 100);
        // A kernel that goes on is counted when it ends.
        assert_eq!(note(&mut notes, 102_000, 902_000, 13), 100);
        assert_eq!(note(&mut notes, 104_000, 904_000, 14), 3000);
        let mut after = |count: u64| {
            (0..count)
                .map(|_| {
                    let last = notes.last.unwrap();
                    let (at_ms, charged_ms) = (last.at_ns / 1_000_000 + 1000, last.charged_ns / 1_000_000 + 1000);
                    note(&mut notes, at_ms, charged_ms, last.launches + 1000)
                })
                .last()
                .unwrap()
        };
        assert_eq!((after(9), after(10), after(1)), (3000, 1, 1), "what it did before is forgotten");
    }
}
