//! Whether a share fits, and on which GPU.
//!
//! Guarantees are never sold twice: the leased fractions of a GPU sum to at most 1000 permille, and leased memory plus
//! the memory that processes outside any lease hold to at most the GPU's total. Leases of a lower priority have a
//! weight among their like and nothing that was promised, so only their memory counts. Placement is best fit: on one
//! host it packs as well as fragmentation-gradient descent does, and keeps whole GPUs free. Several GPUs are linked ones where
//! there are enough of them.

mod part;
mod refusal;
mod sets;
mod sites;

pub use part::Part;
pub use refusal::{Offer, Refusal};
pub use sites::Site;
pub(crate) use sites::{Taking, together};

use crate::slice::Priority;
use sets::Fit;

/// A whole GPU's compute, in permille.
pub const WHOLE_PERMILLE: u16 = 1000;

/// Who would have less than this of a GPU's time is better off on another one.
const LITTLE_PERMILLE: u16 = 50;

/// One GPU and what is taken of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuCapacity {
    /// UUID of the GPU or MIG instance.
    pub key: String,
    /// All of its memory that programs can have.
    pub memory_total_bytes: u64,
    /// Memory held by processes outside any lease, and by those of leases beyond their caps.
    pub memory_foreign_bytes: u64,
    /// Sum of the fractions of its guaranteed leases.
    pub fraction_leased_permille: u16,
    /// Sum of the memory caps of its leases.
    pub memory_leased_bytes: u64,
    /// Leases on it, by how they use it.
    pub users: Users,
    /// Where it sits.
    pub site: Site,
}

/// How a lease uses its GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Use {
    /// In turns with others, by share and cap.
    #[default]
    Sliced,
    /// Alone.
    Whole,
    /// Beside others as the driver lets them, without cap, and without share or with one that the hardware keeps.
    TimeSliced,
    /// At the same time as others of its trust domain, under an MPS server.
    Mps,
}

/// Who is on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// Leases that share it by turns.
    pub sliced: u32,
    /// Leases that have all of it: one at most.
    pub whole: u32,
    /// Leases in the driver's time slices.
    pub time_sliced: u32,
    /// Leases under MPS servers.
    pub mps: u32,
    /// Those among them whose trust domain is not that of who asks.
    pub mps_of_others: u32,
    /// MPS servers that take nobody in after a fault.
    pub mps_faulted: u32,
    /// MPS servers that who asks could join, with as many leases as a server can have clients.
    pub mps_full: u32,
    /// The set of GPUs of the MPS daemon of who asks that it is in: the place of the set's first GPU among all. A lease is on
    /// all of a set or on none of it.
    pub mps_set: Option<usize>,
    /// Processes without a lease.
    pub outside: u32,
}

impl Users {
    /// Whom `wanted` cannot be beside, in words; none if there is nobody of that kind.
    #[must_use]
    pub fn in_the_way_of(&self, wanted: Use) -> Option<&'static str> {
        let sliced = (self.sliced > 0).then_some("containers that share it by slices");
        let whole = (self.whole > 0).then_some("a container that has all of it");
        let time_sliced = (self.time_sliced > 0).then_some("containers in the driver's time slices");
        let mps = (self.mps > 0).then_some("containers under an MPS server");
        let mps_of_others = (self.mps_of_others > 0)
            .then_some("an MPS server of another team or user, or namespace of pods, or of another number of GPUs");
        let mps_faulted = (self.mps_faulted > 0).then_some("an MPS server that takes nobody in after a fault");
        let mps_full =
            (self.mps_full > 0).then_some("an MPS server with as many containers as it can have clients (48)");
        let outside = (self.outside > 0).then_some("processes without a lease");
        match wanted {
            Use::Sliced => whole.or(time_sliced).or(mps),
            Use::Whole => whole.or(sliced).or(time_sliced).or(mps).or(outside),
            Use::TimeSliced => whole.or(sliced).or(mps),
            Use::Mps => whole.or(sliced).or(time_sliced).or(mps_of_others).or(mps_faulted).or(mps_full),
        }
    }

    /// How many there are whom `wanted` cannot be beside.
    #[must_use]
    pub fn number_in_the_way_of(&self, wanted: Use) -> u32 {
        let numbers: &[u32] = match wanted {
            Use::Sliced => &[self.whole, self.time_sliced, self.mps],
            Use::Whole => &[self.whole, self.sliced, self.time_sliced, self.mps, self.outside],
            Use::TimeSliced => &[self.whole, self.sliced, self.mps],
            Use::Mps => {
                &[self.whole, self.sliced, self.time_sliced, self.mps_of_others, self.mps_faulted, self.mps_full]
            }
        };
        numbers.iter().fold(0, |sum, number| sum.saturating_add(*number))
    }
}

