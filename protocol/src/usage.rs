//! What was had of the GPUs over days and months: the ledger's sums.

use crate::{ErrorBody, ErrorCode};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// By what the sums are kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UsageBy {
    /// Who pays.
    Team,
    /// For which project.
    Project,
    /// On whose bill.
    CostCenter,
    /// The user who started the container, by number.
    User,
    /// The class that the lease had last.
    Class,
    /// The priority that the lease had last.
    Priority,
    /// How the GPU was shared.
    Mechanism,
    /// The GPU or MIG instance.
    Gpu,
    /// The container's id.
    Container,
    /// The namespace of its pod.
    Namespace,
    /// Its pod, behind the namespace and a slash.
    Pod,
    /// The lease's id.
    Lease,
    /// Hours of UTC.
    Hour,
    /// Days of UTC.
    Day,
}

impl UsageBy {
    /// Every one, in the order of the help.
    pub const ALL: [UsageBy; 14] = [
        UsageBy::Team,
        UsageBy::Project,
        UsageBy::CostCenter,
        UsageBy::User,
        UsageBy::Class,
        UsageBy::Priority,
        UsageBy::Mechanism,
        UsageBy::Gpu,
        UsageBy::Container,
        UsageBy::Namespace,
        UsageBy::Pod,
        UsageBy::Lease,
        UsageBy::Hour,
        UsageBy::Day,
    ];

    /// Those of whom a lease is.
    pub const OWNERS: [UsageBy; 4] = [UsageBy::Team, UsageBy::Project, UsageBy::CostCenter, UsageBy::User];

    /// Those by whom what leases asked for is laid beside what would have been enough.
    pub const SIZED: [UsageBy; 5] =
        [UsageBy::Container, UsageBy::Team, UsageBy::Project, UsageBy::CostCenter, UsageBy::User];

    /// The word on the wire.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            UsageBy::Team => "team",
            UsageBy::Project => "project",
            UsageBy::CostCenter => "cost-center",
            UsageBy::User => "user",
            UsageBy::Class => "class",
            UsageBy::Priority => "priority",
            UsageBy::Mechanism => "mechanism",
            UsageBy::Gpu => "gpu",
            UsageBy::Container => "container",
            UsageBy::Namespace => "namespace",
            UsageBy::Pod => "pod",
            UsageBy::Lease => "lease",
            UsageBy::Hour => "hour",
            UsageBy::Day => "day",
        }
    }

    /// The one that is called so.
    #[must_use]
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|by| by.word() == word)
    }
}

/// What was promised and had. `used` is `within` its share and `burst` beyond it; `reserved` is `within`, `lent`, `idle`
/// and `unmetered`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRow {
    /// What the row is of, by what was asked for: a team, a day. Empty for leases without a team, and in the sum of all.
    pub key: String,
    /// Leases that had some of it.
    pub leases: u64,
    /// Those of them that had something of an earlier part of the time as well, from `counted_since` on.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub leases_before: u64,
    /// GPU time promised: share times time held, nanoseconds. Of a MIG instance by its compute slices, a seventh each.
    pub reserved_gpu_ns: u64,
    /// GPU time charged. Of a MIG instance none.
    pub used_gpu_ns: u64,
    /// Charged beyond the share.
    pub burst_gpu_ns: u64,
    /// Promised, left, and had by others.
    pub lent_gpu_ns: u64,
    /// Promised, left, and had by nobody.
    pub idle_gpu_ns: u64,
    /// Promised in MIG instances, of whose work nobody has figures.
    pub unmetered_gpu_ns: u64,
    /// Promised while no supervisor was there to watch.
    pub unwatched_gpu_ns: u64,
    /// Memory caps times the time for which they were held, MiB seconds.
    pub memory_cap_mib_s: u64,
    /// Memory in use, looked at every ten seconds, times those, MiB seconds.
    pub memory_used_mib_s: u64,
    /// What the memory caps would have come to if each had been no higher than the most that its lease ever held at once, MiB
    /// seconds; the cap itself where that is not known. 0 from an older supervisor.
    #[serde(default)]
    pub memory_needed_mib_s: u64,
    /// The most that any of the leases has held at once on one GPU, at whatever time, bytes; 0 where that is not known.
    #[serde(default)]
    pub memory_peak_bytes: u64,
    /// Their part of what the GPUs drew, millijoules. 0 from an older supervisor, and of GPUs that do not count it.
    #[serde(default)]
    pub energy_millijoules: u64,
    /// What it costs, billionths of the currency; 0 where this host has no prices. Each minute or hour of the ledger is rounded for
    /// itself, so that all sums of the same time are the same.
    #[serde(default)]
    pub cost_nanos: u64,
    /// GPU time that was promised or had beyond that and has no price, where others have.
    #[serde(default)]
    pub unpriced_gpu_ns: u64,
}

