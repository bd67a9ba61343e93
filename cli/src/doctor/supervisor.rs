//! The supervisor answers, and is of the same build as this program.

use super::{Outcome, Surroundings};

pub fn check(host: &Surroundings) -> Outcome {
    let own = gpool_protocol::version();
    match &host.info {
        Err(error) => Outcome::fail(error.message.clone(), error.remedy.clone()),
        Ok(info) if info.version != own => Outcome::warn(
            format!("version {} answers as process {}, and this program is of version {own}", info.version, info.pid),
            "install the same release of both; running containers are taken over when the supervisor is started again",
        ),
        Ok(info) => Outcome::ok(format!("version {} answers as process {}", info.version, info.pid)),
    }
}
