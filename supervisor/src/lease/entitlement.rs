//! The same share in the words of the rooms that deal with it: requests and records, the scheduler, the configuration.

use super::record::Record;
use crate::clock::ns;
use gpool_configuration::{ClassName, ClassPolicy, Configuration};
use gpool_policy::admission::{Demand, MemoryDemand, Use, WHOLE_PERMILLE};
use gpool_policy::slice::{Class as SliceClass, HangAfter, Priority as SlicePriority, Share};
use gpool_protocol::{Class, ErrorBody, ErrorCode, LEAST_BYTES, Mechanism, MemoryCap, Priority, Request};

/// What a request that is served by `mechanism` asks admission for.
pub fn demand_of(request: &Request, mechanism: Mechanism) -> Demand {
    Demand {
        fraction_permille: request.fraction_permille,
        memory: match request.memory {
            None => MemoryDemand::Absent,
            Some(MemoryCap::Bytes(bytes)) => MemoryDemand::Bytes(bytes),
            Some(MemoryCap::Permille(permille)) => MemoryDemand::Permille(permille),
        },
        priority: slice_priority(request.priority),
        gpus: request.gpus.into(),
        usage: use_of(mechanism),
    }
}

/// What a lease holds, as a demand on one of its GPUs. One that is in the host's memory holds nothing.
pub fn held_demand(record: &Record) -> Demand {
    let is_out = record.is_out();
    Demand {
        fraction_permille: if is_out { 0 } else { record.fraction_permille },
        memory: MemoryDemand::Bytes(record.promised_bytes()),
        priority: slice_priority(record.priority),
        gpus: 1,
        usage: use_of(record.mechanism),
    }
}

/// How a lease uses its GPUs.
fn use_of(mechanism: Mechanism) -> Use {
    match mechanism {
        Mechanism::Slice => Use::Sliced,
        Mechanism::Exclusive | Mechanism::Mig => Use::Whole,
        Mechanism::TimeSlice => Use::TimeSliced,
        Mechanism::Mps => Use::Mps,
    }
}

/// What the scheduler is told.
pub fn share_of(configuration: &Configuration, record: &Record) -> Share {
    Share {
        // Who has no share never comes to the gate.
        weight_permille: record.fraction_permille.max(1),
        // All of a GPU bounds nothing, and a ceiling would cost its launches and measurements as one.
        limit_permille: record.limit_permille.filter(|limit| *limit < WHOLE_PERMILLE),
        class: match record.class {
            Class::Latency => SliceClass::Latency,
            Class::Batch => SliceClass::Batch,
            Class::Notebook => SliceClass::Notebook,
            Class::Train => SliceClass::Train,
        },
        priority: slice_priority(record.priority),
        hang: hang_after(class_policy(configuration, record.class)),
    }
}

fn hang_after(policy: &ClassPolicy) -> HangAfter {
    HangAfter { usual_ns: ns(policy.hang_seconds), latency_waits_ns: ns(policy.hang_seconds_while_latency_waits()) }
}

/// A priority as `policy` calls it.
pub fn slice_priority(priority: Priority) -> SlicePriority {
    match priority {
        Priority::Guaranteed => SlicePriority::Guaranteed,
        Priority::Burst => SlicePriority::Burst,
        Priority::Scavenger => SlicePriority::Scavenger,
    }
}

/// A priority as people read it.
pub fn shown_priority(priority: SlicePriority) -> Priority {
    match priority {
        SlicePriority::Guaranteed => Priority::Guaranteed,
        SlicePriority::Burst => Priority::Burst,
        SlicePriority::Scavenger => Priority::Scavenger,
    }
}

fn class_name(class: Class) -> ClassName {
    match class {
        Class::Latency => ClassName::Latency,
        Class::Batch => ClassName::Batch,
        Class::Notebook => ClassName::Notebook,
        Class::Train => ClassName::Train,
    }
}

