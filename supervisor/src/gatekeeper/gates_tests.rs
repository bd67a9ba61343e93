//! Gates over real regions, without containers.

use super::*;
use crate::gatekeeper::tenant::{BURSTS, Tenant};
use crate::region::{ControlPage, RegionHost};
use gpool_policy::slice::{Class, HangAfter, Priority};
use gpool_shared_region::{BURST_RING, BurstTag, SLOT_BYTES};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const IDLE: u32 = 0;
const RUNNING: u32 = 1;
const WAITING: u32 = 2;

pub struct Stage {
    gates: Gates,
    pub tenants: Tenants,
    report: Report,
    pub notices: Vec<Notice>,
    dirs: Vec<tempfile::TempDir>,
}

impl Stage {
    pub fn new(gpus: usize) -> Self {
        let gates = Gates::new(gpus, clock::now_ns());
        Self { gates, tenants: Tenants::new(), report: Report::new(), notices: Vec::new(), dirs: Vec::new() }
    }

    pub fn join(&mut self, id: u64, gpus: &[usize], share: Share) -> Arc<RegionHost> {
        let dir = tempfile::tempdir().unwrap();
        let region = Arc::new(RegionHost::create_unmounted(dir.path(), &ControlPage::of_half()));
        self.dirs.push(dir);
        let id = TenantId(id);
        self.tenants.insert(id, Tenant::new(id, gpus.to_vec(), region.clone(), &mut self.notices));
        self.gates.join(&mut self.tenants, id, share, 0, &mut self.notices);
        region
    }

    pub fn look(&mut self, id: u64) {
        self.gates.look(&mut self.tenants, &[TenantId(id)], &mut self.report, &mut self.notices);
    }

    fn feed(&mut self, input: Input) {
        self.gates.handle(&mut self.tenants, input, &mut self.notices);
    }

    pub fn charged_ns(&self, id: u64) -> Vec<(usize, u64)> {
        let standings = self.gates.statistics(&self.tenants).standings.into_iter();
        standings.filter(|standing| standing.tenant == TenantId(id)).map(|its| (its.gpu, its.charged_ns)).collect()
    }
}

/// Writes into slot 0 as a process would: it has registered and stands at the gate.
pub fn stand_at_the_gate(region: &RegionHost) {
    put(region, 0, &77u64.to_le_bytes());
    put(region, 64, &WAITING.to_le_bytes());
    put(region, 68, &region.gate().0.to_le_bytes());
}

fn put(region: &RegionHost, offset: u64, bytes: &[u8]) {
    assert!((offset as usize) < SLOT_BYTES);
    region.report_file().write_all_at(bytes, offset).unwrap();
}

#[test]
fn an_opened_gate_says_how_far_ahead_work_may_be_launched() {
    let parameters = Parameters::default();
    let mut stage = Stage::new(1);
    let region = stage.join(1, &[0], Share::of(300));
    stage.join(3, &[0], Share::of(300));
    stand_at_the_gate(&region);
    stage.look(1);
    let depth_ns = || region.control().depth_ns.load(Ordering::Relaxed);
    assert!(region.gate().is_open());
    assert_eq!(depth_ns(), parameters.depth_ns);
    let latency = Share { class: Class::Latency, ..Share::of(300) };
    stage.join(2, &[0], latency);
    stage.feed(Input::Idle { tenant: TenantId(1) });
    assert!(!region.gate().is_open());
    stand_at_the_gate(&region);
    stage.look(1);
    assert!(region.gate().is_open());
    assert_eq!(depth_ns(), parameters.latency_depth_ns, "less stands in the way of a latency tenant");
}

/// Writes into slot 0 what a process wants, and with which word it does.
fn say(region: &RegionHost, demand: u32) {
    put(region, 64, &demand.to_le_bytes());
    put(region, 68, &region.gate().0.to_le_bytes());
}

/// Two tenants of which the first one works and falls idle.
fn one_idle(share: Share) -> (Stage, [Arc<RegionHost>; 2]) {
    let mut stage = Stage::new(1);
    let regions = [stage.join(1, &[0], share), stage.join(2, &[0], Share::of(300))];
    stand_at_the_gate(&regions[0]);
    stage.look(1);
    say(&regions[0], RUNNING);
    stage.look(1);
    say(&regions[0], IDLE);
    stage.look(1);
    (stage, regions)
}

