//! What holds whatever is done, and in whatever steps it is asked about.

use gpool_device_model::{ClientLimits, ContextId, Device, DeviceParameters, ShareId};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Operation {
    Create { process: u32 },
    Destroy { which: usize },
    Reap { process: u32 },
    Allocate { which: usize, bytes: u64 },
    Free { which: usize, bytes: u64 },
    AllocatePhysical { process: u32, bytes: u64 },
    FreePhysical { process: u32, bytes: u64 },
    Share { process: u32, bytes: u64 },
    Hold { share: u64, process: u32 },
    Leave { share: u64, process: u32 },
    Kernel { which: usize, duration_ns: u64 },
    Marker { which: usize },
    Server { process: u32 },
    Client { process: u32, server: u32, percent: u32, memory_bytes: Option<u64> },
    Fault { process: u32 },
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        2 => (0..4_u32).prop_map(|process| Operation::Create { process }),
        1 => (0..8_usize).prop_map(|which| Operation::Destroy { which }),
        1 => (0..4_u32).prop_map(|process| Operation::Reap { process }),
        3 => (0..8_usize, 0..6_u64 << 30).prop_map(|(which, bytes)| Operation::Allocate { which, bytes }),
        2 => (0..8_usize, 0..6_u64 << 30).prop_map(|(which, bytes)| Operation::Free { which, bytes }),
        2 => (0..4_u32, 0..6_u64 << 30).prop_map(|(process, bytes)| Operation::AllocatePhysical { process, bytes }),
        1 => (0..4_u32, 0..6_u64 << 30).prop_map(|(process, bytes)| Operation::FreePhysical { process, bytes }),
        2 => (0..4_u32, 0..6_u64 << 30).prop_map(|(process, bytes)| Operation::Share { process, bytes }),
        2 => (1..4_u64, 0..4_u32).prop_map(|(share, process)| Operation::Hold { share, process }),
        2 => (1..4_u64, 0..4_u32).prop_map(|(share, process)| Operation::Leave { share, process }),
        8 => (0..8_usize, 0..9_000_000_u64).prop_map(|(which, duration_ns)| Operation::Kernel { which, duration_ns }),
        4 => (0..8_usize).prop_map(|which| Operation::Marker { which }),
        1 => (0..4_u32).prop_map(|process| Operation::Server { process }),
        4 => client(),
        1 => (0..4_u32).prop_map(|process| Operation::Fault { process }),
    ]
}

fn client() -> impl Strategy<Value = Operation> {
    (0..4_u32, 0..4_u32, 1..120_u32, prop::option::of(0..6_u64 << 30)).prop_map(
        |(process, server, percent, memory_bytes)| Operation::Client { process, server, percent, memory_bytes },
    )
}

/// Operations with the time that passes before each.
fn history() -> impl Strategy<Value = Vec<(u64, Operation)>> {
    prop::collection::vec((prop_oneof![Just(0), 0..5_000_000_u64], operation()), 1..80)
}

fn apply(device: &mut Device, contexts: &mut Vec<ContextId>, now_ns: u64, operation: &Operation) {
    let pick = |which: usize| contexts.get(which % contexts.len().max(1)).copied().unwrap_or(ContextId(0));
    match *operation {
        Operation::Create { process } => {
            let owner = format!("/owner-{}", process % 3);
            contexts.extend(device.create_context(now_ns, process, &owner));
        }
        Operation::Destroy { which } => device.destroy_context(now_ns, pick(which)),
        Operation::Reap { process } => device.reap_process(now_ns, process),
        Operation::Allocate { which, bytes } => drop(device.allocate(now_ns, pick(which), bytes)),
        Operation::Free { which, bytes } => device.free(now_ns, pick(which), bytes),
        Operation::AllocatePhysical { process, bytes } => {
            let owner = format!("/owner-{}", process % 3);
            let _ = device.allocate_physical(now_ns, process, &owner, bytes);
        }
        Operation::FreePhysical { process, bytes } => device.free_physical(now_ns, process, bytes),
        Operation::Share { process, bytes } => drop(device.share(now_ns, process, bytes)),
        Operation::Hold { share, process } => {
            let owner = format!("/owner-{}", process % 3);
            let _ = device.hold_share(now_ns, ShareId(share), process, &owner);
        }
        Operation::Leave { share, process } => device.leave_share(now_ns, ShareId(share), process),
        Operation::Kernel { which, duration_ns } => drop(device.submit_kernel(now_ns, pick(which), duration_ns)),
        Operation::Marker { which } => drop(device.submit_marker(now_ns, pick(which))),
        Operation::Server { process } => {
            let _ = device.start_server(now_ns, process, &format!("/owner-{}", process % 3));
        }
        Operation::Client { process, server, percent, memory_bytes } => {
            let owner = format!("/owner-{}", process % 3);
            let limits = ClientLimits { percent, memory_bytes };
            contexts.extend(device.create_client(now_ns, process, &owner, server, limits));
        }
        Operation::Fault { process } => device.fault_process(now_ns, process),
    }
}

