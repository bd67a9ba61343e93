//! `[quota]`: how much the containers of a team or of a user may reserve altogether, at once and in a month, and in which table that
//! stands.

use crate::quantity::{GpuAmount, GpuHours, MemoryAmount};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The longest name of a team, as requests have it.
const TEAM_LENGTH: usize = 63;

/// `[quota]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Of each team that is not listed in `team`, for itself.
    pub default_team: Ceiling,
    /// Of all containers without a team, together.
    pub no_team: Ceiling,
    /// Of each user that is not listed in `user`, for itself; not of root.
    pub default_user: Ceiling,
    /// By name.
    pub team: BTreeMap<String, Ceiling>,
    /// By number.
    pub user: BTreeMap<Uid, Ceiling>,
}

/// The most that somebody's leases may reserve together, and any one of them; what is absent is not bounded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ceiling {
    /// Guaranteed share, in GPUs.
    pub gpus: Option<GpuAmount>,
    /// Memory caps.
    pub memory: Option<MemoryAmount>,
    /// How many.
    pub leases: Option<u32>,
    /// Guaranteed share times time.
    pub gpu_hours: Option<GpuHours>,
    /// Guaranteed share of any one of them, in GPUs.
    pub container_gpus: Option<GpuAmount>,
    /// Memory cap of any one of them.
    pub container_memory: Option<MemoryAmount>,
}

/// The number of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Uid(pub u32);

impl TryFrom<String> for Uid {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = text.parse::<u32>().ok().filter(|number| number.to_string() == text);
        number.map(Self).ok_or_else(|| format!("{text:?} is no number of a user; write what `id -u NAME` prints"))
    }
}

impl From<Uid> for String {
    fn from(uid: Uid) -> Self {
        uid.0.to_string()
    }
}

impl Quota {
    /// What bounds the containers of a team, or those without one together, and the table that says so.
    #[must_use]
    pub fn of_team(&self, team: Option<&str>) -> (String, &Ceiling) {
        let Some(team) = team else { return ("quota.no_team".to_owned(), &self.no_team) };
        match self.team.get(team) {
            Some(its) => (team_table(team), its),
            None => ("quota.default_team".to_owned(), &self.default_team),
        }
    }

    /// What bounds the containers of a user, and the table that says so. Root's, which are all that docker starts, are bounded
    /// where root is listed and nowhere else.
    #[must_use]
    pub fn of_user(&self, uid: u32) -> (String, &Ceiling) {
        const UNBOUNDED: &Ceiling = &Ceiling {
            gpus: None,
            memory: None,
            leases: None,
            gpu_hours: None,
            container_gpus: None,
            container_memory: None,
        };
        match self.user.get(&Uid(uid)) {
            Some(its) => (format!("quota.user.{uid}"), its),
            None if uid == 0 => ("quota.user.0".to_owned(), UNBOUNDED),
            None => ("quota.default_user".to_owned(), &self.default_user),
        }
    }

    /// Whether nothing is bounded at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let listed = self.team.values().chain(self.user.values());
        listed.chain([&self.default_team, &self.no_team, &self.default_user]).all(|its| *its == Ceiling::default())
    }

    /// The first table that bounds what is reserved in a month or so, with the key.
    #[must_use]
    pub fn first_of_hours(&self) -> Option<String> {
        let fixed = [
            ("quota.default_team".to_owned(), &self.default_team),
            ("quota.no_team".to_owned(), &self.no_team),
            ("quota.default_user".to_owned(), &self.default_user),
        ];
        let teams = self.team.iter().map(|(name, its)| (team_table(name), its));
        let users = self.user.iter().map(|(uid, its)| (format!("quota.user.{}", uid.0), its));
        let mut all = fixed.into_iter().chain(teams).chain(users);
        all.find(|(_, its)| its.gpu_hours.is_some()).map(|(table, _)| format!("{table}.gpu_hours"))
    }

    /// The first listed team that no container can name, with one of the keys that it has.
    pub(crate) fn impossible_team(&self) -> Option<(&str, String)> {
        let (name, its) = self.team.iter().find(|(name, _)| !is_name(name))?;
        let key = match its {
            Ceiling { gpus: Some(_), .. } => "gpus",
            Ceiling { memory: Some(_), .. } => "memory",
            Ceiling { gpu_hours: Some(_), .. } => "gpu_hours",
            Ceiling { container_gpus: Some(_), .. } => "container_gpus",
            Ceiling { container_memory: Some(_), .. } => "container_memory",
            _ => "leases",
        };
        Some((name, format!("{}.{key}", team_table(name))))
    }
}

