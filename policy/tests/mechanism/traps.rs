//! Each of the twenty traps, and that its remedy is named.

use super::{divided, host};
use gpool_policy::mechanism::{
    Ask, Fact, Finding, Host, Isolation, Mode, Pool, Severity, Trap, Trust, Workload, choose,
};

/// What `ask` is told of `trap`.
fn told(trap: Trap, ask: &Ask, host: &Host) -> Option<Finding> {
    let decision = choose(ask, host);
    let found = decision.findings.into_iter().find(|finding| finding.trap == trap);
    if found.as_ref().is_some_and(|finding| finding.severity == Severity::Refuse) {
        assert_eq!(decision.choice, None, "a trap that refuses leaves nothing");
    }
    found
}

/// It is sprung, does what it should, and its cause and remedy have these parts; and it is not sprung by `harmless`.
fn springs(trap: Trap, severity: Severity, case: (&Ask, &Host), parts: [&str; 2], harmless: (&Ask, &Host)) {
    let found = told(trap, case.0, case.1).unwrap_or_else(|| panic!("{trap} is not sprung"));
    assert_eq!(found.severity, severity, "{found:?}");
    assert!(found.cause.contains(parts[0]), "{found:?} lacks {}", parts[0]);
    assert!(found.remedy.contains(parts[1]), "{found:?} lacks {}", parts[1]);
    let quiet = told(trap, harmless.0, harmless.1);
    assert_eq!(quiet, None, "{trap} springs where it should not");
}

fn with(fact: Fact) -> Ask {
    Ask { facts: [fact].into(), ..Ask::of(300) }
}

#[test]
fn there_are_twenty() {
    assert_eq!(Trap::ALL.len(), 20);
    assert_eq!((Trap::NoMig.number(), Trap::SlurmSuspend.number()), (1, 20));
}

#[test]
fn trap_1_mig_where_there_is_none() {
    let mig = Ask { mode: Mode::Mig, ..Ask::of(100) };
    let mut divided_one = host(&["A100-80GB"]);
    divided_one.gpus[0].mig = divided("A100-80GB", &["1g.10gb"]);
    for name in ["T4", "L4", "V100-32GB"] {
        let here = host(&[name]);
        springs(Trap::NoMig, Severity::Refuse, (&mig, &here), [name, "mode=exclusive"], (&mig, &divided_one));
    }
}

#[test]
fn trap_2_a_layout_that_cannot_be_made() {
    let geometry =
        |profiles: &[&str]| Ask { geometry: profiles.iter().map(|one| (*one).to_owned()).collect(), ..Ask::of(300) };
    let here = host(&["A100-80GB"]);
    springs(
        Trap::IllegalLayout,
        Severity::Refuse,
        (&geometry(&["3g.40gb", "3g.40gb", "1g.10gb"]), &here),
        ["no slice is left for 1g.10gb", "3g.40gb + 2g.20gb + 1g.10gb"],
        (&geometry(&["3g.40gb", "2g.20gb", "1g.10gb"]), &here),
    );
    let profile = Ask { profile: Some("1g.5gb".into()), ..Ask::of(100) };
    let either = host(&["A100-80GB", "A100-40GB"]);
    springs(Trap::IllegalLayout, Severity::Refuse, (&profile, &here), ["no profile", "1g.10gb"], (&profile, &either));
}

#[test]
fn trap_3_a_layout_under_leases() {
    let change = Ask { geometry: vec!["3g.40gb".into()], ..Ask::of(300) };
    let free = host(&["A100-80GB"]);
    let mut used = free.clone();
    used.gpus[0].mig = divided("A100-80GB", &["1g.10gb"]);
    used.gpus[0].mig.instances[0].leases = 1;
    springs(Trap::LayoutInUse, Severity::Refuse, (&change, &used), ["g0 has 1 lease", "--drain"], (&change, &free));
}

#[test]
fn trap_4_the_strategy_single_with_unlike_instances() {
    let single = with(Fact::SingleStrategy);
    let mut even = host(&["A100-80GB"]);
    even.gpus[0].mig = divided("A100-80GB", &["3g.40gb", "3g.40gb"]);
    let mut uneven = even.clone();
    uneven.gpus[0].mig = divided("A100-80GB", &["3g.40gb", "1g.10gb"]);
    springs(Trap::UnevenSingle, Severity::Refuse, (&single, &uneven), ["1g.10gb, 3g.40gb", "mixed"], (&single, &even));
    let mut beside_a_whole = host(&["A100-80GB", "A100-80GB"]);
    beside_a_whole.gpus[0] = even.gpus[0].clone();
    springs(
        Trap::UnevenSingle,
        Severity::Refuse,
        (&single, &beside_a_whole),
        ["whole GPUs", "mixed"],
        (&single, &even),
    );
}

