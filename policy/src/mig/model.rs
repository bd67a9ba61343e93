//! GPU models and their MIG profiles, as data.
//!
//! Names, slices and numbers of instances are those of NVIDIA's MIG user guide, "Supported MIG Profiles". Starts and sizes
//! are what `nvidia-smi mig -lgipp` prints, in memory slices. An instance's memory is that of the driver's profile
//! information, in MiB, as NVIDIA's own mock of these boards has it (go-nvml). Profiles that differ in graphics or
//! media engines alone, but for `+me`, are left out.

use std::fmt;

/// What sets a profile apart from the plain one with as many compute slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProfileKind {
    /// Nothing.
    Plain,
    /// `+me`: it has the media engines, and there can be one of it.
    Media,
    /// One compute slice with the memory of two.
    DoubleMemory,
}

/// A GPU instance profile of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Profile {
    /// Compute slices.
    pub compute_slices: u8,
    /// Memory slices, which is how long it lies.
    pub memory_slices: u8,
    /// What sets it apart.
    pub kind: ProfileKind,
    /// NVIDIA's name, for example `3g.40gb`.
    pub name: &'static str,
    /// Memory slices at which an instance may start, ascending.
    pub starts: &'static [u8],
    /// The most instances of it on one GPU.
    pub most: u8,
    /// Memory of an instance, in MiB.
    pub memory_mib: u32,
}

/// A profile as a driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverProfile {
    /// NVIDIA's name, for example `3g.40gb`.
    pub name: String,
    /// Compute slices.
    pub compute_slices: u8,
    /// Memory slices.
    pub memory_slices: u8,
    /// Memory slices at which an instance may start, ascending.
    pub starts: Vec<u8>,
    /// The most instances of it on one GPU.
    pub most: u8,
    /// Memory of an instance, in MiB.
    pub memory_mib: u32,
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A GPU model.
#[derive(Debug, PartialEq, Eq)]
pub struct Model {
    /// How it is named here, for example `A100-80GB`.
    pub name: &'static str,
    /// The word for it in NVML's product names.
    family: &'static str,
    /// Memory slices; 0 without MIG.
    pub memory_slices: u8,
    /// Compute slices; 0 without MIG.
    pub compute_slices: u8,
    /// All memory, in MiB.
    pub memory_mib: u32,
    /// What it can be divided into; nothing without MIG.
    pub profiles: &'static [Profile],
}