fn team_table(team: &str) -> String {
    crate::layers::dotted("quota.team", team)
}

/// Whether a request can name this team, or a cost center be called so.
pub(crate) fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let starts_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    starts_well && name.len() <= TEAM_LENGTH && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::Period;
    use crate::{Configuration, ConfigurationError, differences, flat, parse, parse_strictly};
    use std::path::Path;

    fn parsed(text: &str) -> Result<Configuration, ConfigurationError> {
        parse(Path::new("/etc/gpool/config.toml"), text)
    }

    fn quota(text: &str) -> Quota {
        parsed(text).unwrap().quota
    }

    #[test]
    fn who_is_listed_has_its_own_table_and_nothing_of_the_default() {
        let quota = quota(
            "[quota.default_team]\ngpus = \"0.5\"\nleases = 2\n[quota.no_team]\nleases = 0\n[quota.team.vision]\ngpus = 2\n\
             [quota.team.\"a.b\"]\nmemory = \"80GiB\"\n[quota.default_user]\nleases = 3\n[quota.user.1000]\nmemory = \"4G\"\n",
        );
        assert!(!quota.is_empty());
        let of = |(table, its): (String, &Ceiling)| (table, its.gpus.map(|gpus| gpus.permille), its.leases);
        assert_eq!(of(quota.of_team(Some("vision"))), ("quota.team.vision".into(), Some(2000), None));
        assert_eq!(of(quota.of_team(Some("speech"))), ("quota.default_team".into(), Some(500), Some(2)));
        assert_eq!(of(quota.of_team(Some("a.b"))), ("quota.team.\"a.b\"".into(), None, None));
        assert_eq!(quota.of_team(Some("a.b")).1.memory.unwrap().bytes, 80 << 30);
        assert_eq!(of(quota.of_team(None)), ("quota.no_team".into(), None, Some(0)));
        assert_eq!(of(quota.of_user(1001)), ("quota.default_user".into(), None, Some(3)));
        assert_eq!(of(quota.of_user(1000)), ("quota.user.1000".into(), None, None));
        assert_eq!(of(quota.of_user(0)), ("quota.user.0".into(), None, None), "docker's are no single user's");
    }

    #[test]
    fn without_a_word_of_it_nothing_is_bounded() {
        let none = quota("");
        assert!(none.is_empty() && quota("[quota]\n[quota.team.vision]\n").is_empty());
        for (_, ceiling) in [none.of_team(None), none.of_team(Some("a")), none.of_user(0), none.of_user(7)] {
            assert_eq!(*ceiling, Ceiling::default());
        }
        assert!(flat(&Configuration::default()).keys().all(|key| !key.starts_with("quota")));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_what_to_write() {
        for (text, parts) in [
            (
                "[quota.team.vision]\ngpus = 2.5\n",
                ["line 2", "quota.team.vision.gpus", "in quotes, for example \"2.5\""],
            ),
            ("[quota.team.vision]\ngpus = \"a\"\n", ["line 2", "\"a\" is not understood", "at most three decimals"]),
            ("[quota.default_team]\ngpus = \"-1\"\n", ["line 2", "quota.default_team.gpus", "at most three decimals"]),
            ("[quota.no_team]\nmemory = 80\n", ["line 2", "\"80\" is not understood", "for example \"80GiB\""]),
            ("[quota.no_team]\nmemory = \"25%\"\n", ["line 2", "quota.no_team.memory", "for example \"80GiB\""]),
            ("[quota.no_team]\ngpu_hours = 500\n", ["line 2", "quota.no_team.gpu_hours", "for example \"500/month\""]),
            ("[quota.no_team]\ngpu_hours = \"5/year\"\n", ["line 2", "\"5/year\" is not", "day, week or month"]),
            ("[quota.no_team]\ngpu_hours = \"0.0005/day\"\n", ["line 2", "\"0.0005/day\"", "three decimals"]),
            ("[quota.no_team]\ngpu_hours = \"1000001/day\"\n", ["line 2", "\"1000001/day\"", "day, week or month"]),
            ("[quota.user.1000]\nleases = -1\n", ["line 2", "quota.user.1000.leases", "u32"]),
            ("[quota.team.vision]\ngpu = \"1\"\n", ["line 2", "`gpu`", "`gpus`"]),
            ("[quota.team]\nvision = 2\n", ["line 2", "quota.team.vision", "Ceiling"]),
            ("[quota.teams.vision]\ngpus = 1\n", ["line 1", "`quota.teams` is no key", "`quota.team`"]),
            ("[quota.user.alice]\ngpus = 1\n", ["line 1", "\"alice\" is no number of a user", "id -u"]),
            ("[quota.user.007]\ngpus = 1\n", ["line 1", "\"007\" is no number of a user", "id -u"]),
        ] {
            let error = parsed(text).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn a_team_that_no_container_can_name_is_told_to_who_checks() {
        let text = "[quota.team.\"the vision team\"]\ngpus = 1\n";
        assert!(parsed(text).is_ok(), "a host works with it");
        let error = parse_strictly(Path::new("/etc/gpool/config.toml"), text).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("the vision team") && error.contains("letters"), "{error}");
    }

    #[test]
    fn hours_are_of_a_day_a_week_or_a_month() {
        let hours = |text: &str| {
            let quota = quota(&format!("[quota.team.vision]\ngpu_hours = {text:?}\n"));
            let its = quota.of_team(Some("vision")).1.gpu_hours.unwrap();
            (its.hour_permille, its.period, String::from(its))
        };
        assert_eq!(hours("500/month"), (500_000, Period::Month, "500/month".to_owned()));
        assert_eq!(hours("0.050 / day"), (50, Period::Day, "0.05/day".to_owned()));
        assert_eq!(hours("0/week"), (0, Period::Week, "0/week".to_owned()));
        let bounded = quota("[quota.user.7]\ngpu_hours = \"1/day\"\n");
        assert_eq!(bounded.first_of_hours().as_deref(), Some("quota.user.7.gpu_hours"));
        assert!(!bounded.is_empty() && quota("[quota.user.7]\ngpus = 1\n").first_of_hours().is_none());
    }

    #[test]
    fn hours_are_counted_by_the_ledger() {
        let text = "[ledger]\npath = \"\"\n[quota.no_team]\ngpu_hours = \"5/day\"\n";
        let error = parsed(text).unwrap_err().to_string();
        assert!(error.contains("quota.no_team.gpu_hours") && error.contains("ledger.path"), "{error}");
        let short = "[ledger]\nminute_days = 2\nhour_days = 30\n[quota.no_team]\ngpu_hours = \"5/month\"\n";
        let error = parsed(short).unwrap_err().to_string();
        assert!(error.contains("ledger.hour_days") && error.contains("32"), "{error}");
    }

    #[test]
    fn a_changed_quota_is_told_by_its_table() {
        let old = parsed("[quota.team.vision]\ngpus = \"2\"\nmemory = \"1024MiB\"\n").unwrap();
        let new =
            parsed("[quota.team.vision]\ngpus = \"2.50\"\nmemory = \"1GiB\"\n[quota.user.7]\nleases = 1\n").unwrap();
        let told: Vec<_> = differences(&old, &new).into_iter().map(|it| (it.key, it.old, it.new)).collect();
        let text = |text: &str| Some(text.to_owned());
        let want = [
            ("quota.team.vision.gpus".to_owned(), text("\"2\""), text("\"2.5\"")),
            ("quota.user.7.leases".to_owned(), None, text("1")),
        ];
        assert_eq!(told, want);
    }
}
