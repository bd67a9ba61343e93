//! What must be the same in both containers, and what the shim must have for itself.

use super::answers::Answers;
use crate::failure::{Failure, Result, ensure};
use crate::host::DRIVER_LIBRARIES;
use gpool_driver_abi::{GENERATIONS, Generation};
use std::collections::BTreeSet;

/// What cuDriverGetVersion answers for each of the drivers for which there are shims.
const VERSIONS: [(&str, usize); 4] = [
    ("cuDriverGetVersion 0 12020", 0),
    ("cuDriverGetVersion 0 12040", 1),
    ("cuDriverGetVersion 0 12050", 2),
    ("cuDriverGetVersion 0 13000", 3),
];
/// Entry points that the shim answers itself; a version of them that it does not know is refused.
const HOOKED: &str = include_str!("../../../../interposer/cuda/hooked.txt");
/// What makes a refused look-up: CUDA_ERROR_NOT_FOUND, from both versions of the function, the second of which says
/// CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT.
const REFUSED: &str = "500 none 500 none 2";

/// `cuMemAlloc_v2_ptds` -> `cuMemAlloc`: what a program gives to cuGetProcAddress.
pub fn base_name(name: &str) -> &str {
    let name = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    match name.rsplit_once("_v") {
        Some((base, digits)) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => name,
    }
}

/// Compares the answers of two containers that differ in nothing but gpool.
pub fn judge(natively: &Answers, leased: &Answers) -> Result<()> {
    ensure(leased.below("end") == ["end"], || "the program in the leased container did not end".to_owned())?;
    for heading in natively.headings("exports") {
        exports(heading, natively, leased)?;
    }
    for heading in natively.headings("lookups") {
        lookups(heading, natively, leased)?;
    }
    for heading in ["begin", "runtime", "musl"].iter().flat_map(|kind| natively.headings(kind)) {
        let (without, with) = (natively.below(heading), leased.below(heading));
        ensure(!without.is_empty() && without == with, || format!("{heading}: {without:?}, with gpool {with:?}"))?;
    }
    let answered = |heading: &str, answer: &str| {
        let lines = leased.below(heading);
        ensure(lines.iter().any(|line| line.starts_with(answer)), || format!("{heading}: no {answer}: {lines:?}"))
    };
    for heading in natively.headings("begin") {
        answered(heading, "cuInit 100")?;
        answered(heading, "nvmlInit_v2 9")?;
    }
    natively.headings("musl").try_for_each(|heading| answered(heading, "runs yes"))?;
    natively.headings("runtime").try_for_each(|heading| answered(heading, "cudaGetDeviceCount "))
}

/// What was compared, for a person: with the names that only the real library has, and those that were refused.
pub fn summary(leased: &Answers) -> String {
    let answer_to = |heading: &str, question: &str| {
        leased.pairs(heading).find(|(asked, _)| *asked == question).map_or("none", |(_, answer)| answer).to_owned()
    };
    let glibcs: Vec<_> = leased.headings("begin").map(|heading| answer_to(heading, "glibc")).collect();
    let runtimes = leased.headings("runtime").map(|heading| answer_to(heading, "cudaGetDeviceCount"));
    let exports = DRIVER_LIBRARIES.map(|library| format!("exports {library}"));
    let names = exports.each_ref().map(|heading| leased.below(heading).len());
    let behind = exports.iter().flat_map(|heading| leased.pairs(heading)).filter(|(_, place)| *place == "behind");
    let newer: Vec<_> = behind.map(|(name, _)| name).filter(|name| !name.starts_with("cudbg")).collect();
    let refused: BTreeSet<_> = leased.pairs("lookups").filter(|(_, answer)| *answer == REFUSED).collect();
    let refused: BTreeSet<_> = refused.iter().map(|(question, _)| asked_name(question)).collect();
    format!(
        "{} and {} names, {} look-ups; glibc {}; musl loads {}; CUDA runtimes say {}\n  newer than the shim, in the real library: {}\n  \
         newer than the shim, refused: {}",
        names[0],
        names[1],
        leased.below("lookups").len(),
        glibcs.join(", "),
        answer_to("musl", "loads"),
        runtimes.collect::<Vec<_>>().join(", "),
        words(newer),
        words(refused),
    )
}

fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let all: Vec<&str> = words.into_iter().collect();
    if all.is_empty() { "none".to_owned() } else { all.join(" ") }
}

/// The names that the shims for this driver export: those of the newest generation that it has all names of.
fn baseline(named: &BTreeSet<&str>, is_cuda: bool) -> BTreeSet<&'static str> {
    let names = |generation: &Generation| if is_cuda { generation.cuda } else { generation.nvml };
    let lists = GENERATIONS.iter().map(|generation| names(generation).lines().collect::<BTreeSet<&str>>());
    let newest = lists.rev().find(|list| list.is_subset(named));
    newest.unwrap_or_else(|| names(&GENERATIONS[0]).lines().collect())
}