#[test]
fn the_gate_of_who_fell_idle_last_stays_open_until_another_ones_opens() {
    let (mut stage, [first, second]) = one_idle(Share::of(300));
    let is_open = |region: &RegionHost| region.gate().is_open();
    assert!(is_open(&first) && !is_open(&second));
    stand_at_the_gate(&second);
    stage.look(2);
    assert!(!is_open(&first) && is_open(&second));
    say(&second, IDLE);
    stage.look(2);
    assert!(!is_open(&first) && is_open(&second));
}

#[test]
fn who_works_behind_a_gate_that_was_left_open_has_a_slice_when_it_rings() {
    let (mut stage, [first, second]) = one_idle(Share::of(300));
    say(&first, RUNNING);
    stage.look(1);
    assert!(first.gate().is_open());
    stand_at_the_gate(&second);
    stage.look(2);
    assert!(first.gate().is_open() && !second.gate().is_open(), "it runs, and the other one waits for its turn");
    say(&first, IDLE);
    stage.look(1);
    assert!(!first.gate().is_open() && second.gate().is_open());
    say(&first, RUNNING);
    stage.look(1);
    assert!(!first.gate().is_open() && second.gate().is_open(), "what it had begun meanwhile it finishes");
}

/// As a shim does that does not ring for it, or whose work is over before anybody looks.
#[test]
fn what_was_used_behind_a_gate_that_was_left_open_is_no_debt() {
    let (mut stage, [first, _]) = one_idle(Share::of(300));
    std::thread::sleep(std::time::Duration::from_millis(10));
    let end_ns = clock::now_ns();
    put(&first, 192, &(end_ns - 4_000_000).to_le_bytes());
    put(&first, 200, &end_ns.to_le_bytes());
    put(&first, 136, &4_000_000u64.to_le_bytes());
    put(&first, 128, &1u64.to_le_bytes());
    say(&first, IDLE);
    stage.look(1);
    let standing = |stage: &Stage| stage.gates.statistics(&stage.tenants).standings[0];
    assert_eq!((standing(&stage).charged_ns, standing(&stage).lag_ns), (4_000_000, 0));
    assert!(first.gate().is_open(), "left open again");
}

/// Also of one whose process waits and is gone before its gate opens.
#[test]
fn of_two_that_fall_idle_at_once_one_gate_stays_open() {
    let (mut stage, regions) = one_idle(Share::of(300));
    say(&regions[0], RUNNING);
    stand_at_the_gate(&regions[1]);
    let [first, second] = [1, 2].map(TenantId);
    stage.gates.look(&mut stage.tenants, &[first, second], &mut stage.report, &mut stage.notices);
    regions.iter().for_each(|region| say(region, IDLE));
    stage.gates.look(&mut stage.tenants, &[first, second], &mut stage.report, &mut stage.notices);
    assert_eq!(regions.iter().filter(|region| region.gate().is_open()).count(), 1);
    stage.join(3, &[0], Share::of(300));
    assert!(regions.iter().all(|region| !region.gate().is_open()), "and it is known which");
}

#[test]
fn who_joins_finds_no_gate_that_was_left_open() {
    let (mut stage, [first, _]) = one_idle(Share::of(300));
    assert!(first.gate().is_open());
    stage.join(3, &[0], Share::of(300));
    assert!(!first.gate().is_open());
    assert!(
        Parameters::default().left_open_ns < gpool_shared_region::HEARTBEAT_STALE_NS,
        "nor after a supervisor's end"
    );
}

#[test]
fn no_gate_is_left_open_of_who_is_paused_ended_or_has_a_ceiling_and_none_after_a_change() {
    let limited = Share { limit_permille: Some(500), ..Share::of(300) };
    let (_stage, [first, _]) = one_idle(limited);
    assert!(!first.gate().is_open());
    let tenant = TenantId(1);
    for input in [Input::Pause { tenant }, Input::Change { tenant, share: limited }, Input::Leave { tenant }] {
        let (mut stage, [first, _]) = one_idle(Share::of(300));
        assert!(first.gate().is_open());
        stage.feed(input);
        assert!(!first.gate().is_open(), "{input:?}");
    }
}