impl GpuCapacity {
    /// Compute that is not leased, for slices.
    #[must_use]
    pub fn share_free_permille(&self) -> u16 {
        self.share_free_for(Use::Sliced)
    }

    fn share_free_for(&self, usage: Use) -> u16 {
        if self.users.in_the_way_of(usage).is_some() {
            return 0;
        }
        WHOLE_PERMILLE.saturating_sub(self.fraction_leased_permille)
    }

    /// What one more in time slices who is promised nothing would have of what nobody was promised, at least; all of it where nobody
    /// was promised anything.
    fn part_of_rest_permille(&self) -> u16 {
        if self.fraction_leased_permille == 0 {
            return WHOLE_PERMILLE;
        }
        let rest = u32::from(WHOLE_PERMILLE.saturating_sub(self.fraction_leased_permille));
        u16::try_from(rest / self.users.time_sliced.saturating_add(1)).unwrap_or(WHOLE_PERMILLE)
    }

    /// Memory that is neither leased nor held by others.
    #[must_use]
    pub fn memory_free_bytes(&self) -> u64 {
        self.memory_total_bytes.saturating_sub(self.memory_foreign_bytes).saturating_sub(self.memory_leased_bytes)
    }

    fn offer(&self, demand: &Demand) -> Offer {
        Offer {
            key: self.key.clone(),
            share_free_permille: self.share_free_for(demand.usage),
            memory_free_bytes: self.memory_free_bytes(),
            memory_outside_bytes: self.memory_foreign_bytes,
            memory_asked_bytes: demand.memory_bytes(self.memory_total_bytes),
        }
    }
}

/// How a memory cap is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryDemand {
    /// So many bytes.
    Bytes(u64),
    /// So many thousandths of the GPU's memory.
    Permille(u16),
    /// Not given: the fraction of the GPU's memory.
    Absent,
}

/// What a lease asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Share of each GPU's compute, 1 to 1000.
    pub fraction_permille: u16,
    /// Memory cap on each GPU.
    pub memory: MemoryDemand,
    /// Whether the share is promised.
    pub priority: Priority,
    /// Number of GPUs, all or none; 0 is taken as 1.
    pub gpus: usize,
    /// How it uses them.
    pub usage: Use,
}

impl Demand {
    /// The part of the share that has to be free: only guarantees take capacity.
    #[must_use]
    pub fn guaranteed_permille(&self) -> u16 {
        match (self.usage, self.priority) {
            (_, Priority::Burst | Priority::Scavenger) => 0,
            (Use::Whole, _) => WHOLE_PERMILLE,
            // In time slices none is asked for, or one that the hardware keeps.
            (Use::Sliced | Use::Mps | Use::TimeSliced, Priority::Guaranteed) => self.fraction_permille,
        }
    }

    /// The memory cap on a GPU with so much memory, rounded down.
    #[must_use]
    pub fn memory_bytes(&self, memory_total_bytes: u64) -> u64 {
        let permille = match self.memory {
            MemoryDemand::Bytes(bytes) => return bytes,
            MemoryDemand::Permille(permille) => permille,
            MemoryDemand::Absent => self.fraction_permille,
        };
        let bytes = u128::from(memory_total_bytes) * u128::from(permille) / u128::from(WHOLE_PERMILLE);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    fn check_fraction(&self) -> Result<(), Refusal> {
        let has_share = matches!(self.usage, Use::Sliced | Use::Mps);
        if !has_share || (1..=WHOLE_PERMILLE).contains(&self.fraction_permille) {
            return Ok(());
        }
        Err(Refusal::Fraction { asked_permille: self.fraction_permille })
    }
}

/// Where a lease goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Indices into the slice that was given, ascending.
    pub indices: Vec<usize>,
    /// The memory cap on each: of unlike GPUs, what it comes to on the smallest.
    pub memory_bytes: u64,
}

