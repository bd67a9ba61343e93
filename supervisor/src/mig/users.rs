//! Who uses a board that is to be divided: by a lease, or past gpool.

use crate::device::{Gpu, InventoryError};
use crate::lease::{Book, Leases, Record, mps_groups_used};
use crate::procfs;
use gpool_protocol::{GpuUuid, HostPid};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Processes by the board or the MIG device that they are on.
pub type Processes = BTreeMap<GpuUuid, BTreeSet<HostPid>>;

/// The processes that NVML lists now on the board `index` or on instances of it. Gpool's own are left out: those that it tries
/// time slices with, and MPS daemons, which are there for leases.
///
/// # Errors
/// NVML's words.
pub fn processes_on(leases: &Leases, index: u32) -> Result<Processes, InventoryError> {
    let mut found = leases.inventory.ask(index, move |inventory| inventory.processes_by_device(index))?;
    // Not before: it may have taken its time.
    let book = leases.book();
    let used = mps_groups_used(&book);
    let is_gpools = |pid: HostPid| leases.groups.are_served_by(pid, &used) || procfs::is_own_child(pid);
    let is_alive = |pid: HostPid| Path::new(&format!("/proc/{pid}")).exists();
    for pids in found.values_mut() {
        pids.retain(|pid| is_alive(*pid) && !is_gpools(*pid));
    }
    Ok(found)
}

/// Who is in the way of a change of `board`, in words; none if nobody is.
pub fn in_the_way(book: &Book, gpus: &[Gpu], board: &GpuUuid, processes: &Processes) -> Option<String> {
    let (containers, pids) = (containers(book, gpus, board), without_lease(book, processes));
    let mut told = Vec::new();
    if !containers.is_empty() {
        told.push(format!("has {} lease(s), of {}", containers.len(), containers.join(", ")));
    }
    if !pids.is_empty() {
        let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
        told.push(format!("is used without a lease by {} process(es): {}", pids.len(), pids.join(", ")));
    }
    (!told.is_empty()).then(|| format!("{board} {}", told.join(" and ")))
}

/// Leases that hold something, those that could not be taken over yet among them.
fn records(book: &Book) -> impl Iterator<Item = &Record> {
    let leased = book.leases.values().map(|lease| &lease.record);
    leased.chain(&book.stranded).filter(|record| !record.has_lost_share())
}

/// The containers that have a board or a part of it.
fn containers(book: &Book, gpus: &[Gpu], board: &GpuUuid) -> Vec<String> {
    let is_of_it = |gpu: &&Gpu| gpu.board() == Some(board);
    let has = |record: &&Record| gpus.iter().filter(is_of_it).any(|gpu| record.gpus().contains(&gpu.uuid));
    records(book).filter(has).map(|record| record.container_id.short().to_owned()).collect()
}

/// The processes on what nobody has a lease of: who is on the rest goes with the leases.
fn without_lease(book: &Book, processes: &Processes) -> BTreeSet<HostPid> {
    let is_leased = |uuid: &GpuUuid| records(book).any(|record| record.gpus().contains(uuid));
    let others = processes.iter().filter(|(uuid, _)| !is_leased(uuid));
    others.flat_map(|(_, pids)| pids.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::sample;

    #[test]
    fn who_has_no_lease_is_in_the_way_by_its_pid() {
        let uuid = |text: &str| GpuUuid(text.into());
        let board = Gpu::sample(1);
        let other = Gpu { uuid: uuid("GPU-2"), ..board.clone() };
        let gpus = [board, other];
        let on = |device: &str, pids: &[u32]| -> Processes {
            [(uuid(device), pids.iter().copied().map(HostPid).collect())].into()
        };
        let told = |book: &Book, processes: &Processes| in_the_way(book, &gpus, &gpus[0].uuid, processes);
        let (free, leased) = (Book::default(), Book { stranded: vec![sample()], ..Book::default() });
        assert_eq!(told(&free, &on("GPU-1", &[])), None);
        let past = told(&free, &on("GPU-1", &[7, 8]));
        assert_eq!(past.as_deref(), Some("GPU-1 is used without a lease by 2 process(es): 7, 8"));
        assert_eq!(told(&leased, &on("GPU-1", &[7])).as_deref(), Some("GPU-1 has 1 lease(s), of c"));
        let both = told(&leased, &on("MIG-1", &[7]));
        assert_eq!(both.as_deref(), Some("GPU-1 has 1 lease(s), of c and is used without a lease by 1 process(es): 7"));
    }
}