/// Every name is found; those of the driver's generation in the shim, younger ones in the real library behind it.
fn exports(heading: &str, natively: &Answers, leased: &Answers) -> Result<()> {
    let is_cuda = heading.contains(DRIVER_LIBRARIES[0]);
    let named: BTreeSet<&str> = natively.pairs(heading).map(|(name, _)| name).collect();
    let baseline = baseline(&named, is_cuda);
    let wrong = |name: &str, place: &str| place != if baseline.contains(name) { "own" } else { "behind" };
    let found: Vec<_> = leased.pairs(heading).collect();
    ensure(!named.is_empty() && found.len() == natively.below(heading).len(), || {
        format!("{heading}: {} names, with gpool {}: {:?}", named.len(), found.len(), leased.below(heading).first())
    })?;
    let misplaced: Vec<_> = found.iter().filter(|(name, place)| wrong(name, place)).collect();
    ensure(misplaced.is_empty(), || format!("{heading}: found in the wrong place or not at all: {misplaced:?}"))?;
    let is_it = |version: &str| natively.below("begin").iter().any(|line| line == version);
    if let Some((_, place)) = VERSIONS.iter().find(|(version, _)| is_it(version)) {
        let list = if is_cuda { GENERATIONS[*place].cuda } else { GENERATIONS[*place].nvml };
        ensure(list.lines().collect::<BTreeSet<_>>() == baseline, || format!("{heading}: another generation's shims"))?;
        // The debugger's variables are no functions: who asks for one must get the driver's own.
        let missing = named.difference(&baseline).filter(|name| !name.starts_with("cudbg"));
        let differing: Vec<_> = baseline.difference(&named).chain(missing).collect();
        ensure(differing.is_empty(), || format!("{heading}: the list of names is not the driver's: {differing:?}"))?;
    }
    Ok(())
}

/// The same verdicts, but for versions of hooked functions that the shim does not know; and no hooked function's real
/// address is given out.
fn lookups(heading: &str, natively: &Answers, leased: &Answers) -> Result<()> {
    let hooked = HOOKED.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let guarded: BTreeSet<&str> = hooked.map(base_name).collect();
    let expected: Vec<_> = natively.pairs(heading).collect();
    let given: Vec<_> = leased.pairs(heading).collect();
    ensure(!expected.is_empty() && expected.len() == given.len(), || {
        format!("{heading}: {} answers, with gpool {}", expected.len(), given.len())
    })?;
    let mut found_guarded = 0;
    for ((question, without), (asked, with)) in expected.into_iter().zip(given) {
        let is_guarded = guarded.contains(base_name(asked_name(question)));
        let is_same = question == asked && without == with.replace("behind", "own");
        let may_refuse = is_guarded && with == REFUSED;
        let leaks = is_guarded && with.contains("behind");
        if !(is_same || may_refuse) || leaks {
            return Err(Failure::new(format!("{heading}: {asked}: {without}, with gpool {with}")));
        }
        found_guarded += usize::from(is_guarded && with.contains("own"));
    }
    ensure(found_guarded > guarded.len(), || format!("{heading}: only {found_guarded} of ours were handed out"))
}

/// A question is name/version/flags.
fn asked_name(question: &str) -> &str {
    question.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(without: &str, with: &str) -> Result<()> {
        let names = HOOKED.lines().filter(|line| !line.starts_with('#'));
        let others: String =
            names.map(|name| format!("{name}/1/0 0 own 0 own 0\n{name}/2/0 0 own 0 own 0\n")).collect();
        let printed = |answer: &str| Answers::read(&format!("## lookups\n{others}{answer}\n"));
        lookups("lookups", &printed(without), &printed(with))
    }

    #[test]
    fn a_hooked_function_may_be_refused_and_never_passed_on() {
        let native = "cuMemAlloc/12050/0 0 own 0 own 0";
        assert!(lookup(native, native).is_ok());
        assert!(lookup(native, "cuMemAlloc/12050/0 500 none 500 none 2").is_ok());
        assert!(lookup(native, "cuMemAlloc/12050/0 0 behind 0 behind 0").is_err());
        assert!(lookup(native, "cuMemAlloc/12050/0 0 own 0 behind 0").is_err());
    }

    #[test]
    fn everything_else_is_as_without_us() {
        let native = "cuDeviceGetName/12050/0 0 own 0 own 0";
        assert!(lookup(native, "cuDeviceGetName/12050/0 0 behind 0 behind 0").is_ok());
        assert!(lookup(native, "cuDeviceGetName/12050/0 500 none 500 none 2").is_err());
        assert!(lookup("cuNone/12050/0 500 none 0 none 1", "cuNone/12050/0 0 own 0 own 0").is_err());
    }

    #[test]
    fn a_name_that_is_not_found_is_a_failure() {
        let native = Answers::read("## exports libcuda.so.1\ncuInit own\ncuNew own\n## begin\nx\n");
        let with = |place: &str| Answers::read(&format!("## exports libcuda.so.1\ncuInit own\ncuNew {place}\n"));
        assert!(exports("exports libcuda.so.1", &native, &with("behind")).is_ok());
        assert!(exports("exports libcuda.so.1", &native, &with("none")).is_err());
        assert!(exports("exports libcuda.so.1", &native, &Answers::read("")).is_err());
    }
}