#[test]
fn trap_5_two_who_divide_one_gpu() {
    let change = Ask { geometry: vec!["3g.40gb".into()], ..Ask::of(300) };
    let mut mine = host(&["A100-80GB"]);
    mine.gpus[0].mig.is_on = true;
    let mut theirs = mine.clone();
    theirs.gpus[0].mig.owner = Some("gpu-operator".into());
    let parts = ["gpu-operator divides g0", "through gpu-operator"];
    springs(Trap::TwoOwners, Severity::Refuse, (&change, &theirs), parts, (&change, &mine));
    // What is there may be used; what is not may not be made.
    let instance = Ask { mode: Mode::Mig, ..Ask::of(100) };
    let mut there = theirs.clone();
    there.gpus[0].mig = divided("A100-80GB", &["1g.10gb"]);
    there.gpus[0].mig.owner = Some("gpu-operator".into());
    springs(Trap::TwoOwners, Severity::Refuse, (&instance, &theirs), parts, (&instance, &there));
}

#[test]
fn trap_6_mps_across_teams() {
    let here = host(&["A30"]);
    let team = Ask { mode: Mode::Mps, trust: Trust::SameTeam, team: Some("vision".into()), ..Ask::of(300) };
    let others = Ask { trust: Trust::SameOrganisation, ..team.clone() };
    springs(
        Trap::MpsAcrossTeams,
        Severity::Refuse,
        (&others, &here),
        ["ends all clients", "mode=slice"],
        (&team, &here),
    );
    let mut taken = here.clone();
    taken.gpus[0].teams = ["speech".to_owned()].into();
    springs(Trap::MpsAcrossTeams, Severity::Refuse, (&team, &taken), ["ends all", "mode=slice"], (&team, &here));
}

#[test]
fn trap_7_mps_with_what_it_does_not_bear() {
    let here = host(&["A30"]);
    let mps = Ask { mode: Mode::Mps, trust: Trust::SameTeam, ..Ask::of(300) };
    for fact in [Fact::Checkpoint, Fact::Debugger, Fact::NeedsIpcIsolation, Fact::NeedsFaultIsolation] {
        let unfit = Ask { facts: [fact].into(), ..mps.clone() };
        springs(Trap::MpsUnfit, Severity::Refuse, (&unfit, &here), [fact.word(), "mode=slice"], (&mps, &here));
    }
}

#[test]
fn trap_8_tens_of_milliseconds_beside_long_kernels() {
    let tight = Ask { workload: Workload::InferOnline, p99_ms: Some(40), ..Ask::of(300) };
    let loose = Ask { p99_ms: Some(400), ..tight.clone() };
    let mut coarse = host(&["L4"]);
    coarse.gpus[0].longest_burst_us = Some(200_000);
    let parts = ["g0 has neighbours whose kernels take 200 ms", "isolation=hardware"];
    springs(Trap::CoarseNeighbour, Severity::Refuse, (&tight, &coarse), parts, (&loose, &coarse));
    let mut driver = host(&["L4"]);
    driver.pool = Pool::TimeSlice;
    let parts = ["no promise of 40 ms", "isolation=hardware"];
    springs(Trap::CoarseNeighbour, Severity::Refuse, (&tight, &driver), parts, (&Ask::of(300), &driver));
}

#[test]
fn trap_9_limits_in_software_for_who_escapes_them() {
    let here = host(&["L4"]);
    for fact in [Fact::Privileged, Fact::HostPid, Fact::WritablePreload] {
        let sliced = Ask { mode: Mode::Slice, ..with(fact) };
        let whole = Ask { mode: Mode::Exclusive, ..with(fact) };
        springs(Trap::EscapesShims, Severity::Refuse, (&sliced, &here), [fact.word(), "mode=mig"], (&whole, &here));
    }
}

#[test]
fn trap_10_ranks_that_are_paced_apart() {
    let here = host(&["A100-80GB"]);
    let (ranks, whole) = (with(Fact::SeparateRanks), Ask { fraction_permille: 1000, ..with(Fact::SeparateRanks) });
    springs(Trap::SeparateRanks, Severity::Refuse, (&ranks, &here), ["different times", "gpus=N"], (&whole, &here));
}

