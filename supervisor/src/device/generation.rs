//! Which build of the shims goes with the driver of this host, and what of that driver it does not count.

use gpool_driver_abi::{CUDA_NOT_INTERCEPTED, GENERATIONS, Generation, base_name, cuda_classes};
use std::collections::BTreeSet;

/// The names that a driver's two libraries export.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverNames {
    /// Of libcuda.so.1.
    pub cuda: BTreeSet<String>,
    /// Of libnvidia-ml.so.1.
    pub nvml: BTreeSet<String>,
}

/// A generation, beside a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coverage {
    /// The generation whose shims are mounted.
    pub generation: &'static Generation,
    /// Names of the generation that the driver lacks: programs find them and get an error. None of a driver that the
    /// generation was made for.
    pub missing: Vec<String>,
    /// Entry points of the driver that take part in what a lease counts, and that the shim does not answer.
    pub uncounted: Vec<String>,
    /// Entry points of libcuda of which it is not known whether they do: the driver is newer than the lists here.
    pub unclassified: Vec<String>,
}

/// Of the `installed` generations the newest all of whose names the driver exports; if there is none, the oldest.
/// Nothing when nothing is installed.
pub fn choose(installed: &[&'static Generation], driver: &DriverNames) -> Option<Coverage> {
    let known = || GENERATIONS.iter().filter(|generation| installed.contains(generation));
    let covered = known().rev().find(|generation| missing(generation, driver).is_empty());
    let generation = covered.or(known().next())?;
    let uncounted = uncounted(generation, &driver.cuda);
    Some(Coverage {
        generation,
        missing: missing(generation, driver),
        unclassified: unclassified(&driver.cuda, &uncounted),
        uncounted,
    })
}

fn missing(generation: &Generation, driver: &DriverNames) -> Vec<String> {
    let lacks = |names: &'static str, driver: &BTreeSet<String>| {
        names.lines().filter(|name| !driver.contains(*name)).map(String::from).collect::<Vec<_>>()
    };
    [lacks(generation.cuda, &driver.cuda), lacks(generation.nvml, &driver.nvml)].concat()
}

/// The names that the driver has, that count by their class or as another version of one that does, and that shims of
/// this generation leave to the driver.
fn uncounted(generation: &Generation, driver: &BTreeSet<String>) -> Vec<String> {
    let counting = |class: &gpool_driver_abi::Class| class.is_intercepted();
    let classified: BTreeSet<&str> = cuda_classes().map(|(name, _)| name).collect();
    let must: BTreeSet<&str> =
        cuda_classes().filter(|(_, class)| class.as_ref().is_some_and(counting)).map(|(name, _)| name).collect();
    let families: BTreeSet<&str> = must.iter().map(|name| base_name(name)).collect();
    let not_yet: BTreeSet<&str> = CUDA_NOT_INTERCEPTED.lines().collect();
    let exported: BTreeSet<&str> = generation.cuda.lines().collect();
    let counts = |name: &str| must.contains(name) || (!classified.contains(name) && families.contains(base_name(name)));
    let answered = |name: &str| exported.contains(name) && must.contains(name) && !not_yet.contains(name);
    driver.iter().filter(|name| counts(name) && !answered(name)).cloned().collect()
}

fn unclassified(driver: &BTreeSet<String>, uncounted: &[String]) -> Vec<String> {
    let classified: BTreeSet<&str> = cuda_classes().map(|(name, _)| name).collect();
    // The debugger's names are variables that it reads and writes, and no calls.
    let is_call = |name: &&String| name.starts_with("cu") && !name.starts_with("cudbg");
    let is_new = |name: &&String| !classified.contains(name.as_str()) && !uncounted.contains(name);
    driver.iter().filter(is_call).filter(is_new).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(generation: &Generation) -> DriverNames {
        let names = |list: &str| list.lines().map(String::from).collect();
        DriverNames { cuda: names(generation.cuda), nvml: names(generation.nvml) }
    }

    fn all() -> Vec<&'static Generation> {
        GENERATIONS.iter().collect()
    }

    #[test]
    fn each_driver_gets_the_shims_that_were_made_for_it() {
        for generation in &GENERATIONS {
            let coverage = choose(&all(), &driver(generation)).unwrap();
            assert_eq!(coverage.generation.name, generation.name);
            assert!(coverage.missing.is_empty() && coverage.unclassified.is_empty(), "{coverage:?}");
        }
        let mut between = driver(&GENERATIONS[2]);
        between.cuda.remove("cuGreenCtxCreate");
        let without = choose(&all(), &between).unwrap();
        assert_eq!(without.generation.name, "535", "the newest of which it has every name");
        let installed = [&GENERATIONS[0], &GENERATIONS[1]];
        assert_eq!(choose(&installed, &driver(&GENERATIONS[2])).unwrap().generation.name, "550");
        assert_eq!(choose(&[], &driver(&GENERATIONS[0])), None);
    }

    #[test]
    fn a_driver_that_is_older_than_all_of_them_gets_the_oldest_and_what_it_lacks_is_named() {
        let mut older = driver(&GENERATIONS[0]);
        older.cuda.remove("cuLaunchKernelEx");
        older.nvml.remove("nvmlInit_v2");
        let coverage = choose(&all(), &older).unwrap();
        assert_eq!(coverage.generation.name, "535");
        assert_eq!(coverage.missing, ["cuLaunchKernelEx", "nvmlInit_v2"]);
    }

    #[test]
    fn what_counts_and_is_not_answered_is_named_whether_it_is_old_or_new() {
        for generation in &GENERATIONS {
            let coverage = choose(&all(), &driver(generation)).unwrap();
            assert!(coverage.uncounted.is_empty() && coverage.unclassified.is_empty(), "{coverage:?}");
        }
        let mut newer = driver(&GENERATIONS[2]);
        newer.cuda.extend(
            ["cuMemAlloc_v9", "cuLaunchKernelEx_v2_ptsz", "cuFabricCpyBatchAsync", "cuNeverHeardOf", "cudbgNeither"]
                .map(String::from),
        );
        let after = choose(&all(), &newer).unwrap();
        let expected = ["cuFabricCpyBatchAsync", "cuLaunchKernelEx_v2_ptsz", "cuMemAlloc_v9"];
        assert_eq!(after.uncounted, expected, "what is known and not answered, and versions of what is");
        assert_eq!(after.unclassified, ["cuNeverHeardOf"]);
    }
}
