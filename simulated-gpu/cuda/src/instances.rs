//! Which devices a process sees: whole GPUs, or one MIG instance.
//!
//! As the CUDA C++ Programming Guide and the MIG user guide have it: a program uses one instance at most, and a GPU with
//! MIG is no device itself. CUDA_VISIBLE_DEVICES names an instance by its UUID; without it, and where there is no whole GPU,
//! the first instance that the process may use is taken.

use crate::driver::{Gpu, Outcome, lost};
use gpool_simulated_hardware::{Layout, Store, is_visible, may_use_instance, selected};

/// The devices whose nodes this process may open, by minor number, of which CUDA_VISIBLE_DEVICES then chooses.
pub(crate) fn visible_gpus(layout: &Layout) -> Outcome<Vec<Gpu>> {
    let (mut whole, mut instances) = (Vec::new(), Vec::new());
    for index in (0..layout.device_count()).filter(|index| is_visible(layout, *index)) {
        let gpu = gpu_of(Store::open_device(layout.root(), index).map_err(lost)?)?;
        let mig = gpu.store.read(|device| device.mig.clone()).map_err(lost)?;
        if !mig.is_on {
            whole.push(Some(gpu));
            continue;
        }
        let usable = mig.instances.iter().filter(|one| one.has_compute && may_use_instance(layout, index, one.id));
        // One that is just being taken away has no state any more.
        let opened = usable.filter_map(|one| Store::open_instance(layout.root(), (index, one.id)).ok());
        instances.extend(opened.filter_map(|store| gpu_of(store).ok()));
    }
    let variable = std::env::var_os("CUDA_VISIBLE_DEVICES");
    let variable = variable.as_ref().map(|value| value.to_str().unwrap_or_default());
    if let Some(uuid) = variable.filter(|value| value.trim_start().starts_with("MIG-")) {
        // The first one named is used, and nothing behind it.
        let uuid = uuid.split(',').next().unwrap_or_default().trim();
        return Ok(instances.into_iter().find(|gpu| gpu.parameters.uuid == uuid).into_iter().collect());
    }
    if whole.is_empty() {
        whole.extend(instances.into_iter().next().map(Some));
    }
    let uuids: Vec<&str> = whole.iter().flatten().map(|gpu| gpu.parameters.uuid.as_str()).collect();
    let chosen = selected(&uuids, variable);
    Ok(chosen.into_iter().filter_map(|index| whole[index].take()).collect())
}

fn gpu_of(store: Store) -> Outcome<Gpu> {
    let parameters = store.read(|device| device.parameters().clone()).map_err(lost)?;
    Ok(Gpu { store, parameters })
}
