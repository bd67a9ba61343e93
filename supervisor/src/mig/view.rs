//! GPUs that can be divided, as the socket shows them.

use super::owner::owner;
use crate::clock;
use crate::device::{Compute, Gpu, GpuInstance, InventoryError, Kind, MigMode, NvmlInventory, answering};
use crate::lease::{Book, Lease, Leases, capacities, records_on};
use gpool_configuration::open_for;
use gpool_protocol::{ErrorBody, ErrorCode, Mechanism, MigGpuView, MigInstanceView, MigPartedView};

/// Every GPU that can be divided and answers, by index, with its instances.
///
/// # Errors
/// NVML does not answer for any of them.
pub fn view(leases: &Leases) -> Result<Vec<MigGpuView>, ErrorBody> {
    let (gpus, owner) = (leases.gpus(), owner());
    let window = open_for(&leases.configuration().mig.windows, clock::local_now());
    let unanswered = |cause: InventoryError| {
        ErrorBody::new(ErrorCode::SupervisorFailed, cause.to_string(), "look at the driver with nvidia-smi")
    };
    // NVML is asked before the book is locked: it may take its time.
    let inventory = &leases.inventory;
    let ask = |index| inventory.ask(index, move |its| seen(its, index));
    let (boards, _) = answering(inventory.boards().keys().copied(), ask).map_err(unanswered)?;
    let book = leases.book();
    let mut views = Vec::new();
    for Seen { index, mode, pci_device_id, gpu_instances } in boards {
        let is_it = |gpu: &&Gpu| gpu.index == index && matches!(gpu.kind, Kind::Whole | Kind::Divided);
        let Some(own) = gpus.iter().find(is_it) else { continue };
        views.push(MigGpuView {
            index,
            uuid: own.uuid.clone(),
            name: own.name.clone(),
            pci_device_id,
            enabled: mode.is_on,
            pending: mode.is_pending,
            owner: owner.clone(),
            window_left_s: window.map(|left| left.as_secs()),
            instances: instances(own, &gpus, &book),
            parted: parted(&gpu_instances),
            leases: (0..gpus.len())
                .filter(|place| gpus[*place].board() == Some(&own.uuid))
                .map(|place| on(&book, place).count() as u32)
                .sum(),
        });
    }
    Ok(views)
}

/// What NVML says of a board.
struct Seen {
    index: u32,
    mode: MigMode,
    pci_device_id: u32,
    gpu_instances: Vec<GpuInstance>,
}

fn seen(inventory: &NvmlInventory, index: u32) -> Result<Seen, InventoryError> {
    let (mode, pci_device_id) = (inventory.mig_mode(index)?, inventory.pci_device_id(index)?);
    let board = inventory.boards().get(&index).filter(|_| mode.is_on);
    let gpu_instances = board.map(|board| inventory.gpu_instances(board)).transpose()?.unwrap_or_default();
    Ok(Seen { index, mode, pci_device_id, gpu_instances })
}

fn parted(gpu_instances: &[GpuInstance]) -> Vec<MigPartedView> {
    let view = |own: &GpuInstance| match own.compute {
        Compute::Whole => None,
        Compute::Parts(count) => Some(MigPartedView {
            profile: own.profile.clone(),
            gpu_instance: own.id,
            start: own.start,
            size: own.size,
            compute_instances: count as u32,
        }),
    };
    gpu_instances.iter().filter_map(view).collect()
}

fn on(book: &Book, place: usize) -> impl Iterator<Item = &Lease> {
    book.leases.values().filter(move |lease| lease.gpus().any(|gpu| gpu == place) && !lease.record.has_lost_share())
}

fn instances(own: &Gpu, gpus: &[Gpu], book: &Book) -> Vec<MigInstanceView> {
    let promised = capacities(gpus, &[], &[], book, None);
    let view = |(place, gpu): (usize, &Gpu)| {
        let its = gpu.instance().filter(|its| its.board == own.uuid)?;
        let (sliced, whole): (Vec<&Lease>, Vec<&Lease>) =
            on(book, place).partition(|lease| lease.record.mechanism == Mechanism::Slice);
        Some(MigInstanceView {
            uuid: gpu.uuid.clone(),
            profile: its.profile.clone(),
            gpu_instance: its.gpu_instance,
            compute_instance: its.compute_instance,
            start: its.start,
            size: its.size,
            memory_bytes: gpu.memory_total_bytes,
            lease_id: whole.first().map(|lease| lease.record.lease_id.clone()),
            slices: sliced.iter().map(|lease| lease.record.lease_id.clone()).collect(),
            team: records_on(gpus, book, place, None).find_map(|record| record.team.clone()),
            share_leased_permille: promised[place].fraction_leased_permille,
            memory_leased_bytes: promised[place].memory_leased_bytes,
        })
    };
    let mut found: Vec<MigInstanceView> = gpus.iter().enumerate().filter_map(view).collect();
    found.sort_by_key(|instance| instance.start);
    found
}
