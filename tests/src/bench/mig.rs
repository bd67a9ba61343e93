//! How full a GPU gets with MIG instances in random order; computed, not measured.

use super::sheet::Sheet;
use crate::failure::{Failure, Result};
use gpool_policy::mig::Model;
use gpool_policy_simulator::mig_arrivals::{Chooser, MIXES, mean_millislices};

/// GPUs that are filled.
const RUNS: u64 = 10_000;

/// Adds one round. The control is the lowest start, in the same arrivals.
pub fn measure(sheet: &mut Sheet) -> Result<()> {
    let model = Model::named("A100-80GB").ok_or_else(|| Failure::new("the model is not in the table"))?;
    let mean = |chooser| mean_millislices(model, &MIXES[0], chooser, RUNS, 1) as f64 / 1000.0;
    sheet.add("mig.slices_before_refusal", &[mean(Chooser::Highest)], &[mean(Chooser::Lowest)])
}
