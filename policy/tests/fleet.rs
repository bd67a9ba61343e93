//! Sizes and savings on what a fleet in production did: the GPU duty cycle of each of 94 services every 57 s for 22.8 h, and the most
//! memory that it held (GenTD26, cluster-trace-v2026-GenAI of alibaba/clusterdata, whose terms are research and study).
//!
//! The data is not part of this repository. `GPOOL_TRACES` names a folder with `gentd26_pods.csv`: a line for each service with its
//! name, MiB, and percents, below zero where one is missing. Without it these tests say that they are skipped, and test nothing.

use gpool_policy::admission::{Demand, GpuCapacity, MemoryDemand, Site, Use, Users, WHOLE_PERMILLE, place};
use gpool_policy::savings::{Course, Demand as Taken, Stretch, whole_gpus};
use gpool_policy::sizing::{Enough, Seen, Sizing};
use gpool_policy::slice::Priority;

/// Between two samples.
const STEP_NS: u64 = 57_000_000_000;
const MIB: u64 = 1 << 20;
/// An H200, as its driver has it.
const GPU_BYTES: u64 = 143_771 * MIB;

/// One service.
struct Service {
    peak_bytes: u64,
    /// Thousandths of a GPU in each sample.
    duty_permille: Vec<u64>,
}

impl Service {
    fn read(line: &str) -> Self {
        let mut fields = line.split(',').skip(1);
        let peak_mib: u64 = fields.next().unwrap().parse().unwrap();
        let permille = |percent: &str| (percent.parse::<f64>().unwrap().clamp(0.0, 100.0) * 10.0).round() as u64;
        Self { peak_bytes: peak_mib * MIB, duty_permille: fields.map(permille).collect() }
    }

    fn seen(&self, sample: usize) -> Seen {
        let busy_ns = STEP_NS / 1000 * self.duty_permille[sample];
        Seen { held_ns: STEP_NS, unmetered_ns: 0, busy_ns, others_ns: 0, peak_bytes: self.peak_bytes, at_once: 1 }
    }

    /// What was enough in these samples.
    fn enough(&self, samples: std::ops::Range<usize>, percent: u8) -> Enough {
        let mut sizing = Sizing::default();
        samples.for_each(|sample| sizing.note(&[self.seen(sample)]));
        sizing.enough(percent, Some(GPU_BYTES))
    }
}

/// The services; none where the trace is not there.
fn fleet() -> Option<Vec<Service>> {
    let Some(folder) = std::env::var_os("GPOOL_TRACES") else {
        eprintln!("skipped: GPOOL_TRACES names no folder with gentd26_pods.csv");
        return None;
    };
    let path = std::path::Path::new(&folder).join("gentd26_pods.csv");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()));
    Some(text.lines().filter(|line| !line.starts_with('#')).map(Service::read).collect())
}

/// Places all of them with these requests, in the order of the trace, on as many GPUs as that takes; who is on which.
fn placed(requests: &[Enough]) -> Vec<Vec<usize>> {
    let (mut gpus, mut on): (Vec<GpuCapacity>, Vec<Vec<usize>>) = (Vec::new(), Vec::new());
    for (service, request) in requests.iter().enumerate() {
        let fraction =
            if request.is_whole { u64::from(WHOLE_PERMILLE) } else { request.fraction_permille.unwrap_or(10) };
        let demand = Demand {
            fraction_permille: u16::try_from(fraction).unwrap(),
            memory: MemoryDemand::Bytes(request.memory_bytes),
            priority: Priority::Guaranteed,
            gpus: 1,
            usage: Use::Sliced,
        };
        let found = place(&gpus, &demand).or_else(|_| {
            gpus.push(GpuCapacity {
                key: format!("GPU-{}", gpus.len()),
                memory_total_bytes: GPU_BYTES,
                memory_foreign_bytes: 0,
                fraction_leased_permille: 0,
                memory_leased_bytes: 0,
                users: Users::default(),
                site: Site::default(),
            });
            on.push(Vec::new());
            place(&gpus, &demand)
        });
        let index = found.unwrap().indices[0];
        gpus[index].fraction_leased_permille += demand.fraction_permille;
        gpus[index].memory_leased_bytes += request.memory_bytes;
        gpus[index].users.sliced += 1;
        on[index].push(service);
    }
    on
}

