//! Where each GPU sits among those of its host, as NVML last said: work on several GPUs is given linked ones. Links may come up
//! late, as those through switches do when their manager starts after this, and go down.

use crate::device::{Gpu, Kind, Links};
use crate::lease::Leases;
use gpool_policy::admission::Site;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(60);

/// What is known, by NVML's index of the board. Its lock is taken last of all.
#[derive(Debug, Default)]
pub struct Sites(Mutex<BTreeMap<u32, Links>>);

impl Sites {
    /// How the board of `gpu` is linked.
    pub fn links_of(&self, gpu: &Gpu) -> Links {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&gpu.index).copied().unwrap_or_default()
    }

    /// Where `gpu` sits.
    pub fn of(&self, gpu: &Gpu) -> Site {
        let Links { island, processor } = self.links_of(gpu);
        Site { product: gpu.name.clone(), island, processor }
    }

    /// A board that was not asked stays where it was.
    fn note(&self, links: BTreeMap<u32, Links>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(links);
    }
}

/// Looks now and then.
#[derive(Debug, Default)]
pub struct LinkWatch {
    looked: Option<Instant>,
}

impl LinkWatch {
    /// Asks how boards are linked, unless that was asked lately.
    pub fn look(&mut self, leases: &Leases) {
        if self.looked.is_some_and(|looked| looked.elapsed() < PERIOD) {
            return;
        }
        self.looked = Some(Instant::now());
        let gpus = leases.silence.without_silent(&leases.gpus());
        let is_board = |gpu: &&Gpu| matches!(gpu.kind, Kind::Whole | Kind::Divided);
        let boards: Vec<u32> = gpus.iter().filter(is_board).map(|gpu| gpu.index).collect();
        if boards.len() < 2 {
            return;
        }
        // Who does not answer is told by who asks each board alone; until then what was known holds.
        if let Ok(links) = leases.inventory.links(boards) {
            leases.sites.note(links);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_that_is_not_asked_stays_where_it_was() {
        let (sites, links) = (Sites::default(), |island| Links { island: Some(island), processor: Some(0) });
        sites.note(BTreeMap::from([(0, links(0)), (1, links(0))]));
        sites.note(BTreeMap::from([(1, links(1))]));
        let island = |index| sites.of(&Gpu::sample(index)).island;
        assert_eq!([island(0), island(1), island(2)], [Some(0), Some(1), None]);
    }
}
