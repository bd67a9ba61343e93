//! The rules for tenants of whose work nothing ends.

use crate::table::{A, B, MS, Table};
use gpool_policy::TenantId;
use gpool_policy::slice::{Class, Command, HangAfter, HostScheduler, Input, Parameters, ServerSet, Share};
use gpool_policy::timeline::Burst;

const C: TenantId = TenantId(3);
const SECOND: u64 = 1000 * MS;

/// Hung after 30 s, after 2 s while a latency tenant waits.
fn impatient(weight: u16) -> Share {
    Share { hang: HangAfter { usual_ns: 30 * SECOND, latency_waits_ns: 2 * SECOND }, ..Share::of(weight) }
}

fn latency(weight: u16) -> Share {
    Share { class: Class::Latency, ..Share::of(weight) }
}

/// Who is told as hung until `end_ns`, and when, if every timer is obeyed.
fn hung_until(table: &mut Table, end_ns: u64) -> Vec<(u64, Command)> {
    let mut told = Vec::new();
    while let Some(at_ns) = table.scheduler.next_timer().filter(|at_ns| *at_ns <= end_ns) {
        assert!(at_ns > table.now, "time does not stand still");
        table.now = at_ns;
        let hung = table.tell(Input::Pass).into_iter().filter(|command| matches!(command, Command::Hung { .. }));
        told.extend(hung.map(|command| (at_ns, command)));
    }
    table.now = end_ns;
    told
}

#[test]
fn a_tenant_of_which_nothing_ends_is_told_once() {
    let mut table = Table::of(&[(A, Share::of(500)), (B, Share::of(500))]);
    table.tell(Input::Wants { tenant: A });
    let since_ns = table.now;
    table.after(29 * SECOND, Input::Wants { tenant: B });
    assert_eq!(table.scheduler.running(), Some(B), "nobody waits for it that long");
    let hung = Command::Hung { tenant: A, since_ns };
    table.tell(Input::Idle { tenant: B });
    assert_eq!(hung_until(&mut table, since_ns + 100 * SECOND), [(since_ns + 30 * SECOND, hung)]);
    // Its threads stand at the gate, and each turn that they get is lost: that is no news.
    table.tell(Input::Wants { tenant: A });
    let now = table.now;
    assert_eq!(hung_until(&mut table, now + 100 * SECOND), []);
    // Something ends, and then again nothing.
    table.burst(A, MS);
    let since_ns = table.now;
    let hung = Command::Hung { tenant: A, since_ns };
    assert_eq!(hung_until(&mut table, since_ns + 100 * SECOND), [(since_ns + 30 * SECOND, hung)]);
}

/// That a thread of it stands at the gate says nothing of the kernel that does not end.
#[test]
fn standing_at_the_gate_ends_no_silence() {
    for drains in [false, true] {
        let mut table = Table::of(&[(A, Share::of(500)), (B, Share::of(500))]);
        let since_ns = table.now;
        let mut told = 0;
        // Each second it has a turn that it lets pass, and rings; its neighbour works for a moment.
        for _ in 0..40 {
            table.tell(Input::Wants { tenant: A });
            table.tell(Input::Wants { tenant: B });
            let half_ns = table.now + SECOND / 2;
            told += hung_until(&mut table, half_ns).len();
            table.burst(B, MS);
            table.tell(Input::Idle { tenant: B });
            if drains {
                table.tell(Input::Drained { tenant: A });
            }
            let whole_ns = table.now + SECOND / 2;
            told += hung_until(&mut table, whole_ns).len();
        }
        assert!(table.now >= since_ns + 40 * SECOND);
        assert_eq!(told, usize::from(!drains), "what has drained does not hang");
    }
}

#[test]
fn the_shorter_time_holds_only_while_a_latency_tenant_waits() {
    let mut table = Table::of(&[(A, impatient(500)), (B, Share::of(200)), (C, latency(300))]);
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    let since_ns = table.now;
    let hung = Command::Hung { tenant: A, since_ns };
    assert_eq!(hung_until(&mut table, since_ns + 5 * SECOND), [], "only a batch tenant waits");
    assert_eq!(table.scheduler.running(), Some(B));
    let commands = table.tell(Input::Wants { tenant: C });
    assert_eq!(commands.iter().filter(|command| **command == hung).count(), 1, "{commands:?}");
    assert_eq!(table.scheduler.running(), Some(C), "and is served at once all the same");
    assert!(hung_until(&mut table, since_ns + 90 * SECOND).iter().all(|(_, command)| *command != hung));
}

