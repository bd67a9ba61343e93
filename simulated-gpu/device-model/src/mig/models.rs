//! The boards that have MIG, as data.
//!
//! Names, slices, counts and starts: NVIDIA's MIG user guide, "Supported MIG Profiles" and "GPU Instance Profiles". Profile
//! numbers: nvml.h, NVML_GPU_INSTANCE_PROFILE_*, and the ids that `nvidia-smi mig -lgip` prints. Memory and
//! multiprocessors of an instance: NVIDIA's mock boards of go-nvml.

/// A GPU instance profile.
#[derive(Debug, PartialEq, Eq)]
pub struct MigProfile {
    /// NVML_GPU_INSTANCE_PROFILE_*.
    pub number: u32,
    /// The id by which instances of it are made.
    pub id: u32,
    /// For example `3g.40gb`.
    pub name: &'static str,
    /// Compute slices.
    pub compute_slices: u8,
    /// Memory slices.
    pub memory_slices: u8,
    /// Memory slices at which one may start, ascending.
    pub starts: &'static [u8],
    /// The most of it on one board.
    pub most: u8,
    /// Memory of an instance, in MiB.
    pub memory_mib: u32,
}

/// A board.
#[derive(Debug, PartialEq, Eq)]
pub struct MigModel {
    /// For example `A100-80GB`.
    pub name: &'static str,
    /// How NVML's names have it.
    pub family: &'static str,
    /// All memory, in MiB.
    pub memory_mib: u32,
    /// Compute slices.
    pub compute_slices: u8,
    /// Memory slices.
    pub memory_slices: u8,
    /// Multiprocessors of a compute slice.
    pub multiprocessors: u32,
    /// What it may be divided into.
    pub profiles: &'static [MigProfile],
}

impl MigModel {
    /// The board of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        MIG_MODELS.iter().find(|model| model.name.eq_ignore_ascii_case(name))
    }
}

const fn profile(
    numbers: (u32, u32),
    name: &'static str,
    slices: (u8, u8),
    starts: &'static [u8],
    most: u8,
    memory_mib: u32,
) -> MigProfile {
    let ((number, id), (compute_slices, memory_slices)) = (numbers, slices);
    MigProfile { number, id, name, compute_slices, memory_slices, starts, most, memory_mib }
}

/// 1g, 1g+me, 1g with double memory, 2g, 3g, 4g, 7g of seven compute and eight memory slices.
const fn of_seven(names: [&'static str; 7], memory_mib: [u32; 4]) -> [MigProfile; 7] {
    let [one, two, half, whole] = memory_mib;
    [
        profile((0, 19), names[0], (1, 1), &[0, 1, 2, 3, 4, 5, 6], 7, one),
        profile((7, 20), names[1], (1, 1), &[0, 1, 2, 3, 4, 5, 6], 1, one),
        profile((9, 15), names[2], (1, 2), &[0, 2, 4, 6], 4, two),
        profile((1, 14), names[3], (2, 2), &[0, 2, 4], 3, two),
        profile((2, 9), names[4], (3, 4), &[0, 4], 2, half),
        profile((3, 5), names[5], (4, 4), &[0], 1, half),
        profile((4, 0), names[6], (7, 8), &[0], 1, whole),
    ]
}

static A30: [MigProfile; 5] = [
    profile((0, 14), "1g.6gb", (1, 1), &[0, 1, 2, 3], 4, 5836),
    profile((7, 21), "1g.6gb+me", (1, 1), &[0, 1, 2, 3], 1, 5836),
    profile((1, 5), "2g.12gb", (2, 2), &[0, 2], 2, 11672),
    profile((8, 6), "2g.12gb+me", (2, 2), &[0, 2], 1, 11672),
    profile((3, 0), "4g.24gb", (4, 4), &[0], 1, 23344),
];
static A100_40: [MigProfile; 7] = of_seven(
    ["1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"],
    [4864, 9856, 19968, 40192],
);
static A100_80: [MigProfile; 7] = of_seven(
    ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"],
    [9856, 19968, 40192, 80384],
);
static H100_80: [MigProfile; 7] = of_seven(
    ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"],
    [10240, 20480, 40960, 81920],
);
static H200_141: [MigProfile; 7] = of_seven(
    ["1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"],
    [18432, 35840, 72704, 144_384],
);
static B200_180: [MigProfile; 7] = of_seven(
    ["1g.23gb", "1g.23gb+me", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"],
    [23552, 46080, 92160, 184_320],
);

const fn model(
    name: &'static str,
    family: &'static str,
    memory_mib: u32,
    slices: (u8, u8),
    multiprocessors: u32,
    profiles: &'static [MigProfile],
) -> MigModel {
    let (compute_slices, memory_slices) = slices;
    MigModel { name, family, memory_mib, compute_slices, memory_slices, multiprocessors, profiles }
}

/// All boards with MIG that are simulated.
pub static MIG_MODELS: [MigModel; 6] = [
    model("A30", "A30", 24576, (4, 4), 14, &A30),
    model("A100-40GB", "A100", 40960, (7, 8), 14, &A100_40),
    model("A100-80GB", "A100", 81920, (7, 8), 14, &A100_80),
    model("H100-80GB", "H100", 81920, (7, 8), 16, &H100_80),
    model("H200-141GB", "H200", 144_384, (7, 8), 16, &H200_141),
    model("B200-180GB", "B200", 184_320, (7, 8), 18, &B200_180),
];
