//! What GPUs can be divided into, against NVIDIA's own counts and a table that is copied widely.

use gpool_policy::mig::{
    Layout, MODELS, Model, PlanRefusal, StartChoice, counted, layouts, maximal_layouts, multisets, plan, profiles_named,
};
use proptest::prelude::*;

fn model(name: &str) -> &'static Model {
    Model::named(name).unwrap()
}

fn planned(model: &'static Model, names: &str) -> Result<Layout, PlanRefusal> {
    let names: Vec<String> = names.split_whitespace().map(String::from).collect();
    plan(model, &profiles_named(model, &names)?)
}

/// As a person reads it.
fn shown(planned: Result<Layout, PlanRefusal>) -> String {
    match planned {
        Ok(layout) => layout.to_string(),
        Err(refusal) => format!("{refusal}; {}", refusal.remedy()),
    }
}

#[test]
fn an_a100_has_nineteen_layouts_and_an_a30_five() {
    for name in ["A100-40GB", "A100-80GB", "H100-80GB", "H200-141GB", "B200-180GB"] {
        let model = model(name);
        assert_eq!(maximal_layouts(model, &model.plain_profiles()).len(), 19, "{name}");
    }
    let a30 = model("A30");
    assert_eq!(maximal_layouts(a30, &a30.plain_profiles()).len(), 5);
}

/// By the number of compute slices, largest first. The combinations are those of the literature, and two that its
/// lists lack: 4g + 3g, and 3g + 4 x 1g.
#[test]
fn these_are_the_profiles_that_fit_together() {
    let combinations = |name: &str| -> Vec<String> {
        let model = model(name);
        let all = multisets(&maximal_layouts(model, &model.plain_profiles()));
        let digits = |profiles: &Vec<&'static gpool_policy::mig::Profile>| -> String {
            profiles.iter().map(|profile| profile.compute_slices.to_string()).collect()
        };
        all.iter().map(digits).collect()
    };
    let mut want =
        ["7", "43", "421", "4111", "33", "321", "3111", "322", "2221", "22111", "3211", "211111", "31111", "1111111"];
    want.sort_unstable();
    for name in ["A100-40GB", "A100-80GB", "H100-80GB", "H200-141GB", "B200-180GB"] {
        let mut found = combinations(name);
        found.sort_unstable();
        assert_eq!(found, want, "{name}");
    }
    let mut a30 = combinations("A30");
    a30.sort_unstable();
    assert_eq!(a30, ["1111", "211", "22", "4"]);
}

/// The table of layouts of an A100 with 80 GB that articles copy from one another has four rows. Three can be made.
#[test]
fn first_row_of_the_copied_table() {
    assert_eq!(
        shown(planned(model("A100-80GB"), "1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.10gb")),
        "1g.10gb at 0, 1g.10gb at 1, 1g.10gb at 2, 1g.10gb at 3, 1g.10gb at 4, 1g.10gb at 5, 1g.10gb at 6"
    );
}

#[test]
fn second_row_of_the_copied_table() {
    let a100 = model("A100-80GB");
    assert_eq!(shown(planned(a100, "2g.20gb 2g.20gb 2g.20gb")), "2g.20gb at 0, 2g.20gb at 2, 2g.20gb at 4");
    let with_one_more = "2g.20gb at 0, 2g.20gb at 2, 2g.20gb at 4, 1g.10gb at 6";
    assert_eq!(shown(planned(a100, "1g.10gb 2g.20gb 2g.20gb 2g.20gb")), with_one_more);
}

#[test]
fn the_third_row_of_the_copied_table_cannot_be_made() {
    assert_eq!(
        shown(planned(model("A100-80GB"), "3g.40gb 3g.40gb 1g.10gb")),
        "3g.40gb x2 use memory slices 0-7, no slice is left for 1g.10gb; \
         nearest: 3g.40gb x2, or 3g.40gb + 2g.20gb + 1g.10gb"
    );
}

#[test]
fn fourth_row_of_the_copied_table() {
    assert_eq!(shown(planned(model("A100-80GB"), "7g.80gb")), "7g.80gb at 0");
}

