//! Who has how much of which quota, as the socket and the metrics show it.

use crate::device::Gpu;
use crate::lease::{Book, Holder, Standing};
use gpool_configuration::Quota;
use gpool_policy::quota::Ceiling;
use gpool_protocol::{QuotaAllowed, QuotaHeld, QuotaOf, QuotaView};
use std::collections::BTreeSet;

/// Everybody who is listed in the configuration, has reserved something or waits: teams by name, those without one, then users
/// by number.
pub fn views(quota: &Quota, book: &Book, gpus: &[Gpu]) -> Vec<QuotaView> {
    let standing = Standing::of(book, gpus);
    let waiting: Vec<[Holder; 2]> = (book.queue.in_order().into_iter())
        .map(|waiter| Holder::both(waiter.asked.request.team.as_deref(), waiter.uid))
        .collect();
    let mut holders: BTreeSet<&Holder> = standing.holders().chain(waiting.iter().flatten()).collect();
    let listed = listed(quota);
    holders.extend(&listed);
    holders.into_iter().map(|holder| view(holder, quota, &standing, &waiting)).collect()
}

/// Those that the configuration bounds by name.
fn listed(quota: &Quota) -> Vec<Holder> {
    let teams = quota.team.keys().cloned().map(Holder::Team);
    let without = (!Holder::NoTeam.bound(quota).1.is_none()).then_some(Holder::NoTeam);
    let users = quota.user.keys().map(|uid| Holder::User(uid.0));
    teams.chain(without).chain(users).collect()
}

fn view(holder: &Holder, quota: &Quota, standing: &Standing, waiting: &[[Holder; 2]]) -> QuotaView {
    let (table, ceiling) = holder.bound(quota);
    let (of, team, uid) = match holder {
        Holder::Team(team) => (QuotaOf::Team, Some(team.clone()), None),
        Holder::NoTeam => (QuotaOf::NoTeam, None, None),
        Holder::User(uid) => (QuotaOf::User, None, Some(*uid)),
    };
    let held = standing.held(holder);
    let Ceiling { share_permille, memory_bytes, leases } = ceiling;
    QuotaView {
        of,
        team,
        uid,
        table: (!ceiling.is_none()).then_some(table),
        held: QuotaHeld { share_permille: held.share_permille, memory_bytes: held.memory_bytes, leases: held.leases },
        allowed: QuotaAllowed { share_permille, memory_bytes, leases },
        waiting: waiting.iter().filter(|both| both.contains(holder)).count() as u32,
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
        let shown = views(&quota, &book, &[]);
        let name = |view: &QuotaView| view.team.clone().or(view.uid.map(|uid| uid.to_string())).unwrap_or_default();
        assert_eq!(shown.iter().map(name).collect::<Vec<_>>(), ["idle", "other", "vision", "0", "1000"]);
        let [idle, other, vision, root, user] = shown.as_slice() else { panic!("{shown:?}") };
        assert_eq!((idle.held, idle.allowed.leases), (QuotaHeld::default(), Some(1)));
        assert_eq!((other.table.as_deref(), other.allowed.memory_bytes), (Some("quota.default_team"), Some(8 << 30)));
        assert_eq!((vision.held.share_permille, vision.allowed.share_permille), (300, Some(2000)));
        assert_eq!((vision.allowed.memory_bytes, vision.waiting), (None, 0), "nothing of the default");
        assert_eq!((root.held.leases, root.table.as_deref()), (2, None));
        assert_eq!((user.held.leases, user.allowed.leases), (0, Some(3)));
        assert!(views(&Quota::default(), &Book::default(), &[]).is_empty());
    }
}
