//! Amounts of money as they are written: exact for programs, to the hundredth for people.

/// Billionths in one.
const NANOS: u128 = 1_000_000_000;

/// To the hundredth, halves away from zero.
pub fn rounded(nanos: impl Into<i128>) -> String {
    let nanos = nanos.into();
    let hundredths = (nanos.unsigned_abs() + 5_000_000) / 10_000_000;
    let sign = if nanos < 0 && hundredths > 0 { "-" } else { "" };
    format!("{sign}{}.{:02}", hundredths / 100, hundredths % 100)
}

/// All of it, without zeros at the end: `2.5`, `0.000000001`.
pub fn exact(nanos: u64) -> String {
    decimal(nanos.into(), NANOS)
}

/// Of millionths.
pub fn exact_micros(micros: u64) -> String {
    decimal(u128::from(micros) * 1000, NANOS)
}

/// Hours of so many nanoseconds, without zeros at the end: to so many decimals that a price times this is the cost.
pub fn exact_hours(ns: u64) -> String {
    const HOUR_NS: u128 = 3_600_000_000_000;
    const PARTS: u128 = 1_000_000_000_000_000;
    decimal((u128::from(ns) * PARTS + HOUR_NS / 2) / HOUR_NS, PARTS)
}

/// `of` is a power of ten.
fn decimal(parts: u128, of: u128) -> String {
    let decimals = of.ilog10() as usize;
    let text = format!("{}.{:0decimals$}", parts / of, parts % of);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_hundredths_and_programs_all_of_it() {
        let texts = [2_500_000_000_i128, 5_000_000, 4_999_999, -1_005_000_000, -1, 0].map(rounded);
        assert_eq!(texts, ["2.50", "0.01", "0.00", "-1.01", "0.00", "0.00"]);
        assert_eq!([2_500_000_000, 1, 0, 10_000_000_000].map(exact), ["2.5", "0.000000001", "0", "10"]);
        assert_eq!(
            (exact_micros(3_100_000), exact_hours(5_400_000_000_000), exact_hours(36)),
            ("3.1".into(), "1.5".into(), "0.00000000001".into())
        );
    }
}