#[test]
fn the_gate_of_who_has_several_gpus_stays_open_until_another_ones_opens_on_one_of_them() {
    for gpu in [0, 2] {
        let mut stage = Stage::new(3);
        let region = stage.join(1, &[0, 2], Share::of(300));
        let others = [stage.join(2, &[1], Share::of(300)), stage.join(3, &[gpu], Share::of(300))];
        let work_and_stop = |stage: &mut Stage| {
            stand_at_the_gate(&region);
            stage.look(1);
            say(&region, IDLE);
            stage.look(1);
        };
        work_and_stop(&mut stage);
        assert!(region.gate().is_open());
        say(&region, RUNNING);
        stage.look(1);
        assert!(region.gate().is_open(), "it has a slice with that");
        say(&region, IDLE);
        stage.look(1);
        stand_at_the_gate(&others[0]);
        stage.look(2);
        assert!(region.gate().is_open() && others[0].gate().is_open(), "that is none of its GPUs");
        stand_at_the_gate(&others[1]);
        stage.look(3);
        assert!(!region.gate().is_open() && others[1].gate().is_open());
        say(&others[1], IDLE);
        stage.look(3);
        work_and_stop(&mut stage);
        assert!(region.gate().is_open() && !others[1].gate().is_open(), "of two that fell idle the last one has it");
        stage.join(4, &[2], Share::of(300));
        assert!(!region.gate().is_open());
    }
}

#[test]
fn a_paused_tenant_stands_until_it_is_resumed() {
    let mut stage = Stage::new(1);
    let region = stage.join(1, &[0], Share::of(300));
    stage.feed(Input::Pause { tenant: TenantId(1) });
    stand_at_the_gate(&region);
    stage.look(1);
    assert!(!region.gate().is_open());
    stage.feed(Input::Resume { tenant: TenantId(1) });
    stage.look(1);
    assert!(region.gate().is_open());
    stage.feed(Input::Pause { tenant: TenantId(1) });
    assert!(!region.gate().is_open(), "at once");
}

#[test]
fn a_lease_on_two_gpus_has_one_gate_and_two_accounts() {
    let mut stage = Stage::new(3);
    let region = stage.join(1, &[2, 0], Share::of(300));
    stand_at_the_gate(&region);
    stage.look(1);
    assert!(region.gate().is_open());
    std::thread::sleep(std::time::Duration::from_millis(2));
    let end_ns = clock::now_ns();
    for (number, (gpu, length_ns)) in [(0, 1_000), (1, 3_000)].into_iter().enumerate() {
        put(&region, 192 + 16 * number as u64, &(end_ns - length_ns).to_le_bytes());
        put(&region, 200 + 16 * number as u64, &end_ns.to_le_bytes());
        put(&region, 1216 + 8 * number as u64, &BurstTag::new(gpu, 0).0.to_le_bytes());
    }
    put(&region, 136, &4_000u64.to_le_bytes());
    put(&region, 128, &2u64.to_le_bytes());
    stage.look(1);
    assert_eq!(stage.charged_ns(1), [(2, 1_000), (0, 3_000)], "in the order of the lease's GPUs");
    let left = stage.gates.leave(&mut stage.tenants, TenantId(1), &mut stage.notices);
    assert_eq!(left.iter().map(|its| (its.gpu, its.used_ns)).collect::<Vec<_>>(), [(2, 1_000), (0, 3_000)]);
}

#[test]
fn of_bursts_without_end_so_many_are_taken_one_by_one_and_none_is_lost() {
    const LOOKS: u64 = 1000;
    let mut stage = Stage::new(1);
    let region = stage.join(1, &[0], Share::of(300));
    put(&region, 0, &77u64.to_le_bytes());
    let begun_ns = clock::now_ns();
    let work = |from_ns: u64| {
        for place in 0..BURST_RING as u64 {
            put(&region, 192 + 16 * place, &(from_ns + 20 * place).to_le_bytes());
            put(&region, 200 + 16 * place, &(from_ns + 20 * place + 10).to_le_bytes());
        }
    };
    let tenant = stage.tenants.get_mut(&TenantId(1)).unwrap();
    let (mut taken, mut told_ns) = (0, 0);
    for look in 1..=LOOKS + 1 {
        let (count, mut heard) = (look * BURST_RING as u64, Heard::default());
        work(begun_ns + look * 20 * BURST_RING as u64);
        put(&region, 128, &count.to_le_bytes());
        put(&region, 136, &(10 * count).to_le_bytes());
        if look > LOOKS {
            tenant.begin_period();
        }
        tenant.collect(&mut stage.report, &mut heard, &mut stage.notices);
        taken += heard.bursts.len();
        told_ns += heard.bursts.iter().map(|(_, burst, _)| burst.end_ns - burst.start_ns).sum::<u64>();
    }
    assert_eq!(taken, BURSTS + 1 + BURST_RING, "those of the next period after what was not read");
    assert_eq!(told_ns, 10 * BURST_RING as u64 * (LOOKS + 1));
}

