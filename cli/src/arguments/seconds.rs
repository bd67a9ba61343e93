//! Times that may be written without a unit, as seconds.

use gpool_protocol::parse_time;
use std::time::Duration;

/// Below that, looking again and again would load the host.
const LEAST: Duration = Duration::from_millis(50);
/// The longest test of a GPU.
const LONGEST_TEST_SECONDS: u64 = 3600;

/// `5`, `0.5`, `0.5s`, `90s` or `10m`.
pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.strip_suffix('s').unwrap_or(text).parse().ok();
    let bare = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let time = bare.or_else(|| parse_time(text).ok().map(Duration::from_secs));
    let help = "write seconds, 0.05 or more, or a time with its unit, 90s, 10m or 1h";
    time.filter(|time| *time >= LEAST).ok_or_else(|| help.to_owned())
}

/// For how long a GPU is tested, in seconds.
pub(super) fn parse_test_seconds(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok().or_else(|| parse_time(text).ok());
    let help = "write seconds, or a time with its unit, 90s or 10m; at least 1s, at most 1h";
    seconds.filter(|seconds| (1..=LONGEST_TEST_SECONDS).contains(seconds)).ok_or_else(|| help.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_without_a_unit_is_seconds() {
        for (text, ms) in
            [("5", 5000), ("0.5", 500), ("0.5s", 500), ("0.05", 50), ("90s", 90_000), ("1h30m", 5_400_000)]
        {
            assert_eq!(parse_seconds(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "0", "0.04", "-1", "-1s", "10min", "1.5h", "m", "nan", "inf", "5 5"] {
            assert!(parse_seconds(text).unwrap_err().contains("10m"), "{text}");
        }
        assert_eq!(
            (parse_test_seconds("60"), parse_test_seconds("1m"), parse_test_seconds("1h")),
            (Ok(60), Ok(60), Ok(3600))
        );
        for text in ["", "0", "0.5", "3601", "2h", "-1", "1min"] {
            assert!(parse_test_seconds(text).unwrap_err().contains("10m"), "{text}");
        }
    }
}
