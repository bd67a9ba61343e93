//! What a lease holds, in words for people.

use super::record::Record;
use gpool_protocol::{Class, Mechanism, Priority, format_bytes, format_permille};

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
            return format!("{share}time slices of the driver on {}", its.join(", "));
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
    if let Some(limit) = record.limit_permille {
        text += &format!(", at most {}", format_permille(limit.into()));
    }
    if record.class != Class::default() {
        text += &format!(", class {}", record.class);
    }
    if record.priority != Priority::default() {
        text += &format!(", priority {}", record.priority);
    }
    text
}
