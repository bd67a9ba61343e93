//! What is kept on the disk: the ledger and the audit.

use super::families::Family;
use super::seconds;
use super::text::Page;
use crate::lease::Leases;
use crate::service::Identity;

/// How both stand.
#[derive(Debug, Default)]
pub struct Kept {
    /// When the ledger was written last; none where none is kept.
    pub ledger_written_unix_s: Option<u64>,
    /// What each team was promised and had, nanoseconds.
    pub teams: Vec<(String, [u64; 2])>,
    /// Events written down, lost and pending, and when all were written last; none where no audit is kept.
    pub audit: Option<([u64; 3], u64)>,
}

impl Kept {
    /// Of this moment. What was not written in this life of the supervisor is as late as its beginning.
    pub fn of(leases: &Leases, identity: &Identity) -> Self {
        let (configuration, begun_unix_s) = (leases.configuration(), identity.started_unix_ms / 1000);
        let audit = || {
            let [written, lost] = leases.audit.figures();
            let written_unix_s = leases.audit.written_unix_s().unwrap_or(begun_unix_s);
            ([written, lost, leases.audit.pending(&leases.events)], written_unix_s)
        };
        let ledger_begun = || configuration.ledger.is_kept().then_some(begun_unix_s);
        Self {
            ledger_written_unix_s: leases.ledger.written_unix_s().or_else(ledger_begun),
            teams: leases.ledger.teams(),
            audit: configuration.audit.is_kept().then(audit),
        }
    }

    /// Adds its figures.
    pub fn show(&self, page: &mut Page) {
        if let Some((counts, written_unix_s)) = self.audit {
            for (family, count) in
                [Family::AuditWritten, Family::AuditLost, Family::AuditPending].into_iter().zip(counts)
            {
                page.add(family, &[], count as f64);
            }
            page.add(Family::AuditWrittenAt, &[], written_unix_s as f64);
        }
        if let Some(unix_s) = self.ledger_written_unix_s {
            page.add(Family::LedgerWritten, &[], unix_s as f64);
        }
        for (team, figures) in &self.teams {
            for (family, ns) in [Family::TeamReserved, Family::TeamUsed].into_iter().zip(figures) {
                page.add(family, &[("team", team)], seconds(*ns));
            }
        }
    }
}