impl Model {
    /// The model of that name, in capitals or not.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        MODELS.iter().find(|model| model.name.eq_ignore_ascii_case(name.trim()))
    }

    /// The model that NVML calls `product` and gives so much memory. None for one that is not in the table: a board with
    /// other memory has other profiles.
    #[must_use]
    pub fn of_product(product: &str, memory_bytes: u64) -> Option<&'static Self> {
        let words: Vec<&str> = product.split(|letter: char| !letter.is_ascii_alphanumeric()).collect();
        let has = memory_bytes >> 20;
        // NVML's total leaves out what the driver reserves; the next larger board has a sixth more.
        let is_as_large = |model: &&Model| has.abs_diff(model.memory_mib.into()) * 10 <= u64::from(model.memory_mib);
        MODELS.iter().filter(|model| words.contains(&model.family)).find(is_as_large)
    }

    /// How many compute slices a board has that NVML calls `product`, or that an instance is on whose name that is. None without
    /// MIG, or for one that is not in the table.
    #[must_use]
    pub fn compute_slices_of(product: &str) -> Option<u8> {
        let words: Vec<&str> = product.split(|letter: char| !letter.is_ascii_alphanumeric()).collect();
        let model = MODELS.iter().find(|model| words.contains(&model.family) && model.compute_slices > 0);
        model.map(|model| model.compute_slices)
    }

    /// A model as its driver describes it: boards differ from tables. It stays for the life of the process, so it is to
    /// be made once for each board.
    #[must_use]
    pub fn of_driver(name: &str, memory_mib: u32, profiles: &[DriverProfile]) -> &'static Self {
        let keep = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
        let kept = |own: &DriverProfile| {
            let is_smaller = |other: &DriverProfile| {
                other.compute_slices == own.compute_slices && other.memory_slices < own.memory_slices
            };
            let kind = match own.name.contains('+') || own.name.contains('-') {
                true => ProfileKind::Media,
                false if profiles.iter().any(is_smaller) => ProfileKind::DoubleMemory,
                false => ProfileKind::Plain,
            };
            let starts = Box::leak(own.starts.clone().into_boxed_slice());
            let slices = (own.compute_slices, own.memory_slices);
            profile(keep(&own.name), slices, starts, own.most, own.memory_mib, kind)
        };
        let kept: Vec<Profile> = profiles.iter().map(kept).collect();
        let end = |profile: &Profile| profile.starts.last().map_or(0, |start| start + profile.memory_slices);
        let slices = (
            kept.iter().map(|profile| profile.compute_slices).max().unwrap_or(0),
            kept.iter().map(end).max().unwrap_or(0),
        );
        let name = keep(name);
        Box::leak(Box::new(divided(name, name, slices, memory_mib, Box::leak(kept.into_boxed_slice()))))
    }

    /// Whether it can be divided into instances.
    #[must_use]
    pub fn has_mig(&self) -> bool {
        !self.profiles.is_empty()
    }

    /// Its profile of that name.
    #[must_use]
    pub fn profile(&self, name: &str) -> Option<&'static Profile> {
        self.profiles.iter().find(|profile| profile.name == name)
    }

    /// Its profiles without variants, of which NVIDIA's diagrams of layouts are made.
    #[must_use]
    pub fn plain_profiles(&self) -> Vec<&'static Profile> {
        self.profiles.iter().filter(|profile| profile.kind == ProfileKind::Plain).collect()
    }
}

const fn profile(
    name: &'static str,
    slices: (u8, u8),
    starts: &'static [u8],
    most: u8,
    memory_mib: u32,
    kind: ProfileKind,
) -> Profile {
    let (compute_slices, memory_slices) = slices;
    Profile { compute_slices, memory_slices, kind, name, starts, most, memory_mib }
}

