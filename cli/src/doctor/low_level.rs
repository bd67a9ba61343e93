//! There is a low-level runtime to hand containers on to.

use super::{Outcome, Surroundings};

pub fn check(host: &Surroundings) -> Outcome {
    let candidates = host.configuration().runtime.low_level;
    let found = candidates.iter().find(|path| host.path(&path.display().to_string()).is_file());
    let all: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
    match found {
        Some(path) => Outcome::ok(format!("{} is used", path.display())),
        None => Outcome::fail(
            format!("none of runtime.low_level is there: {}", all.join(", ")),
            "install runc or crun, or name the low-level runtime in [runtime] low_level of the configuration",
        ),
    }
}
