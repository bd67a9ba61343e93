//! What a phase of a rollout opens.

use super::{answer, divided, host};
use gpool_policy::mechanism::{Ask, Isolation, Phase, Pool, Workload};

/// One GPU with instances and one without.
fn both(phase: Phase) -> gpool_policy::mechanism::Host {
    let mut here = host(&["A100-80GB", "A100-80GB"]);
    here.gpus[0].mig = divided("A100-80GB", &["3g.40gb", "3g.40gb"]);
    here.phase = Some(phase);
    here
}

#[test]
fn development_has_slices_and_the_drivers_own() {
    let mut here = both(Phase::Dev);
    assert_eq!(answer(&Ask::of(300), &here), "A8 slice");
    here.pool = Pool::TimeSlice;
    assert_eq!(answer(&Ask::of(300), &here), "A11 timeslice");
    let strict = Ask { isolation: Isolation::Hardware, ..Ask::of(300) };
    assert_eq!(answer(&strict, &here), "A3 exclusive", "an instance is not open, a whole GPU always");
}

#[test]
fn batch_has_instances_and_slices() {
    let here = both(Phase::Batch);
    assert_eq!(answer(&Ask::of(300), &here), "A8 slice");
    assert_eq!(answer(&Ask { isolation: Isolation::Hardware, ..Ask::of(300) }, &here), "A3 mig");
    let mut forced = both(Phase::Batch);
    forced.pool = Pool::TimeSlice;
    assert!(answer(&Ask::of(300), &forced).starts_with("refused"), "the driver's slices are for development");
}

#[test]
fn inference_in_the_house_has_the_latency_class() {
    let here = both(Phase::NonprodInference);
    let online = Ask { workload: Workload::InferOnline, ..Ask::of(300) };
    assert_eq!(answer(&online, &here), "A7 slice");
    let text = answer(&Ask::of(300), &here);
    assert!(text.contains("slices is not open in the phase nonprod-inference"), "{text}");
    assert_eq!(answer(&Ask { isolation: Isolation::Hardware, ..Ask::of(300) }, &here), "A3 mig");
}

#[test]
fn inference_for_customers_has_instances() {
    let here = both(Phase::ProdInference);
    let online = Ask { workload: Workload::InferOnline, p99_ms: Some(8), ..Ask::of(300) };
    assert_eq!(answer(&online, &here), "A5 mig", "the pool is what makes it production");
    assert!(answer(&Ask { p99_ms: Some(80), ..online }, &here).starts_with("refused"));
    assert_eq!(answer(&Ask::of(1000), &here), "A2 exclusive");
}
