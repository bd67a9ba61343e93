//! What policy finds to be enough, as answers have it.

use gpool_policy::sizing::Enough;
use gpool_protocol::EnoughRequest;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_not_the_least() {
        assert_eq!((least(Some(2), Some(1)), least(None, Some(3)), least(None, None)), (Some(1), Some(3), None));
    }
}
