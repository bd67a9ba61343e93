//! Budgets, looked at again and again: it is told when one is nearly spent and when it is, and leases keep to it.

use crate::clock;
use crate::events::About;
use crate::faults::Faults;
use crate::lease::{Account, Holder, Leases, Standing};
use crate::ledger;
use gpool_policy::budget::Level;
use gpool_protocol::{EventKind, format_gpu_hours};
use std::collections::BTreeMap;
use std::time::Duration;

/// What is spent changes every ten seconds, when the ledger is written, and what may be at a reload.
const PERIOD: Duration = Duration::from_secs(2);

/// How far the budget of each was spent when that was told, and in the period from when to when.
#[derive(Debug, Default)]
struct Told(BTreeMap<Holder, ((u64, u64), Level)>);

/// Looks for ever; runs on its own thread.
pub fn keep(leases: &Leases) {
    let (mut told, mut faults) = (Told::default(), Faults::default());
    loop {
        std::thread::sleep(PERIOD);
        for message in told.news(accounts(leases), clock::unix_ms() / 1000) {
            leases.events.note(EventKind::Budget, About::default(), message);
        }
        leases.keep_to_budgets(&mut faults);
    }
}

/// The budgets of all who have reserved anything, and of all who are listed.
fn accounts(leases: &Leases) -> Vec<(Holder, Account)> {
    let configuration = leases.configuration();
    let quota = &configuration.quota;
    if quota.first_of_hours().is_none() {
        return Vec::new();
    }
    let standing = Standing::of(&leases.book(), &leases.gpus());
    let standing = standing.with_spent(leases.ledger.spent(), clock::unix_ms() / 1000);
    let all = standing.holders().cloned().chain(Holder::listed(quota));
    // While none holds nothing follows of one that is spent; that is told when it does.
    let lifted = leases.overrides.holders(clock::unix_ms());
    let all = all.filter(|holder| !lifted.contains(holder));
    let of = |holder: Holder| Some((standing.account(&holder, quota)?, holder));
    all.filter_map(of).map(|(account, holder)| (holder, account)).collect::<BTreeMap<_, _>>().into_iter().collect()
}

impl Told {
    /// What is to be told of `accounts` that was not before, in this period. Who has nothing now may have something in a moment.
    fn news(&mut self, accounts: Vec<(Holder, Account)>, unix_s: u64) -> Vec<String> {
        self.0.retain(|_, ((_, ends), _)| *ends > unix_s);
        let mut news = Vec::new();
        for (holder, account) in accounts.into_iter().filter(|(_, account)| account.is_known && !account.is_none()) {
            let (span, level) = (account.span_unix_s, account.budget.level());
            let before = self.0.get(&holder).filter(|(its, _)| *its == span).map_or(Level::Fine, |(_, level)| *level);
            if level > before {
                news.push(message(&holder, &account));
            }
            // Of one that was raised, all of it is told again.
            self.0.insert(holder, (span, level));
        }
        news
    }
}

fn message(holder: &Holder, account: &Account) -> String {
    let Account { budget, period, span_unix_s, .. } = account;
    let of = format!(
        "{} of {} hours of a GPU in this {}",
        format_gpu_hours(budget.spent_ns),
        format_gpu_hours(budget.allowed_ns),
        period.text()
    );
    match account.is_spent() {
        true => {
            let until = ledger::moment(span_unix_s.1);
            format!(
                "{holder}: {of} are spent; what it runs has what is idle until {until}, and no more is promised to it"
            )
        }
        false => format!("{holder}: {of} are spent, four fifths of them or more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_configuration::Period;
    use gpool_policy::budget::Budget;

    const HOUR_NS: u64 = 3_600_000_000_000;

    fn account(spent_hours: u64, allowed_hours: u64, began: u64) -> Account {
        let budget = Budget { allowed_ns: allowed_hours * HOUR_NS, spent_ns: spent_hours * HOUR_NS };
        let span_unix_s = (began, began + 604_800);
        Account { budget, is_known: true, period: Period::Week, span_unix_s, now_unix_s: began + 5 }
    }

    #[test]
    fn each_step_is_told_once_in_a_period() {
        let mut told = Told::default();
        let mut news = |spent, allowed, began| {
            told.news(vec![(Holder::Team("vision".into()), account(spent, allowed, began))], began + 5)
        };
        assert_eq!(news(7, 10, 0), [""; 0]);
        let nearly = news(8, 10, 0);
        assert!(
            nearly[0].contains("team vision: 8 of 10 hours of a GPU in this week are spent, four fifths"),
            "{nearly:?}"
        );
        assert_eq!(news(9, 10, 0), [""; 0]);
        let spent = news(10, 10, 0);
        assert!(spent[0].contains("10 of 10") && spent[0].contains("until 1970-01-08T00:00:00Z"), "{spent:?}");
        assert_eq!(news(11, 10, 0), [""; 0]);
        assert_eq!((news(11, 20, 0).len(), news(16, 20, 0).len()), (0, 1), "it was raised, and is nearly spent again");
        assert_eq!((news(0, 20, 604_800).len(), news(20, 20, 604_800).len()), (0, 1), "the next period");
        assert_eq!(news(0, 0, 604_800), [""; 0], "a budget of nothing is spent all the time");
    }

    #[test]
    fn who_has_nothing_for_a_moment_is_not_told_again() {
        let mut told = Told::default();
        let spent = || vec![(Holder::Team("vision".into()), account(10, 10, 0))];
        assert_eq!(told.news(spent(), 5).len(), 1);
        assert_eq!((told.news(Vec::new(), 6).len(), told.news(spent(), 7).len()), (0, 0));
        let unknown = vec![(Holder::NoTeam, Account { is_known: false, ..account(10, 10, 0) })];
        assert!(told.news(unknown, 8).is_empty());
        assert!(told.news(Vec::new(), 604_800).is_empty() && told.0.is_empty(), "that week is over");
    }
}
