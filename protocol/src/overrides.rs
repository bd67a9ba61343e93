//! Emergencies: a team or a user for whom no quota holds for a while, and who stands first in the queue.

use crate::drain::REASON_CHARACTERS;
use crate::error::{ErrorBody, ErrorCode};
use crate::quantity::format_seconds;
use crate::request::parse_payer;
use serde::{Deserialize, Serialize};

/// The longest one, in seconds: whoever needs it for longer says so again, or has his quota raised.
pub const OVERRIDE_SECONDS_MAX: u64 = 7 * 86_400;

/// Whom an override is for: one of both.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OverrideOf {
    /// The containers that name this team.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    /// Those that this user starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
}

impl OverrideOf {
    /// As people read it: `team vision`, `user 1000`.
    #[must_use]
    pub fn text(&self) -> String {
        match (&self.team, self.user) {
            (Some(team), _) => format!("team {team}"),
            (None, Some(user)) => format!("user {user}"),
            (None, None) => "nobody".to_owned(),
        }
    }

    /// Whether it is for one team or one user.
    ///
    /// # Errors
    /// It is for none or for both.
    pub fn check(&self) -> Result<(), ErrorBody> {
        if let Some(Err(cause)) = self.team.as_deref().map(|team| parse_payer(team, "a team")) {
            return Err(ErrorBody::new(ErrorCode::RequestInvalid, "the name of a team is not valid", cause));
        }
        if self.team.is_some() != self.user.is_some() {
            return Ok(());
        }
        Err(ErrorBody::new(
            ErrorCode::RequestInvalid,
            "an override is for one team or for one user",
            "give team or user, and not both",
        ))
    }
}

/// An override that is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// For whom.
    #[serde(flatten)]
    pub of: OverrideOf,
    /// Since when: Unix time, milliseconds.
    pub since_unix_ms: u64,
    /// Until when.
    pub until_unix_ms: u64,
    /// The user who began it.
    pub uid: u32,
    /// Why, in that user's words.
    pub reason: String,
}

/// Asks for one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideRequest {
    /// For whom.
    #[serde(flatten)]
    pub of: OverrideOf,
    /// For how long from now on, in seconds.
    pub seconds: u64,
    /// Why, for all who ask later.
    pub reason: String,
}

impl OverrideRequest {
    /// Whether it can be kept and shown.
    ///
    /// # Errors
    /// It is for nobody, too long or for no time, or says not why in a line. What it says is not repeated.
    pub fn check(&self) -> Result<(), ErrorBody> {
        let wrong = |what: String, remedy: &str| Err(ErrorBody::new(ErrorCode::RequestInvalid, what, remedy));
        self.of.check()?;
        if !(1..=OVERRIDE_SECONDS_MAX).contains(&self.seconds) {
            let longest = format_seconds(OVERRIDE_SECONDS_MAX);
            return wrong(
                format!("an override lasts for a second at least, and for {longest} at most"),
                "give a shorter time, and begin it again when it is over, or raise the quota",
            );
        }
        let reason = self.reason.trim();
        if reason.is_empty() {
            return wrong(
                "an override has a reason, and none was given".to_owned(),
                "say why, for who reads the audit",
            );
        }
        if reason.chars().any(char::is_control) || reason.chars().count() > REASON_CHARACTERS {
            return wrong("the reason is no short line".to_owned(), "give one of 200 characters at most");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_is_for_one_for_a_while_and_has_a_reason() {
        let asked = |team: Option<&str>, user, seconds, reason: &str| {
            let of = OverrideOf { team: team.map(str::to_owned), user };
            OverrideRequest { of, seconds, reason: reason.to_owned() }.check().map_err(|error| error.message)
        };
        assert_eq!(asked(Some("a"), None, 60, "incident 7"), Ok(()));
        assert_eq!(asked(None, Some(0), OVERRIDE_SECONDS_MAX, "x"), Ok(()));
        for (outcome, told) in [
            (asked(None, None, 60, "x"), "one team or for one user"),
            (asked(Some("a\tb"), None, 60, "x"), "the name of a team is not valid"),
            (asked(Some("a"), Some(1), 60, "x"), "one team or for one user"),
            (asked(Some("a"), None, 0, "x"), "a second at least"),
            (asked(Some("a"), None, OVERRIDE_SECONDS_MAX + 1, "x"), "for 7d at most"),
            (asked(Some("a"), None, 60, " "), "none was given"),
            (asked(Some("a"), None, 60, "a\nb"), "no short line"),
            (asked(Some("a"), None, 60, &"x".repeat(201)), "no short line"),
        ] {
            let message = outcome.unwrap_err();
            assert!(message.contains(told), "{message}");
        }
        let text = r#"{"team":"a","since_unix_ms":1,"until_unix_ms":2,"uid":0,"reason":"x"}"#;
        assert_eq!(serde_json::to_string(&serde_json::from_str::<Override>(text).unwrap()).unwrap(), text);
    }
}
