//! Whether this host can do what its configuration has it suspend containers for.

use super::{Outcome, Surroundings, first_of};
use gpool_configuration::{Configuration, IdleAction, PreemptionAction};
use gpool_policy::suspension::is_old_driver;

pub fn check(host: &Surroundings) -> Outcome {
    let configuration = host.configuration();
    let asked = asked_by(&configuration);
    if asked.is_empty() {
        return Outcome::ok("nothing in config.toml has containers suspended; gpool suspend does it by hand");
    }
    if configuration.queue.places == 0 {
        return Outcome::warn(
            format!("{} suspends nobody: [queue] places = 0 lets nobody wait for room", first_of(&asked)),
            "let queue.places in config.toml be more than 0, or take the key out",
        );
    }
    let Ok(driver) = &host.driver else { return Outcome::skip("the supervisor knows, which does not answer") };
    if is_old_driver(&driver.version) {
        return Outcome::warn(
            format!("driver {} has no checkpoint calls, which {} needs", driver.version, first_of(&asked)),
            "install a driver of 570 or newer, or write what should happen without: \
             idle_action = \"yield\", preemption.action = \"revoke\"",
        );
    }
    Outcome::ok(format!("driver {} can do what {} asks", driver.version, first_of(&asked)))
}

/// The keys that have containers suspended, as they are written.
fn asked_by(configuration: &Configuration) -> Vec<String> {
    let classes = configuration.class.all().into_iter().filter(|(_, class)| class.idle_action == IdleAction::Suspend);
    let preemption = &configuration.preemption;
    let preempts = preemption.enabled && preemption.action == PreemptionAction::Suspend;
    classes
        .map(|(name, _)| format!("[class.{name}] idle_action = \"suspend\""))
        .chain(preempts.then(|| "[preemption] action = \"suspend\"".to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::tests::healthy;
    use super::*;

    #[test]
    fn only_what_takes_effect_asks() {
        let mut configuration = Configuration::default();
        configuration.preemption.action = PreemptionAction::Suspend;
        assert_eq!(asked_by(&configuration), Vec::<String>::new());
        configuration.preemption.enabled = true;
        configuration.class.train.idle_action = IdleAction::Suspend;
        let asked = ["[class.train] idle_action = \"suspend\"", "[preemption] action = \"suspend\""];
        assert_eq!(asked_by(&configuration), asked);
    }

    /// What is said on a host with this driver and so many places in the queue, where idle notebooks are to be suspended.
    fn said(driver: &str, places: usize) -> (State, String) {
        let root = tempfile::tempdir().unwrap();
        let mut host = healthy(root.path());
        let configuration = host.configuration.as_mut().unwrap();
        configuration.class.notebook.idle_action = IdleAction::Suspend;
        configuration.queue.places = places;
        host.driver.as_mut().unwrap().version = driver.to_owned();
        let outcome = check(&host);
        (outcome.state, format!("{}; {}", outcome.found, outcome.remedy.unwrap_or_default()))
    }

    #[test]
    fn what_cannot_be_is_said_with_what_to_do() {
        let (state, text) = said("535.261.03", 128);
        assert!(state == State::Warn && text.contains("[class.notebook]") && text.contains("570 or newer"), "{text}");
        let (state, text) = said("580.95.05", 0);
        assert!(state == State::Warn && text.contains("nobody wait") && text.contains("queue.places"), "{text}");
        let (state, text) = said("580.95.05", 128);
        assert!(state == State::Ok && text.contains("580.95.05"), "{text}");
    }
}
