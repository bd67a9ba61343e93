//! A file of layouts: named lists of which GPUs are divided into what.
//!
//! What is read: `version: v1`, `mig-configs`, and in each entry `devices`, `device-filter`, `mig-enabled` and
//! `mig-devices`. Anything else is an error with its line, so that nothing is passed over in silence.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// A file of layouts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayoutFile {
    version: String,
    /// By name.
    #[serde(rename = "mig-configs")]
    pub configs: BTreeMap<String, Vec<Entry>>,
}

/// What holds for some of a host's GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Entry {
    /// Which GPUs, by their index.
    pub devices: Devices,
    /// PCI ids of the GPUs that it is about; absent: of all.
    #[serde(default)]
    pub device_filter: Option<Filter>,
    /// Whether MIG is on.
    pub mig_enabled: bool,
    /// How many instances of each profile.
    #[serde(default)]
    pub mig_devices: BTreeMap<String, usize>,
}

/// `all`, or a list of indices.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Devices {
    /// A list.
    Some(Vec<u32>),
    /// A word, which must be `all`.
    All(String),
}

/// One id, or several.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Filter {
    /// One.
    One(String),
    /// Several.
    Several(Vec<String>),
}

impl Entry {
    /// One name for each instance.
    pub fn profiles(&self) -> Vec<String> {
        self.mig_devices.iter().flat_map(|(name, count)| std::iter::repeat_n(name.clone(), *count)).collect()
    }

    /// Which GPUs it is about, in words.
    pub fn which(&self) -> String {
        let devices = match &self.devices {
            Devices::All(_) => "all GPUs".to_owned(),
            Devices::Some(indices) => {
                let indices: Vec<String> = indices.iter().map(u32::to_string).collect();
                format!("GPU {}", indices.join(", "))
            }
        };
        match &self.device_filter {
            None => devices,
            Some(Filter::One(id)) => format!("{devices} of PCI id {id}"),
            Some(Filter::Several(ids)) => format!("{devices} of PCI ids {}", ids.join(", ")),
        }
    }
}

impl LayoutFile {
    /// The layout of that name, or the only one, and its name.
    ///
    /// # Errors
    /// The names that there are.
    pub fn named<'a>(&'a self, name: Option<&'a str>) -> Result<(&'a str, &'a [Entry]), String> {
        let names: Vec<&str> = self.configs.keys().map(String::as_str).collect();
        let name = match (name, names.as_slice()) {
            (Some(name), _) => name,
            (None, [only]) => only,
            (None, several) => {
                let names = several.join(", ");
                return Err(format!("name one of its layouts, with --config or [mig] config: {names}"));
            }
        };
        let entries = self.configs.get(name).map(Vec::as_slice);
        Ok((name, entries.ok_or_else(|| format!("there is no layout {name:?}, there are {}", names.join(", ")))?))
    }
}

/// The most instances that a file may ask for of one profile: more than any GPU can have, and few enough to plan.
const MOST_OF_ONE: usize = 64;

/// Reads a file of layouts.
///
/// # Errors
/// The path with the line, or with the layout, and what is wrong there.
pub fn load(path: &Path) -> Result<LayoutFile, String> {
    let wrong = |cause: String| format!("{}: {cause}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| wrong(format!("cannot be read ({})", error.kind())))?;
    parse(&text).map_err(wrong)
}

fn parse(text: &str) -> Result<LayoutFile, String> {
    let file: LayoutFile = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    if file.version != "v1" {
        return Err(format!("version: {} is not known; write v1", file.version));
    }
    for (name, entries) in &file.configs {
        for entry in entries {
            if let Devices::All(word) = &entry.devices
                && word != "all"
            {
                return Err(format!(
                    "mig-configs.{name}.devices: {word:?} is not known; write all, or a list of indices"
                ));
            }
            if let Some((profile, count)) = entry.mig_devices.iter().find(|(_, count)| **count > MOST_OF_ONE) {
                return Err(format!(
                    "mig-configs.{name}.mig-devices: {profile} is asked for {count} times; no GPU has so many"
                ));
            }
            if !entry.mig_enabled && !entry.mig_devices.is_empty() {
                return Err(format!(
                    "mig-configs.{name}: mig-devices are listed with mig-enabled: false; turn it on or take them out"
                ));
            }
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
version: v1
mig-configs:
  off:
    - devices: all
      mig-enabled: false
  mixed:  # two kinds of GPUs
    - devices: [0, 1]
      device-filter: [\"0x20B210DE\", \"0x20B510DE\"]
      mig-enabled: true
      mig-devices:
        \"3g.40gb\": 1
        \"1g.10gb\": 3
    - devices: all
      device-filter: \"0x233010DE\"
      mig-enabled: true
      mig-devices: {}
";

    #[test]
    fn a_file_of_mig_parted_is_read() {
        let file = parse(GOOD).unwrap();
        let mixed = &file.configs["mixed"];
        assert_eq!(mixed[0].profiles(), ["1g.10gb", "1g.10gb", "1g.10gb", "3g.40gb"]);
        assert_eq!(mixed[0].which(), "GPU 0, 1 of PCI ids 0x20B210DE, 0x20B510DE");
        assert_eq!((mixed[1].which().as_str(), mixed[1].profiles().len()), ("all GPUs of PCI id 0x233010DE", 0));
        assert!(!file.configs["off"][0].mig_enabled);
        assert_eq!(file.named(Some("mixed")).unwrap().1.len(), 2);
        assert!(file.named(None).unwrap_err().contains("mixed, off"));
        assert!(file.named(Some("half")).unwrap_err().contains("mixed, off"));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (from, to, parts) in [
            ("version: v1", "version: v9", ["version: v9", "write v1"]),
            (
                "devices: all\n      mig-enabled: false",
                "devices: some\n      mig-enabled: false",
                ["off.devices", "\"some\""],
            ),
            (
                "mig-enabled: true\n      mig-devices: {}",
                "mig-enabled: true\n      mig-device: {}",
                ["mig-device", "line"],
            ),
            ("\"1g.10gb\": 3", "\"1g.10gb\": three", ["three", "line"]),
            ("\"1g.10gb\": 3", "\"1g.10gb\": 999", ["mixed.mig-devices", "999"]),
            ("[0, 1]", "[0, 1", ["line", "column"]),
        ] {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD, "{from}");
            let error = parse(&text).unwrap_err();
            for part in parts {
                assert!(error.contains(part), "{from} -> {to}: {error} lacks {part}");
            }
        }
        assert!(load(Path::new("/proc/no/such.yaml")).unwrap_err().contains("/proc/no/such.yaml"));
    }
}
