//! What is looked at every few seconds, and told and written down when it has changed. On a thread of its own, which may wait for a disk:
//! nothing stands still meanwhile.

use crate::last_configuration::LastConfiguration;
use crate::lease::Leases;
use crate::{overflow, overrides, reservations};
use std::path::Path;
use std::time::Duration;

/// How often.
const PERIOD: Duration = Duration::from_secs(2);

/// Looks for ever; runs on its own thread.
pub fn keep(leases: &Leases) {
    let mut told = reservations::Teller::open(Path::new(&leases.configuration().paths.state_dir));
    let mut configuration = LastConfiguration::default();
    loop {
        std::thread::sleep(PERIOD);
        overrides::tend(leases);
        catch_up(leases);
        overflow::tend(leases);
        reservations::tend(leases, &mut told);
        configuration.tend(leases);
    }
}

/// Writes down what a full disk did not take.
fn catch_up(leases: &Leases) {
    leases.drains.catch_up();
    leases.overrides.catch_up();
    leases.xids.catch_up();
    leases.healths.catch_up();
    leases.short.catch_up();
    leases.time_slices.catch_up();
}
