//! Shares and sizes as people write them, parsed without floats.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Why a share or a size could not be read. Its text says what is accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantityError(String);

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for QuantityError {}

/// A cap on device memory: absolute, or relative to the GPU that is chosen later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryCap {
    /// So many bytes.
    Bytes(u64),
    /// Thousandths of the GPU's memory.
    Permille(u16),
}

impl MemoryCap {
    /// Reads `4GiB`, `4G`, `4096MiB`, plain bytes, or `25%`.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        match text.trim().strip_suffix('%') {
            None => parse_bytes(text).map(MemoryCap::Bytes),
            Some(percent) => match parse_decimal(percent.trim(), 1) {
                Some(permille @ 1..=1000) => Ok(MemoryCap::Permille(permille as u16)),
                _ => Err(QuantityError("a percentage lies between 0.1% and 100%, with at most one decimal".into())),
            },
        }
    }

    /// The cap in bytes on a GPU with `total_bytes` of memory.
    pub fn bytes_of(self, total_bytes: u64) -> u64 {
        match self {
            MemoryCap::Bytes(bytes) => bytes,
            MemoryCap::Permille(permille) => (u128::from(total_bytes) * u128::from(permille) / 1000) as u64,
        }
    }
}

/// Reads a share of one GPU, 0.01 to 1 with at most three decimals (`0.3`, `.125`, `1`), as permille.
///
/// `30%` is accepted as well, because people write it.
pub fn parse_permille(text: &str) -> Result<u16, QuantityError> {
    let text = text.trim();
    let parsed = match text.strip_suffix('%') {
        Some(percent) => parse_decimal(percent.trim(), 1),
        None => parse_decimal(text, 3),
    };
    match parsed {
        Some(permille @ 10..=1000) => Ok(permille as u16),
        _ => Err(QuantityError("a share lies between 0.01 and 1, with at most three decimals, for example 0.3".into())),
    }
}

/// Nobody waits for room, or says for how long he runs, for longer, in seconds: a year.
pub const LONGEST_SECONDS: u64 = 365 * 86_400;

/// Reads a time, `90s`, `5m`, `1h30m` or `2d`, as seconds. A number needs its unit, but for `0`.
pub fn parse_time(text: &str) -> Result<u64, QuantityError> {
    let wrong = || QuantityError("a time is written with its unit, 90s, 5m, 1h30m or 2d, at most 365d".into());
    let (mut rest, mut sum, mut last_unit) = (text.trim(), 0u64, u64::MAX);
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let unit = match tail.bytes().next() {
            Some(b's') => 1,
            Some(b'm') => 60,
            Some(b'h') => 3600,
            Some(b'd') => 86_400,
            _ => return Err(wrong()),
        };
        // The larger unit first and each once, as people write it.
        let number: u64 = number.parse().ok().filter(|_| unit < last_unit).ok_or_else(wrong)?;
        let part = number.checked_mul(unit).ok_or_else(wrong)?;
        sum = sum.checked_add(part).filter(|sum| *sum <= LONGEST_SECONDS).ok_or_else(wrong)?;
        (rest, last_unit) = (&tail[1..], unit);
    }
    Ok(sum)
}

/// Seconds as people write them, `90s` as `1m30s`: the two largest units.
pub fn format_seconds(seconds: u64) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let (mut rest, mut parts) = (seconds, Vec::new());
    for (unit, name) in units {
        if rest >= unit || !parts.is_empty() {
            parts.push((rest / unit, name));
            rest %= unit;
        }
    }
    parts.truncate(2);
    let text: String =
        parts.into_iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count}{name}")).collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Reads how long something short takes, `20ms`, `2.5ms`, `800us` or `1s`, as nanoseconds.