#[test]
fn it_is_told_while_the_latency_tenant_works_beside_it() {
    let mut table = Table::of(&[(A, impatient(500)), (C, latency(300))]);
    table.tell(Input::Wants { tenant: A });
    let since_ns = table.now;
    table.after(SECOND, Input::Wants { tenant: C });
    let hung = Command::Hung { tenant: A, since_ns };
    assert_eq!(hung_until(&mut table, since_ns + 10 * SECOND), [(since_ns + 2 * SECOND, hung)]);
}

#[test]
fn a_latency_tenant_that_has_its_answer_waits_no_more() {
    let mut table = Table::of(&[(A, impatient(500)), (C, latency(300))]);
    table.tell(Input::Wants { tenant: A });
    let since_ns = table.now;
    table.after(SECOND, Input::Wants { tenant: C });
    table.now += MS;
    table.burst(C, MS);
    table.tell(Input::Idle { tenant: C });
    let hung = Command::Hung { tenant: A, since_ns };
    assert_eq!(hung_until(&mut table, since_ns + 60 * SECOND), [(since_ns + 30 * SECOND, hung)]);
}

#[test]
fn whose_class_does_not_say_so_has_the_usual_time() {
    let mut table = Table::of(&[(A, Share::of(500)), (C, latency(300))]);
    table.tell(Input::Wants { tenant: A });
    let since_ns = table.now;
    table.tell(Input::Wants { tenant: C });
    assert_eq!(hung_until(&mut table, since_ns + 29 * SECOND), []);
    let commands = table.tell(Input::Change { tenant: A, share: impatient(500) });
    assert!(commands.contains(&Command::Hung { tenant: A, since_ns }), "another class, another time: {commands:?}");
}

#[test]
fn work_that_ended_in_between_begins_the_time_anew() {
    let mut table = Table::of(&[(A, impatient(500)), (C, latency(300))]);
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: C });
    let mut told = Vec::new();
    for _ in 0..5 {
        let next_ns = table.now + 3 * SECOND / 2;
        told.extend(hung_until(&mut table, next_ns));
        table.burst(A, 3 * SECOND / 2);
        table.burst(C, MS);
    }
    assert_eq!(told, [], "no kernel lasted for two seconds");
    let since_ns = table.now;
    let next_ns = table.now + 19 * SECOND / 10;
    told.extend(hung_until(&mut table, next_ns));
    table.burst(C, MS);
    assert_eq!(told, []);
    let told = hung_until(&mut table, since_ns + 3 * SECOND);
    assert_eq!(told, [(since_ns + 2 * SECOND, Command::Hung { tenant: A, since_ns })]);
}

#[test]
fn a_hung_holder_costs_its_neighbours_a_slice_and_the_drain_limit() {
    let mut table = Table::of(&[(A, Share::of(500)), (B, Share::of(500))]);
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    let (begin_ns, bound_ns) = (table.now, Parameters::default().drain_limit_ns + table.scheduler.slice_ns());
    let (mut waits_since_ns, mut worst_ns, mut worked_ns) = (Some(table.now), 0, 0);
    // A stands at its gate with one kernel that never ends; B works whenever it may.
    while table.now < begin_ns + 20 * SECOND {
        if table.scheduler.running() == Some(B) {
            let waited_ns = waits_since_ns.take().map_or(0, |since_ns| table.now - since_ns);
            worst_ns = worst_ns.max(waited_ns);
            table.now += 5 * MS;
            table.burst(B, 5 * MS);
            worked_ns += 5 * MS;
            table.tell(Input::Wants { tenant: A });
            table.tell(Input::Announced { tenant: B, estimated_end_ns: table.now });
        } else {
            waits_since_ns.get_or_insert(table.now);
            table.now = table.scheduler.next_timer().expect("B waits");
            table.tell(Input::Pass);
        }
    }
    assert!(worst_ns <= bound_ns, "waited {worst_ns} ns, bound {bound_ns}");
    assert!(worked_ns >= 9 * SECOND, "{worked_ns} of 20 s");
}