/// Seven compute and eight memory slices: 1g, 1g+me, 1g with double memory, 2g, 3g, 4g, 7g.
const fn of_seven(names: [&'static str; 7], memory_mib: [u32; 5]) -> [Profile; 7] {
    use ProfileKind::{DoubleMemory, Media, Plain};
    let [one, two, three, four, seven] = memory_mib;
    [
        profile(names[0], (1, 1), &[0, 1, 2, 3, 4, 5, 6], 7, one, Plain),
        profile(names[1], (1, 1), &[0, 1, 2, 3, 4, 5, 6], 1, one, Media),
        profile(names[2], (1, 2), &[0, 2, 4, 6], 4, two, DoubleMemory),
        profile(names[3], (2, 2), &[0, 2, 4], 3, two, Plain),
        profile(names[4], (3, 4), &[0, 4], 2, three, Plain),
        profile(names[5], (4, 4), &[0], 1, four, Plain),
        profile(names[6], (7, 8), &[0], 1, seven, Plain),
    ]
}

static A30: [Profile; 5] = [
    profile("1g.6gb", (1, 1), &[0, 1, 2, 3], 4, 5836, ProfileKind::Plain),
    profile("1g.6gb+me", (1, 1), &[0, 1, 2, 3], 1, 5836, ProfileKind::Media),
    profile("2g.12gb", (2, 2), &[0, 2], 2, 11672, ProfileKind::Plain),
    profile("2g.12gb+me", (2, 2), &[0, 2], 1, 11672, ProfileKind::Media),
    profile("4g.24gb", (4, 4), &[0], 1, 23344, ProfileKind::Plain),
];
static A100_40: [Profile; 7] = of_seven(
    ["1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"],
    [4864, 9856, 19968, 19968, 40192],
);
static A100_80: [Profile; 7] = of_seven(
    ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"],
    [9856, 19968, 40192, 40192, 80384],
);
static H100_80: [Profile; 7] = of_seven(
    ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"],
    [10240, 20480, 40960, 40960, 81920],
);
static H200_141: [Profile; 7] = of_seven(
    ["1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"],
    [18432, 35840, 72704, 72704, 144_384],
);
static B200_180: [Profile; 7] = of_seven(
    ["1g.23gb", "1g.23gb+me", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"],
    [23552, 46080, 92160, 92160, 184_320],
);

const fn divided(
    name: &'static str,
    family: &'static str,
    slices: (u8, u8),
    memory_mib: u32,
    profiles: &'static [Profile],
) -> Model {
    let (compute_slices, memory_slices) = slices;
    Model { name, family, memory_slices, compute_slices, memory_mib, profiles }
}

const fn whole(name: &'static str, family: &'static str, memory_mib: u32) -> Model {
    divided(name, family, (0, 0), memory_mib, &[])
}

/// All models: those with MIG, and common ones without.
pub static MODELS: [Model; 12] = [
    divided("A30", "A30", (4, 4), 24576, &A30),
    divided("A100-40GB", "A100", (7, 8), 40960, &A100_40),
    divided("A100-80GB", "A100", (7, 8), 81920, &A100_80),
    divided("H100-80GB", "H100", (7, 8), 81920, &H100_80),
    divided("H200-141GB", "H200", (7, 8), 144_384, &H200_141),
    divided("B200-180GB", "B200", (7, 8), 184_320, &B200_180),
    whole("V100-16GB", "V100", 16384),
    whole("V100-32GB", "V100", 32768),
    whole("T4", "T4", 15360),
    whole("A10", "A10", 23028),
    whole("L4", "L4", 23034),
    whole("L40S", "L40S", 46068),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_its_driver_describes_is_the_same_as_in_the_table() {
        let table = Model::named("A100-80GB").unwrap();
        let described = |profile: &Profile| DriverProfile {
            name: profile.name.to_owned(),
            compute_slices: profile.compute_slices,
            memory_slices: profile.memory_slices,
            starts: profile.starts.to_vec(),
            most: profile.most,
            memory_mib: profile.memory_mib,
        };
        let profiles: Vec<DriverProfile> = table.profiles.iter().map(described).collect();
        let model = Model::of_driver("NVIDIA A100", table.memory_mib, &profiles);
        assert_eq!((model.compute_slices, model.memory_slices), (table.compute_slices, table.memory_slices));
        assert_eq!(model.profiles, table.profiles);
        assert!(!Model::of_driver("NVIDIA L4", 1, &[]).has_mig());
    }

    #[test]
    fn a_product_is_known_by_its_name_and_its_memory() {
        let name = |product: &str, mib: u64| Model::of_product(product, mib << 20).map(|model| model.name);
        assert_eq!(name("NVIDIA A100-SXM4-80GB", 81251), Some("A100-80GB"));
        assert_eq!(name("NVIDIA A100-PCIE-40GB", 40442), Some("A100-40GB"));
        assert_eq!(name("NVIDIA H100 80GB HBM3", 81559), Some("H100-80GB"));
        assert_eq!(name("NVIDIA H200", 143_771), Some("H200-141GB"));
        assert_eq!(name("Tesla V100-SXM2-32GB", 32510), Some("V100-32GB"));
        assert_eq!(name("NVIDIA A10", 23028), Some("A10"), "not an A100");
        assert_eq!(name("NVIDIA H100 NVL", 95830), None, "other memory, other profiles");
        assert_eq!(name("Simulated GPU", 24576), None);
    }

    #[test]
    fn profiles_lie_on_their_model() {
        for model in &MODELS {
            assert_eq!(Model::named(&model.name.to_lowercase()), Some(model));
            for profile in model.profiles {
                assert_eq!(model.profile(profile.name), Some(profile));
                assert!(profile.compute_slices <= model.compute_slices && profile.memory_mib <= model.memory_mib);
                let end = profile.starts.last().unwrap() + profile.memory_slices;
                assert!(end <= model.memory_slices, "{} {profile}", model.name);
                assert!(usize::from(profile.most) <= profile.starts.len(), "{} {profile}", model.name);
                assert!(profile.starts.is_sorted(), "{} {profile}", model.name);
            }
        }
    }
}
