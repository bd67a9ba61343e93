//! `[rates]` and `[team]`: what GPU time costs, and on whose bill a team's is.

use crate::keys::Configuration;
use crate::quantity::{Amount, Reader, decimal, thousandths};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// Beyond that a price is a slip, in millionths: a million for an hour.
const PRICE_MOST_MICROS: u64 = 1_000_000_000_000;
/// The longest name of a currency.
const CURRENCY_LENGTH: usize = 8;

/// `[team.NAME]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Team {
    /// On whose bill its containers are that name no cost center.
    pub cost_center: Option<String>,
    /// How much it may have beside others before it stands behind them in the queue, where what was had counts.
    pub shares: u32,
}

/// The most shares of a team.
pub const SHARES_MAX: u32 = 10_000;

impl Default for Team {
    fn default() -> Self {
        Self { cost_center: None, shares: 1 }
    }
}

/// `[rates]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rates {
    /// What the prices are in.
    pub currency: Currency,
    /// How much of the price is asked for time beyond a guaranteed lease's share.
    pub beyond_share: Part,
    /// How much of it for what leases of lower priorities have.
    pub low_priority: Part,
    /// How much of it is given back for time of a share that others had.
    pub lent_credit: Part,
    /// The prices; which of them holds is for `gpool_policy::rates` to say.
    pub price: Vec<Price>,
}

impl Default for Rates {
    fn default() -> Self {
        let [none, part, whole] = [0, 400, 1000].map(|permille| Part { permille });
        Self {
            currency: Currency("credits".to_owned()),
            beyond_share: whole,
            low_priority: part,
            lent_credit: none,
            price: Vec::new(),
        }
    }
}

/// `[[rates.price]]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Of an hour of a whole GPU.
    pub per_gpu_hour: PricePerHour,
    /// On which GPUs, by words of their names; absent: on every other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// For which team; absent: for every other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    /// From which day on; absent: always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Day>,
}

/// What an hour of a GPU costs: `"2.50"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct PricePerHour {
    /// Millionths of the currency.
    pub micros: u64,
}

/// A part of something, up to all of it: `"0.4"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct Part {
    /// Thousandths.
    pub permille: u16,
}

/// A day of UTC: `"2026-01-31"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "String")]
pub struct Day {
    date: Date,
}

/// What prices are in: a currency's code in ISO 4217, `"EUR"`, or a word of the house, `"credits"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Currency(pub String);

impl Day {
    /// When it begins, Unix seconds; 0 for those before 1970.
    #[must_use]
    pub fn unix_s(self) -> u64 {
        let begins = self.date.to_zoned(TimeZone::UTC).map(|begins| begins.timestamp().as_second());
        begins.ok().and_then(|unix_s| u64::try_from(unix_s).ok()).unwrap_or(0)
    }
}

impl Amount for PricePerHour {
    const FORM: &'static str =
        "write what an hour of a GPU costs with at most six decimals, in quotes, for example \"2.50\"";

    fn read(text: &str) -> Option<Self> {
        decimal(text, 6).filter(|micros| *micros <= PRICE_MOST_MICROS).map(|micros| Self { micros })
    }
}

impl Amount for Part {
    const FORM: &'static str = "write a part from 0 to 1 with at most three decimals, in quotes, for example \"0.4\"";

    fn read(text: &str) -> Option<Self> {
        let permille = decimal(text, 3).filter(|permille| *permille <= 1000)?;
        u16::try_from(permille).ok().map(|permille| Self { permille })
    }
}

impl Amount for Day {
    const FORM: &'static str = "write a day of UTC in quotes, for example \"2026-01-31\"";

    fn read(text: &str) -> Option<Self> {
        // A date parser may take more than a day, such as a time behind it, which would be lost.
        let is_plain =
            text.len() == "2026-01-31".len() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        text.parse().ok().filter(|_| is_plain).map(|date| Self { date })
    }
}

