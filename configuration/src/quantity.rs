//! Amounts of GPUs, of their time and of memory as the file writes them, read without floats. gpool-protocol, which this package does not depend
//! on, reads sizes the same way; a test holds the two against each other.

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::marker::PhantomData;

/// GPUs, or a part of one, in thousandths: `"2.5"` or 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct GpuAmount {
    /// Thousandths of a GPU.
    pub permille: u64,
}

/// Memory: `"80GiB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct MemoryAmount {
    /// Bytes.
    pub bytes: u64,
}

/// GPU time in each day, week or month: `"500/month"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct GpuHours {
    /// Thousandths of an hour of a GPU.
    pub hour_permille: u64,
    /// In which time.
    pub period: Period,
}

/// A time that comes again and again, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Period {
    /// From midnight on.
    Day,
    /// From Monday on, as in ISO 8601.
    Week,
    /// From the first on.
    Month,
}

impl Period {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Day, Self::Week, Self::Month];

    /// In the file.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }
}

/// No host has so many GPUs.
const GPUS_MOST: u64 = 100_000;
/// Nor so many hours of them in a month: their nanoseconds fit.
const HOURS_MOST: u64 = 1_000_000;
/// What is below is a number whose unit was forgotten, in bytes.
const LEAST_BYTES: u64 = 1 << 20;
const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];

/// An amount that is read from its text.
pub trait Amount: Sized {
    /// What to write.
    const FORM: &'static str;

    /// None for what is none.
    fn read(text: &str) -> Option<Self>;
}

/// A decimal number without sign, with at most so many decimals, in units of its last one.
pub fn decimal(text: &str, decimals: usize) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || part.len() > decimals {
        return None;
    }
    format!("{whole}{part:0<decimals$}").parse().ok()
}

/// So many thousandths, as short as they are.
pub fn thousandths(permille: u64) -> String {
    let text = format!("{}.{:03}", permille / 1000, permille % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Amount for GpuAmount {
    const FORM: &'static str = "write GPUs with at most three decimals, in quotes, for example \"2.5\"";

    fn read(text: &str) -> Option<Self> {
        decimal(text, 3).filter(|permille| permille / 1000 <= GPUS_MOST).map(|permille| Self { permille })
    }
}

impl Amount for MemoryAmount {
    const FORM: &'static str =
        "write a whole number with B, KiB, MiB, GiB or TiB, 1MiB at least, in quotes, for example \"80GiB\"";

    fn read(text: &str) -> Option<Self> {
        let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(end);
        let unit = unit.trim().to_ascii_lowercase();
        // 4G and 4GB are what 4GiB is, as in requests; a bare number is bytes.
        let is_it = |name: &str| unit == name || unit == name.replace('i', "") || unit == name.replace("ib", "");
        let shift = UNITS.iter().find(|(name, _)| is_it(&name.to_ascii_lowercase())).map(|(_, shift)| *shift);
        let shift = if unit.is_empty() { Some(0) } else { shift };
        let bytes = digits.parse::<u64>().ok()?.checked_mul(1 << shift?)?;
        (bytes >= LEAST_BYTES).then_some(Self { bytes })
    }
}

impl Amount for GpuHours {
    const FORM: &'static str =
        "write hours of a GPU with at most three decimals and day, week or month, for example \"500/month\"";

    fn read(text: &str) -> Option<Self> {
        let (hours, period) = text.split_once('/')?;
        let period = Period::ALL.into_iter().find(|its| its.text() == period.trim())?;
        let hour_permille = decimal(hours.trim(), 3).filter(|permille| permille / 1000 <= HOURS_MOST)?;
        Some(Self { hour_permille, period })
    }
}

impl From<GpuAmount> for String {
    fn from(amount: GpuAmount) -> Self {
        thousandths(amount.permille)
    }
}

impl From<MemoryAmount> for String {
    /// In the largest unit of which it is a whole number.
    fn from(amount: MemoryAmount) -> Self {
        let exact = UNITS.iter().find(|(_, shift)| amount.bytes.is_multiple_of(1 << shift));
        exact.map_or_else(|| amount.bytes.to_string(), |(name, shift)| format!("{}{name}", amount.bytes >> shift))
    }
}

impl From<GpuHours> for String {
    fn from(amount: GpuHours) -> Self {
        format!("{}/{}", thousandths(amount.hour_permille), amount.period.text())
    }
}

impl fmt::Display for GpuAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from(*self))
    }
}

impl<'de> Deserialize<'de> for GpuAmount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader::default())
    }
}

impl<'de> Deserialize<'de> for GpuHours {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader::default())
    }
}

impl<'de> Deserialize<'de> for MemoryAmount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader::default())
    }
}

/// Takes a text or a whole number. A number with decimals would have to be read as a float.
pub struct Reader<A>(PhantomData<A>);

impl<A> Default for Reader<A> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<A: Amount> Reader<A> {
    fn read<E: Error>(text: &str) -> Result<A, E> {
        A::read(text).ok_or_else(|| E::custom(format!("{text:?} is not understood; {}", A::FORM)))
    }
}

impl<A: Amount> Visitor<'_> for Reader<A> {
    type Value = A;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(A::FORM)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<A, E> {
        Self::read(text)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<A, E> {
        Self::read(&number.to_string())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<A, E> {
        Err(E::custom(format!("{number} stands there without quotes; {}", A::FORM)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_read_exactly_and_written_as_short_as_they_are() {
        for (text, permille, written) in [
            ("2.5", 2500, "2.5"),
            ("0", 0, "0"),
            ("0.001", 1, "0.001"),
            ("4", 4000, "4"),
            ("4.000", 4000, "4"),
            ("10.25", 10_250, "10.25"),
            ("100", 100_000, "100"),
        ] {
            let read = GpuAmount::read(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((read.permille, read.to_string().as_str()), (permille, written), "{text}");
        }
        for text in ["", ".", ".5", "1.", "2,5", "-1", "+1", "2.0005", "1e3", "nan", "100001", "1.5 ", "50%", "\u{663}"]
        {
            assert_eq!(GpuAmount::read(text), None, "{text}");
        }
    }

    #[test]
    fn memory_is_read_exactly_and_written_in_its_largest_unit() {
        for (text, bytes, written) in [
            ("80GiB", 80 << 30, "80GiB"),
            ("4G", 4 << 30, "4GiB"),
            ("4gb", 4 << 30, "4GiB"),
            ("1536 MiB", 1536 << 20, "1536MiB"),
            ("2048MiB", 2 << 30, "2GiB"),
            ("1048577", 1_048_577, "1048577B"),
            ("2t", 2 << 40, "2TiB"),
        ] {
            let read = MemoryAmount::read(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((read.bytes, String::from(read).as_str()), (bytes, written), "{text}");
        }
        for text in
            ["", "0", "80", "GiB", "4.5GiB", "-4GiB", "4XB", "25%", "1023KiB", "99999999999999999999", "20000000T"]
        {
            assert_eq!(MemoryAmount::read(text), None, "{text}");
        }
    }
}