/// What a lease holds now on its GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The part of its fraction that counts as leased.
    pub guaranteed_permille: u16,
    /// Its memory cap.
    pub memory_bytes: u64,
    /// What it holds beyond that, of a cap that was lowered. On the GPU it counts among the foreign memory.
    pub memory_excess_bytes: u64,
}

/// Chooses the GPUs that are left with the least share, then the least memory, then by key; as many as asked for, or
/// none. Several come from one NVLink island, else from near one processor, else alike, where enough of those have room.
///
/// # Errors
///
/// A [`Refusal`] with what is free on each GPU.
pub fn place(gpus: &[GpuCapacity], demand: &Demand) -> Result<Placement, Refusal> {
    demand.check_fraction()?;
    if gpus.is_empty() {
        return Err(Refusal::NoGpu);
    }
    let wanted = demand.gpus.max(1);
    if wanted > gpus.len() {
        return Err(Refusal::TooFewGpus { asked: wanted, present: gpus.len() });
    }
    if matches!(demand.usage, Use::Whole | Use::TimeSliced) {
        return place_unbounded(gpus, demand, wanted);
    }
    // Who is promised no share cannot be short of one, but of GPUs that such a lease can be on.
    if demand.usage == Use::Mps || demand.guaranteed_permille() == 0 {
        without_neighbours(gpus, demand, wanted)?;
    }
    let fit = |(index, gpu): (usize, &GpuCapacity)| {
        if gpu.users.in_the_way_of(demand.usage).is_some() {
            return None;
        }
        let memory_bytes = demand.memory_bytes(gpu.memory_total_bytes);
        let share_left_permille = gpu.share_free_for(demand.usage).checked_sub(demand.guaranteed_permille())?;
        let memory_left_bytes = gpu.memory_free_bytes().checked_sub(memory_bytes)?;
        Some(Fit { share_left_permille, memory_left_bytes, key: gpu.key.clone(), index, memory_bytes })
    };
    let mut fitting: Vec<Fit> = gpus.iter().enumerate().filter_map(fit).collect();
    if fitting.len() < wanted {
        let offers: Vec<Offer> = gpus.iter().map(|gpu| gpu.offer(demand)).collect();
        return Err(refuse(offers, demand));
    }
    fitting.sort();
    if demand.usage == Use::Mps {
        fitting = sets::choose(gpus, &fitting, wanted).ok_or_else(|| parts_of_sets(gpus, &fitting, wanted))?;
    } else if wanted > 1 {
        fitting = together(&fitting, wanted, Taking::Best, |fit| gpus[fit.index].site.clone());
    }
    fitting.truncate(wanted);
    let memory_bytes = fitting.iter().map(|fit| fit.memory_bytes).min().unwrap_or(0);
    let mut indices: Vec<usize> = fitting.iter().map(|fit| fit.index).collect();
    indices.sort_unstable();
    Ok(Placement { indices, memory_bytes })
}

/// There is room on enough GPUs, but on no whole set of a daemon, and not on enough of no daemon.
fn parts_of_sets(gpus: &[GpuCapacity], fitting: &[Fit], wanted: usize) -> Refusal {
    let (parts, free): (Vec<&Fit>, Vec<&Fit>) = fitting.iter().partition(|fit| gpus[fit.index].users.mps_set.is_some());
    let who = "an MPS server that is on other GPUs as well, not all of which have room";
    Refusal::Taken { gpus: wanted, free: free.len(), taken: parts.iter().map(|fit| (fit.key.clone(), who)).collect() }
}