/// The part of the work in these samples that finds its GPU full, so that it has to wait.
fn waiting(fleet: &[Service], on: &[Vec<usize>], samples: std::ops::Range<usize>) -> f64 {
    let (mut late, mut all) = (0, 0);
    for gpu in on {
        for sample in samples.clone() {
            let asked: u64 = gpu.iter().map(|service| fleet[*service].duty_permille[sample]).sum();
            all += asked;
            late += asked.saturating_sub(u64::from(WHOLE_PERMILLE));
        }
    }
    late as f64 / all as f64
}

#[test]
fn a_request_by_the_first_half_of_a_day_is_enough_in_the_second() {
    let Some(fleet) = fleet() else { return };
    let samples = fleet[0].duty_permille.len();
    println!("percent  samples with work in which it was enough: mean, worst service");
    let mut means = Vec::new();
    for percent in [50, 75, 90, 95, 99] {
        let parts: Vec<f64> = fleet
            .iter()
            .filter_map(|service| {
                let share = service.enough(0..samples / 2, percent).fraction_permille?;
                let later = service.duty_permille[samples / 2..].iter().filter(|duty| **duty > 0);
                let (enough, all) =
                    later.fold((0, 0), |(enough, all), duty| (enough + u64::from(*duty <= share), all + 1));
                (all > 0).then(|| enough as f64 / f64::from(all))
            })
            .collect();
        let mean = parts.iter().sum::<f64>() / parts.len() as f64;
        let worst = parts.iter().copied().fold(1.0, f64::min);
        println!("{percent:>7}  {mean:.3}  {worst:.3}  ({} services)", parts.len());
        // What was enough for some part of the time is enough for about as much of it later.
        assert!((mean - f64::from(percent) / 100.0).abs() < 0.12 && worst > f64::from(percent) / 100.0 - 0.2);
        means.push(mean);
    }
    assert!(means.is_sorted() && means[3] > 0.94, "{means:?}");
}

#[test]
fn the_savings_of_a_fleet_end_where_its_memory_does() {
    let Some(fleet) = fleet() else { return };
    let samples = fleet[0].duty_permille.len();
    let mut course = Course::default();
    for sample in 0..samples {
        let mut sum = Taken::default();
        for service in &fleet {
            let seen = service.seen(sample);
            let memory_ns = u128::from(service.peak_bytes) * u128::from(STEP_NS) / u128::from(GPU_BYTES);
            sum.add(Taken {
                places_ns: seen.held_ns,
                reserved_ns: 0,
                used_ns: seen.busy_ns,
                memory_ns: u64::try_from(memory_ns).unwrap(),
            });
        }
        course.note(sum, Stretch { known_ns: STEP_NS, gpu_ns: STEP_NS * fleet.len() as u64 });
    }
    let known_ns = STEP_NS * samples as u64;
    let gpus = |levels: &gpool_policy::levels::Levels| whole_gpus(levels.enough(known_ns, 95));
    let (each, work, memory, shared) =
        (gpus(&course.places), gpus(&course.share), gpus(&course.memory), gpus(&course.needed));
    println!("whole ones for each {each}; for their work {work}, for their memory {memory}, for both {shared}");
    // Ten on each GPU, as their work alone would have it, do not fit: three to four do.
    assert!(each == fleet.len() as u64 && work < memory && shared == memory);
    assert!((3..=4).contains(&(each / shared)), "{each} / {shared}");

    println!("percent  GPUs with requests by the first half, part of the work of the second that waits");
    let mut counts = Vec::new();
    for percent in [50, 75, 90, 95, 99] {
        let requests: Vec<Enough> = fleet.iter().map(|service| service.enough(0..samples / 2, percent)).collect();
        let on = placed(&requests);
        let late = waiting(&fleet, &on, samples / 2..samples);
        println!("{percent:>7}  {:>3}  {late:.4}", on.len());
        assert!(on.len() as u64 >= shared && late < 0.05);
        counts.push(on.len());
    }
    assert!(counts.is_sorted() && counts[3] * 3 < fleet.len() * 2, "{counts:?}");
}
