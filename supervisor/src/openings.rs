//! Has the guard look when a GPU's device node is opened, so that a program past the shims is seen that is gone a second later. Where
//! the kernel tells nobody of that, the guard looks once a second alone.

use crate::cgroup::openings::Openings;
use crate::lease::Leases;
use crate::log::{self, Priority};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often it is looked whether there are other devices than before.
const PERIOD: Duration = Duration::from_secs(5);
/// Between two words to the guard, however often they are opened.
const REST: Duration = Duration::from_millis(5);

/// Watches on a thread of its own, from now on.
///
/// # Errors
/// No thread can be started.
pub fn watch(leases: &Arc<Leases>) -> io::Result<()> {
    let leases = leases.clone();
    std::thread::Builder::new().name("openings".into()).spawn(move || keep(&leases)).map(drop)
}

fn keep(leases: &Leases) {
    let mut devices = BTreeSet::new();
    loop {
        // A node that is not there for a while comes back with the same number.
        devices.extend(leases.files.gpu_devices(&leases.gpus()));
        match Openings::watch(&devices) {
            Ok(openings) => tell(leases, &openings, &devices),
            Err(error) => {
                let words = format_args!(
                    "the kernel does not tell when a GPU's device is opened ({error}): programs past the shims are looked for once a second"
                );
                return log::line(Priority::Information, words);
            }
        }
    }
}

/// Tells the guard of each opening, until there are other devices.
fn tell(leases: &Leases, openings: &Openings, devices: &BTreeSet<(u32, u32)>) {
    let mut looked = Instant::now();
    loop {
        if openings.wait(PERIOD) {
            leases.occupants.note_opening();
            std::thread::sleep(REST);
        }
        if looked.elapsed() >= PERIOD {
            looked = Instant::now();
            if !leases.files.gpu_devices(&leases.gpus()).is_subset(devices) {
                return;
            }
        }
    }
}
