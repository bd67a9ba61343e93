//! Who has how much of which quota, as the socket and the metrics show it, and how far budgets are spent.

use crate::clock;
use crate::lease::{Account, Book, Holder, Leases, Standing};
use gpool_configuration::{Ceiling as Configured, Period, Quota};
use gpool_policy::quota::Ceiling;
use gpool_protocol::{QuotaAllowed, QuotaBudget, QuotaHeld, QuotaOf, QuotaPeriod, QuotaView};
use std::collections::BTreeSet;

/// Everybody who is listed in the configuration, has reserved something or waits: teams by name, those without one, then users
/// by number.
pub fn views(leases: &Leases, book: &Book) -> Vec<QuotaView> {
    let standing = Standing::of(book, &leases.gpus()).with_spent(leases.ledger.spent(), clock::unix_ms() / 1000);
    let mut views = views_of(&leases.configuration().quota, book, &standing);
    for its in leases.overrides.at(clock::unix_ms()) {
        let is_its = |view: &&mut QuotaView| match &its.of.team {
            Some(team) => view.team.as_ref() == Some(team),
            None => view.uid == its.of.user,
        };
        let until_unix_s = Some(its.until_unix_ms / 1000);
        views.iter_mut().filter(is_its).for_each(|view| view.lifted_until_unix_s = until_unix_s);
    }
    views
}

fn views_of(quota: &Quota, book: &Book, standing: &Standing) -> Vec<QuotaView> {
    let waiting: Vec<([Holder; 2], bool)> = (book.queue.in_order().into_iter())
        .map(|waiter| (Holder::both(waiter.asked.request.team.as_deref(), waiter.uid), waiter.is_over_quota))
        .collect();
    let all_waiting = waiting.iter().flat_map(|(both, _)| both);
    let mut holders: BTreeSet<&Holder> = standing.holders().chain(all_waiting).collect();
    let listed: Vec<Holder> = Holder::listed(quota).collect();
    holders.extend(&listed);
    holders.into_iter().map(|holder| view(holder, quota, standing, &waiting)).collect()
}

fn view(holder: &Holder, quota: &Quota, standing: &Standing, waiting: &[([Holder; 2], bool)]) -> QuotaView {
    let (table, ceiling) = holder.bound(quota);
    let is_bounded = *holder.table(quota).1 != Configured::default();
    let (of, team, uid) = match holder {
        Holder::Team(team) => (QuotaOf::Team, Some(team.clone()), None),
        Holder::NoTeam => (QuotaOf::NoTeam, None, None),
        Holder::User(uid) => (QuotaOf::User, None, Some(*uid)),
    };
    let held = standing.held(holder);
    let Ceiling { share_permille, memory_bytes, leases } = ceiling;
    let of_one = holder.bound_of_one(quota);
    QuotaView {
        of,
        team,
        uid,
        table: is_bounded.then_some(table),
        held: QuotaHeld { share_permille: held.share_permille, memory_bytes: held.memory_bytes, leases: held.leases },
        allowed: QuotaAllowed {
            share_permille,
            memory_bytes,
            leases,
            container_share_permille: of_one.share_permille,
            container_memory_bytes: of_one.memory_bytes,
        },
        budget: standing.account(holder, quota).map(|account| budget_view(&account, held.share_permille)),
        waiting: waiting.iter().filter(|(both, _)| both.contains(holder)).count() as u32,
        lifted_until_unix_s: None,
        held_up: waiting.iter().filter(|(both, is_held_up)| *is_held_up && both.contains(holder)).count() as u32,
    }
}

/// A budget of who has reserved `share_permille` thousandths of a GPU now.
fn budget_view(account: &Account, share_permille: u64) -> QuotaBudget {
    let (began_unix_s, ends_unix_s) = account.span_unix_s;
    let lasts_s = account.budget.lasts_ns(share_permille).map(|ns| ns / 1_000_000_000);
    let until_unix_s = lasts_s.map(|seconds| account.now_unix_s.saturating_add(seconds));
    QuotaBudget {
        period: match account.period {
            Period::Day => QuotaPeriod::Day,
            Period::Week => QuotaPeriod::Week,
            Period::Month => QuotaPeriod::Month,
        },
        allowed_gpu_ns: account.budget.allowed_ns,
        spent_gpu_ns: account.is_known.then_some(account.budget.spent_ns),
        began_unix_s,
        ends_unix_s,
        lasts_until_unix_s: until_unix_s.filter(|until| account.is_known && *until < ends_unix_s),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Record, sample};
    use std::path::Path;

    #[test]
    fn everybody_is_shown_who_is_listed_or_has_something() {
        let text = "[quota.team.vision]\ngpus = \"2\"\n[quota.team.idle]\nleases = 1\n[quota.default_team]\nmemory = \"8GiB\"\n\
                    [quota.user.1000]\nleases = 3\n";
        let quota = gpool_configuration::parse(Path::new("config.toml"), text).unwrap().quota;
        let of = |team: Option<&str>, owner_uid| Record { team: team.map(str::to_owned), owner_uid, ..sample() };
        let stranded = vec![of(Some("vision"), 0), of(Some("other"), 0)];
        let book = Book { stranded, ..Book::default() };
        let shown = views_of(&quota, &book, &Standing::of(&book, &[]));
        let name = |view: &QuotaView| view.team.clone().or(view.uid.map(|uid| uid.to_string())).unwrap_or_default();
        assert_eq!(shown.iter().map(name).collect::<Vec<_>>(), ["idle", "other", "vision", "0", "1000"]);
        let [idle, other, vision, root, user] = shown.as_slice() else { panic!("{shown:?}") };
        assert_eq!((idle.held, idle.allowed.leases), (QuotaHeld::default(), Some(1)));
        assert_eq!((other.table.as_deref(), other.allowed.memory_bytes), (Some("quota.default_team"), Some(8 << 30)));
        assert_eq!((vision.held.share_permille, vision.allowed.share_permille), (300, Some(2000)));
        assert_eq!((vision.allowed.memory_bytes, vision.waiting), (None, 0), "nothing of the default");
        assert_eq!((root.held.leases, root.table.as_deref()), (2, None));
        assert_eq!((user.held.leases, user.allowed.leases), (0, Some(3)));
        assert!(views_of(&Quota::default(), &Book::default(), &Standing::default()).is_empty());
    }
}
