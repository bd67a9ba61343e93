//! What each GPU of a host is to be divided into, by the entries of a layout.

use super::file::{Devices, Entry, Filter};

/// A GPU that can be divided, as far as layouts choose by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Divisible {
    /// NVML's index.
    pub index: u32,
    /// NVML's PCI device and vendor id.
    pub pci_device_id: u32,
}

/// What a GPU is to be divided into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Goal {
    /// Its index.
    pub index: u32,
    /// Whether MIG is to be on.
    pub enabled: bool,
    /// A profile for each instance.
    pub profiles: Vec<String>,
}

/// One goal for each GPU that the entries are about, by index.
///
/// # Errors
/// Two entries are about one GPU, a GPU that is to be divided is not there, or a filter is no PCI id.
pub fn goals(entries: &[Entry], gpus: &[Divisible]) -> Result<Vec<Goal>, String> {
    let mut goals: Vec<Goal> = Vec::new();
    for entry in entries {
        if let (Devices::Some(indices), true) = (&entry.devices, entry.mig_enabled)
            && let Some(missing) = indices.iter().find(|index| gpus.iter().all(|gpu| gpu.index != **index))
        {
            return Err(format!("GPU {missing} is to be divided, and this host has no such GPU with MIG"));
        }
        for gpu in gpus {
            if !is_meant(entry, gpu)? {
                continue;
            }
            if goals.iter().any(|goal| goal.index == gpu.index) {
                return Err(format!("two entries are about GPU {}; leave one of them", gpu.index));
            }
            let (enabled, profiles) = (entry.mig_enabled, entry.profiles());
            goals.push(Goal { index: gpu.index, enabled, profiles });
        }
    }
    Ok(goals)
}

fn is_meant(entry: &Entry, gpu: &Divisible) -> Result<bool, String> {
    let by_index = match &entry.devices {
        Devices::All(_) => true,
        Devices::Some(indices) => indices.contains(&gpu.index),
    };
    let ids = match &entry.device_filter {
        None => return Ok(by_index),
        Some(Filter::One(id)) => std::slice::from_ref(id),
        Some(Filter::Several(ids)) => ids,
    };
    for id in ids {
        let digits = id.trim().trim_start_matches("0x").trim_start_matches("0X");
        // Eight digits: the name of a product may be a hexadecimal number, too.
        let number = u32::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 8);
        let number = number.ok_or_else(|| format!("device-filter: {id:?} is no PCI id such as 0x20B210DE"))?;
        if number == gpu.pci_device_id {
            return Ok(by_index);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    fn entry(devices: Devices, filter: Option<&str>) -> Entry {
        Entry {
            devices,
            device_filter: filter.map(|id| Filter::One(id.into())),
            mig_enabled: true,
            mig_devices: [("1g.10gb".to_owned(), 2)].into(),
        }
    }

    #[test]
    fn entries_choose_gpus_by_index_and_by_pci_id() {
        let gpus =
            [(0, 0x20b2_10de), (1, 0x2330_10de)].map(|(index, pci_device_id)| Divisible { index, pci_device_id });
        let all = || Devices::All("all".into());
        let chosen = |entries: &[Entry]| {
            goals(entries, &gpus).map(|goals| goals.iter().map(|goal| goal.index).collect::<Vec<_>>())
        };
        assert_eq!(chosen(&[entry(all(), None)]).unwrap(), [0, 1]);
        assert_eq!(chosen(&[entry(all(), Some("0x233010DE"))]).unwrap(), [1]);
        assert_eq!(chosen(&[entry(Devices::Some(vec![1]), Some("0x20B210DE"))]).unwrap(), [0; 0]);
        assert_eq!(goals(&[entry(all(), None)], &gpus).unwrap()[0].profiles, ["1g.10gb", "1g.10gb"]);
        for (entries, part) in [
            (vec![entry(Devices::Some(vec![7]), None)], "GPU 7"),
            (vec![entry(all(), None), entry(Devices::Some(vec![1]), None)], "two entries are about GPU 1"),
            (vec![entry(all(), Some("A100"))], "no PCI id"),
        ] {
            assert!(chosen(&entries).unwrap_err().contains(part), "{part}");
        }
    }
}
