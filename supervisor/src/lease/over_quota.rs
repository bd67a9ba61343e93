//! A request beyond a quota, in the words of who starts a container or changes one.

use super::budget::Account;
use super::prospect::{add_wait, any_of, least_wait_seconds, who_keeps};
use super::quota::{Holder, Kept};
use crate::ledger;
use gpool_policy::quota::{Dimension, Excess};
use gpool_protocol::{ErrorBody, ErrorCode, Mechanism, format_bytes, format_gpu_hours, format_gpus};
use std::time::Instant;

/// The least share of one GPU that can be asked for, in thousandths of it.
const LEAST_PERMILLE: u64 = 10;

/// Why one does not let somebody in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beyond {
    /// Of something too much would be reserved at once.
    Reserved(Excess),
    /// Of something it would be too much for one container.
    OfOne(Excess),
    /// A budget is spent.
    Spent(Account),
}

/// A quota that does not let somebody in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Over {
    /// Whose it is.
    pub holder: Holder,
    /// The table of the configuration that says so.
    pub table: String,
    /// Why.
    pub beyond: Beyond,
    /// What ended containers keep, if it would be let in without that.
    pub kept: Option<Box<Kept>>,
    /// Whether it has something already and wants more.
    pub is_change: bool,
    /// How it would have its share.
    pub mechanism: Mechanism,
    /// On how many GPUs.
    pub gpus: u64,
}

impl Over {
    /// The refusal.
    pub fn worded(&self) -> ErrorBody {
        ErrorBody::new(ErrorCode::QuotaReached, self.message(), self.remedy())
    }

    fn message(&self) -> String {
        let Self { holder, table, is_change, .. } = self;
        let excess = match &self.beyond {
            Beyond::Reserved(excess) => excess,
            Beyond::OfOne(excess) => return self.of_one(excess),
            Beyond::Spent(account) => return self.spent(account),
        };
        let (key, of_what) = match excess.what {
            Dimension::Share => ("gpus", " of guaranteed share"),
            Dimension::Memory => ("memory", " of memory"),
            Dimension::Leases => ("leases", ""),
        };
        if (excess.what, excess.allowed) == (Dimension::Leases, 0) {
            let whose = if *holder == Holder::NoTeam { holder.to_string() } else { format!("containers of {holder}") };
            return format!("[{table}] {key} allows no {whose}");
        }
        let bound = format!("[{table}] {key} allows {holder} {}{of_what}", amount(excess.what, excess.allowed));
        let asked = match excess.what {
            Dimension::Leases => "another one".to_owned(),
            what => bare(what, excess.asked),
        };
        if excess.is_for_ever() {
            return format!("{bound} altogether, and {asked} is asked for");
        }
        let whose = if *is_change { " by others of its containers" } else { "" };
        format!("{bound}: {} is reserved{whose}, and {asked} is asked for", bare(excess.what, excess.held))
    }

    /// That it is too large by itself.
    fn of_one(&self, excess: &Excess) -> String {
        let Self { holder, table, .. } = self;
        let (key, of_what) = match excess.what {
            Dimension::Share | Dimension::Leases => ("container_gpus", "guaranteed share"),
            Dimension::Memory => ("container_memory", "memory"),
        };
        let whose = if *holder == Holder::NoTeam { holder.to_string() } else { format!("containers of {holder}") };
        let (allowed, asked) = (amount(excess.what, excess.allowed), bare(excess.what, excess.asked));
        format!("[{table}] {key} allows {whose} {allowed} of {of_what} each, and {asked} is asked for")
    }

    /// That the budget is.
    fn spent(&self, account: &Account) -> String {
        let Self { holder, table, .. } = self;
        let (spent, allowed) = (account.budget.spent_ns, account.budget.allowed_ns);
        let period = account.period.text();
        if account.is_none() {
            return format!("[{table}] gpu_hours allows {holder} no guaranteed share");
        }
        format!(
            "[{table}] gpu_hours allows {holder} {} hours of a GPU in a {period}, and {} are spent; the next {period} begins at {}",
            format_gpu_hours(allowed),
            format_gpu_hours(spent),
            ledger::moment(account.span_unix_s.1)
        )
    }

