//! How a GPU is shared: each row, each gate, each trap, and that asking for more never gives less.

mod gates;
mod inside;
mod monotone;
mod rows;
mod traps;

use gpool_policy::mechanism::{Ask, Decision, Gpu, Host, MigInstance, MigState, choose};
use gpool_policy::mig::{Instance, Layout, Model, StartChoice};

fn model(name: &str) -> &'static Model {
    Model::named(name).unwrap()
}

/// A host with idle GPUs of these models, named g0, g1 and so on.
fn host(models: &[&str]) -> Host {
    Host::with(models.iter().enumerate().map(|(index, name)| Gpu::idle(&format!("g{index}"), model(name))).collect())
}

/// Instances of these profiles, nobody's yet.
fn divided(model_name: &str, profiles: &[&str]) -> MigState {
    let model = model(model_name);
    let mut layout = Layout::default();
    for profile in profiles {
        layout.add(model, model.profile(profile).unwrap(), StartChoice::Highest).unwrap();
    }
    let instance = |instance: &Instance| MigInstance::free(*instance);
    MigState { is_on: true, owner: None, instances: layout.instances().iter().map(instance).collect() }
}

/// The row and the mechanism, in words; of a refusal its causes.
fn answer(ask: &Ask, host: &Host) -> String {
    let decision = choose(ask, host);
    match &decision.choice {
        Some(choice) => format!("{} {}", choice.row, choice.mechanism.word()),
        None => format!("refused: {}", decision.causes().join(" | ")),
    }
}

fn why(decision: &Decision, row: &str) -> String {
    decision
        .failed
        .iter()
        .find(|outcome| outcome.row.word() == row)
        .map(|outcome| outcome.why.clone())
        .unwrap_or_default()
}
