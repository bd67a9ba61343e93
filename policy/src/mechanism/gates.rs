//! How far the rollout of sharing has come: a pool's label caps what is open in it.

use super::Mechanism;
use super::ask::words;
use super::table::RowId;

words!(
    /// The steps of a rollout, the first one with the least to lose.
    Phase {
        /// People who try things.
        Dev = "dev",
        /// Jobs that nobody waits for.
        Batch = "batch",
        /// Answers that somebody in the house waits for.
        NonprodInference = "nonprod-inference",
        /// Answers that customers wait for.
        ProdInference = "prod-inference",
    }
);

/// What a phase opens. Whole GPUs are always open: they share nothing.
#[derive(Debug)]
pub struct Gate {
    /// The phase.
    pub phase: Phase,
    /// A mechanism, and the rows for which it is open; no row: all.
    pub open: &'static [(Mechanism, &'static [RowId])],
}

/// One for each phase.
pub static GATES: [Gate; 4] = [
    Gate { phase: Phase::Dev, open: &[(Mechanism::TimeSlice, &[]), (Mechanism::Slices, &[])] },
    Gate {
        phase: Phase::Batch,
        open: &[(Mechanism::Slices, &[]), (Mechanism::SlicesInMig, &[]), (Mechanism::Mig, &[])],
    },
    Gate {
        phase: Phase::NonprodInference,
        open: &[(Mechanism::Slices, &[RowId::A1, RowId::A7]), (Mechanism::Mig, &[])],
    },
    Gate { phase: Phase::ProdInference, open: &[(Mechanism::Mig, &[])] },
];

/// Whether `phase` opens `mechanism` for `row`.
pub(super) fn is_open(phase: Option<Phase>, row: RowId, mechanism: Mechanism) -> bool {
    let Some(phase) = phase else { return true };
    let opens = |(open, rows): &(Mechanism, &[RowId])| *open == mechanism && (rows.is_empty() || rows.contains(&row));
    mechanism == Mechanism::Exclusive || GATES.iter().any(|gate| gate.phase == phase && gate.open.iter().any(opens))
}
