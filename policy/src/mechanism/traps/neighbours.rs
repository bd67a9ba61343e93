//! Traps of who is beside whom.

use super::{Finding, Trap, refuse};
use crate::mechanism::serve::{TIGHT_P99_MS, neighbours_are_fine};
use crate::mechanism::table::mps_forbids;
use crate::mechanism::{Ask, Choice, Fact, Gpu, Host, Mechanism, Mode, Pool, Trust, Workload};

pub(super) fn mps_across_teams(ask: &Ask, host: &Host) -> Option<Finding> {
    if ask.mode != Mode::Mps {
        return None;
    }
    let is_others = |gpu: &Gpu| gpu.teams.iter().any(|team| Some(team) != ask.team.as_ref());
    let everywhere = !host.gpus.is_empty() && host.gpus.iter().all(is_others);
    if ask.trust == Trust::SameTeam && !everywhere {
        return None;
    }
    refuse(
        Trap::MpsAcrossTeams,
        "a fault of one client ends all clients of an MPS server, and a server has one user: it is never shared between \
         teams",
        "ask for mode=slice, or say trust=same-team with a team that has a GPU to itself",
    )
}

pub(super) fn mps_unfit(ask: &Ask) -> Option<Finding> {
    let fact = mps_forbids(ask).filter(|_| ask.mode == Mode::Mps)?;
    refuse(
        Trap::MpsUnfit,
        format!("{fact} does not go with MPS, whose clients share a server, its memory and its fate"),
        "ask for mode=slice, or for mode=mig where faults must stay apart",
    )
}

/// Answers in tens of milliseconds, beside who keeps the GPU for longer than that.
pub(super) fn coarse_neighbour(ask: &Ask, host: &Host, choice: Option<&Choice>) -> Option<Finding> {
    let p99_ms = ask.p99_ms.filter(|p99_ms| *p99_ms < TIGHT_P99_MS && ask.workload == Workload::InferOnline)?;
    let is_driver = ask.mode == Mode::TimeSlice || (ask.mode == Mode::Auto && host.pool == Pool::TimeSlice);
    if is_driver && choice.is_none_or(|choice| choice.mechanism <= Mechanism::Slices) {
        return refuse(
            Trap::CoarseNeighbour,
            format!("the driver's time slices keep no promise of {p99_ms} ms: every neighbour adds its own slice"),
            "ask for class=latency in a pool with slices, or for isolation=hardware",
        );
    }
    if choice.is_some() {
        return None;
    }
    let fine = |gpu: &Gpu| neighbours_are_fine(ask, gpu);
    let why = host.gpus.iter().filter(|gpu| !gpu.mig.is_on).map(fine).collect::<Vec<_>>();
    if why.is_empty() || why.iter().any(Result::is_ok) {
        return None;
    }
    let why: Vec<String> = why.into_iter().filter_map(Result::err).collect();
    refuse(
        Trap::CoarseNeighbour,
        format!("{p99_ms} ms cannot be kept: {}", why.join("; ")),
        "keep kernels of neighbours below 20 ms, split the GPU with MIG (isolation=hardware), or use another one",
    )
}

pub(super) fn escapes_shims(ask: &Ask) -> Option<Finding> {
    let fact = ask.escapes_shims().filter(|_| matches!(ask.mode, Mode::Slice | Mode::Mps))?;
    refuse(
        Trap::EscapesShims,
        format!("{fact}: limits in software do not hold for such a container"),
        "ask for mode=mig or mode=exclusive, or take that away from the container",
    )
}

pub(super) fn separate_ranks(ask: &Ask) -> Option<Finding> {
    let is_gang = ask.is(Fact::SeparateRanks) && ask.fraction_permille < 1000;
    let is_sliced = matches!(ask.mode, Mode::Auto | Mode::Slice | Mode::TimeSlice);
    if !is_gang || !is_sliced {
        return None;
    }
    refuse(
        Trap::SeparateRanks,
        "ranks in containers of their own get their turns at different times, and wait for each other inside their \
         kernels with their turns running out",
        "put all ranks into one container with gpus=N, or give each a whole GPU (fraction=1, mode=exclusive)",
    )
}
