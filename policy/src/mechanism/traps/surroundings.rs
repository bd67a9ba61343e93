//! Traps of what is around gpool: schedulers, suspension, monitoring.

use super::{Finding, Trap, refuse, warn};
use crate::mechanism::{Ask, Choice, Fact, Mechanism, Workload};

pub(super) fn replicas_are_no_shares(ask: &Ask) -> Option<Finding> {
    let replicas = ask.plugin_replicas.filter(|replicas| *replicas > 1)?;
    warn(
        Trap::ReplicasAreNoShares,
        format!(
            "{replicas} replicas of a device plugin are {replicas} names for the whole GPU, not {replicas} parts of it"
        ),
        "give each container a fraction; containers without a lease on the GPU take what they want",
    )
}

pub(super) fn two_replicas(ask: &Ask) -> Option<Finding> {
    let replicas = ask.shared_replicas.filter(|replicas| *replicas > 1)?;
    refuse(
        Trap::TwoReplicas,
        format!(
            "{replicas} shared replicas give no more of the GPU than one, and plugins may hand out the same GPU twice"
        ),
        "ask for one, with a larger fraction",
    )
}

pub(super) fn cannot_suspend(ask: &Ask) -> Option<Finding> {
    let keeps = [Fact::Uvm, Fact::Ipc].into_iter().find(|fact| ask.is(*fact))?;
    if !ask.is(Fact::Suspend) && !ask.is(Fact::Checkpoint) {
        return None;
    }
    refuse(
        Trap::CannotSuspend,
        format!("{keeps}: cuda-checkpoint saves neither managed memory nor memory of other processes"),
        "do without suspension, or without such memory",
    )
}

pub(super) fn reaping_services(ask: &Ask) -> Option<Finding> {
    let serves = ask.workload == Workload::InferOnline && ask.is(Fact::IdleReaping) && !ask.is(Fact::Suspend);
    if !serves {
        return None;
    }
    warn(
        Trap::ReapingServices,
        "a service that is ended for being idle is not there for the next request: it is only warned about",
        "let it be suspended (facts=suspend), or scale it to none by what calls it",
    )
}

pub(super) fn blind_in_instance(choice: Option<&Choice>) -> Option<Finding> {
    choice.filter(|choice| matches!(choice.mechanism, Mechanism::Mig | Mechanism::SlicesInMig))?;
    warn(
        Trap::BlindInInstance,
        "NVML has no utilisation of processes inside a MIG instance: what they report is not compared with the device",
        "where that matters give each tenant an instance of its own",
    )
}

pub(super) fn slurm_suspend(ask: &Ask) -> Option<Finding> {
    if !ask.is(Fact::SlurmSuspend) {
        return None;
    }
    refuse(Trap::SlurmSuspend, "a job that Slurm suspends keeps its GPU memory and its GPUs", "use PreemptMode=REQUEUE")
}
