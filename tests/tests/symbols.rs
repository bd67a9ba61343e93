//! Every entry point of every driver is classified, and the shim answers exactly those that it should.

use gpool_driver_abi::{CUDA_535, CUDA_580, CUDA_NOT_INTERCEPTED, Class, cuda_classes};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

fn lines(text: &str) -> BTreeSet<&str> {
    text.lines().filter(|line| !line.starts_with('#')).collect()
}

/// What the shim answers itself; its build fails unless there is a function for each name.
fn hooked() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interposer/cuda/hooked.txt");
    std::fs::read_to_string(path).unwrap()
}

/// What the shim passes on once the lease is there; its build makes a function for each name.
fn touched() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interposer/cuda/touched.txt");
    std::fs::read_to_string(path).unwrap()
}

fn classes() -> BTreeMap<&'static str, Class> {
    cuda_classes().filter_map(|(name, class)| Some((name, class?))).collect()
}

/// `cuMemAlloc_v2_ptds` -> `cuMemAlloc`.
fn base_name(name: &str) -> &str {
    let plain = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    match plain.rsplit_once("_v") {
        Some((base, digits)) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => plain,
    }
}

#[test]
fn every_entry_point_of_every_driver_has_a_class() {
    let without: Vec<&str> = cuda_classes().filter(|(_, class)| class.is_none()).map(|(name, _)| name).collect();
    assert!(without.is_empty(), "no class, or one that is not known: {without:?}");
    let names: Vec<&str> = cuda_classes().map(|(name, _)| name).collect();
    let unordered: Vec<_> = names.windows(2).filter(|pair| pair[0] >= pair[1]).collect();
    assert!(unordered.is_empty(), "out of order or twice: {unordered:?}");
    let classes = classes();
    let unclassified: Vec<&str> =
        lines(CUDA_535).union(&lines(CUDA_580)).filter(|name| !classes.contains_key(*name)).copied().collect();
    assert!(unclassified.is_empty(), "not in driver-abi/symbols/cuda-classes.txt: {unclassified:?}");
}

#[test]
fn the_shim_answers_what_its_class_says_and_nothing_else() {
    let (classes, hooked, missing) = (classes(), hooked(), lines(CUDA_NOT_INTERCEPTED));
    let hooked = lines(&hooked);
    println!("not intercepted yet: {missing:?}");
    let is_intercepted = |name: &&str| classes.get(name).is_some_and(|class| class.is_intercepted());
    let unanswered: Vec<_> = classes
        .keys()
        .filter(|name| is_intercepted(name) && !hooked.contains(*name) && !missing.contains(*name))
        .collect();
    assert!(unanswered.is_empty(), "to be intercepted by their class, and not in hooked.txt: {unanswered:?}");
    let superfluous: Vec<_> = hooked.iter().filter(|name| !is_intercepted(name)).collect();
    assert!(superfluous.is_empty(), "in hooked.txt, and of no class that is intercepted: {superfluous:?}");
    let wrong: Vec<_> = missing.iter().filter(|name| hooked.contains(*name) || !is_intercepted(name)).collect();
    assert!(wrong.is_empty(), "in cuda-not-intercepted.txt without need: {wrong:?}");
}

#[test]
fn the_shim_looks_at_the_lease_before_what_touches_a_gpu_by_its_class_and_nothing_else() {
    let text = touched();
    let names: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let touched: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(names.len(), touched.len(), "a name stands twice in touched.txt");
    let classes = classes();
    let must: BTreeSet<&str> =
        classes.iter().filter(|(_, class)| **class == Class::Touches).map(|(name, _)| *name).collect();
    let differing: Vec<_> = touched.symmetric_difference(&must).collect();
    assert!(differing.is_empty(), "in touched.txt or of the class touches, and not both: {differing:?}");
}

/// Look-ups by name refuse what is newer than the baseline and not hooked, if its other versions are hooked.
#[test]
fn no_known_version_of_a_hooked_function_is_refused() {
    let (hooked, baseline) = (hooked(), lines(CUDA_535));
    let hooked = lines(&hooked);
    let bases: BTreeSet<&str> = hooked.iter().map(|name| base_name(name)).collect();
    let classes = classes();
    let refused: Vec<_> = classes
        .keys()
        .filter(|name| bases.contains(base_name(name)) && !hooked.contains(*name) && !baseline.contains(*name))
        .collect();
    assert!(refused.is_empty(), "a newer driver's program asks for these and does not get them: {refused:?}");
}