#[test]
fn a_gang_that_works_on_one_of_its_gpus_does_not_hang_and_is_told_once() {
    let mut host = HostScheduler::new(Parameters::default(), 2, 0);
    let mut commands = Vec::new();
    host.join(0, A, [0, 1].into_iter().collect::<ServerSet>(), Share::of(500), 0, &mut commands);
    host.handle(0, Input::Wants { tenant: A }, &mut commands);
    for second in 1..=100 {
        let (start_ns, end_ns) = ((second - 1) * SECOND, second * SECOND);
        host.burst(end_ns, 0, Burst { tenant: A, context: 0, start_ns, end_ns }, &mut commands);
        host.handle(end_ns, Input::Announced { tenant: A, estimated_end_ns: end_ns }, &mut commands);
    }
    let hung = |commands: &[Command]| -> Vec<Command> {
        commands.iter().copied().filter(|command| matches!(command, Command::Hung { .. })).collect()
    };
    assert_eq!(hung(&commands), [], "there is no work for the second GPU");
    (101..=200).for_each(|second| host.handle(second * SECOND, Input::Pass, &mut commands));
    assert_eq!(hung(&commands), [Command::Hung { tenant: A, since_ns: 100 * SECOND }]);
}

#[test]
fn who_hangs_is_told_again_at_once_when_something_else_follows() {
    let mut host = HostScheduler::new(Parameters::default(), 2, 0);
    let mut commands = Vec::new();
    host.join(0, A, [0, 1].into_iter().collect::<ServerSet>(), Share::of(500), 0, &mut commands);
    host.tell_again(0, A, &mut commands);
    host.handle(0, Input::Wants { tenant: A }, &mut commands);
    host.tell_again(SECOND, A, &mut commands);
    let hung = |commands: &[Command]| commands.iter().filter(|told| matches!(told, Command::Hung { .. })).count();
    assert_eq!(hung(&commands), 0, "that says nothing of whether it hangs");
    (2..=60).for_each(|second| host.handle(second * SECOND, Input::Pass, &mut commands));
    assert_eq!(hung(&commands), 1);
    host.tell_again(60 * SECOND, A, &mut commands);
    assert_eq!(hung(&commands), 2, "of its two GPUs one tells");
    assert_eq!(commands.last(), Some(&Command::Hung { tenant: A, since_ns: 0 }));
    (61..=120).for_each(|second| host.handle(second * SECOND, Input::Pass, &mut commands));
    assert_eq!(hung(&commands), 2);
}

#[test]
fn who_could_not_be_heard_is_told_again_when_it_stays_silent() {
    let mut table = Table::of(&[(A, Share::of(500)), (B, Share::of(500))]);
    table.tell(Input::Wants { tenant: A });
    let since_ns = table.now;
    table.after(MS, Input::Wants { tenant: B });
    table.after(21 * MS, Input::Pass);
    table.tell(Input::Idle { tenant: B });
    let hung = |since_ns| Command::Hung { tenant: A, since_ns };
    assert_eq!(hung_until(&mut table, since_ns + 35 * SECOND), [(since_ns + 30 * SECOND, hung(since_ns))]);
    // It was frozen; what it says after the thaw counts, and so does that it says nothing.
    table.tell(Input::Excuse { tenant: A });
    let excused_ns = table.now;
    let again = hung(excused_ns);
    assert_eq!(hung_until(&mut table, excused_ns + 90 * SECOND), [(excused_ns + 30 * SECOND, again)]);
    table.tell(Input::Excuse { tenant: A });
    table.tell(Input::Idle { tenant: A });
    let now = table.now;
    assert_eq!(hung_until(&mut table, now + 90 * SECOND), [], "it had nothing outstanding after all");
    table.tell(Input::Excuse { tenant: A });
    assert_eq!(hung_until(&mut table, now + 180 * SECOND), [], "an excuse is no launch");
}
