//! Asking for more isolation or less latency never gives a weaker mechanism.

use super::{divided, model};
use gpool_policy::mechanism::{
    Ask, Fact, Gpu, Host, Isolation, Mechanism, MigState, Mode, Phase, Pool, Trust, Workload, choose,
};
use proptest::prelude::*;

fn one_of<T: Copy + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = T> {
    prop::sample::select(all)
}

fn asks() -> impl Strategy<Value = Ask> {
    let who =
        (one_of(Trust::ALL), prop::option::of(one_of(&["vision", "speech"])), one_of(Workload::ALL), any::<bool>());
    let size = (1..=1000_u16, prop::option::of(1..100_u64), prop_oneof![4 => Just(1_u16), 1 => 2..4_u16], 1..5_u16);
    let known = (
        prop::option::of(prop_oneof![10..2000_u64, 10_000..400_000_u64]),
        prop::option::weighted(0.1, 0..1000_u16),
        prop::collection::btree_set(one_of(Fact::ALL), 0..3),
        prop_oneof![6 => Just(Mode::Auto), 1 => one_of(Mode::ALL)],
        prop::option::weighted(0.2, one_of(&["1g.10gb", "3g.40gb", "2g.35gb"])),
    );
    (who, size, known).prop_map(|(who, size, known)| Ask {
        trust: who.0,
        team: who.1.map(String::from),
        workload: who.2,
        in_production: who.3,
        memory_bytes: size.1.map(|gib| gib << 30),
        gpus: size.2,
        replicas: size.3,
        burst_us: known.0,
        duty_permille: known.1,
        facts: known.2,
        mode: known.3,
        profile: known.4.map(String::from),
        ..Ask::of(size.0)
    })
}

fn gpus() -> impl Strategy<Value = Gpu> {
    let kind = one_of(&["T4", "A30", "A100-80GB", "H200-141GB"]);
    let state =
        (any::<bool>(), 0..3_u16, 0..=1000_u16, prop::option::of(1_000..100_000_u64), prop::bool::weighted(0.9));
    (kind, state, any::<[bool; 4]>(), prop::collection::btree_set(one_of(&["vision", "speech"]), 0..3)).prop_map(
        |(kind, (is_divided, leases, share, longest_burst_us, is_healthy), bits, teams)| {
            let mut gpu = Gpu::idle("g", model(kind));
            (gpu.is_healthy, gpu.leases, gpu.longest_burst_us) = (is_healthy, leases, longest_burst_us);
            gpu.teams = teams.into_iter().map(String::from).collect();
            gpu.share_free_permille = share;
            gpu.memory_free_bytes = gpu.memory_bytes / 1000 * u64::from(share);
            if is_divided && gpu.has_mig() {
                gpu.leases = 0;
                let profiles: &[&str] = match (kind, bits[0]) {
                    ("A30", _) => &["2g.12gb", "1g.6gb"],
                    ("A100-80GB", true) => &["3g.40gb", "3g.40gb"],
                    ("A100-80GB", false) => &["4g.40gb", "1g.10gb", "1g.10gb"],
                    _ => &["2g.35gb", "2g.35gb", "1g.18gb"],
                };
                gpu.mig = divided(kind, profiles);
                for (instance, bit) in gpu.mig.instances.iter_mut().zip(bits) {
                    instance.leases = u16::from(bit);
                    instance.team = bit.then(|| "speech".to_owned());
                }
                gpu.mig.owner = bits[3].then(|| "gpu-operator".to_owned());
            } else {
                gpu.mig = MigState::default();
            }
            gpu
        },
    )
}

fn hosts() -> impl Strategy<Value = Host> {
    let what = (prop::option::of(one_of(Phase::ALL)), prop::bool::weighted(0.15), any::<[bool; 3]>());
    (prop::collection::vec(gpus(), 0..4), what, prop::bool::weighted(0.15)).prop_map(
        |(mut gpus, (phase, is_vgpu_guest, bits), forced)| {
            for (index, gpu) in gpus.iter_mut().enumerate() {
                gpu.key = format!("g{index}");
            }
            Host {
                phase,
                is_vgpu_guest,
                has_mps: bits[0],
                has_spill: bits[1],
                window_is_open: bits[2],
                pool: if forced { Pool::TimeSlice } else { Pool::Any },
                ..Host::with(gpus)
            }
        },
    )
}

fn chosen(ask: &Ask, host: &Host) -> Option<Mechanism> {
    choose(ask, host).choice.map(|choice| choice.mechanism)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, ..ProptestConfig::default() })]

    #[test]
    fn more_isolation_is_never_weaker(ask in asks(), p99_ms in prop::option::of(1..300_u32), host in hosts()) {
        let at = |isolation: &Isolation| chosen(&Ask { isolation: *isolation, p99_ms, ..ask.clone() }, &host);
        let all: Vec<Mechanism> = Isolation::ALL.iter().filter_map(at).collect();
        prop_assert!(all.is_sorted(), "{:?}", all);
    }

    #[test]
    fn distrust_is_never_weaker(ask in asks(), p99_ms in prop::option::of(1..300_u32), host in hosts()) {
        let at = |trust: &Trust| chosen(&Ask { trust: *trust, p99_ms, ..ask.clone() }, &host);
        let all: Vec<Mechanism> = Trust::ALL.iter().filter_map(at).collect();
        prop_assert!(all.is_sorted(), "{:?}", all);
    }

    #[test]
    fn less_latency_is_never_weaker(
        ask in asks(),
        isolation in one_of(Isolation::ALL),
        mut promises in prop::collection::vec(1..300_u32, 1..6),
        host in hosts(),
    ) {
        promises.sort_unstable_by(|one, other| other.cmp(one));
        let at = |p99_ms| chosen(&Ask { isolation, p99_ms, ..ask.clone() }, &host);
        let all: Vec<Mechanism> = std::iter::once(None).chain(promises.into_iter().map(Some)).filter_map(at).collect();
        prop_assert!(all.is_sorted(), "{:?}", all);
    }

    #[test]
    fn the_least_that_was_asked_for_is_given_or_nothing(ask in asks(), isolation in one_of(Isolation::ALL), host in hosts()) {
        let ask = Ask { isolation, ..ask };
        let decision = choose(&ask, &host);
        prop_assert_eq!(&decision, &choose(&ask, &host), "the same inputs, the same answer");
        match decision.choice {
            Some(choice) => prop_assert!(choice.mechanism >= ask.floor()),
            None => prop_assert!(!decision.causes().is_empty(), "a refusal says why"),
        }
    }
}
