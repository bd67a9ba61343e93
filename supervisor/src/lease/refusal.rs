//! A refusal of `policy` in words: what was asked, what is free, what to do.

use super::plans::SETTLE_NS;
use super::prospect::{Prospect, add_wait, written};
use crate::clock;
use gpool_policy::admission::{Offer, Refusal};
use gpool_protocol::{ContainerId, ErrorBody, ErrorCode, format_bytes, format_permille};
use std::collections::BTreeMap;

/// A failure of the supervisor itself.
pub fn failed(what: &str, cause: impl std::fmt::Display) -> ErrorBody {
    ErrorBody::new(ErrorCode::SupervisorFailed, format!("{what} ({cause})"), "look at the supervisor's log")
}

fn list(offers: &[Offer], free: impl Fn(&Offer) -> String) -> String {
    offers.iter().map(|offer| format!("{} has {}", offer.key, free(offer))).collect::<Vec<_>>().join(", ")
}

/// What else is in the way than leases, if it is as much as can be read.
fn outside(offer: &Offer) -> String {
    match offer.memory_outside_bytes >> 20 {
        0 => String::new(),
        _ => format!(" ({} in use outside all leases)", format_bytes(offer.memory_outside_bytes)),
    }
}

/// Whether there were room if nothing were in use outside leases.
fn helps_to_end_others(offer: &Offer) -> bool {
    offer.memory_free_bytes.saturating_add(offer.memory_outside_bytes) >= offer.memory_asked_bytes
}

/// How many GPUs were asked for, in a sentence.
fn gpus_are(gpus: usize) -> String {
    match gpus {
        0 | 1 => "a GPU is".into(),
        several => format!("{several} GPUs each is"),
    }
}

/// That there is no room, for who does not ask why. Each who waits looks at all before him each time he asks, and the words for that
/// would cost more than the looks.
pub fn unheard() -> ErrorBody {
    ErrorBody::new(ErrorCode::ShareNotFree, String::new(), String::new())
}

/// The message for a request that is refused.
pub fn worded(refusal: &Refusal, prospect: Prospect) -> ErrorBody {
    worded_with(refusal, "memory=", prospect)
}

/// The message for a change of a lease that is refused, in the words of `gpool update`.
pub fn worded_of_change(refusal: &Refusal) -> ErrorBody {
    // A lease that runs waits for nothing.
    worded_with(refusal, "--memory ", Prospect::default())
}

/// `memory` stands before the size that would do.
fn worded_with(refusal: &Refusal, memory: &str, prospect: Prospect) -> ErrorBody {
    match refusal {
        Refusal::NoGpu => ErrorBody::new(
            ErrorCode::NoGpu,
            "this host has no GPU that NVML shows",
            "look at the driver with nvidia-smi, and at [driver] gpus and min_memory in config.toml",
        ),
        Refusal::TooFewGpus { asked, present } => ErrorBody::new(
            ErrorCode::NoGpu,
            format!("{asked} GPUs are asked for, and this host has {present}"),
            format!("ask for gpus={present} or less"),
        ),
        Refusal::Taken { gpus, free, taken } => {
            let taken: Vec<String> = taken.iter().map(|(key, who)| format!("{key} has {who}")).collect();
            ErrorBody::new(
                ErrorCode::ShareNotFree,
                format!(
                    "{gpus} GPUs without such neighbours are asked for, and there are {free}: {}",
                    taken.join(", ")
                ),
                prospect.remedy(None, &[STOP, "ask for mode=slice with a fraction"], |_| "their GPUs".to_owned()),
            )
        }
        Refusal::Fraction { asked_permille } => ErrorBody::new(
            ErrorCode::RequestInvalid,
            format!("a share of {} cannot be", format_permille((*asked_permille).into())),
            "ask for a share between 0.01 and 1",
        ),
        Refusal::Share { asked_permille, gpus, offers } => {
            let free = list(offers, |offer| format!("{} free", format_permille(offer.share_free_permille.into())));
            let best = refusal.best_share_permille();
            let less = (best >= 10).then(|| format!("ask for {} or less", format_permille(best.into())));
            ErrorBody::new(
                ErrorCode::ShareNotFree,
                format!("{} of {} asked for, but {free}", format_permille((*asked_permille).into()), gpus_are(*gpus)),
                prospect.remedy(less, &["lower a running share with gpool update", STOP], |kept| {
                    format_permille(kept.permille.into())
                }),
            )
        }
        Refusal::Memory { gpus, offers, .. } => {
            let free = list(offers, |offer| {
                let (asked, free) = (offer.memory_asked_bytes, offer.memory_free_bytes);
                format!("{} free of the {} needed{}", format_bytes(free), format_bytes(asked), outside(offer))
            });
            let best = refusal.best_memory().filter(|offer| offer.memory_free_bytes > 0);
            let others: &[&str] = match offers.iter().any(helps_to_end_others) {
                true => &["lower a cap with gpool update", STOP, STOP_OTHERS],
                false => &["lower a cap with gpool update", STOP],
            };
            // In whole MiB, so that it can be typed as it stands.
            let less = best.map(|offer| format!("ask for {memory}{}MiB or less", offer.memory_free_bytes >> 20));
            ErrorBody::new(
                ErrorCode::MemoryNotFree,
                match gpus {
                    0 | 1 => format!("no GPU has enough memory: {free}"),
                    several => format!("not {several} GPUs have enough memory: {free}"),
                },
                prospect.remedy(less, others, |kept| format_bytes(kept.bytes)),
            )
        }
    }
}

