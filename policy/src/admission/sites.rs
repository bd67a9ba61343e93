//! Which of several GPUs belong together. Work on several GPUs exchanges data between them all the time, and goes at the pace
//! of the slowest.

/// Where a GPU sits among those of its host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Product name.
    pub product: String,
    /// GPUs of the same number reach each other over NVLink.
    pub island: Option<u16>,
    /// GPUs of the same number are near the same processor.
    pub processor: Option<u16>,
}

impl Site {
    fn is_linked_with(&self, other: &Self) -> bool {
        self.island.is_some() && self.island == other.island
    }

    fn is_near(&self, other: &Self) -> bool {
        self.is_like(other) && self.processor.is_some() && self.processor == other.processor
    }

    fn is_like(&self, other: &Self) -> bool {
        self.product == other.product
    }
}

/// From which group GPUs are taken, if several have enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taking {
    /// That of the best GPU.
    Best,
    /// The smallest, so that large ones stay whole.
    Smallest,
}

/// `wanted` of `candidates`, which come best first: linked with each other, or else alike and near the same processor, or else
/// alike, or else any. All of them, if there are fewer.
pub(crate) fn together<T: Clone>(
    candidates: &[T],
    wanted: usize,
    taking: Taking,
    site_of: impl Fn(&T) -> Site,
) -> Vec<T> {
    let sited: Vec<(Site, &T)> = candidates.iter().map(|candidate| (site_of(candidate), candidate)).collect();
    let levels: [fn(&Site, &Site) -> bool; 4] = [Site::is_linked_with, Site::is_near, Site::is_like, |_, _| true];
    let group = levels.iter().find_map(|is_with| {
        let enough = groups(&sited, is_with).into_iter().filter(|group| group.len() >= wanted);
        match taking {
            Taking::Best => enough.into_iter().next(),
            Taking::Smallest => enough.min_by_key(Vec::len),
        }
    });
    let taken = group.map_or_else(|| sited.clone(), |group| of_few_islands(&group, wanted));
    taken.into_iter().map(|(_, candidate)| candidate.clone()).collect()
}

/// Parts of `sited` whose members belong together, in the order of the first of each.
fn groups<'a, T>(sited: &[(Site, &'a T)], is_with: impl Fn(&Site, &Site) -> bool) -> Vec<Vec<(Site, &'a T)>> {
    let mut groups: Vec<Vec<(Site, &T)>> = Vec::new();
    for one in sited {
        match groups.iter_mut().find(|group| is_with(&group[0].0, &one.0)) {
            Some(group) => group.push(one.clone()),
            None => groups.push(vec![one.clone()]),
        }
    }
    groups
}

/// `wanted` of a group: whole islands first, the largest that are not too large, then what is left of the smallest.
fn of_few_islands<'a, T>(group: &[(Site, &'a T)], wanted: usize) -> Vec<(Site, &'a T)> {
    let (mut islands, mut taken) = (groups(group, Site::is_linked_with), Vec::new());
    while taken.len() < wanted && !islands.is_empty() {
        let left = wanted - taken.len();
        let largest = islands.iter().map(Vec::len).filter(|size| *size <= left).max();
        let size = largest.or_else(|| islands.iter().map(Vec::len).min());
        let Some(place) = islands.iter().position(|island| Some(island.len()) == size) else { break };
        taken.extend(islands.remove(place).into_iter().take(left));
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each GPU's letters: its model, its island and its processor, or `-`.
    fn taken(gpus: &str, wanted: usize, taking: Taking) -> Vec<usize> {
        let number = |letter: char| letter.to_digit(10).map(|digit| digit as u16);
        let sites: Vec<(usize, Site)> = (gpus.split_whitespace().enumerate())
            .map(|(index, text)| {
                let letters: Vec<char> = text.chars().collect();
                let (island, processor) = (number(letters[1]), number(letters[2]));
                (index, Site { product: letters[0].to_string(), island, processor })
            })
            .collect();
        together(&sites, wanted, taking, |(_, site)| site.clone()).into_iter().map(|(index, _)| index).collect()
    }

    #[test]
    fn linked_ones_go_before_near_ones_and_those_before_alike_ones() {
        let pairs = "A00 A11 A00 A11";
        assert_eq!(taken(pairs, 2, Taking::Best), [0, 2]);
        let unlinked = "A-0 A-1 A-1 B-1";
        assert_eq!(taken(unlinked, 2, Taking::Best), [1, 2]);
        assert_eq!(taken(unlinked, 3, Taking::Best), [0, 1, 2]);
        assert_eq!(taken(unlinked, 4, Taking::Best), [0, 1, 2, 3]);
        assert_eq!(taken(unlinked, 5, Taking::Best), [0, 1, 2, 3], "all there are");
        assert_eq!(
            taken("A-- A-- A-1 A-1", 2, Taking::Smallest),
            [2, 3],
            "who is near nobody is not near another such"
        );
    }

    #[test]
    fn nothing_known_leaves_the_order_as_it_is() {
        assert_eq!(taken("A-- A-- A--", 2, Taking::Best), [0, 1]);
        assert_eq!(taken("A-- A-- A--", 2, Taking::Smallest), [0, 1]);
        assert_eq!(taken("A-- B--", 1, Taking::Best), [0]);
    }

    #[test]
    fn large_islands_stay_whole() {
        let gpus = "A00 A00 A00 A00 A10 A10 A-0";
        assert_eq!(taken(gpus, 1, Taking::Smallest), [6], "one that is linked with none");
        assert_eq!(taken(gpus, 2, Taking::Smallest), [4, 5]);
        assert_eq!(taken(gpus, 3, Taking::Smallest), [0, 1, 2]);
        assert_eq!(taken(gpus, 2, Taking::Best), [0, 1]);
    }

    #[test]
    fn what_no_island_has_comes_of_few() {
        assert_eq!(taken("A00 A11 A00 A11", 3, Taking::Smallest), [0, 2, 1]);
        assert_eq!(taken("A00 A11 A00 A11 A-0", 3, Taking::Smallest), [0, 2, 4], "no second pair is broken");
        assert_eq!(taken("A00 A10 A20 A00 A10 A20", 4, Taking::Best), [0, 3, 1, 4], "two pairs, whole");
    }
}