pub fn parse_short_time(text: &str) -> Result<u64, QuantityError> {
    let text = text.trim();
    let units = [("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000_u64)];
    let parsed = units.iter().find_map(|(name, unit_ns)| {
        let number = text.strip_suffix(name)?;
        parse_decimal(number.trim_end(), 3)?.checked_mul(unit_ns / 1000)
    });
    parsed.ok_or_else(|| QuantityError("a time is written with its unit, for example 20ms, 2.5ms or 1s".into()))
}

/// Nanoseconds as people read them of something short: `0.42ms`, `14.2ms`, `3.1s`.
pub fn format_short_time(ns: u64) -> String {
    let (unit, name) = if ns < 1_000_000_000 { (1_000_000, "ms") } else { (1_000_000_000, "s") };
    let (whole, hundredths) = (ns / unit, ns % unit / (unit / 100));
    match (whole, hundredths) {
        (_, 0) => format!("{whole}{name}"),
        (0, _) => format!("0.{hundredths:02}{name}"),
        (1..100, 10..) => format!("{whole}.{}{name}", hundredths / 10),
        _ => format!("{whole}{name}"),
    }
}

/// `digits[.digits]` scaled by ten to the power of `decimals`; none for anything else.
fn parse_decimal(text: &str, decimals: usize) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let only_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !only_digits(whole) || !only_digits(fraction) {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > decimals || whole.len() > 12 {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let scaled: u64 = format!("{fraction:0<decimals$}0").parse().ok()?;
    whole.checked_mul(10u64.checked_pow(decimals as u32)?)?.checked_add(scaled / 10)
}

/// The smallest size that anybody means, in bytes: what is below is a number whose unit was forgotten.
pub const LEAST_BYTES: u64 = 1 << 20;

/// Reads a size: `4GiB`, `4G` and `4GB` all mean 4 x 2^30 bytes, as docker's `--memory` does; plain digits are bytes.
///
/// # Errors
/// Anything else, and what is below [`LEAST_BYTES`].
pub fn parse_bytes(text: &str) -> Result<u64, QuantityError> {
    let bad = || {
        QuantityError("a size is a whole number with an optional unit B, KiB, MiB, GiB or TiB, for example 4GiB".into())
    };
    let text = text.trim();
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let number: u64 = digits.parse().map_err(|_| bad())?;
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(bad()),
    };
    let bytes = number.checked_mul(1u64 << shift).ok_or_else(bad)?;
    match bytes {
        ..LEAST_BYTES => Err(QuantityError("a size is at least 1MiB; write 4GiB; a bare number is bytes".into())),
        _ => Ok(bytes),
    }
}

/// A size for people: whole MiB below 10 GiB are shown as `4096MiB` only when they are no round GiB.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    for (size, name) in UNITS {
        if bytes >= size {
            let tenths = (u128::from(bytes) * 10 / u128::from(size)) as u64;
            return if bytes.is_multiple_of(size) || tenths.is_multiple_of(10) {
                format!("{}{name}", tenths / 10)
            } else {
                format!("{}.{}{name}", tenths / 10, tenths % 10)
            };
        }
    }
    format!("{bytes}B")
}

/// A share for people: `30 %`, `12.5 %`.
pub fn format_permille(permille: u64) -> String {
    if permille.is_multiple_of(10) {
        format!("{} %", permille / 10)
    } else {
        format!("{}.{} %", permille / 10, permille % 10)
    }
}

/// Nanoseconds of a GPU as hours of one, for people, rounded down to thousandths: `312.5`.
pub fn format_gpu_hours(gpu_ns: u64) -> String {
    format_gpus(gpu_ns / 3_600_000_000)
}