/// There is room, and it is kept for `count` that wait before this one; `lent_seconds` is for how long it could have it all the same.
pub fn kept_for_others(count: usize, lent_seconds: Option<u64>) -> ErrorBody {
    let wait = format!("{}, to wait as well, or ask for less", add_wait("10m"));
    let remedy = match lent_seconds {
        Some(seconds @ 1..) => format!(
            "say that it runs for {seconds}s or less, {}, until when that is lent; or {wait}",
            written("run-time", &format!("{seconds}s"))
        ),
        Some(0) | None => wait,
    };
    ErrorBody::new(ErrorCode::ShareNotFree, is_kept_for("what is free", count), remedy)
}

/// There is room, and these reservations keep it.
pub fn reserved_for_others(tables: &[String]) -> ErrorBody {
    let wait = written("wait", "10m");
    let remedy = format!("ask for less; wait, for example {wait}, helps where that ends, or where a container does");
    ErrorBody::new(ErrorCode::ShareNotFree, is_reserved(tables), remedy)
}

/// There is room, and it is planned for those who have a deadline, who begin at these moments, CLOCK_MONOTONIC.
pub fn planned_for_others(begins_ns: &BTreeMap<ContainerId, u64>) -> ErrorBody {
    let now_ns = clock::now_ns();
    let left_ns = begins_ns.values().map(|at_ns| at_ns.saturating_sub(now_ns).saturating_sub(SETTLE_NS)).min();
    let left_seconds = left_ns.map(|left_ns| left_ns / 1_000_000_000);
    kept_for_others(begins_ns.len(), left_seconds.map(|seconds| seconds - seconds.div_ceil(10)))
}

/// A lease would grow into that.
pub fn reserved_for_others_while_it_runs(tables: &[String]) -> ErrorBody {
    ErrorBody::new(ErrorCode::ShareNotFree, is_reserved(tables), "ask for less, or try again when that is over")
}

fn is_reserved(tables: &[String]) -> String {
    format!("what is free is reserved for others by {} (gpool reservation ls)", tables.join(", "))
}

/// There is room, and what the quota leaves is about to be had by some of `count` that wait.
pub fn quota_kept_for_others(count: usize) -> ErrorBody {
    let remedy = format!("{}, to wait as well", add_wait("10m"));
    ErrorBody::new(ErrorCode::QuotaReached, is_kept_for("what its quota leaves", count), remedy)
}

/// A lease would grow into that.
pub fn quota_kept_for_waiting(count: usize) -> ErrorBody {
    ErrorBody::new(ErrorCode::QuotaReached, is_kept_for("what its quota leaves", count), AFTER_THOSE)
}