/// Each of its bursts has run as long, but others of its streams did so at the same time.
#[test]
fn what_the_ring_does_not_show_any_more_is_of_the_time_since_the_last_look() {
    let mut stage = Stage::new(1);
    let region = stage.join(1, &[0], Share::of(300));
    put(&region, 0, &77u64.to_le_bytes());
    let from_ns = clock::now_ns();
    let tenant = stage.tenants.get_mut(&TenantId(1)).unwrap();
    let mut collect = |count: u64| {
        // Four at a time, of 100 us.
        for number in count.saturating_sub(BURST_RING as u64)..count {
            let (place, start_ns) = (number % BURST_RING as u64, from_ns + number / 4 * 100_000);
            put(&region, 192 + 16 * place, &start_ns.to_le_bytes());
            put(&region, 200 + 16 * place, &(start_ns + 100_000).to_le_bytes());
        }
        put(&region, 128, &count.to_le_bytes());
        put(&region, 136, &(100_000 * count).to_le_bytes());
        let mut heard = Heard::default();
        tenant.collect(&mut stage.report, &mut heard, &mut stage.notices);
        heard.bursts
    };
    assert_eq!(collect(40).len(), 40);
    let read_ns = from_ns + 10 * 100_000;
    let bursts = collect(40 + 160);
    assert_eq!(bursts.len(), 1 + BURST_RING);
    let (_, lost, _) = bursts.last().unwrap();
    assert_eq!((lost.start_ns, lost.end_ns), (read_ns, from_ns + 34 * 100_000), "and not 4.8 ms before others' time");
}

#[test]
fn a_tenant_of_which_nothing_ends_is_told_once() {
    let hang = HangAfter { usual_ns: 1_000_000, latency_waits_ns: 1_000_000 };
    let mut stage = Stage::new(1);
    let region = stage.join(1, &[0], Share { hang, ..Share::of(300) });
    stand_at_the_gate(&region);
    stage.look(1);
    put(&region, 64, &RUNNING.to_le_bytes());
    let hung = |stage: &Stage| -> usize {
        let is_hung = |notice: &&Notice| matches!(notice, Notice::Hung { tenant: TenantId(1), .. });
        stage.notices.iter().filter(is_hung).count()
    };
    assert_eq!(hung(&stage), 0);
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(5));
        stage.look(1);
        assert_eq!(hung(&stage), 1);
    }
}

#[test]
fn a_lower_priority_waits_and_is_told_for_whom() {
    let mut stage = Stage::new(1);
    let guaranteed = stage.join(1, &[0], Share::of(300));
    let scavenger = stage.join(2, &[0], Share { priority: Priority::Scavenger, ..Share::of(300) });
    stand_at_the_gate(&guaranteed);
    stage.look(1);
    stand_at_the_gate(&scavenger);
    stage.look(2);
    assert!(guaranteed.gate().is_open() && !scavenger.gate().is_open());
    let explained = stage.gates.explain(&stage.tenants[&TenantId(2)]);
    use gpool_policy::slice::{State, WaitCause};
    let State::Waiting { behind, cause, .. } = explained[0].state else { panic!("{explained:?}") };
    assert_eq!((behind, cause), (Some(TenantId(1)), WaitCause::Priority));
}

#[test]
fn hand_offs_are_counted_once_for_each_gate_that_was_closed() {
    let mut stage = Stage::new(1);
    let region = stage.join(1, &[0], Share::of(300));
    let figures = |stage: &Stage| stage.gates.statistics(&stage.tenants).handoffs;
    stand_at_the_gate(&region);
    stage.look(1);
    assert_eq!(figures(&stage), None, "opened, and nothing launched yet");
    let opened = region.gate();
    std::thread::sleep(std::time::Duration::from_millis(5));
    put(&region, 88, &clock::now_ns().to_le_bytes());
    put(&region, 80, &opened.0.to_le_bytes());
    stage.look(1);
    stage.look(1);
    let told = figures(&stage).unwrap();
    assert_eq!((told.count, told.p50_ns), (1, told.p99_ns));
    assert!(told.p50_ns >= 5_000_000, "{told:?}");
}

