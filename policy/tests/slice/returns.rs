//! Who comes back often from short pauses, beside one that works all the time.

use crate::table::{A, B, MS, Table};
use gpool_policy::slice::{Command, Input, Parameters, Share};

fn depth_of(commands: &[Command]) -> u64 {
    let depth = commands.iter().rev().find_map(|command| match command {
        Command::Open { depth_ns, .. } => Some(*depth_ns),
        Command::Close { .. } | Command::Hung { .. } => None,
    });
    depth.expect("an opened gate")
}

/// How far A may work ahead each time that B falls idle, which has a share of `of_b` permille and comes back after `pause_ns`.
fn depths_beside(of_b: Share, pause_ns: u64) -> Vec<u64> {
    let mut table = Table::of(&[(A, Share::of(500)), (B, of_b)]);
    table.tell(Input::Wants { tenant: A });
    let mut depths = Vec::new();
    for _ in 0..7 {
        table.after(pause_ns, Input::Wants { tenant: B });
        while table.scheduler.running() == Some(A) {
            let at_ns = table.scheduler.next_timer().expect("B waits");
            table.now = table.now.max(at_ns);
            table.tell(Input::Pass);
        }
        table.tell(Input::Drained { tenant: A });
        depths.push(depth_of(&table.after(MS, Input::Idle { tenant: B })));
    }
    depths
}

#[test]
fn batch_works_less_far_ahead_of_who_pauses_often() {
    let Parameters { depth_ns: deep_ns, latency_depth_ns: shallow_ns, returns_ns, .. } = Parameters::default();
    let often = depths_beside(Share::of(500), 3 * MS);
    assert_eq!((often[0], &often[5..]), (deep_ns, &[shallow_ns; 2][..]), "{often:?}");
    // Seldom, or with little of the GPU.
    for (share, pause_ns) in [(Share::of(500), returns_ns / 3), (Share::of(50), 3 * MS)] {
        assert_eq!(depths_beside(share, pause_ns), [deep_ns; 7], "{share:?} {pause_ns}");
    }
    assert_eq!(depth_beside_two_that_pause(), deep_ns, "who pauses as often itself leaves the device soon");
}

fn depth_beside_two_that_pause() -> u64 {
    let mut table = Table::new();
    let mut depth_ns = 0;
    for _ in 0..14 {
        for tenant in [A, B] {
            depth_ns = depth_of(&table.after(MS, Input::Wants { tenant }));
            table.after(MS, Input::Idle { tenant });
        }
    }
    depth_ns
}
