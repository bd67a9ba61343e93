//! `gpool charges`

use super::scope::{ContainerOption, ScopeOptions};
use clap::{Args, ValueEnum};
use jiff::ToSpan;
use jiff::civil::Date;
use jiff::tz::TimeZone;

/// What is charged for, and how it is written.
#[derive(Debug, Clone, Args)]
pub struct ChargesOptions {
    /// A month of UTC, 2026-11, in place of since and until
    #[arg(long, value_name = "MONTH", value_parser = parse_month, conflicts_with_all = ["since", "until"])]
    pub month: Option<Month>,
    /// Of what.
    #[command(flatten)]
    pub scope: ScopeOptions,
    /// Of which container.
    #[command(flatten)]
    pub of: ContainerOption,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: ChargesFormat,
    /// Who bills, for the columns of FOCUS that name it [default: this host's name]
    #[arg(long, value_name = "NAME")]
    pub site: Option<String>,
}

/// How a bill is printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ChargesFormat {
    /// For people
    #[default]
    Table,
    /// For people, with every column
    Wide,
    /// For programs: nanoseconds, and millionths and billionths of the currency, as integers
    Json,
    /// For programs and spreadsheets: the same figures, with a header line, and costs as decimal numbers
    Csv,
    /// For programs of finance: CSV with the columns of FOCUS 1.2
    Focus,
}

/// A month of UTC, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Month {
    /// When it begins.
    pub begins_unix_s: u64,
    /// When the next one does.
    pub ends_unix_s: u64,
}

impl Month {
    /// From when until when, as [`super::scope::SpanOptions::unix_s`] says it: one that is not over, until now.
    pub fn unix_s(self, now_unix_s: u64) -> (u64, Option<u64>) {
        (self.begins_unix_s, (self.ends_unix_s <= now_unix_s).then_some(self.ends_unix_s))
    }
}

pub(super) fn parse_month(text: &str) -> Result<Month, String> {
    let help = || "write a month of UTC, for example 2026-11".to_owned();
    let is_plain = text.len() == "2026-11".len() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    let first: Date = format!("{text}-01").parse().ok().filter(|_| is_plain).ok_or_else(help)?;
    let unix_s = |day: Date| {
        let begins = day.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second();
        u64::try_from(begins).ok()
    };
    let next = first.checked_add(1.month()).ok();
    let (begins, ends) = (unix_s(first), next.and_then(unix_s));
    begins.zip(ends).map(|(begins_unix_s, ends_unix_s)| Month { begins_unix_s, ends_unix_s }).ok_or_else(help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_ends_where_the_next_begins() {
        let month = |begins_unix_s, ends_unix_s| Ok(Month { begins_unix_s, ends_unix_s });
        assert_eq!(parse_month("2026-11"), month(1_793_491_200, 1_796_083_200));
        assert_eq!(parse_month("2026-12").unwrap().ends_unix_s, parse_month("2027-01").unwrap().begins_unix_s);
        for text in ["2026-13", "2026-1", "2026", "11-2026", "2026-11-01", "1969-01", "", "last"] {
            assert!(parse_month(text).unwrap_err().contains("2026-11"), "{text}");
        }
        let november = parse_month("2026-11").unwrap();
        assert_eq!(november.unix_s(1_796_083_199), (1_793_491_200, None), "until now");
        assert_eq!(november.unix_s(1_796_083_200), (1_793_491_200, Some(1_796_083_200)));
    }
}