/// Thousandths of a GPU as GPUs, for people: `2.5`, `0.75`, `4`.
pub fn format_gpus(permille: u64) -> String {
    let text = format!("{}.{:03}", permille / 1000, permille % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_are_read_exactly() {
        for (text, want) in [("0.3", 300), (".125", 125), ("1", 1000), ("1.000", 1000), ("0.01", 10), ("30%", 300)] {
            assert_eq!(parse_permille(text), Ok(want), "{text}");
        }
        for text in ["", ".", "0", "0.009", "1.001", "0.1234", "-0.3", "+0.3", "3e-1", "nan", "inf", "0,3", "0x1", "٣"]
        {
            assert!(parse_permille(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_read_exactly() {
        for (text, want) in
            [("4GiB", 4 << 30), ("4G", 4 << 30), ("512 MiB", 512 << 20), ("1048576", 1 << 20), ("1t", 1 << 40)]
        {
            assert_eq!(parse_bytes(text), Ok(want), "{text}");
        }
        for text in ["", "0", "-1", "4.5GiB", "4XB", "99999999999999999999", "20000000T", "GiB"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        for text in ["0", "1", "4", "4096", "1048575", "1023KiB", "4B"] {
            let error = parse_bytes(text).unwrap_err().to_string();
            assert!(error.contains("write 4GiB; a bare number is bytes"), "{text}: {error}");
            assert_eq!(MemoryCap::parse(text).unwrap_err().to_string(), error);
        }
        assert_eq!(MemoryCap::parse("25%"), Ok(MemoryCap::Permille(250)));
        assert_eq!(MemoryCap::Permille(250).bytes_of(24 << 30), 6 << 30);
        assert!(MemoryCap::parse("0%").is_err());
        assert!(MemoryCap::parse("101%").is_err());
    }

    #[test]
    fn gpus_are_written_as_short_as_they_are() {
        let written = [0, 1, 500, 1000, 2500, 10_250, 100_000].map(format_gpus);
        assert_eq!(written, ["0", "0.001", "0.5", "1", "2.5", "10.25", "100"]);
    }

    #[test]
    fn times_have_a_unit() {
        for (text, want) in [("90s", 90), (" 5m ", 300), ("1h30m", 5400), ("2d", 172_800), ("0", 0), ("0s", 0)] {
            assert_eq!(parse_time(text), Ok(want), "{text}");
        }
        for text in ["", "5", "m", "5m5", "5m1h", "5m5m", "-5m", "1.5h", "366d", "99999999999999999999s", "5 m", "5w"] {
            let error = parse_time(text).unwrap_err().to_string();
            assert!(error.contains("with its unit"), "{text}: {error}");
        }
        let written = [0, 59, 90, 3600, 5400, 86_399, 90_061].map(format_seconds);
        assert_eq!(written, ["0s", "59s", "1m30s", "1h", "1h30m", "23h59m", "1d1h"]);
    }

    #[test]
    fn short_times_have_a_unit() {
        for (text, ns) in [
            ("20ms", 20_000_000),
            ("2.5ms", 2_500_000),
            (" 800us ", 800_000),
            ("1s", 1_000_000_000),
            ("0.5 s", 500_000_000),
        ] {
            assert_eq!(parse_short_time(text), Ok(ns), "{text}");
        }
        for text in ["", "20", "ms", "-1ms", "1m", "20 m s", "1.2345ms", "99999999999999999999s", "1e3ms"] {
            let error = parse_short_time(text).unwrap_err().to_string();
            assert!(error.contains("with its unit"), "{text}: {error}");
        }
        let written =
            [0, 420_000, 20_000_000, 14_155_776, 2_050_000, 250_700_000, 3_140_000_000].map(format_short_time);
        assert_eq!(written, ["0ms", "0.42ms", "20ms", "14.1ms", "2ms", "250ms", "3.1s"]);
    }

    proptest! {
        #[test]
        fn every_permille_reads_back(permille in 10u16..=1000) {
            let text = format!("{}.{:03}", permille / 1000, permille % 1000);
            prop_assert_eq!(parse_permille(&text), Ok(permille));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,24}") {
            let _ = parse_permille(&text);
            let _ = MemoryCap::parse(&text);
            let _ = parse_time(&text);
        }
    }
}