impl Amount for Currency {
    const FORM: &'static str = "write a currency in up to eight letters, in quotes, for example \"EUR\"";

    fn read(text: &str) -> Option<Self> {
        let is_one = (1..=CURRENCY_LENGTH).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphabetic());
        is_one.then(|| Self(text.to_owned()))
    }
}

/// Reads the type from its text.
macro_rules! read_from_text {
    ($($name:ty),*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Reader::default())
            }
        }
    )*};
}

read_from_text!(PricePerHour, Part, Day, Currency);

impl From<PricePerHour> for String {
    /// With two decimals at least, as money is written.
    fn from(price: PricePerHour) -> Self {
        let text = format!("{}.{:06}", price.micros / 1_000_000, price.micros % 1_000_000);
        let end = text.trim_end_matches('0').len().max(text.len() - 4);
        text[..end].to_owned()
    }
}

impl From<Part> for String {
    fn from(part: Part) -> Self {
        thousandths(part.permille.into())
    }
}

impl From<Day> for String {
    fn from(day: Day) -> Self {
        day.date.to_string()
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Configuration {
    /// On whose bill a container is: by its own word, or else by its team's.
    #[must_use]
    pub fn bill_of(&self, own: &Option<String>, team: &Option<String>) -> Option<String> {
        own.clone().or_else(|| self.cost_center_of(team.as_deref()))
    }

    /// How many shares a team has in the order of the queue; who names none has one.
    #[must_use]
    pub fn shares_of(&self, team: Option<&str>) -> u32 {
        team.and_then(|team| self.team.get(team)).map_or(1, |its| its.shares)
    }

    /// The first key for which the ledger has to know what was had before.
    #[must_use]
    pub fn first_that_counts(&self) -> Option<String> {
        let half_life = (self.queue.half_life_days > 0).then(|| "queue.half_life_days".to_owned());
        self.quota.first_of_hours().or(half_life)
    }

    /// On whose bill the containers of a team are that name no cost center.
    #[must_use]
    pub fn cost_center_of(&self, team: Option<&str>) -> Option<String> {
        self.team.get(team?)?.cost_center.clone()
    }
}

impl Rates {
    /// Whether anything has a price.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.price.is_empty()
    }

    /// What is wrong with the prices as a whole, and what to do.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let says_something = |model: &String| model.contains(|letter: char| letter.is_ascii_alphanumeric());
        if let Some(model) =
            self.price.iter().filter_map(|price| price.model.as_ref()).find(|model| !says_something(model))
        {
            return Some(format!(
                "rates.price has the model {model:?}; write words of a GPU's name, for example \"H100\", or leave it out"
            ));
        }
        let twice = self.price.iter().enumerate().find(|(at, price)| {
            let same =
                |other: &Price| (&other.model, &other.team, other.from) == (&price.model, &price.team, price.from);
            self.price[..*at].iter().any(same)
        })?;
        let of = |what: &str, of: &Option<String>| of.as_ref().map(|of| format!(" {what} {of:?}")).unwrap_or_default();
        let (model, team) = (of("model", &twice.1.model), of("team", &twice.1.team));
        let from = twice.1.from.map(|from| format!(" from {:?}", String::from(from))).unwrap_or_default();
        let which = format!("{model}{team}{from}");
        let which = if which.is_empty() { " no model, team and from".to_owned() } else { which };
        Some(format!(
            "rates.price has two prices with{which}; leave one of them out, or let it hold from another day on"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConfigurationError, parse};
    use std::path::Path;

    fn parsed(text: &str) -> Result<Configuration, ConfigurationError> {
        parse(Path::new("/etc/gpool/config.toml"), text)
    }

    #[test]
    fn a_rate_card_is_read_exactly_and_written_as_it_was() {
        let text = "[rates]\ncurrency = \"EUR\"\nlow_priority = \"0.25\"\nlent_credit = 0\n\
                    [[rates.price]]\nper_gpu_hour = \"2.5\"\n\
                    [[rates.price]]\nper_gpu_hour = 4\nmodel = \"H100\"\nteam = \"vision\"\nfrom = \"2026-03-29\"\n";
        let rates = parsed(text).unwrap().rates;
        assert_eq!(
            (rates.beyond_share.permille, rates.low_priority.permille, rates.lent_credit.permille),
            (1000, 250, 0)
        );
        assert_eq!(
            rates.price.iter().map(|price| price.per_gpu_hour.micros).collect::<Vec<_>>(),
            [2_500_000, 4_000_000]
        );
        assert_eq!(rates.price[1].from.unwrap().unix_s(), 1_774_742_400);
        let written = toml::to_string(&rates).unwrap();
        for part in
            ["currency = \"EUR\"", "per_gpu_hour = \"2.50\"", "per_gpu_hour = \"4.00\"", "from = \"2026-03-29\""]
        {
            assert!(written.contains(part), "{written}");
        }
        assert_eq!(toml::from_str::<Rates>(&written).unwrap(), rates);
        assert!(parsed("").unwrap().rates.is_empty());
        let texts = [1_234_567, 2_000_000, 10].map(|micros| String::from(PricePerHour { micros }));
        assert_eq!(texts, ["1.234567", "2.00", "0.00001"]);
    }

    #[test]
    fn a_team_may_have_a_cost_center() {
        let it = parsed("[team.vision]\ncost_center = \"4711\"\n[team.speech]\n").unwrap();
        assert_eq!(it.cost_center_of(Some("vision")).as_deref(), Some("4711"));
        assert_eq!(
            [it.cost_center_of(Some("speech")), it.cost_center_of(Some("x")), it.cost_center_of(None)],
            [None, None, None]
        );
        let error = parsed("[team.vision]\ncost_center = \"a b\"\n").unwrap_err().to_string();
        assert!(
            error.contains("line 2") && error.contains("team.vision.cost_center") && error.contains("letters"),
            "{error}"
        );
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_what_to_write() {
        let price = |text: &str| format!("[rates]\ncurrency = \"EUR\"\n[[rates.price]]\n{text}\n");
        for (text, parts) in [
            (price("per_gpu_hour = 2.5"), ["line 4", "2.5 stands there without quotes", "for example \"2.50\""]),
            (price("per_gpu_hour = \"-1\""), ["line 4", "\"-1\" is not understood", "six decimals"]),
            (price("per_gpu_hour = \"1.0000001\""), ["line 4", "is not understood", "six decimals"]),
            (price("per_gpu_hour = \"1e3\""), ["line 4", "is not understood", "six decimals"]),
            (price("per_gpu_hour = \"1\"\nfrom = \"2026-02-30\""), ["line 5", "is not understood", "2026-01-31"]),
            (
                price("per_gpu_hour = \"1\"\nfrom = \"2026-02-01T10:00\""),
                ["line 5", "is not understood", "a day of UTC"],
            ),
            (price("per_gpu_hour = \"1\"\nfrom = 2026-02-01"), ["line 5", "in quotes", "2026-01-31"]),
            (price("model = \"H100\""), ["line 3", "per_gpu_hour", "missing"]),
            (price("per_gpu_hour = 1\nmodell = \"H100\""), ["line 5", "modell", "model"]),
            ("[rates]\nlow_priority = \"1.5\"\n".to_owned(), ["line 2", "\"1.5\" is not understood", "from 0 to 1"]),
            ("[rates]\ncurrency = \"\"\n".to_owned(), ["line 2", "is not understood", "\"EUR\""]),
            (price("per_gpu_hour = 1\n[[rates.price]]\nper_gpu_hour = 2"), ["two prices", "no model", "leave one"]),
            (price("per_gpu_hour = 1\nmodel = \" \""), ["the model \" \"", "\"H100\"", "leave it out"]),
            ("[team.vision]\ncost_centre = \"1\"\n".to_owned(), ["line 2", "cost_centre", "cost_center"]),
        ] {
            let error = parsed(&text).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
