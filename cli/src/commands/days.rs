//! The ledger asked for a day at a time, so that no answer takes longer than a day's, however long the whole is.

use super::halves::in_halves;
use crate::exit::Failure;
use gpool_protocol::{Client, ErrorBody, Usage, UsageBy};
use std::collections::HashMap;

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
    let ask = |query: &str| client.get(&format!("/v1/usage?by={}&{query}{filters}", by.word()));
    in_parts(queries, (since, now_s), is_each_day, ask)
}

fn whole(since: u64, until: Option<u64>) -> String {
    let until = until.map(|until| format!("&until={until}")).unwrap_or_default();
    format!("since={since}{until}")
}

/// Asks for one part after the other: a lease that had something of an earlier one is counted there. Before the ledger there is nothing.
/// A part with too many rows for one answer is put together of answers for less.
fn in_parts(
    queries: Vec<String>,
    (since, now_s): (u64, u64),
    is_each_day: bool,
    mut ask: impl FnMut(&str) -> Result<Usage, ErrorBody>,
) -> Result<Vec<Usage>, Failure> {
    let mut is_first = true;
    let mut ask_once = |query: &str| {
        let counted = if is_first { String::new() } else { format!("&counted_since={since}") };
        let answer = ask(&format!("{query}{counted}"))?;
        is_first = false;
        Ok(answer)
    };
    let mut parts: Vec<Usage> = Vec::new();
    for query in queries {
        let begins = parts.first().and_then(|first| first.begins_unix_s).unwrap_or(0);
        if parts.is_empty() || until_of(&query).is_none_or(|until| until > begins) {
            parts.push(joined(in_halves(&query, now_s, &mut ask_once)?, is_each_day));
        }
    }
    Ok(parts)
}

/// The parts of a day as one. Where each day is for itself, the leases of a row are at least as many as had something in one part of it:
/// those of before that day are not counted in the parts behind the first.
fn joined(parts: Vec<Usage>, is_each_day: bool) -> Usage {
    let mut most: HashMap<String, u64> = HashMap::new();
    if is_each_day && parts.len() > 1 {
        for row in parts.iter().flat_map(|part| &part.rows) {
            let most = most.entry(row.key.clone()).or_default();
            *most = row.leases.max(*most);
        }
    }
    let mut all = sum(parts);
    for row in &mut all.rows {
        row.leases = row.leases.max(most.get(&row.key).copied().unwrap_or(0));
    }
    all
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
    use gpool_protocol::{ErrorCode, UsageRow};

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
        let parts = in_parts(queries(2 * DAY_S, None, 5 * DAY_S + 5), (2 * DAY_S, 5 * DAY_S + 5), false, ask);
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

    #[test]
    fn a_day_with_too_many_rows_is_put_together_of_its_halves() {
        let mut asked = Vec::new();
        let ask = |query: &str| {
            asked.push(query.to_owned());
            if query.starts_with("since=86400&until=172800") {
                return Err(ErrorBody::new(ErrorCode::MessageInvalid, "that is more than 10000 rows", ""));
            }
            // The same lease, all the time.
            let leases_before = u64::from(query.contains("counted_since"));
            let row = UsageRow { key: "01".into(), leases: 1, leases_before, used_gpu_ns: 5, ..UsageRow::default() };
            Ok(Usage { rows: vec![row.clone()], total: row, ..Usage::default() })
        };
        let Ok(parts) = in_parts(queries(0, Some(2 * DAY_S), 9 * DAY_S), (0, 9 * DAY_S), true, ask) else { panic!() };
        assert_eq!(
            asked,
            [
                "since=0&until=86400",
                "since=86400&until=172800&counted_since=0",
                "since=86400&until=129600&counted_since=0",
                "since=129600&until=172800&counted_since=0"
            ]
        );
        assert_eq!(parts.len(), 2, "a day is one");
        assert_eq!((parts[1].rows[0].leases, parts[1].rows[0].used_gpu_ns), (1, 10));
        assert_eq!(sum(parts).total.leases, 1);
    }
}
