//! Quotas: how much the leases of a team or of a user have reserved, at once and in a month, and how much they may.

use serde::{Deserialize, Serialize};

/// Whose leases are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QuotaOf {
    /// A team's.
    Team,
    /// Those that name no team.
    NoTeam,
    /// A user's.
    User,
}

impl QuotaOf {
    /// The word on the wire.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            QuotaOf::Team => "team",
            QuotaOf::NoTeam => "no-team",
            QuotaOf::User => "user",
        }
    }
}

/// What leases have reserved together, kept places included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaHeld {
    /// Guaranteed share of all GPUs, in thousandths of a GPU.
    pub share_permille: u64,
    /// Memory caps of all GPUs.
    pub memory_bytes: u64,
    /// How many leases there are.
    pub leases: u64,
}

/// The most of each; absent: not bounded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaAllowed {
    /// In thousandths of a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_permille: Option<u64>,
    /// In bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// How many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<u64>,
    /// Of the share, by any one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_share_permille: Option<u64>,
    /// Of the memory, by any one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_memory_bytes: Option<u64>,
}

/// In which time a budget is spent, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QuotaPeriod {
    /// From midnight on.
    Day,
    /// From Monday on.
    Week,
    /// From the first on.
    Month,
}

impl QuotaPeriod {
    /// The word on the wire.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            QuotaPeriod::Day => "day",
            QuotaPeriod::Week => "week",
            QuotaPeriod::Month => "month",
        }
    }
}

/// Guaranteed share times time: what may be promised in a period, and what has been, an instance by its part of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaBudget {
    /// Which.
    pub period: QuotaPeriod,
    /// The most, nanoseconds of a GPU.
    pub allowed_gpu_ns: u64,
    /// Promised since the period began, up to ten seconds ago, nanoseconds of a GPU. None while the ledger could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent_gpu_ns: Option<u64>,
    /// When it began, Unix seconds.
    pub began_unix_s: u64,
    /// When the next one does, Unix seconds.
    pub ends_unix_s: u64,
    /// When it is spent if what is reserved now stays so, Unix seconds. None where that is not before the period is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasts_until_unix_s: Option<u64>,
}

/// A quota, or somebody without one who has leases or waits for one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaView {
    /// Whose.
    pub of: QuotaOf,
    /// The team.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    /// The user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The table of the configuration that says what is allowed, `quota.team.vision`; absent where nothing is bounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// What is reserved.
    pub held: QuotaHeld,
    /// What may be.
    pub allowed: QuotaAllowed,
    /// What may be promised in a period; none where nothing bounds that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<QuotaBudget>,
    /// How many wait in the queue, for whatever reason.
    pub waiting: u32,
    /// How many of them wait for a quota of their team or their user, and not for room.
    #[serde(default)]
    pub held_up: u32,
    /// Until when an override lifts it, Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifted_until_unix_s: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_bounded_is_absent() {
        let view = QuotaView {
            of: QuotaOf::NoTeam,
            team: None,
            uid: None,
            table: Some("quota.no_team".into()),
            held: QuotaHeld { share_permille: 1500, memory_bytes: 0, leases: 2 },
            allowed: QuotaAllowed { leases: Some(3), ..QuotaAllowed::default() },
            budget: None,
            waiting: 1,
            held_up: 0,
            lifted_until_unix_s: None,
        };
        let text = serde_json::to_string(&view).unwrap();
        let want = r#"{"of":"no-team","table":"quota.no_team","held":{"share_permille":1500,"memory_bytes":0,"leases":2},"allowed":{"leases":3},"waiting":1,"held_up":0}"#;
        assert_eq!(text, want);
        assert_eq!(serde_json::from_str::<QuotaView>(&text).unwrap(), view);
        for period in [QuotaPeriod::Day, QuotaPeriod::Week, QuotaPeriod::Month] {
            assert_eq!(serde_json::to_value(period).unwrap(), period.text());
        }
        for of in [QuotaOf::Team, QuotaOf::NoTeam, QuotaOf::User] {
            assert_eq!(serde_json::to_value(of).unwrap(), of.text());
        }
    }
}
