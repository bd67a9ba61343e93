//! A lease in words for people, and by what events name it.

use super::record::Record;
use crate::events::About;
use gpool_protocol::{Class, Mechanism, Priority, format_bytes, format_permille, format_short_time};

/// What an event about `record` is about.
pub fn about(record: &Record, uid: Option<u32>) -> About {
    let (lease_id, container_id) = (Some(record.lease_id.clone()), Some(record.container_id.clone()));
    About { lease_id, container_id, uid, owner_uid: Some(record.owner_uid), ..About::default() }
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
    use super::super::record::sample;
    use super::*;

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
