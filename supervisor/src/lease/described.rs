//! A lease in words for people, and by what events name it.

use super::record::{GpuStanding, Record};
use crate::events::About;
use gpool_protocol::{
    Class, GpuCharge, GpuUuid, Mechanism, Priority, format_bytes, format_permille, format_short_time,
};

/// What an event about `record` is about.
pub fn about(record: &Record, uid: Option<u32>) -> About {
    let (lease_id, container_id) = (Some(record.lease_id.clone()), Some(record.container_id.clone()));
    About { lease_id, container_id, uid, owner_uid: Some(record.owner_uid), ..About::default() }
}

/// That it has ended, why, and what it had.
pub fn ended(record: &Record, cause: &str, charged: &[GpuCharge]) -> String {
    format!("ended {}: {cause}{}", record.container_id.short(), had(charged))
}

/// All of it together, behind why it ended.
fn had(charged: &[GpuCharge]) -> String {
    match charged.iter().map(|gpu| gpu.charged_gpu_ns).sum::<u64>() {
        0 => String::new(),
        all_ns => format!("; it had {:.1} s of GPU time", all_ns as f64 / 1e9),
    }
}

/// The event of one whose end nobody saw, or only by its processes if `was_seen`, with what it had been charged when that was written
/// down last.
pub fn ended_unseen(record: &Record, cause: &str, was_seen: bool) -> (About, String) {
    let written = record.standing.iter().flat_map(|standing| &standing.gpus);
    let charge =
        |(uuid, gpu): (&GpuUuid, &GpuStanding)| GpuCharge { gpu_uuid: uuid.clone(), charged_gpu_ns: gpu.charged_ns };
    // NVML has no figures of an instance.
    let has_figures = record.mechanism != Mechanism::Mig;
    let charged: Vec<_> = record.gpus().iter().zip(written).filter(|_| has_figures).map(charge).collect();
    let short = record.container_id.short();
    let unseen = if was_seen { "" } else { " while no supervisor saw it" };
    let message = format!("ended {short}{unseen}: {cause}{}", had(&charged));
    (About { charged, ..about(record, None) }, message)
}

/// What to add where a cap is below what one context is taken to cost, `context_bytes`: no program of the container can
/// use the GPU then, and is told that there is no memory.
pub fn without_room(record: &Record, context_bytes: u64) -> String {
    if !record.mechanism.has_shims() || record.memory_cap_bytes >= context_bytes {
        return String::new();
    }
    let (cap, cost) = (format_bytes(record.memory_cap_bytes), format_bytes(context_bytes));
    format!(
        "; {cap} holds no CUDA context, which is taken to cost {cost}: programs find no memory, ask for more than that"
    )
}

/// The share that a record holds, in words: what is as usual is not said.
pub fn described(record: &Record) -> String {
    let its: Vec<&str> = record.gpus().iter().map(|gpu| gpu.0.as_str()).collect();
    match record.mechanism {
        Mechanism::Slice | Mechanism::Mps => {}
        Mechanism::Exclusive => return format!("all of {}", its.join(", ")),
        Mechanism::TimeSlice => {
            let share = match record.fraction_permille {
                0 => String::new(),
                permille => format!("{} of ", format_permille(permille.into())),
            };
            let cap = match record.caps_time_slices {
                true => format!(" and {}", format_bytes(record.memory_cap_bytes)),
                false => String::new(),
            };
            return format!("{share}time slices of the driver on {}{cap}", its.join(", "));
        }
        Mechanism::Mig => {
            return format!("the MIG instance {} ({})", its.join(", "), record.mig_profile.as_deref().unwrap_or("?"));
        }
    }
    let mut text = match record.gpus() {
        [one] => format!("{} of {one}", format_permille(record.fraction_permille.into())),
        several => {
            let names: Vec<&str> = several.iter().map(|gpu| gpu.0.as_str()).collect();
            format!("{} of each of {}", format_permille(record.fraction_permille.into()), names.join(", "))
        }
    };
    if let Some(profile) = &record.mig_profile {
        text += &format!(" ({profile})");
    }
    text += &format!(" and {}", format_bytes(record.memory_cap_bytes));
    if record.mechanism == Mechanism::Mps {
        text += " under an MPS server";
    }
    if record.spill_bytes > 0 {
        text += &format!(", {} more of the host's memory", format_bytes(record.spill_bytes));
    }
    if let Some(limit) = record.limit_permille {
        text += &format!(", at most {}", format_permille(limit.into()));
    }
    if record.class != Class::default() {
        text += &format!(", class {}", record.class);
    }
    if let Some(p99_ns) = record.p99_ns {
        text += &format!(", p99 of {}", format_short_time(p99_ns));
    }
    if record.priority != Priority::default() {
        text += &format!(", priority {}", record.priority);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::record::{StandingRecord, sample};
    use super::*;

    #[test]
    fn the_event_of_an_end_that_nobody_saw_has_what_was_written_down_last() {
        let mut record = sample();
        let (about, message) = ended_unseen(&record, "its container has ended", false);
        let short = record.container_id.short().to_owned();
        assert_eq!(message, format!("ended {short} while no supervisor saw it: its container has ended"));
        assert!(about.charged.is_empty() && about.lease_id.as_ref() == Some(&record.lease_id));
        assert_eq!((about.uid, about.owner_uid), (None, Some(record.owner_uid)));
        let gpus = vec![GpuStanding { charged_ns: 2_500_000_000, debt_ns: 0, seen_until_us: 0 }];
        record.standing = Some(StandingRecord { at_ns: 1, gpus, counted: None, used_ns: None });
        let (about, message) = ended_unseen(&record, "the host was booted", false);
        assert_eq!(
            message,
            format!("ended {short} while no supervisor saw it: the host was booted; it had 2.5 s of GPU time")
        );
        let charged = GpuCharge { gpu_uuid: record.gpus()[0].clone(), charged_gpu_ns: 2_500_000_000 };
        assert_eq!(about.charged, [charged]);
        record.mechanism = Mechanism::Mig;
        assert!(ended_unseen(&record, "x", true).0.charged.is_empty(), "of an instance there are no figures");
    }

    #[test]
    fn a_cap_that_holds_no_context_is_told() {
        let mut record = sample();
        record.memory_cap_bytes = 256 << 20;
        assert_eq!(without_room(&record, 256 << 20), "");
        let told = without_room(&record, 512 << 20);
        assert!(told.contains("256MiB holds no CUDA context") && told.contains("cost 512MiB"), "{told}");
        record.mechanism = Mechanism::Exclusive;
        assert_eq!(without_room(&record, 512 << 20), "", "whole GPUs have no cap");
    }
}