#[test]
fn a_refusal_names_the_cause_and_what_comes_near() {
    let a100 = model("A100-80GB");
    for (asked, parts) in [
        ("4g.40gb 4g.40gb", ["2 instances of 4g.40gb", "4g.40gb + 3g.40gb"]),
        ("1g.10gb+me 1g.10gb+me", ["a GPU can have 1", "1g.10gb+me + 1g.10gb"]),
        ("7g.80gb 1g.10gb", ["no slice is left for 1g.10gb", "nearest: 7g.80gb"]),
        ("2g.20gb 2g.20gb 2g.20gb 2g.20gb", ["needs 2 compute slices and 1 are left", "2g.20gb x3 + 1g.10gb"]),
        ("4g.40gb 2g.20gb 1g.20gb 1g.10gb", ["memory slices 0-7", "nearest"]),
        ("3g.40gb 1g.20gb 1g.10gb 1g.10gb 1g.10gb", ["no slice is left for 1g.10gb", "3g.40gb + 1g.10gb x4"]),
        ("1g.5gb", ["no profile \"1g.5gb\"", "1g.10gb, 1g.10gb+me, 1g.20gb"]),
    ] {
        let text = shown(planned(a100, asked));
        for part in parts {
            assert!(text.contains(part), "{asked}: {text} lacks {part}");
        }
    }
    let t4 = shown(planned(model("T4"), "1g.10gb"));
    assert!(t4.contains("no MIG") && t4.contains("mode=slice") && t4.contains("mode=exclusive"), "{t4}");
}

/// What is planned is made of exactly the asked profiles, lies at legal starts and never twice on one slice.
#[test]
fn whatever_fits_is_planned_and_nothing_else() {
    for model in MODELS.iter().filter(|model| model.has_mig()) {
        let all: Vec<_> = model.profiles.iter().collect();
        let legal = multisets(&layouts(model, &all));
        for profiles in &legal {
            let layout = plan(model, profiles).unwrap_or_else(|refusal| panic!("{}: {refusal}", counted(profiles)));
            assert_eq!(&layout.profiles(), profiles);
            let slices: usize = layout.instances().iter().map(|instance| usize::from(instance.placement.size)).sum();
            assert_eq!(layout.memory_slices().len(), slices, "{layout} overlaps");
        }
        // One profile more than a legal combination is planned if, and only if, it is legal too.
        for profiles in legal.iter().take(60) {
            for extra in &all {
                let mut more = profiles.clone();
                more.push(extra);
                more.sort_unstable_by(|one, other| other.cmp(one));
                assert_eq!(plan(model, &more).is_ok(), legal.contains(&more), "{} on {}", counted(&more), model.name);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn what_is_told_as_near_can_be_made(
        which in 0..6_usize,
        picks in prop::collection::vec(0..7_usize, 1..9),
    ) {
        let model = &MODELS[which];
        let asked: Vec<_> = picks.iter().map(|pick| &model.profiles[pick % model.profiles.len()]).collect();
        match plan(model, &asked) {
            Ok(layout) => prop_assert_eq!(layout.instances().len(), asked.len()),
            Err(PlanRefusal::NoRoom { nearest, .. } | PlanRefusal::TooMany { nearest, .. }) => {
                prop_assert!((1..=3).contains(&nearest.len()));
                for profiles in nearest {
                    prop_assert!(plan(model, &profiles).is_ok(), "{}", counted(&profiles));
                }
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn an_added_instance_lies_where_it_may(picks in prop::collection::vec((0..7_usize, any::<bool>()), 0..12)) {
        let model = model("A100-80GB");
        let mut layout = Layout::default();
        for (pick, high) in picks {
            let profile = &model.profiles[pick];
            let possible = layout.possible(model, profile);
            let choice = if high { StartChoice::Highest } else { StartChoice::Lowest };
            let added = layout.add(model, profile, choice);
            prop_assert_eq!(added, if high { possible.last() } else { possible.first() }.copied());
            prop_assert!(layout.compute_slices() <= model.compute_slices);
        }
        let slices: usize = layout.instances().iter().map(|instance| usize::from(instance.placement.size)).sum();
        prop_assert_eq!(layout.memory_slices().len(), slices);
    }
}
