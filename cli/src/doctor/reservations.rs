//! Whether what is reserved now is there, or others have it.

use super::{Outcome, Surroundings, first_of};
use crate::commands::reservation::missing;
use gpool_protocol::ReservationState;

pub fn check(host: &Surroundings) -> Outcome {
    let Ok(all) = &host.reservations else {
        return Outcome::skip("the supervisor knows, which does not answer or is older");
    };
    let open: Vec<_> = all.iter().filter(|its| its.state == ReservationState::Open).collect();
    let short: Vec<String> = open
        .iter()
        .filter(|its| !its.is_whole())
        .map(|its| format!("reservation {} lacks {}", its.name, missing(its)))
        .collect();
    match (open.len(), short.is_empty()) {
        (0, _) => Outcome::ok("it is the time of no reservation"),
        (_, true) => Outcome::ok("what is reserved is there"),
        (_, false) => Outcome::warn(
            first_of(&short),
            "gpool reservation ls --format wide says where, gpool ps who is there: what falls free is kept",
        ),
    }
}
