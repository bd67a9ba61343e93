//! Which of the driver's entry points take part in what a lease counts and are not counted.

use super::{Outcome, Surroundings, first_of};

pub fn check(host: &Surroundings) -> Outcome {
    let Ok(driver) = &host.driver else { return Outcome::skip("the supervisor knows, which does not answer") };
    let remedy = "update gpool; a program that calls them holds or uses more than its account says, which NVML's figures \
                  show and the guard tells";
    let mut parts = Vec::new();
    if !driver.uncounted.is_empty() {
        parts.push(format!("{} calls are not counted: {}", driver.uncounted.len(), first_of(&driver.uncounted)));
    }
    if !driver.unclassified.is_empty() {
        let names = first_of(&driver.unclassified);
        parts
            .push(format!("{} are newer than this version of gpool and not known: {names}", driver.unclassified.len()));
    }
    if parts.is_empty() { Outcome::ok("none") } else { Outcome::warn(parts.join("; "), remedy) }
}
