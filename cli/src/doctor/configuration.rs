//! The configuration file can be used.

use super::{Outcome, Surroundings};

pub fn check(host: &Surroundings) -> Outcome {
    let path = host.configuration_path.display();
    match &host.configuration {
        Ok(_) if host.configuration_files.len() > 1 => {
            Outcome::ok(format!("{path} and {} drop-in(s) can be used", host.configuration_files.len() - 1))
        }
        Ok(_) if host.configuration_path.exists() => Outcome::ok(format!("{path} can be used")),
        Ok(_) => Outcome::ok(format!("{path} is not there, and every key has its default")),
        Err(error) => Outcome::fail(
            error.to_string().lines().collect::<Vec<_>>().join(" "),
            "correct the line; gpool config validate checks the files",
        ),
    }
}
