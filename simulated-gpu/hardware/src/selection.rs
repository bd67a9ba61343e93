//! Which of a host's devices a CUDA program chooses, and in which order.

/// The indices into `uuids` that a value of CUDA_VISIBLE_DEVICES names, in its order; all if it is not set. As the
/// CUDA C++ Programming Guide describes it ("CUDA Environment Variables"): a list of indices, or of UUIDs that may be
/// cut short as long as one device only is meant; the first entry that names no device ends the list. A device named
/// twice is not in the description and ends the list as well.
pub fn selected(uuids: &[&str], variable: Option<&str>) -> Vec<usize> {
    let Some(variable) = variable else { return (0..uuids.len()).collect() };
    let mut chosen = Vec::new();
    for entry in variable.split(',') {
        match named(uuids, entry.trim()) {
            Some(index) if !chosen.contains(&index) => chosen.push(index),
            Some(_) | None => break,
        }
    }
    chosen
}

fn named(uuids: &[&str], entry: &str) -> Option<usize> {
    if entry.starts_with("GPU-") {
        let mut meant = (0..uuids.len()).filter(|index| uuids[*index].starts_with(entry));
        return meant.next().filter(|_| meant.next().is_none());
    }
    entry.parse().ok().filter(|index| *index < uuids.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUIDS: [&str; 3] = ["GPU-aa00", "GPU-aa11", "GPU-bb22"];

    #[test]
    fn without_the_variable_all_devices_are_there_in_order() {
        assert_eq!(selected(&UUIDS, None), [0, 1, 2]);
        assert!(selected(&[], None).is_empty());
    }

    #[test]
    fn indices_choose_and_order_until_the_first_that_is_wrong() {
        assert_eq!(selected(&UUIDS, Some("2,0")), [2, 0]);
        assert_eq!(selected(&UUIDS, Some("0, 2,-1,1")), [0, 2]);
        assert_eq!(selected(&UUIDS, Some("1,3,0")), [1]);
        assert_eq!(selected(&UUIDS, Some("1,1,0")), [1]);
        assert!(selected(&UUIDS, Some("")).is_empty());
        assert!(selected(&UUIDS, Some("void")).is_empty());
    }

    #[test]
    fn uuids_may_be_cut_short_while_they_name_one_device() {
        assert_eq!(selected(&UUIDS, Some("GPU-bb22,GPU-aa1")), [2, 1]);
        assert_eq!(selected(&UUIDS, Some("GPU-b,0")), [2, 0]);
        assert!(selected(&UUIDS, Some("GPU-aa,2")).is_empty());
        assert!(selected(&UUIDS, Some("GPU-cc")).is_empty());
    }
}