#[test]
fn trap_11_memory_promised_twice() {
    let mut here = host(&["L4"]);
    here.has_spill = true;
    let facts = [Fact::OvercommitMemory, Fact::Spill];
    let hard = Ask { isolation: Isolation::Software, facts: facts.into(), ..Ask::of(300) };
    let soft = Ask { isolation: Isolation::Shared, ..hard.clone() };
    springs(Trap::MemoryTwice, Severity::Refuse, (&hard, &here), ["more memory", "less memory"], (&soft, &here));
}

#[test]
fn trap_12_a_ceiling_below_one_kernel() {
    let here = host(&["L4"]);
    let low = Ask { limit_permille: Some(50), burst_us: Some(200_000), ..Ask::of(50) };
    let high = Ask { limit_permille: Some(500), ..low.clone() };
    let parts = ["kernels of 200 ms leaves 4.0 s", "raise the limit"];
    springs(Trap::CeilingBelowKernel, Severity::Warn, (&low, &here), parts, (&high, &here));
    assert!(choose(&low, &here).choice.is_some(), "a warning refuses nothing");
}

#[test]
fn trap_13_replicas_taken_for_shares() {
    let here = host(&["L4"]);
    let ten = Ask { plugin_replicas: Some(10), ..Ask::of(100) };
    let parts = ["10 names for the whole GPU", "a fraction"];
    springs(Trap::ReplicasAreNoShares, Severity::Warn, (&ten, &here), parts, (&Ask::of(100), &here));
}

#[test]
fn trap_14_two_replicas_taken_for_twice_the_share() {
    let here = host(&["L4"]);
    let two = Ask { shared_replicas: Some(2), ..Ask::of(100) };
    let one = Ask { shared_replicas: Some(1), ..Ask::of(100) };
    springs(Trap::TwoReplicas, Severity::Refuse, (&two, &here), ["no more", "larger fraction"], (&one, &here));
}

#[test]
fn trap_15_a_graph_is_one_launch() {
    let here = host(&["L4"]);
    let long = Ask { burst_us: Some(80_000), ..with(Fact::Graphs) };
    let short = Ask { burst_us: Some(8_000), ..with(Fact::Graphs) };
    springs(Trap::LongGraph, Severity::Warn, (&long, &here), ["80 ms", "split the graph"], (&short, &here));
}

#[test]
fn trap_16_suspending_what_cannot_be_saved() {
    let here = host(&["L4"]);
    for fact in [Fact::Uvm, Fact::Ipc] {
        let both = Ask { facts: [fact, Fact::Suspend].into(), ..Ask::of(300) };
        let parts = [fact.word(), "without suspension"];
        springs(Trap::CannotSuspend, Severity::Refuse, (&both, &here), parts, (&with(fact), &here));
    }
}

#[test]
fn trap_17_services_are_not_ended_for_being_idle() {
    let here = host(&["L4"]);
    let serving = Ask { workload: Workload::InferOnline, ..with(Fact::IdleReaping) };
    let suspended = Ask { facts: [Fact::IdleReaping, Fact::Suspend].into(), ..serving.clone() };
    let parts = ["only warned about", "suspended"];
    springs(Trap::ReapingServices, Severity::Warn, (&serving, &here), parts, (&suspended, &here));
}

#[test]
fn trap_18_no_figures_of_processes_inside_an_instance() {
    let mut here = host(&["A100-80GB"]);
    here.gpus[0].mig = divided("A100-80GB", &["3g.40gb"]);
    let strict = Ask { isolation: Isolation::Hardware, ..Ask::of(300) };
    let parts = ["NVML has no utilisation", "an instance of its own"];
    springs(Trap::BlindInInstance, Severity::Warn, (&strict, &here), parts, (&strict, &host(&["T4"])));
}

#[test]
fn trap_19_a_share_of_memory_alone() {
    let here = host(&["L4"]);
    let kai = Ask { memory_share_permille: Some(300), ..Ask::of(300) };
    let parts = ["300 thousandths", "fraction and memory"];
    springs(Trap::MemoryShareOnly, Severity::Warn, (&kai, &here), parts, (&Ask::of(300), &here));
}

#[test]
fn trap_20_a_suspension_that_frees_nothing() {
    let here = host(&["L4"]);
    let parts = ["keeps its GPU memory", "REQUEUE"];
    springs(Trap::SlurmSuspend, Severity::Refuse, (&with(Fact::SlurmSuspend), &here), parts, (&Ask::of(300), &here));
}
