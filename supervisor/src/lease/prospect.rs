//! What who is refused for want of room can hope for: that somebody ends, or that a place is kept no more.

use super::book::Held;
use super::entitlement::held_demand;
use super::placing::place_among;
use super::room::Scene;
use gpool_policy::admission::{Demand, GpuCapacity, Users};
use gpool_protocol::Mechanism;
use std::time::Instant;

/// The least that is named as a time to wait for places that are kept.
const LEAST_WAIT_SECONDS: u64 = 30;

/// A key of the request as whoever asks may write it: a container's environment is none of `gpool run`.
pub fn written(key: &str, value: &str) -> String {
    let variable = key.to_ascii_uppercase().replace('-', "_");
    format!("GPOOL_{variable}={value} (annotation gpool.io/{key}, or gpool run --{key} {value})")
}

/// The way out of who may wait.
pub fn add_wait(time: &str) -> String {
    format!("add wait, for example {}", written("wait", time))
}

/// What helps besides asking for less.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Prospect {
    /// Whether waiting may help, on a host where one can.
    pub may_wait: bool,
    /// The places that are kept, where there would be room without them.
    pub kept: Option<KeptPlaces>,
}

/// Places of containers that have ended, on the GPUs on which there would be room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptPlaces {
    /// How many.
    pub count: usize,
    /// What they have of the GPU of which they have most.
    pub permille: u16,
    /// The same of memory.
    pub bytes: u64,
    /// For so long at most.
    pub seconds: u64,
}

impl Prospect {
    /// Of who is refused in this scene; `may_wait` is whether he could wait, and does not.
    pub fn of(
        scene: &Scene<'_>,
        (capacities, open, demand): (&[GpuCapacity], &[usize], &Demand),
        may_wait: bool,
        now: Instant,
    ) -> Self {
        if scene.is_emptied {
            return Self::default();
        }
        let emptied = |gpu: &GpuCapacity| GpuCapacity {
            memory_foreign_bytes: 0,
            fraction_leased_permille: 0,
            memory_leased_bytes: 0,
            users: Users::default(),
            ..gpu.clone()
        };
        let emptied: Vec<GpuCapacity> = capacities.iter().map(emptied).collect();
        if place_among(&emptied, open, demand).is_err() {
            return Self::default();
        }
        let is_counted = |held: &&Held| Some(&held.record.lease_id) != scene.own && !held.record.has_no_share();
        let kept: Vec<&Held> = scene.book.held.iter().filter(is_counted).collect();
        Self { may_wait, kept: KeptPlaces::in_the_way(&kept, capacities, (open, demand), now) }
    }

    /// The ways out, `others` being those that need somebody to do something; `kept` says what of kept places is short.
    pub fn remedy(&self, less: Option<String>, others: &[&str], kept: impl Fn(&KeptPlaces) -> String) -> String {
        let mut ways: Vec<String> = less.into_iter().collect();
        match &self.kept {
            None => {
                ways.extend(others.iter().map(|way| (*way).to_owned()));
                ways.extend(self.may_wait.then(|| add_wait("10m")));
                any_of(&ways)
            }
            Some(places) => {
                ways.push("try again soon".to_owned());
                let seconds = least_wait_seconds(places.seconds);
                ways.extend(self.may_wait.then(|| add_wait(&format!("{seconds}s"))));
                let who = who_keeps(places.count);
                format!("{}: {who} {} for up to {} s more", any_of(&ways), kept(places), places.seconds)
            }
        }
    }
}

impl KeptPlaces {
    fn in_the_way(
        kept: &[&Held],
        capacities: &[GpuCapacity],
        (open, demand): (&[usize], &Demand),
        now: Instant,
    ) -> Option<Self> {
        if kept.is_empty() {
            return None;
        }
        let mut without = capacities.to_vec();
        for (held, gpu) in kept.iter().flat_map(|held| held.gpus.iter().map(move |gpu| (held, *gpu))) {
            let Some(capacity) = without.get_mut(gpu) else { continue };
            let (permille, bytes) = had(held);
            capacity.fraction_leased_permille = capacity.fraction_leased_permille.saturating_sub(permille);
            capacity.memory_leased_bytes = capacity.memory_leased_bytes.saturating_sub(bytes);
            let users = &mut capacity.users;
            let of_its_kind = match held.record.mechanism {
                Mechanism::Slice => &mut users.sliced,
                Mechanism::Exclusive | Mechanism::Mig => &mut users.whole,
                Mechanism::TimeSlice => &mut users.time_sliced,
                Mechanism::Mps => &mut users.mps,
            };
            *of_its_kind = of_its_kind.saturating_sub(1);
        }
        let places = place_among(&without, open, demand).ok()?.indices;
        let on = |gpu: usize| kept.iter().filter(move |held| held.gpus.contains(&gpu));
        let those = || kept.iter().filter(|held| held.gpus.iter().any(|gpu| places.contains(gpu)));
        let until = those().map(|held| held.until).max()?;
        let sum = |gpu: &usize| {
            on(*gpu).map(|held| had(held)).fold((0u16, 0u64), |(permille, bytes), its| {
                (permille.saturating_add(its.0), bytes.saturating_add(its.1))
            })
        };
        Some(Self {
            count: those().count(),
            permille: places.iter().map(|gpu| sum(gpu).0).max()?,
            bytes: places.iter().map(|gpu| sum(gpu).1).max()?,
            seconds: (until.saturating_duration_since(now).as_millis() as u64).div_ceil(1000),
        })
    }
}

