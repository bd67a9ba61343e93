//! Moments as people write them.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, civil};

/// A moment, or so many seconds before now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Seconds ago.
    Ago(u64),
    /// Seconds since 1970.
    At(u64),
}

impl When {
    /// In seconds since 1970, if it is `now_s` now.
    pub fn unix_s(self, now_s: u64) -> u64 {
        match self {
            Self::Ago(seconds) => now_s.saturating_sub(seconds),
            Self::At(unix_s) => unix_s,
        }
    }
}

pub(super) fn parse_when(text: &str) -> Result<When, String> {
    let help = "write 90m, 24h, 7d or 4w, or a moment of UTC such as 2026-11-01 or 2026-11-01T08:30";
    ago(text).map(When::Ago).or_else(|| moment(text).map(When::At)).ok_or_else(|| help.to_owned())
}

fn ago(text: &str) -> Option<u64> {
    let unit = text.chars().last()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        'w' => 7 * 86_400,
        _ => return None,
    };
    let number = text.strip_suffix(unit)?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(seconds)
}

fn moment(text: &str) -> Option<u64> {
    let of_utc = |moment: DateTime| moment.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp());
    let date = || text.parse::<civil::Date>().ok().filter(|_| !text.contains('T'));
    let moment = text.parse::<Timestamp>().ok();
    let moment = moment.or_else(|| date().and_then(|date| of_utc(date.at(0, 0, 0, 0))));
    let moment = moment.or_else(|| text.parse::<DateTime>().ok().and_then(of_utc))?;
    u64::try_from(moment.as_second()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_ago_or_a_moment_of_utc() {
        for (text, when) in [
            ("90m", When::Ago(5400)),
            ("24h", When::Ago(86_400)),
            ("4w", When::Ago(4 * 7 * 86_400)),
            ("2026-11-01", When::At(1_793_491_200)),
            ("2026-11-01T08:30", When::At(1_793_521_800)),
            ("2026-11-01T08:30:05Z", When::At(1_793_521_805)),
            ("2026-11-01T08:30:05+01:00", When::At(1_793_518_205)),
        ] {
            assert_eq!(parse_when(text), Ok(when), "{text}");
        }
        for text in ["", "h", "-1h", "+3d", "yesterday", "1.5h", "2026-13-01", "99999999999999999999w", "1900-01-01"] {
            assert!(parse_when(text).unwrap_err().contains("24h"), "{text}");
        }
        assert_eq!((When::Ago(60).unix_s(100), When::Ago(60).unix_s(10), When::At(7).unix_s(1)), (40, 0, 7));
    }
}