/// What this host has decided for a class.
pub fn class_policy(configuration: &Configuration, class: Class) -> &ClassPolicy {
    configuration.class.of(class_name(class))
}

/// Whether a lease's processes may run unpaced while no supervisor is there: as its class says, but not what has been
/// kept from the GPU.
pub fn fails_open(configuration: &Configuration, record: &Record) -> bool {
    class_policy(configuration, record.class).fail_open
        && !record.paused
        && record.revocation.is_none()
        && record.suspension.is_none()
}

/// Whether this host allows a class.
///
/// # Errors
/// Names the class and those that are allowed.
pub fn check_class(configuration: &Configuration, class: Class) -> Result<(), ErrorBody> {
    let allowed = |class: Class| configuration.policy.classes.contains(&class_name(class));
    if allowed(class) {
        return Ok(());
    }
    let others: Vec<&str> = Class::ALL.into_iter().filter(|other| allowed(*other)).map(Class::text).collect();
    let remedy = match others.as_slice() {
        [] => "let [policy] classes in config.toml name one and run gpool config reload".to_owned(),
        _ => format!(
            "ask for one of {}, or add it to [policy] classes in config.toml and run gpool config reload",
            others.join(", ")
        ),
    };
    Err(ErrorBody::new(ErrorCode::RequestNotAllowed, format!("class={class} is not allowed on this host"), remedy))
}

/// Whether a cap that came over the socket is one that somebody means: wrappers read sizes with units and refuse others.
///
/// # Errors
/// Names the key, and what to write.
pub fn check_cap(memory: Option<MemoryCap>) -> Result<(), ErrorBody> {
    match memory {
        Some(MemoryCap::Bytes(bytes @ ..LEAST_BYTES)) => Err(ErrorBody::new(
            ErrorCode::RequestInvalid,
            format!("memory={bytes} is less than 1MiB"),
            "write 4GiB; a bare number is bytes",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::sample;
    use super::*;

    #[test]
    fn a_class_that_the_host_denies_is_refused_by_name() {
        let mut configuration = Configuration::default();
        for class in Class::ALL {
            assert_eq!(check_class(&configuration, class), Ok(()));
        }
        configuration.policy.classes = vec![ClassName::Batch, ClassName::Train];
        let text = check_class(&configuration, Class::Latency).unwrap_err().to_string();
        for part in ["class=latency", "batch, train", "[policy] classes", "GPOOL-E105"] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
        configuration.policy.classes.clear();
        assert!(check_class(&configuration, Class::Batch).unwrap_err().remedy.contains("[policy] classes"));
    }

    #[test]
    fn a_cap_that_nobody_means_is_refused() {
        for fine in [None, Some(MemoryCap::Bytes(LEAST_BYTES)), Some(MemoryCap::Permille(1))] {
            assert_eq!(check_cap(fine), Ok(()));
        }
        let text = check_cap(Some(MemoryCap::Bytes(4))).unwrap_err().to_string();
        assert!(text.contains("memory=4") && text.contains("write 4GiB") && text.contains("GPOOL-E101"), "{text}");
    }

    #[test]
    fn the_scheduler_is_told_all_of_a_share() {
        let mut record = sample();
        (record.limit_permille, record.class, record.priority) = (Some(500), Class::Latency, Priority::Burst);
        let mut configuration = Configuration::default();
        configuration.class.latency.hang_seconds_latency_waits = Some(2);
        let want = Share {
            weight_permille: 300,
            limit_permille: Some(500),
            class: SliceClass::Latency,
            priority: SlicePriority::Burst,
            hang: HangAfter { usual_ns: 30_000_000_000, latency_waits_ns: 2_000_000_000 },
        };
        assert_eq!(share_of(&configuration, &record), want);
        record.limit_permille = Some(1000);
        assert_eq!(share_of(&configuration, &record), Share { limit_permille: None, ..want });
        assert_eq!(held_demand(&record).guaranteed_permille(), 0, "a burst share is not promised");
    }
}
