//! In which order owners, teams or users, are served of whom some have had more than others.
//!
//! What somebody has had of GPUs counts half after each half-life. Whoever has had least of it for each of his shares is first, and what his
//! requests before this one will have is counted with it, as if they had been served: start-time fair queueing (Goyal, Vin and Cheng 1996) of GPU
//! time, with what was had before as where an owner begins. Slurm's fair share decays the same way (`PriorityDecayHalfLife`).

/// A lease counts for this at least from when it begins, and a request for as much, since nobody knows how long it will be: an hour, in nanoseconds.
/// Otherwise all that an owner has waiting would be served at once, before any of it has had anything.
pub const EXPECTED_NS: u64 = 3600 * NS_PER_S;

const NS_PER_S: u64 = 1_000_000_000;
/// Parts of a whole in which it is reckoned how much of something counts.
const WHOLE: u64 = 1 << 20;

/// Of what was had so many days ago this part of [`WHOLE`] counts: half after each half-life, and evenly less in between. `half_life_days` is
/// 1 at least.
fn part(age_days: u64, half_life_days: u64) -> u64 {
    let half_life_days = half_life_days.max(1);
    let (halves, rest) = (age_days / half_life_days, age_days % half_life_days);
    let whole = WHOLE.checked_shr(u32::try_from(halves).unwrap_or(u32::MAX)).unwrap_or(0);
    whole - whole * rest / (2 * half_life_days)
}

/// What counts of what was had on some days, each so many ago; in nanoseconds of whole GPUs.
#[must_use]
pub fn decayed_ns(days: impl IntoIterator<Item = (u64, u64)>, half_life_days: u64) -> u64 {
    let counts =
        |(age_days, ns): (u64, u64)| u128::from(ns) * u128::from(part(age_days, half_life_days)) / u128::from(WHOLE);
    let all: u128 = days.into_iter().map(counts).sum();
    u64::try_from(all).unwrap_or(u64::MAX)
}

/// What one that begins is expected to have of GPUs' time in all, or one that runs still, if it has had `had_ns`: `permille` of all its GPUs
/// together for its run time, or for an hour where nobody says how long.
#[must_use]
pub fn expected_ns(permille: u64, run_seconds: Option<u64>, had_ns: u64) -> u64 {
    let for_ns = run_seconds.map_or(EXPECTED_NS, |seconds| seconds.saturating_mul(NS_PER_S));
    let all_ns = u128::from(for_ns) * u128::from(permille) / 1000;
    u64::try_from(all_ns).unwrap_or(u64::MAX).saturating_sub(had_ns)
}

/// Where the requests of one owner stand, in their order: before all of others that stand further on. `had_ns` is what the owner has had and
/// its leases are expected to have, `expected_ns` what each request is.
#[must_use]
pub fn tags(had_ns: u64, shares: u32, expected_ns: &[u64]) -> Vec<u64> {
    let shares = u64::from(shares.max(1));
    let begins = expected_ns.iter().scan(had_ns, |sum_ns, its_ns| {
        let begins_ns = *sum_ns;
        *sum_ns = sum_ns.saturating_add(*its_ns);
        Some(begins_ns / shares)
    });
    begins.collect()
}