/// For how long to wait for places that are kept for `seconds` more.
pub fn least_wait_seconds(seconds: u64) -> u64 {
    LEAST_WAIT_SECONDS.max(seconds.saturating_mul(2))
}

/// So many keep something: the begin of a sentence.
pub fn who_keeps(count: usize) -> String {
    match count {
        1 => "1 ended container keeps".to_owned(),
        several => format!("{several} ended containers keep"),
    }
}

/// What a kept place counts on each of its GPUs.
fn had(held: &Held) -> (u16, u64) {
    (held_demand(&held.record).guaranteed_permille(), held.record.promised_bytes())
}

/// `a, b, or c`
pub fn any_of(ways: &[String]) -> String {
    match ways {
        [] => "ask for less".to_owned(),
        [way] => way.clone(),
        [ways @ .., last] => format!("{}, or {last}", ways.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Record, sample};
    use super::*;
    use gpool_policy::admission::{MemoryDemand, Site, Use};
    use gpool_policy::slice::Priority;
    use gpool_protocol::LeaseId;
    use std::time::Duration;

    const GIB: u64 = 1 << 30;

    fn capacity(permille: u16, sliced: u32) -> GpuCapacity {
        GpuCapacity {
            key: "GPU-1".into(),
            memory_total_bytes: 24 * GIB,
            memory_foreign_bytes: 0,
            fraction_leased_permille: permille,
            memory_leased_bytes: u64::from(sliced) * 4 * GIB,
            users: Users { sliced, ..Users::default() },
            site: Site::default(),
        }
    }

    fn demand(permille: u16, gib: u64) -> Demand {
        Demand {
            fraction_permille: permille,
            memory: MemoryDemand::Bytes(gib * GIB),
            priority: Priority::Guaranteed,
            gpus: 1,
            usage: Use::Sliced,
        }
    }

    #[test]
    fn places_that_are_kept_are_told_where_there_would_be_room_without_them() {
        let now = Instant::now();
        let held = |lease: &str, permille: u16, ms: u64| Held {
            record: Record { lease_id: LeaseId(lease.into()), fraction_permille: permille, ..sample() },
            gpus: vec![0],
            until: now + Duration::from_millis(ms),
        };
        let kept = [held("01", 600, 6200), held("02", 300, 3000)];
        let kept: Vec<&Held> = kept.iter().collect();
        let of = |capacities: &[GpuCapacity], demand| KeptPlaces::in_the_way(&kept, capacities, (&[0], &demand), now);
        let all = KeptPlaces { count: 2, permille: 900, bytes: 8 * GIB, seconds: 7 };
        assert_eq!(of(&[capacity(900, 2)], demand(1000, 4)), Some(all), "nobody runs");
        assert_eq!(of(&[capacity(1000, 3)], demand(950, 4)), None, "one that runs has 10 %");
        assert_eq!(of(&[capacity(900, 2)], demand(1000, 40)), None, "no GPU has so much");
    }

    #[test]
    fn the_ways_out_name_a_wait_where_there_is_one() {
        let others = ["lower a share", "stop a container"];
        let less = || Some("ask for 10 % or less".to_owned());
        let told =
            |prospect: Prospect, less| prospect.remedy(less, &others, |its| format!("{} permille", its.permille));
        let nobody_waits = Prospect::default();
        assert_eq!(told(nobody_waits, less()), "ask for 10 % or less, lower a share, or stop a container");
        let waits = Prospect { may_wait: true, kept: None };
        assert_eq!(told(waits, None), format!("lower a share, stop a container, or {}", add_wait("10m")));
        let kept = Some(KeptPlaces { count: 2, permille: 900, bytes: 0, seconds: 7 });
        assert_eq!(
            told(Prospect { may_wait: true, kept }, less()),
            format!(
                "ask for 10 % or less, try again soon, or {}: 2 ended containers keep 900 permille for up to 7 s more",
                add_wait("30s")
            )
        );
        let one = Some(KeptPlaces { count: 1, permille: 900, bytes: 0, seconds: 60 });
        assert!(told(Prospect { may_wait: true, kept: one }, None).contains("--wait 120s): 1 ended container keeps"));
    }
}
