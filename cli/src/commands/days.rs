//! The ledger asked for a day at a time, so that no answer takes longer than a day's, however long the whole is.

use crate::exit::Failure;
use gpool_protocol::{Client, Usage, UsageBy};

const DAY_S: u64 = 86_400;
const MINUTE_S: u64 = 60;

/// The days from `since` until `until`, or else until now; one question as it stands where that is no time at all, which the
/// supervisor says.
pub fn queries(since: u64, until: Option<u64>, now_s: u64) -> Vec<String> {
    // In whole minutes, as they are answered, and not beyond this one: there is nothing yet.
    let until = until.map(|until| until - until % MINUTE_S).filter(|until| *until <= now_s);
    let end = until.unwrap_or(now_s.saturating_add(1));
    let (mut begin, mut queries) = (since, Vec::new());
    loop {
        let next = begin - begin % DAY_S + DAY_S;
        if next >= end {
            let until = until.map(|until| format!("&until={until}")).unwrap_or_default();
            queries.push(format!("since={begin}{until}"));
            return queries;
        }
        queries.push(format!("since={begin}&until={next}"));
        begin = next;
    }
}

/// Where a question ends, if that is said.
pub fn until_of(query: &str) -> Option<u64> {
    query.split_once("&until=")?.1.parse().ok()
}

/// The sums of a time by `by`: day by day where it is longer than a day, or each day is wanted. `filters` stand behind the question.
pub fn usage(
    client: &Client,
    (by, is_each_day): (UsageBy, bool),
    filters: &str,
    (since, until): (u64, Option<u64>),
    now_s: u64,
) -> Result<Vec<Usage>, Failure> {
    let queries = match until.unwrap_or(now_s).saturating_sub(since) > DAY_S || is_each_day {
        true => queries(since, until, now_s),
        false => vec![whole(since, until)],
    };
    in_parts(queries, since, |query| Ok(client.get(&format!("/v1/usage?by={}&{query}{filters}", by.word()))?))
}

fn whole(since: u64, until: Option<u64>) -> String {
    let until = until.map(|until| format!("&until={until}")).unwrap_or_default();
    format!("since={since}{until}")
}

/// Asks for one part after the other: a lease that had something of an earlier one is counted there. Before the ledger there is nothing.
fn in_parts(
    queries: Vec<String>,
    since: u64,
    mut ask: impl FnMut(&str) -> Result<Usage, Failure>,
) -> Result<Vec<Usage>, Failure> {
    let mut parts: Vec<Usage> = Vec::new();
    for query in queries {
        let Some(first) = parts.first() else {
            parts.push(ask(&query)?);
            continue;
        };
        let begins = first.begins_unix_s.unwrap_or(0);
        if until_of(&query).is_none_or(|until| until > begins) {
            parts.push(ask(&format!("{query}&counted_since={since}"))?);
        }
    }
    Ok(parts)
}

/// What parts that follow one another come to.
pub fn sum(parts: Vec<Usage>) -> Usage {
    let mut parts = parts.into_iter();
    let mut all = parts.next().unwrap_or_default();
    parts.for_each(|part| all.add_later(part));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::UsageRow;

    #[test]
    fn what_is_asked_for_is_asked_for_day_by_day() {
        let day = |number: u64| number * DAY_S;
        assert_eq!(
            queries(day(3) + 60, Some(day(4) + 60), day(9)),
            ["since=259260&until=345600", "since=345600&until=345660"]
        );
        assert_eq!(queries(day(3), Some(day(4)), day(9)), ["since=259200&until=345600"]);
        assert_eq!(queries(day(9), None, day(9) + 5), ["since=777600"]);
        assert_eq!(queries(day(8) + 60, None, day(9)), ["since=691260&until=777600", "since=777600"]);
        assert_eq!(
            queries(day(9), Some(day(3)), day(9)),
            ["since=777600&until=259200"],
            "the supervisor says what is wrong"
        );
        let into_a_day = queries(day(3), Some(day(4) + 30), day(9));
        assert_eq!(into_a_day, ["since=259200&until=345600"], "a part of a minute is none");
        assert_eq!(
            queries(day(9), Some(day(9999)), day(9) + 5),
            ["since=777600"],
            "of what is to come there is nothing"
        );
        assert_eq!(until_of("since=1&until=2"), Some(2));
        assert_eq!((whole(940, Some(990)), whole(940, None)), ("since=940&until=990".into(), "since=940".into()));
    }

    #[test]
    fn days_come_to_the_whole_and_those_before_the_ledger_are_not_asked_for() {
        let mut asked = Vec::new();
        let ask = |query: &str| {
            asked.push(query.to_owned());
            let row =
                UsageRow { key: "red".into(), leases: 3, leases_before: 2, used_gpu_ns: 5, ..UsageRow::default() };
            let first = UsageRow { leases_before: 0, ..row.clone() };
            let row = if query.contains("counted_since") { row } else { first };
            let (rows, total) = (vec![row.clone()], row);
            Ok(Usage { begins_unix_s: Some(4 * DAY_S + 60), rows, total, ..Usage::default() })
        };
        let parts = in_parts(queries(2 * DAY_S, None, 5 * DAY_S + 5), 2 * DAY_S, ask);
        let Ok(parts) = parts else { panic!() };
        assert_eq!(
            asked,
            [
                "since=172800&until=259200",
                "since=345600&until=432000&counted_since=172800",
                "since=432000&counted_since=172800"
            ]
        );
        let all = sum(parts);
        assert_eq!((all.rows.len(), all.rows[0].leases, all.rows[0].leases_before), (1, 5, 0));
        assert_eq!((all.rows[0].used_gpu_ns, all.total.used_gpu_ns, all.total.leases), (15, 15, 5));
    }
}
