//! Quotas: how much the leases of a team or of a user have reserved, and how much they may.

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
    /// How many wait in the queue, for whatever reason.
    pub waiting: u32,
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
            waiting: 1,
        };
        let text = serde_json::to_string(&view).unwrap();
        let want = r#"{"of":"no-team","table":"quota.no_team","held":{"share_permille":1500,"memory_bytes":0,"leases":2},"allowed":{"leases":3},"waiting":1}"#;
        assert_eq!(text, want);
        assert_eq!(serde_json::from_str::<QuotaView>(&text).unwrap(), view);
        for of in [QuotaOf::Team, QuotaOf::NoTeam, QuotaOf::User] {
            assert_eq!(serde_json::to_value(of).unwrap(), of.text());
        }
    }
}