/// Writes into slot 0 that the process leaves in 3 ms, behind the present word or another one; when that is.
fn say_leaving(region: &RegionHost, words_back: u32) -> u64 {
    let end_ns = clock::now_ns() + 3_000_000;
    put(region, 72, &end_ns.to_le_bytes());
    put(region, 112, &(region.gate().0 - words_back).to_le_bytes());
    say(region, RUNNING);
    end_ns
}

/// Two of which the first one leaves, and another one waits; which gates are open when its work has ended, if it has done that
/// meanwhile.
fn open_at_the_end(words_back: u32, meanwhile: impl Fn(&RegionHost)) -> [bool; 2] {
    let mut stage = Stage::new(1);
    let [first, second] = [1, 2].map(|id| stage.join(id, &[0], Share::of(300)));
    stand_at_the_gate(&first);
    stage.look(1);
    assert_eq!(first.control().heeds_leaving.load(Ordering::Relaxed), 1);
    let end_ns = say_leaving(&first, words_back);
    stage.look(1);
    stand_at_the_gate(&second);
    meanwhile(&first);
    stage.look(2);
    std::thread::sleep(std::time::Duration::from_nanos(end_ns.saturating_sub(clock::now_ns())));
    stage.gates.look(&mut stage.tenants, &[], &mut stage.report, &mut stage.notices);
    [&first, &second].map(|region| region.gate().is_open())
}

#[test]
fn the_gate_of_who_leaves_closes_when_its_work_ends_and_the_next_one_opens() {
    assert_eq!(open_at_the_end(0, |_| ()), [false, true]);
    assert_eq!(open_at_the_end(2, |_| ()), [true, false], "what it said behind another word");
    let begins_a_burst = |region: &RegionHost| put(region, 112, &0u32.to_le_bytes());
    assert_eq!(open_at_the_end(0, begins_a_burst), [true, false], "it does not leave, and nobody rang for that");
}

#[test]
fn behind_another_word_it_is_not_known_any_more_that_somebody_leaves() {
    let mut stage = Stage::new(1);
    let [first, second] = [1, 2].map(|id| stage.join(id, &[0], Share::of(300)));
    stand_at_the_gate(&first);
    stage.look(1);
    let end_ns = say_leaving(&first, 0);
    stage.look(1);
    let (until_ns, now_ns) = (end_ns + 50_000_000, clock::now_ns());
    let opening =
        Opening { until_ns, depth_ns: 1, burst_ns: 1, is_left_open: false, heeds_leaving: true, stands_alone: false };
    stage.tenants.get_mut(&TenantId(1)).unwrap().open(now_ns, now_ns, opening);
    stage.look(1);
    stand_at_the_gate(&second);
    stage.look(2);
    std::thread::sleep(std::time::Duration::from_nanos(end_ns.saturating_sub(clock::now_ns())));
    stage.gates.look(&mut stage.tenants, &[], &mut stage.report, &mut stage.notices);
    assert!(first.gate().is_open() && !second.gate().is_open());
}

#[test]
fn who_leaves_behind_a_gate_that_was_left_open_does_so_in_its_slice() {
    let (mut stage, [first, second]) = one_idle(Share::of(300));
    let end_ns = say_leaving(&first, 0);
    stage.look(1);
    stand_at_the_gate(&second);
    stage.look(2);
    std::thread::sleep(std::time::Duration::from_nanos(end_ns.saturating_sub(clock::now_ns())));
    stage.gates.look(&mut stage.tenants, &[], &mut stage.report, &mut stage.notices);
    assert!(!first.gate().is_open() && second.gate().is_open());
}

#[test]
fn nobody_is_asked_to_say_that_it_leaves_who_is_not_heeded() {
    let heeds = |region: &RegionHost| region.control().heeds_leaving.load(Ordering::Relaxed);
    let mut stage = Stage::new(2);
    let alone = stage.join(1, &[0], Share::of(300));
    stand_at_the_gate(&alone);
    stage.look(1);
    assert_eq!(heeds(&alone), 0, "nobody would gain by it");
    for (id, gpus, class) in [(2, vec![0], Class::Latency), (3, vec![0, 1], Class::Batch)] {
        let region = stage.join(id, &gpus, Share { class, ..Share::of(300) });
        stage.feed(Input::Idle { tenant: TenantId(id - 1) });
        stand_at_the_gate(&region);
        stage.look(id);
        assert_eq!((region.gate().is_open(), heeds(&region)), (true, 0), "{id}");
    }
}