/// GPUs without a cap that the shims keep: the ones on which nobody is in the way and what is asked for of their time and their memory
/// is free, by key. Who asks for no memory may use all of it.
fn place_unbounded(gpus: &[GpuCapacity], demand: &Demand, wanted: usize) -> Result<Placement, Refusal> {
    let mut free = without_neighbours(gpus, demand, wanted)?;
    let asked_permille = if demand.usage == Use::TimeSliced { demand.guaranteed_permille() } else { 0 };
    let is_capped = demand.usage == Use::TimeSliced && demand.memory != MemoryDemand::Absent;
    let cap_bytes = |gpu: &GpuCapacity| if is_capped { demand.memory_bytes(gpu.memory_total_bytes) } else { 0 };
    free.retain(|index| {
        let gpu = &gpus[*index];
        gpu.share_free_for(demand.usage) >= asked_permille && gpu.memory_free_bytes() >= cap_bytes(gpu)
    });
    if free.len() < wanted {
        return Err(refuse(gpus.iter().map(|gpu| gpu.offer(demand)).collect(), demand));
    }
    // Whole GPUs stay whole for whom they are asked: time slices go where there are some already, unless others were promised next
    // to all of that GPU's time and this one was not.
    let has_nothing = |gpu: &GpuCapacity| asked_permille == 0 && gpu.part_of_rest_permille() < LITTLE_PERMILLE;
    free.sort_by_key(|index| {
        let gpu = &gpus[*index];
        (has_nothing(gpu), std::cmp::Reverse(gpu.users.time_sliced), gpu.key.clone())
    });
    let mut indices = match (demand.usage, wanted) {
        (Use::TimeSliced, 1) => free[..1].to_vec(),
        (Use::TimeSliced, _) => together(&free, wanted, Taking::Best, |index| gpus[*index].site.clone()),
        _ => together(&free, wanted, Taking::Smallest, |index| gpus[*index].site.clone()),
    };
    indices.sort_unstable();
    let bytes = |gpu: &GpuCapacity| if is_capped { cap_bytes(gpu) } else { gpu.memory_total_bytes };
    let memory_bytes = indices.iter().map(|index| bytes(&gpus[*index])).min().unwrap_or(0);
    Ok(Placement { indices, memory_bytes })
}

/// The GPUs on which nobody is in the way.
fn without_neighbours(gpus: &[GpuCapacity], demand: &Demand, wanted: usize) -> Result<Vec<usize>, Refusal> {
    let in_the_way = |gpu: &GpuCapacity| gpu.users.in_the_way_of(demand.usage);
    let free: Vec<usize> = (0..gpus.len()).filter(|index| in_the_way(&gpus[*index]).is_none()).collect();
    if free.len() < wanted {
        let taken = gpus.iter().filter_map(|gpu| Some((gpu.key.clone(), in_the_way(gpu)?))).collect();
        return Err(Refusal::Taken { gpus: wanted, free: free.len(), taken });
    }
    Ok(free)
}

/// Whether a lease that holds `held` on `gpu` (its own part included in the GPU's sums) may hold `demand` instead.
/// Returns the new memory cap. What does not grow is always allowed. Of a lease on several GPUs each is checked.
///
/// # Errors
///
/// A [`Refusal`] whose one offer counts the lease's own part as free.
pub fn check_update(gpu: &GpuCapacity, held: Held, demand: &Demand) -> Result<u64, Refusal> {
    demand.check_fraction()?;
    let without = GpuCapacity {
        fraction_leased_permille: gpu.fraction_leased_permille.saturating_sub(held.guaranteed_permille),
        memory_leased_bytes: gpu.memory_leased_bytes.saturating_sub(held.memory_bytes),
        memory_foreign_bytes: gpu.memory_foreign_bytes.saturating_sub(held.memory_excess_bytes),
        ..gpu.clone()
    };
    let offer = without.offer(demand);
    let asked_permille = demand.guaranteed_permille();
    let share_fits = asked_permille <= held.guaranteed_permille || asked_permille <= offer.share_free_permille;
    let memory_fits =
        offer.memory_asked_bytes <= held.memory_bytes || offer.memory_asked_bytes <= offer.memory_free_bytes;
    match (share_fits, memory_fits) {
        (true, true) => Ok(offer.memory_asked_bytes),
        (true, false) => Err(Refusal::Memory { asked_permille, gpus: 1, offers: vec![offer] }),
        (false, _) => Err(Refusal::Share { asked_permille, gpus: 1, offers: vec![offer] }),
    }
}

fn refuse(offers: Vec<Offer>, demand: &Demand) -> Refusal {
    let (asked_permille, gpus) = (demand.guaranteed_permille(), demand.gpus.max(1));
    let with_share = offers.iter().filter(|offer| offer.share_free_permille >= asked_permille).count();
    if with_share < gpus {
        Refusal::Share { asked_permille, gpus, offers }
    } else {
        Refusal::Memory { asked_permille, gpus, offers }
    }
}
