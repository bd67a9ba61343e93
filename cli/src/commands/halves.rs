//! A question of the ledger whose answer would be too long, or take too long: asked of one half of its time after the other.

use super::days::until_of;
use gpool_protocol::{ErrorBody, is_too_much};

/// Less than a minute nobody can ask for.
const MINUTE_S: u64 = 60;

/// The answers to `query`, a time as [`super::days::queries`] has it, in the order of their times; one where that can be answered at once.
///
/// # Errors
/// It is refused for another reason, or there is too much in one minute.
pub fn in_halves<A>(
    query: &str,
    now_s: u64,
    ask: &mut dyn FnMut(&str) -> Result<A, ErrorBody>,
) -> Result<Vec<A>, ErrorBody> {
    match ask(query) {
        Err(refusal) if is_too_much(&refusal) => {
            let Some([first, second]) = halves(query, now_s) else { return Err(refusal) };
            let mut answers = in_halves(&first, now_s, ask)?;
            answers.extend(in_halves(&second, now_s, ask)?);
            Ok(answers)
        }
        answer => Ok(vec![answer?]),
    }
}

/// Both halves of a time, in whole minutes.
fn halves(query: &str, now_s: u64) -> Option<[String; 2]> {
    let since: u64 = query.strip_prefix("since=")?.split('&').next()?.parse().ok()?;
    let since = since - since % MINUTE_S;
    // This minute is in what has no end.
    let until = until_of(query).unwrap_or(now_s - now_s % MINUTE_S + MINUTE_S);
    let middle = since + until.checked_sub(since)? / 2;
    let middle = middle - middle % MINUTE_S;
    let end = until_of(query).map(|until| format!("&until={until}")).unwrap_or_default();
    (middle > since).then(|| [format!("since={since}&until={middle}"), format!("since={middle}{end}")])
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::ErrorCode;

    fn refusal(message: &str) -> ErrorBody {
        ErrorBody::new(ErrorCode::MessageInvalid, message, "ask for less")
    }

    #[test]
    fn what_is_too_much_is_asked_for_in_halves_down_to_a_minute() {
        let mut asked = Vec::new();
        let answers = in_halves("since=60&until=420", 9999, &mut |query| {
            asked.push(query.to_owned());
            let span = until_of(query).unwrap() - halves_since(query);
            if span > 120 { Err(refusal("that is more than 10000 rows")) } else { Ok(query.to_owned()) }
        });
        let parts = ["since=60&until=120", "since=120&until=240", "since=240&until=300", "since=300&until=420"];
        assert_eq!(answers.unwrap(), parts);
        assert_eq!(asked.len(), 7, "{asked:?}");
        for message in ["that is more than 10000 rows", "adding that up takes longer than 7 s"] {
            let all: Result<Vec<()>, _> = in_halves("since=60&until=300", 9999, &mut |_| Err(refusal(message)));
            assert_eq!(all.unwrap_err().message, message);
        }
    }

    fn halves_since(query: &str) -> u64 {
        query["since=".len()..].split('&').next().unwrap().parse().unwrap()
    }

    #[test]
    fn what_is_wrong_otherwise_is_asked_once_and_what_goes_on_until_now_has_no_end() {
        let mut count = 0;
        let wrong: Result<Vec<()>, _> = in_halves("since=0&until=600", 9999, &mut |_| {
            count += 1;
            Err(refusal("user=alice is nothing that the ledger is asked by"))
        });
        assert!(wrong.is_err() && count == 1);
        assert_eq!(halves("since=600", 1210), Some(["since=600&until=900".into(), "since=900".into()]));
        assert_eq!(halves("since=1200", 1210), None);
        assert_eq!(halves("since=1200&until=60", 1210), None, "the supervisor says what is wrong");
    }
}
