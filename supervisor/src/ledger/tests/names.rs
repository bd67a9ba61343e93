//! What nobody has is no answer of zeros.

use super::super::names::Present;
use super::super::question::Scope;
use super::*;

#[test]
fn a_name_that_no_lease_has_and_a_gpu_that_was_never_there_are_refused() {
    let (_folder, path) = in_folder();
    let mut life = Life::begin(&path, "a", 0);
    life.enter(0, &[]);
    let mut paid = lease("01", "red", 10, S);
    (paid.facts.project, paid.facts.cost_center) = (Some("mars".into()), Some("4711".into()));
    life.enter(10, &[paid, lease("02", "", 10, S)]);
    let rates = Rates::default();
    let reader = Reader::open(&path, &rates).unwrap();
    let check = |query: &str| reader.check(&Scope::read(query, BEGUN_S).unwrap(), &Present::default());
    for known in
        ["", "team=red", "team=&project=&cost-center=", "project=mars", "cost-center=4711", "gpu=GPU-1", "gpu=GPU"]
    {
        assert!(check(known).is_ok(), "{known}");
    }
    for (query, message, remedy) in [
        ("team=reed", "no lease has team=reed", "there are: red"),
        ("project=venus", "no lease has project=venus", "there are: mars"),
        ("cost-center=471", "no lease has cost-center=471", "there are: 4711"),
        ("gpu=GPU-9", "the ledger has no GPU whose UUID begins with GPU-9", "there are: GPU-1"),
    ] {
        let refused = check(query).unwrap_err();
        assert_eq!((refused.message.as_str(), refused.remedy.as_str()), (message, remedy));
    }
}