    fn remedy(&self) -> String {
        let Self { holder, kept, is_change, mechanism, gpus, .. } = self;
        let kept = kept.as_ref().filter(|_| matches!(self.beyond, Beyond::Reserved(_)));
        let (what, left, is_for_ever) = match &self.beyond {
            Beyond::Reserved(excess) | Beyond::OfOne(excess) => (excess.what, excess.left(), excess.is_for_ever()),
            Beyond::Spent(account) => (Dimension::Share, 0, account.is_none()),
        };
        let is_spent = matches!(self.beyond, Beyond::Spent(_));
        let mut ways = Vec::new();
        if *holder == Holder::NoTeam && !is_change {
            ways.push("name a team with the annotation gpool.io/team".to_owned());
        }
        // Other mechanisms take no other share, no lower priority or no cap.
        match (what, mechanism) {
            (Dimension::Share, Mechanism::Slice) => {
                if left >= LEAST_PERMILLE * gpus {
                    ways.push(format!("ask for {} or less in all", bare(what, left)));
                }
                ways.push("ask for priority=burst, which reserves no share and has what is idle".to_owned());
            }
            (Dimension::Share, _) if is_spent => {
                ways.push("ask for mode=slice, which has what is idle until then".to_owned());
            }
            (Dimension::Share, Mechanism::Exclusive) if *gpus > 1 && left >= 1000 => {
                ways.push(format!("ask for {} GPUs", left / 1000));
            }
            // In whole MiB, so that it can be typed as it stands.
            (Dimension::Memory, Mechanism::Slice | Mechanism::Mps) if left >> 20 >= *gpus => {
                ways.push(format!("ask for {}MiB or less in all", left >> 20));
            }
            _ => {}
        }
        if let Some(kept) = kept {
            let seconds = seconds_until(kept.until);
            ways.push("try again soon".to_owned());
            ways.push(add_wait(&format!("{}s", least_wait_seconds(seconds))));
            let amount = match what {
                Dimension::Leases => "what counts here".to_owned(),
                what => bare(what, kept.amounts.of(what)),
            };
            let who = who_keeps(kept.amounts.leases as usize);
            return format!("{}: {who} {amount} for up to {seconds} s more", any_of(&ways));
        }
        if is_for_ever || is_spent {
            ways.push("have the quota raised and run gpool config reload".to_owned());
        } else {
            ways.push("end a container (gpool quota ls shows who has how much)".to_owned());
        }
        // Until a budget begins anew is longer than most may wait.
        if !is_for_ever && !is_change && !is_spent {
            ways.push(add_wait("10m"));
        }
        any_of(&ways)
    }
}

fn seconds_until(until: Instant) -> u64 {
    (until.saturating_duration_since(Instant::now()).as_millis() as u64).div_ceil(1000)
}

/// An amount with what it is of.
fn amount(what: Dimension, amount: u64) -> String {
    match (what, amount) {
        (Dimension::Share, 1000) => "1 GPU".to_owned(),
        (Dimension::Share, permille) => format!("{} GPUs", format_gpus(permille)),
        (Dimension::Memory, bytes) => format_bytes(bytes),
        (Dimension::Leases, 1) => "1 container".to_owned(),
        (Dimension::Leases, 0) => "no container".to_owned(),
        (Dimension::Leases, leases) => format!("{leases} containers"),
    }
}

/// An amount of which it has been said what it is of.
fn bare(what: Dimension, amount: u64) -> String {
    match what {
        Dimension::Share => format_gpus(amount),
        Dimension::Memory => format_bytes(amount),
        Dimension::Leases => amount.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_asked_for_is_advised() {
        let of = |mechanism, what, (held, asked, allowed): (u64, u64, u64), gpus, is_change| {
            let excess = Excess { what, held, asked, allowed };
            let beyond = Beyond::Reserved(excess);
            let over =
                Over { holder: Holder::NoTeam, table: "t".into(), beyond, kept: None, is_change, mechanism, gpus };
            over.worded().remedy
        };
        let slice = of(Mechanism::Slice, Dimension::Share, (985, 200, 1000), 1, false);
        assert!(slice.contains("ask for 0.015 or less") && slice.contains("name a team"), "{slice}");
        let two = of(Mechanism::Slice, Dimension::Share, (985, 200, 1000), 2, true);
        assert!(!two.contains("0.015") && two.contains("burst"), "of each of two that is too little: {two}");
        assert!(!two.contains("name a team"), "who runs cannot change his: {two}");
        for mechanism in [Mechanism::Mig, Mechanism::Mps, Mechanism::TimeSlice] {
            let said = of(mechanism, Dimension::Share, (500, 1000, 1200), 1, false);
            assert!(!said.contains("burst") && !said.contains("or less"), "{mechanism}: {said}");
        }
        let whole = of(Mechanism::Exclusive, Dimension::Share, (500, 3000, 2600), 3, false);
        assert!(whole.contains("ask for 2 GPUs") && !whole.contains("burst"), "{whole}");
        let memory = of(Mechanism::Exclusive, Dimension::Memory, (0, 80 << 30, 40 << 30), 1, false);
        assert!(
            memory.starts_with("name a team with the annotation gpool.io/team, or have the quota raised"),
            "{memory}"
        );
        let never = of(Mechanism::Slice, Dimension::Memory, (30 << 30, 80 << 30, 40 << 30), 1, false);
        assert!(never.contains("ask for 10240MiB or less in all"), "what is reserved counts: {never}");
    }
}
