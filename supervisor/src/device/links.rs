//! Which boards are linked by NVLink, and which are near the same processor, as NVML says of each two of them.

use super::inventory::{NvmlInventory, PATIENCE};
use super::questions::{Asked, NoAnswer};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus, TopologyLevel};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where a board sits among those of its host. Numbers mean nothing but that boards have the same one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Links {
    /// Of boards that reach each other over NVLink, straight or by others; none of one that reaches no other.
    pub island: Option<u16>,
    /// Of boards between which a path stays with one processor; none where NVML does not say.
    pub processor: Option<u16>,
}

impl NvmlInventory {
    /// How `boards` are linked, by NVML's index; all of them answer, and the answers to come are waited for as for one's. A
    /// question that is about two boards is no board's own: one that hangs is not held against either.
    ///
    /// # Errors
    /// They do not come.
    pub fn links(self: &Arc<Self>, boards: Vec<u32>) -> Result<BTreeMap<u32, Links>, NoAnswer> {
        let inventory = self.clone();
        self.questions().ask(Asked::Links, PATIENCE, move || inventory.links_now(&boards))
    }

    fn links_now(&self, boards: &[u32]) -> BTreeMap<u32, Links> {
        let pair = |one: u32, other: u32| Some((self.device(one)?, self.device(other)?));
        let is_linked = |one, other| pair(one, other).is_some_and(|(one, other)| is_linked(&one, &other));
        let is_near = |one, other| pair(one, other).is_some_and(|(one, other)| is_near(&one, other));
        let (islands, processors) = (joined(boards, is_linked), joined(boards, is_near));
        let place =
            |(index, (island, processor)): (&u32, (Option<u16>, Option<u16>))| (*index, Links { island, processor });
        boards.iter().zip(islands.into_iter().zip(processors)).map(place).collect()
    }

    fn device(&self, index: u32) -> Option<Device<'_>> {
        self.nvml().device_by_index(index).ok()
    }
}

/// Old drivers, and boards that cannot be linked, do not know the question.
fn is_linked(one: &Device<'_>, other: &Device<'_>) -> bool {
    one.p2p_status(other, P2pCapabilitiesIndex::NvLink).is_ok_and(|status| status == P2pStatus::Ok)
}

fn is_near(one: &Device<'_>, other: Device<'_>) -> bool {
    one.topology_common_ancestor(other).is_ok_and(|level| level != TopologyLevel::System)
}

/// For each board the number of those that it is joined with, by others too; none of one that is joined with no other. The number is
/// the index of one of them, so that a board which is not asked for a while shares its number with none that it was not joined with.
fn joined(boards: &[u32], is_joined: impl Fn(u32, u32) -> bool) -> Vec<Option<u16>> {
    let mut groups: Vec<usize> = (0..boards.len()).collect();
    for (place, one) in boards.iter().enumerate() {
        for (before, other) in boards[..place].iter().enumerate() {
            if groups[place] != groups[before] && is_joined(*one, *other) {
                let (from, to) = (groups[place], groups[before]);
                groups.iter_mut().filter(|group| **group == from).for_each(|group| *group = to);
            }
        }
    }
    let is_alone = |group: usize| groups.iter().filter(|its| **its == group).count() == 1;
    groups.iter().map(|group| u16::try_from(boards[*group]).ok().filter(|_| !is_alone(*group))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_that_are_joined_by_others_have_one_number_and_lone_ones_none() {
        let chain = |one: u32, other: u32| one.abs_diff(other) == 4;
        assert_eq!(joined(&[0, 1, 4, 8, 3], chain), [Some(0), None, Some(0), Some(0), None]);
        assert_eq!(joined(&[1, 5, 8, 4], chain), [Some(1), Some(1), Some(8), Some(8)], "whoever is asked beside them");
        assert_eq!(joined(&[8, 0, 4, 1, 5], chain), [Some(0), Some(0), Some(0), Some(1), Some(1)]);
        assert_eq!(joined(&[2], chain), [None]);
        assert_eq!(joined(&[], chain), []);
    }
}
