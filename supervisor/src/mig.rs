//! Dividing GPUs with MIG: what there is, what it is to be, and seeing it when somebody else changes it.

mod apply;
mod boot;
mod nodes;
mod owner;
mod users;
mod view;

pub use apply::{By, apply};
pub use boot::after_boot;
pub use owner::owner;
pub use view::view;

use crate::device::{Changes, NvmlInventory};
use crate::events::About;
use crate::faults::Faults;
use crate::lease::{Book, Leases};
use gpool_protocol::EventKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Takes over the instances that there are now; what has come or gone without gpool is an event.
/// `faults` has why that could not be done.
pub fn look(leases: &Leases, faults: &mut Faults<()>) {
    // Who is just dividing looks when it is done.
    let Ok(_turn) = leases.dividing.try_lock() else { return };
    faults.note((), &look_again(leases));
    owner::remember();
}

fn look_again(leases: &Leases) -> Result<(), String> {
    let changes = leases.roster.untold(refresh(leases, &leases.inventory)?);
    if !changes.is_empty() {
        leases.events.note(EventKind::MigChanged, About::default(), sentence(&changes));
    }
    Ok(())
}

fn refresh(leases: &Leases, inventory: &Arc<NvmlInventory>) -> Result<Changes, String> {
    // Boards that do not answer are told by who looks at their memory.
    let found = inventory.gpus().map_err(|error| error.to_string())?.gpus;
    let mut book = leases.book();
    let changes = leases.roster.update(&found, |index| has_place(&book, index));
    changes.replaced.iter().for_each(|index| forget(leases, &mut book, *index));
    drop(book);
    if !changes.came.is_empty() {
        nodes::make_missing(leases);
    }
    Ok(changes)
}

/// What is known by the index of a place is of the instance that had it before. See also [`crate::context_cost`].
fn forget(leases: &Leases, book: &mut Book, index: usize) {
    book.charges.remove(&index);
    leases.context_bytes[index].store(leases.configuration().driver.context_bytes, Ordering::Relaxed);
    leases.foreign_bytes[index].store(0, Ordering::Relaxed);
    leases.used_bytes[index].store(0, Ordering::Relaxed);
    leases.occupants.forget(index);
    leases.silence.forget(index);
}

/// Whether a lease or a kept place has this index.
fn has_place(book: &Book, index: usize) -> bool {
    book.leases.values().any(|lease| lease.gpus().any(|gpu| gpu == index))
        || book.held.iter().any(|held| held.gpus.contains(&index))
}

fn sentence(changes: &Changes) -> String {
    let parts =
        [("came", &changes.came), ("went", &changes.went), ("cannot be leased for lack of places", &changes.left_out)];
    let told: Vec<String> = parts
        .iter()
        .filter(|(_, its)| !its.is_empty())
        .map(|(word, its)| format!("{} {word}", its.join(", ")))
        .collect();
    format!("MIG instances changed without gpool: {}", told.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_told_in_one_sentence() {
        let (came, went) = (vec!["MIG-a 1g.10gb".into()], vec!["MIG-b".into()]);
        let changes = Changes { came, went, ..Changes::default() };
        assert_eq!(sentence(&changes), "MIG instances changed without gpool: MIG-a 1g.10gb came; MIG-b went");
    }
}
