//! Shares of instances.

use super::{answer, divided, host};
use gpool_policy::mechanism::{Ask, Host, Isolation, Mode, Place, choose};

/// A share of an instance of that profile.
fn named(team: &str, fraction_permille: u16, profile: &str) -> Ask {
    let (team, profile) = (Some(team.to_owned()), Some(profile.to_owned()));
    Ask { mode: Mode::Slice, team, profile, ..Ask::of(fraction_permille) }
}

/// 3g.40gb at 4 of the team speech, with 300 thousandths and 10 GiB free; at 0 nobody's.
fn halves() -> Host {
    let mut here = host(&["A100-80GB"]);
    here.gpus[0].mig = divided("A100-80GB", &["3g.40gb", "3g.40gb"]);
    let own = here.gpus[0].mig.instances.iter_mut().find(|one| one.instance.placement.start == 4).unwrap();
    (own.team, own.leases, own.share_free_permille) = (Some("speech".into()), 1, 300);
    own.memory_free_bytes = 10 << 30;
    here
}

fn start(ask: &Ask, host: &Host) -> u8 {
    match choose(ask, host).choice.map(|choice| choice.place) {
        Some(Place::Instance { placement, .. }) => placement.start,
        other => panic!("{other:?}: {}", answer(ask, host)),
    }
}

#[test]
fn a_fraction_is_of_the_instance_that_is_named_and_else_of_the_gpu() {
    let here = halves();
    let small = Ask { memory_bytes: Some(1 << 30), ..named("speech", 300, "3g.40gb") };
    assert_eq!((answer(&small, &here).as_str(), start(&small, &here)), ("asked slice-in-mig", 4));
    // Of three of seven compute slices 300 thousandths of the GPU are 700.
    let unnamed = Ask { mode: Mode::Auto, profile: None, ..small.clone() };
    assert_eq!((answer(&unnamed, &here).as_str(), start(&unnamed, &here)), ("A9 slice-in-mig", 0));
    let model = here.gpus[0].model.unwrap();
    let profile = model.profile("3g.40gb").unwrap();
    assert_eq!([small.within(300, model, profile), unnamed.within(300, model, profile)], [300, 700]);
    assert_eq!([unnamed.within(100, model, profile), unnamed.within(429, model, profile)], [234, 1001]);
}

#[test]
fn an_instance_is_one_teams_and_full_when_its_share_or_its_memory_is() {
    let here = halves();
    let share = |fraction: u16, gib: u64| Ask { memory_bytes: Some(gib << 30), ..named("speech", fraction, "3g.40gb") };
    assert_eq!(start(&share(301, 1), &here), 0, "the team's own has 300 left");
    assert_eq!(start(&share(300, 11), &here), 0, "and 10 GiB");
    assert_eq!(start(&share(300, 10), &here), 4);
    let best_effort = Ask { is_best_effort: true, ..share(900, 1) };
    assert_eq!(start(&best_effort, &here), 4, "nothing of it is promised");
    let percent = Ask { memory_permille: Some(500), memory_bytes: None, ..share(10, 0) };
    assert_eq!(start(&percent, &here), 0, "half of 40 GB are more than 10");
    let mut taken = here;
    for one in &mut taken.gpus[0].mig.instances {
        (one.leases, one.team, one.share_free_permille) = (1, Some("speech".into()), 300);
    }
    let text = answer(&named("vision", 100, "3g.40gb"), &taken);
    assert!(text.contains("3g.40gb at 0 of g0 belongs to the team speech"), "{text}");
    let text = answer(&share(301, 1), &taken);
    assert!(text.contains("3g.40gb at 4 of g0 has 300 of the 301 thousandths free"), "{text}");
    let whole = taken.gpus[0].mig.instances.iter_mut();
    whole.for_each(|one| one.is_whole = true);
    let text = answer(&Ask { is_best_effort: true, ..share(100, 1) }, &taken);
    assert!(text.contains("is one container's as a whole"), "{text}");
}

#[test]
fn what_cannot_be_inside_an_instance_is_refused_by_the_cause() {
    let here = halves();
    for (ask, part) in [
        (Ask { team: None, ..named("x", 100, "3g.40gb") }, "names no team"),
        (Ask { gpus: 2, ..named("x", 100, "3g.40gb") }, "several GPUs"),
        (named("x", 100, "1g.10gb"), "there is no instance of 1g.10gb"),
        (named("x", 100, "9g.10gb"), "no profile \"9g.10gb\""),
        (Ask { isolation: Isolation::Hardware, ..named("x", 100, "3g.40gb") }, "weaker than a MIG instance"),
    ] {
        let text = answer(&ask, &here);
        assert!(text.starts_with("refused") && text.contains(part), "{text} lacks {part}");
    }
    let text = answer(&named("x", 100, "3g.40gb"), &host(&["T4"]));
    assert!(text.contains("T4 has none"), "{text}");
    let mut owned = here;
    owned.gpus[0].mig.instances.iter_mut().for_each(|one| (one.leases, one.team) = (1, None));
    let text = answer(&named("x", 100, "3g.40gb"), &owned);
    assert!(text.contains("somebody without a team"), "{text}");
}
