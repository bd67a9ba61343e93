//! What leases have left of their promises and others had, over the seconds in which shares are told; as the ledger settles it.

use super::{Moment, entitled_permille};
use gpool_policy::ledger::{Held, settle};
use gpool_protocol::{GpuUuid, LeaseState};

/// All of a GPU.
const WHOLE_PERMILLE: u64 = 1000;

/// By lease and by GPU of it, in thousandths of the GPU's time.
pub fn lent_permille(moment: &Moment) -> Vec<Vec<u16>> {
    let mut lent: Vec<Vec<u16>> = moment.leases.iter().map(|lease| vec![0; lease.gpus.len()]).collect();
    for (gpu, charges, _) in &moment.gpus {
        let (places, mut held) = on(moment, &gpu.uuid);
        let used: u64 = held.iter().map(|its| its.used_ns).sum();
        // Those that have ended meanwhile had it, too.
        held.push(Held { reserved_ns: 0, used_ns: u64::from(charges.permille()).saturating_sub(used) });
        for ((lease, place), entry) in places.into_iter().zip(settle(WHOLE_PERMILLE, &held)) {
            lent[lease][place] = u16::try_from(entry.lent_ns).unwrap_or(u16::MAX);
        }
    }
    lent
}

/// Who is on a GPU, by lease and its place among that one's GPUs, with its promise and what it had, as if a nanosecond were a thousandth.
fn on(moment: &Moment, uuid: &GpuUuid) -> (Vec<(usize, usize)>, Vec<Held>) {
    let leases = moment.leases.iter().enumerate();
    let here = leases.filter(|(_, lease)| !matches!(lease.state, LeaseState::Held | LeaseState::Stranded));
    here.flat_map(|(number, lease)| {
        let on_it = lease.gpus.iter().enumerate().filter(|(_, gpu)| gpu.gpu_uuid == *uuid);
        on_it.map(move |(place, gpu)| {
            let (reserved_ns, used_ns) = (entitled_permille(lease).into(), gpu.received_permille.into());
            ((number, place), Held { reserved_ns, used_ns })
        })
    })
    .unzip()
}
