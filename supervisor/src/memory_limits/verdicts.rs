//! What is known of each GPU, for people.

use crate::cgroup;
use crate::device::{Kind, LimitRefusal};
use crate::lease::{Book, Leases};
use gpool_protocol::{MemoryLimits as Verdict, MemoryLimitsState};

/// Says it anew, by what was seen of all leases.
pub(super) fn judge(leases: &Leases) {
    let limits = &leases.memory_limits;
    if !leases.configuration().driver.memory_limits {
        limits.verdicts().clear();
        return;
    }
    let gpus = leases.gpus();
    let book = leases.book();
    let whole = gpus.iter().enumerate().filter(|(_, gpu)| gpu.kind == Kind::Whole);
    let found: Vec<_> = whole.map(|(place, gpu)| (gpu.uuid.clone(), of_leases(&book, place))).collect();
    drop(book);
    let mut verdicts = limits.verdicts();
    for (uuid, found) in found {
        let found = of_host(leases).or(found);
        // One that was refused is gone; that others were kept before is so still.
        let is_kept = verdicts.get(&uuid).is_some_and(|its| its.state == MemoryLimitsState::Kept);
        let verdict = found.unwrap_or_else(|| if is_kept { kept() } else { untried() });
        verdicts.insert(uuid, verdict);
    }
}

fn kept() -> Verdict {
    Verdict { state: MemoryLimitsState::Kept, told: "it keeps those of containers".to_owned() }
}

fn untried() -> Verdict {
    let told = "no container has had one since the supervisor started".to_owned();
    Verdict { state: MemoryLimitsState::Untried, told }
}

/// Where no container could have one.
fn of_host(leases: &Leases) -> Option<Verdict> {
    let cause = match leases.memory_limits.has_none(leases) {
        true => LimitRefusal::NoFunction,
        false if !cgroup::is_version_2_alone() => LimitRefusal::NotSupported,
        false => return None,
    };
    Some(Verdict { state: MemoryLimitsState::Absent, told: cause.to_string() })
}

/// What leases on a GPU show of it; none where there is none.
fn of_leases(book: &Book, gpu: usize) -> Option<Verdict> {
    let notes = || {
        book.leases.values().flat_map(|lease| {
            let its = lease.accounts.iter().filter(|account| account.gpu == gpu);
            its.map(|account| (&lease.record.container_id, &account.memory_limit))
        })
    };
    let refused = notes().find_map(|(id, note)| Some((id, note.refused().filter(|why| **why != LimitRefusal::Gone)?)));
    match refused {
        Some((id, why)) => {
            Some(Verdict { state: MemoryLimitsState::Refused, told: format!("container {}: {why}", id.short()) })
        }
        None => notes().any(|(_, note)| note.kept_bytes().is_some()).then(kept),
    }
}