impl UsageRow {
    /// Adds the figures of another row.
    pub fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.leases, other.leases),
            (&mut self.leases_before, other.leases_before),
            (&mut self.reserved_gpu_ns, other.reserved_gpu_ns),
            (&mut self.used_gpu_ns, other.used_gpu_ns),
            (&mut self.burst_gpu_ns, other.burst_gpu_ns),
            (&mut self.lent_gpu_ns, other.lent_gpu_ns),
            (&mut self.idle_gpu_ns, other.idle_gpu_ns),
            (&mut self.unmetered_gpu_ns, other.unmetered_gpu_ns),
            (&mut self.unwatched_gpu_ns, other.unwatched_gpu_ns),
            (&mut self.memory_cap_mib_s, other.memory_cap_mib_s),
            (&mut self.memory_used_mib_s, other.memory_used_mib_s),
            (&mut self.memory_needed_mib_s, other.memory_needed_mib_s),
            (&mut self.energy_millijoules, other.energy_millijoules),
            (&mut self.cost_nanos, other.cost_nanos),
            (&mut self.unpriced_gpu_ns, other.unpriced_gpu_ns),
        ];
        for (sum, more) in pairs {
            *sum = sum.saturating_add(more);
        }
        self.memory_peak_bytes = self.memory_peak_bytes.max(other.memory_peak_bytes);
    }

    /// Adds the figures of a later part of the time, in which each lease is counted that had nothing before.
    fn add_later(&mut self, later: &Self) {
        let leases = later.leases.saturating_sub(later.leases_before);
        self.add(&Self { leases, leases_before: 0, ..later.clone() });
    }
}

pub(crate) fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// What there was of the GPUs, and what nobody had.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsagePool {
    /// All their time, nanoseconds. Of a MIG instance by its compute slices, a seventh each.
    pub gpu_ns: u64,
    /// Promised to nobody. Below zero by as much as shares were entered that began a moment earlier.
    pub unreserved_gpu_ns: i64,
    /// Had by nobody, as far as that is metered. Below zero where work was charged that had begun earlier.
    pub unused_gpu_ns: i64,
    /// What they drew, as far as they count it, millijoules.
    #[serde(default)]
    pub energy_millijoules: u64,
    /// What of that is no lease's: of shares that were promised to nobody, and of others' work. Below zero by what is entered a
    /// moment later.
    #[serde(default)]
    pub nobodys_energy_millijoules: i64,
    /// What all their time costs, billionths of the currency, by the prices of those with whom nothing else is agreed.
    #[serde(default)]
    pub cost_nanos: u64,
    /// What of that no lease is charged. Below zero where lent time is paid by both who promised it away and who had it.
    #[serde(default)]
    pub unpaid_cost_nanos: i64,
    /// Time of GPUs that have no such price, where others have: it costs nothing here.
    #[serde(default)]
    pub unpriced_gpu_ns: u64,
}

impl UsagePool {
    fn add(&mut self, other: &Self) {
        let counts = [
            (&mut self.gpu_ns, other.gpu_ns),
            (&mut self.energy_millijoules, other.energy_millijoules),
            (&mut self.cost_nanos, other.cost_nanos),
            (&mut self.unpriced_gpu_ns, other.unpriced_gpu_ns),
        ];
        for (sum, more) in counts {
            *sum = sum.saturating_add(more);
        }
        let left = [
            (&mut self.unreserved_gpu_ns, other.unreserved_gpu_ns),
            (&mut self.unused_gpu_ns, other.unused_gpu_ns),
            (&mut self.nobodys_energy_millijoules, other.nobodys_energy_millijoules),
            (&mut self.unpaid_cost_nanos, other.unpaid_cost_nanos),
        ];
        for (sum, more) in left {
            *sum = sum.saturating_add(more);
        }
    }
}

/// The answer to `GET /v1/usage`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// From when on, Unix seconds, where a minute begins.
    pub since_unix_s: u64,
    /// Until when, where one ends.
    pub until_unix_s: u64,
    /// From when on anything is written down at all; none while nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins_unix_s: Option<u64>,
    /// What costs are in; none where this host has no prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// The rows, in the order of their keys.
    pub rows: Vec<UsageRow>,
    /// The sum of them.
    pub total: UsageRow,
    /// What there was; none where only some leases were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<UsagePool>,
}

/// How the ledger refuses what has too many rows for one answer, or takes too long.
const TOO_MUCH: [&str; 2] = ["that is more than ", "adding that up takes longer than "];

/// Whether the ledger has refused a question because there is too much to say to it: to one for less time there is an answer.
#[must_use]
pub fn is_too_much(refusal: &ErrorBody) -> bool {
    refusal.code == ErrorCode::MessageInvalid && TOO_MUCH.iter().any(|words| refusal.message.starts_with(words))
}

impl Usage {
    /// Adds the answer for the time behind it, asked for with `counted_since` where this one begins. Of memory the sums of parts are
    /// less than that of the whole by the parts of a MiB second that each leaves away.
    pub fn add_later(&mut self, later: Self) {
        self.until_unix_s = later.until_unix_s;
        let mut rows: BTreeMap<String, UsageRow> =
            std::mem::take(&mut self.rows).into_iter().map(|row| (row.key.clone(), row)).collect();
        for row in later.rows {
            let key = row.key.clone();
            rows.entry(key.clone()).or_insert_with(|| UsageRow { key, ..UsageRow::default() }).add_later(&row);
        }
        self.rows = rows.into_values().collect();
        self.total.add_later(&later.total);
        match (&mut self.pool, &later.pool) {
            (Some(pool), Some(more)) => pool.add(more),
            _ => self.pool = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_the_same_in_a_query_and_in_json() {
        for by in UsageBy::ALL {
            assert_eq!(serde_json::to_value(by).unwrap(), by.word());
            assert_eq!(UsageBy::of(by.word()), Some(by));
        }
        assert_eq!(UsageBy::of("year"), None);
    }
}