/// A lease would grow into what is kept for `count` that wait.
pub fn kept_for_waiting(count: usize) -> ErrorBody {
    ErrorBody::new(ErrorCode::ShareNotFree, is_kept_for("what is free", count), AFTER_THOSE)
}

/// What helps anybody.
const STOP: &str = "stop a container (gpool ps lists them)";
/// And where memory is in use that no lease has.
const STOP_OTHERS: &str = "end what uses a GPU without a lease (gpool ps --processes lists that)";
/// What helps a lease that runs.
const AFTER_THOSE: &str = "try again when they have begun, or take them out with gpool queue cancel";

fn is_kept_for(what: &str, count: usize) -> String {
    match count {
        1 => format!("{what} is kept for 1 container that waits (gpool queue ls)"),
        several => format!("{what} is kept for {several} containers that wait (gpool queue ls)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::prospect::KeptPlaces;

    #[test]
    fn a_refusal_says_what_is_free_and_what_to_do() {
        let offer = Offer {
            key: "GPU-1".into(),
            share_free_permille: 100,
            memory_free_bytes: 9 << 30,
            memory_outside_bytes: 0,
            memory_asked_bytes: 5 << 30,
        };
        let waits = Prospect { may_wait: true, kept: None };
        let share = Refusal::Share { asked_permille: 200, gpus: 1, offers: vec![offer.clone()] };
        let text = worded(&share, waits).to_string();
        let wait = "add wait, for example GPOOL_WAIT=10m (annotation gpool.io/wait, or gpool run --wait 10m)";
        for part in ["20 %", "GPU-1 has 10 % free", "ask for 10 % or less", "gpool update", wait, "GPOOL-E201"] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
        let kept = Some(KeptPlaces { count: 1, permille: 900, bytes: 5 << 30, seconds: 7 });
        let soon = Prospect { kept, ..waits };
        let soon_told = worded(&share, soon).remedy;
        assert!(soon_told.ends_with("--wait 30s): 1 ended container keeps 90 % for up to 7 s more"), "{soon_told}");
        let lent = kept_for_others(2, Some(90)).remedy;
        assert!(
            lent.contains("GPOOL_RUN_TIME=90s (annotation gpool.io/run-time, or gpool run --run-time 90s)"),
            "{lent}"
        );
        assert!(!worded_of_change(&share).remedy.contains("wait"), "a lease that runs does not");
        let large = Offer { memory_asked_bytes: 12 << 30, ..offer.clone() };
        let memory = Refusal::Memory { asked_permille: 100, gpus: 1, offers: vec![large] };
        assert!(worded(&memory, waits).remedy.starts_with("ask for memory=9216MiB or less"), "{memory:?}");
        assert!(!worded(&memory, waits).message.contains("outside"), "{memory:?}");
        let beside = Offer { memory_outside_bytes: 3 << 30, memory_asked_bytes: 12 << 30, ..offer.clone() };
        let beside = worded(&Refusal::Memory { asked_permille: 100, gpus: 1, offers: vec![beside] }, waits);
        assert!(beside.message.ends_with("9GiB free of the 12GiB needed (3GiB in use outside all leases)"), "{beside}");
        assert!(beside.remedy.contains("gpool ps --processes"), "{beside}");
        assert!(worded(&memory, soon).remedy.contains("1 ended container keeps 5GiB"), "{}", worded(&memory, soon));
        let change = worded_of_change(&memory);
        assert!(change.remedy.starts_with("ask for --memory 9216MiB or less"), "{change}");
        let offers = vec![offer.clone(), Offer { key: "GPU-2".into(), ..offer }];
        let text = worded(&Refusal::Share { asked_permille: 200, gpus: 2, offers }, waits).to_string();
        assert!(text.contains("20 % of 2 GPUs each is asked for") && text.contains("GPU-2 has 10 % free"), "{text}");
        let text = worded(&Refusal::TooFewGpus { asked: 4, present: 2 }, waits).to_string();
        assert!(text.contains("gpus=2") && text.contains("GPOOL-E203"), "{text}");
    }
}