/// Plays a history, asking in between at every `step_ns` (never if 0), and a second more at the end.
fn play(history: &[(u64, Operation)], step_ns: u64, check: impl Fn(&Device)) -> Device {
    let mut device = Device::new(DeviceParameters::standard(0), 1_000);
    let mut contexts = Vec::new();
    let mut now_ns = 1_000;
    let mut walk = |device: &mut Device, to_ns: u64| {
        while step_ns > 0 && now_ns + step_ns < to_ns {
            now_ns += step_ns;
            device.advance(now_ns);
            check(device);
        }
        now_ns = to_ns;
    };
    let mut at_ns = 1_000;
    for (wait_ns, operation) in history {
        at_ns += wait_ns;
        walk(&mut device, at_ns);
        apply(&mut device, &mut contexts, at_ns, operation);
        check(&device);
    }
    walk(&mut device, at_ns + 1_000_000_000);
    device.advance(at_ns + 1_000_000_000);
    check(&device);
    device
}

fn conserves(device: &Device) {
    let meter = device.meter();
    let owned_ns = meter.owners.values().map(|usage| usage.busy_ns).sum::<u64>();
    // Clients of an MPS server may leave a part of the device unused while it is busy for them.
    assert!(owned_ns <= meter.busy_ns);
    assert_eq!(meter.processes.values().map(|usage| usage.busy_ns).sum::<u64>(), owned_ns);
    let samples = meter.process_samples();
    let mut ends: Vec<u64> = samples.iter().map(|sample| sample.end_ns).collect();
    ends.dedup();
    for end_ns in ends {
        let of_period = samples.iter().filter(|sample| sample.end_ns == end_ns);
        // Each of the four processes' percentages may be rounded up by half.
        assert!(end_ns <= meter.now_ns && of_period.map(|sample| sample.percent).sum::<u32>() <= 102);
    }
    assert_eq!(meter.busy_ns + meter.switch_ns + meter.idle_ns(), meter.elapsed_ns());
    assert!(meter.pending_ns >= meter.busy_ns && meter.pending_ns <= meter.elapsed_ns());
    assert!(device.memory_used() <= device.parameters().memory_bytes);
    assert_eq!(meter.owners.values().map(|usage| usage.bytes_now).sum::<u64>(), device.memory_used());
    assert_eq!(device.processes().iter().map(|(_, bytes)| bytes).sum::<u64>(), device.memory_used());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn time_and_memory_are_conserved(history in history()) {
        play(&history, 0, conserves);
    }

    #[test]
    fn the_steps_of_asking_change_nothing(history in history(), step_ns in 10_000..3_000_000_u64) {
        prop_assert_eq!(play(&history, 0, |_| ()), play(&history, step_ns, conserves));
    }

    #[test]
    fn what_is_projected_comes_true(history in history()) {
        let mut device = play(&history, 0, |_| ());
        let now_ns = device.now_ns();
        let a = device.create_context(now_ns, 100, "/late");
        prop_assume!(a.is_ok());
        let a = a.unwrap();
        let ticket = device.submit_kernel(now_ns, a, 7_000_000);
        let due_ns = device.projected_completion(a, ticket).unwrap();
        device.advance(due_ns - 1);
        prop_assert!(device.last_completed(a) < ticket);
        device.advance(due_ns);
        prop_assert_eq!(device.last_completed(a), ticket);
    }

    #[test]
    fn reaping_everybody_frees_everything(history in history()) {
        let mut device = play(&history, 0, |_| ());
        for process in 0..4 {
            device.reap_process(device.now_ns(), process);
        }
        prop_assert_eq!(device.memory_used(), 0);
        prop_assert!(device.processes().is_empty());
        let busy_ns = device.meter().busy_ns;
        device.advance(device.now_ns() + 1_000_000_000);
        prop_assert_eq!(device.meter().busy_ns, busy_ns);
    }
}
