//! What policy finds to be enough, as answers have it.

use super::balance::MINUTE_S;
use super::savings::Place;
use gpool_policy::savings::Stretch;
use gpool_policy::sizing::Enough;
use gpool_protocol::EnoughRequest;
use std::collections::BTreeMap;

/// The same in words of the protocol.
pub fn as_request(enough: Enough) -> EnoughRequest {
    let Enough { gpus, fraction_permille, memory_bytes, is_whole } = enough;
    EnoughRequest { gpus, fraction_permille, memory_bytes, is_whole }
}

/// The lesser of two, of which one may not be known.
pub fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Until when hours alone are known: those before the first minute. What was not written for long is laid into hours as well, and
/// there are minutes before and behind those.
pub fn hours_until(stretches: &BTreeMap<Place, Stretch>) -> Option<u64> {
    let first_minute = stretches.keys().find(|(_, seconds)| *seconds == MINUTE_S).map(|(slot, _)| *slot);
    let ends = stretches.keys().filter(|(_, seconds)| *seconds > MINUTE_S).map(|(slot, seconds)| slot + seconds);
    ends.filter(|end| first_minute.is_none_or(|first| *end <= first)).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_between_minutes_is_of_an_outage() {
        let until = |places: &[Place]| hours_until(&places.iter().map(|place| (*place, Stretch::default())).collect());
        assert_eq!(until(&[(0, 3600), (3600, 3600), (7200, 60), (7200, 3600), (10_800, 60)]), Some(7200));
        assert_eq!((until(&[(60, 60), (3600, 3600)]), until(&[(0, 3600)]), until(&[])), (None, Some(3600), None));
        assert_eq!((least(Some(2), Some(1)), least(None, Some(3)), least(None, None)), (Some(1), Some(3), None));
    }
}
